//! Turns values of TOML into texts of arguments, and checks them with the parsers of the arguments.

use clap::builder::ValueParser;
use clap::error::{ContextKind, ContextValue};
use clap::{Arg, ArgAction, ArgMatches, CommandFactory, FromArgMatches, Parser};
use toml::de::{DeInteger, DeValue};

use super::arguments::{DataPaths, ServeArgs};
use super::keys::Key;
use crate::display::one_of;
use crate::toml_text::kind_of;

/// All arguments that have a key.
#[derive(Parser)]
#[command(name = "outpost", disable_help_flag = true)]
struct Settings {
    #[command(flatten)]
    paths: DataPaths,
    #[command(flatten)]
    serve: ServeArgs,
}

/// A command with all arguments that have a key, and nothing else.
pub fn settings_command() -> clap::Command {
    Settings::command()
}

/// The arguments in the matches of [`settings_command`].
///
/// # Errors
/// If an argument is missing in `matches`.
pub fn settings_from(matches: &ArgMatches) -> Result<(DataPaths, ServeArgs), clap::Error> {
    Settings::from_arg_matches(matches).map(|Settings { paths, serve }| (paths, serve))
}

/// How a key is written in TOML.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `true` or `false`.
    Flag,
    /// A text or a number.
    Single,
    /// A list of texts.
    List,
}

impl Kind {
    pub(super) fn of(argument: &Arg) -> Self {
        match argument.get_action() {
            ArgAction::SetTrue => Self::Flag,
            ArgAction::Append => Self::List,
            _ => Self::Single,
        }
    }

    fn wanted(self) -> &'static str {
        match self {
            Self::Flag => "write true or false",
            Self::Single => "write one text or number",
            Self::List => "write a list of texts, such as [\"a\", \"b\"]",
        }
    }
}

/// The text of a value as the argument takes it; the items of a list are joined by commas.
///
/// # Errors
/// What is wrong with the value, and what to write.
pub(super) fn argument_text(key: &Key, argument: &Arg, value: &DeValue<'_>) -> Result<String, String> {
    let kind = Kind::of(argument);
    let text = match (kind, value) {
        (Kind::Flag, DeValue::Boolean(on)) => return Ok((*on != key.opposite.is_some()).to_string()),
        (Kind::Single, value) => scalar(value),
        (Kind::List, DeValue::Array(items)) => {
            let items: Option<Vec<String>> = items.iter().map(|item| scalar(item.get_ref())).collect();
            if let Some(item) = items.iter().flatten().find(|item| item.is_empty() || item.contains(',')) {
                return Err(format!("'{item}' is not one item; write each item as a text of its own"));
            }
            items.map(|items| items.join(","))
        }
        _ => None,
    };
    let text = text.ok_or_else(|| format!("a {} is not accepted here; {}", kind_of(value), kind.wanted()))?;
    match text.is_empty() && kind == Kind::List {
        true => Ok(text),
        false => check(argument, &text).map(|()| text),
    }
}

fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => Some(decimal(number)),
        _ => None,
    }
}

/// An integer in the notation that arguments take.
fn decimal(number: &DeInteger<'_>) -> String {
    let value = i128::from_str_radix(number.as_str(), number.radix());
    value.map_or_else(|_| number.to_string(), |value| value.to_string())
}

/// Parses `text` as the argument does.
fn check(argument: &Arg, text: &str) -> Result<(), String> {
    let Some(name) = argument.get_long() else { return Ok(()) };
    if text.is_empty() {
        return Err("the text is empty; write a value, or leave the key out".to_owned());
    }
    let command = clap::Command::new("value").no_binary_name(true).disable_help_flag(true);
    let alone = command.arg(argument.clone()).try_get_matches_from([format!("--{name}={text}")]);
    alone.map(drop).map_err(|error| reason(&error, argument.get_value_parser(), text))
}

/// The reason that a parser gave, without clap's frame of it.
fn reason(error: &clap::Error, parser: &ValueParser, text: &str) -> String {
    if let Some(ContextValue::String(found)) = error.get(ContextKind::InvalidValue)
        && let Some(choices) = parser.possible_values()
    {
        let names: Vec<String> = choices.map(|choice| choice.get_name().to_owned()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        return format!("'{found}' is not known; write {}", one_of(&names));
    }
    match std::error::Error::source(error).map(ToString::to_string) {
        Some(cause) if cause.contains(text) => cause,
        Some(cause) => format!("'{text}' is not accepted: {cause}"),
        None => format!("'{text}' is not accepted"),
    }
}

#[cfg(test)]
mod tests {
    use toml::de::DeValue;

    use super::{Key, argument_text, settings_command};

    fn read(name: &str, toml: &str) -> Result<String, String> {
        let key = Key::find(name).unwrap();
        let command = settings_command();
        let argument = command.get_arguments().find(|one| one.get_id() == key.argument).unwrap();
        argument_text(key, argument, DeValue::parse(toml).unwrap().get_ref())
    }

    #[test]
    fn values_become_texts_of_arguments() {
        for (name, toml, text) in [
            ("server.listen", "'0.0.0.0:80'", "0.0.0.0:80"),
            ("server.listen", "8_080", "8080"),
            ("compute.threads", "0x10", "16"),
            ("compute.memory", "'6GiB'", "6GiB"),
            ("server.open_metrics", "true", "true"),
            ("server.pull_starter", "false", "true"),
            ("compute.speculation", "true", "false"),
            ("network.allowed_hosts", "['a.example.org', 'b.example.org']", "a.example.org,b.example.org"),
            ("network.allowed_hosts", "[]", ""),
            ("server.data", "'-x y'", "-x y"),
        ] {
            assert_eq!(read(name, toml).as_deref(), Ok(text), "{name} = {toml}");
        }
    }

    #[test]
    fn wrong_values_are_refused_with_a_remedy() {
        for (name, toml, said) in [
            ("compute.memory", "'6 apples'", "'6 apples' is not a size; write for example 6GiB"),
            ("compute.threads", "0", "1..=1024"),
            ("compute.threads", "'four'", "'four' is not accepted: invalid digit"),
            ("compute.threads", "4.5", "a number with a fraction is not accepted here; write one text or number"),
            ("server.open_metrics", "'yes'", "write true or false"),
            ("log.format", "'xml'", "'xml' is not known; write text or json"),
            ("log.level", "'loud'", "write error, warn, info, debug or trace"),
            ("network.allowed_hosts", "'a.example.org'", "write a list of texts"),
            ("network.allowed_hosts", "['a,b']", "'a,b' is not one item"),
            ("network.allowed_hosts", "['a', 'http://b']", "'http://b' is not a host name; write for example"),
            ("network.cors_origins", "['example.org']", "example.org"),
            ("network.trusted_proxies", "['ten']", "ten"),
            ("server.listen", "''", "the text is empty"),
            ("server.listen", "2026-01-01", "a date or time is not accepted here"),
        ] {
            let error = read(name, toml).unwrap_err();
            assert!(error.contains(said), "{name} = {toml}: {error}");
        }
    }
}
