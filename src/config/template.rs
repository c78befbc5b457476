//! The configuration file with all keys in comments, as `outpost config init` prints it.

use clap::Arg;

use super::keys::{KEYS, Key};
use super::values::{Kind, settings_command};

const HEAD: &str = "\
# Configuration of Outpost. Remove the '#' in front of a key to set it. 'outpost config check' verifies this file,
# 'outpost config show' prints the values that apply. Options of the command line and environment variables take
# precedence over this file.
";
/// Characters of a line.
const WIDTH: usize = 118;
/// The note in an argument's description about its use on the command line.
const REPETITION: &str = " (may be repeated)";

/// The text of the template. It is a valid configuration file without any setting, and stays valid if the `#` in front of
/// every key is removed.
pub fn template() -> String {
    let command = settings_command();
    let mut text = HEAD.to_owned();
    let mut section = "";
    for key in KEYS {
        let Some(argument) = command.get_arguments().find(|one| one.get_id() == key.argument) else { continue };
        let (of, name) = key.parts();
        if of != section {
            section = of;
            text += &format!("\n[{section}]\n");
        }
        for line in wrapped(&description(key, argument)) {
            text += &format!("# {line}\n");
        }
        text += &format!("#{name} = {}\n", value(key, argument));
    }
    text
}

fn description(key: &Key, argument: &Arg) -> String {
    let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
    key.opposite.map_or_else(|| help.replace(REPETITION, ""), ToOwned::to_owned)
}

/// The default, or the example of a key without one, in TOML.
fn value(key: &Key, argument: &Arg) -> String {
    if let Some(example) = key.example {
        return example.to_owned();
    }
    let default = argument.get_default_values().first().map(|text| text.to_string_lossy()).unwrap_or_default();
    match Kind::of(argument) {
        Kind::Flag => key.opposite.is_some().to_string(),
        _ if default.parse::<u64>().is_ok() => default.into_owned(),
        _ => toml::Value::String(default.into_owned()).to_string(),
    }
}

fn wrapped(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.is_empty() => word.clone_into(line),
            Some(line) if line.chars().count() + 1 + word.chars().count() <= WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
