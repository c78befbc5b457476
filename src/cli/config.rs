//! `outpost config`: checks, shows and creates the configuration file.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{ArgMatches, Subcommand};
use serde_json::{Map, Value, json};

use super::output::{Outcome, counted};
use crate::config::{
    self, Config, ConfigFile, DEFAULT_FILE, DataPaths, Effective, ServeArgs, ValueOrigin, effective, settings_command,
    settings_from, with_defaults,
};

#[derive(Subcommand)]
pub(super) enum ConfigCommand {
    /// Check a configuration file, with the environment variables of this shell
    Check {
        /// [default: the file that other commands read]
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Print the settings that apply, and where each comes from; takes the options of `outpost serve`
    Show(Box<ShowArgs>),
    /// Print a configuration file with all keys in comments
    Init,
}

#[derive(clap::Args)]
pub(super) struct ShowArgs {
    /// Print the built-in defaults, too
    #[arg(long)]
    all: bool,
    /// Print JSON instead of TOML
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    serve: ServeArgs,
}

/// `chosen`: the value of `--config`. `matches`: those of the whole command line.
pub(super) fn run(
    command: ConfigCommand,
    chosen: Option<&Path>,
    paths: DataPaths,
    matches: &ArgMatches,
    file: Option<&ConfigFile>,
    out: &mut dyn Write,
) -> Outcome {
    match command {
        ConfigCommand::Check { file } => check(file.as_deref().or(chosen), out),
        ConfigCommand::Show(args) => {
            let shown = matches.subcommand().and_then(|(_, matches)| matches.subcommand());
            let values = shown.map(|(_, matches)| effective(matches, file)).unwrap_or_default();
            show(&args, &values, file, out)?;
            // After the values, which help to find the cause.
            Config::new(paths, &args.serve)?;
            Ok(())
        }
        ConfigCommand::Init => Ok(out.write_all(config::template().as_bytes())?),
    }
}

fn check(chosen: Option<&Path>, out: &mut dyn Write) -> Outcome {
    let Some(file) = config::load(chosen)? else {
        return Err(
            format!("there is no configuration file: {DEFAULT_FILE} does not exist, and --config names none").into()
        );
    };
    let path = file.path.display();
    let matches = with_defaults(settings_command(), &file)
        .try_get_matches_from(["outpost"])
        .map_err(|error| error.to_string().trim_start_matches("error: ").trim_end().to_owned())?;
    for Effective { key, origin, .. } in effective(&matches, Some(&file)) {
        if let (Some(setting), ValueOrigin::Variable(variable)) = (file.setting(key), origin) {
            writeln!(out, "{path}:{}: {} has no effect here: {variable} is set", setting.line, key.name)?;
        }
    }
    let (paths, args) = settings_from(&matches)?;
    Config::new(paths, &args).map_err(|error| format!("{path}: {error}"))?;
    writeln!(out, "{path} is valid: {}", counted(file.settings.len(), "setting"))?;
    Ok(())
}

fn show(args: &ShowArgs, values: &[Effective], file: Option<&ConfigFile>, out: &mut dyn Write) -> Outcome {
    let is_shown = |one: &&Effective| args.all || one.origin != ValueOrigin::Default;
    let values: Vec<&Effective> = values.iter().filter(is_shown).collect();
    match args.json {
        true => Ok(writeln!(out, "{:#}", as_json(&values, file))?),
        false if values.is_empty() => Ok(writeln!(out, "# Every setting has its default; --all prints them.")?),
        false => show_toml(&values, file, out),
    }
}

fn show_toml(values: &[&Effective], file: Option<&ConfigFile>, out: &mut dyn Write) -> Outcome {
    let mut section = "";
    for Effective { key, value, origin } in values {
        let (of, name) = key.parts();
        if of != section {
            let gap = if section.is_empty() { "" } else { "\n" };
            writeln!(out, "{gap}[{of}]")?;
            section = of;
        }
        let origin = match (origin, file) {
            (ValueOrigin::Default, _) => "default".to_owned(),
            (ValueOrigin::File(line), Some(file)) => format!("from {}:{line}", file.path.display()),
            (ValueOrigin::File(line), None) => format!("from line {line}"),
            (ValueOrigin::Variable(variable), _) => format!("from {variable}"),
            (ValueOrigin::CommandLine, _) => "from the command line".to_owned(),
        };
        match value {
            // JSON's numbers, booleans and lists are TOML's; of its texts, those without control characters.
            Some(Value::String(text)) => writeln!(out, "{name} = {} # {origin}", toml::Value::from(text.as_str()))?,
            Some(value) => writeln!(out, "{name} = {value} # {origin}")?,
            None => writeln!(out, "#{name} is not set # {origin}")?,
        }
    }
    Ok(())
}

fn as_json(values: &[&Effective], file: Option<&ConfigFile>) -> Value {
    let of = |one: &&Effective| {
        let origin = match &one.origin {
            ValueOrigin::Default => json!({ "origin": "default" }),
            ValueOrigin::File(line) => json!({ "origin": "file", "file": file.map(|file| &file.path), "line": line }),
            ValueOrigin::Variable(variable) => json!({ "origin": "environment", "variable": variable }),
            ValueOrigin::CommandLine => json!({ "origin": "command_line" }),
        };
        let mut fields = Map::new();
        fields.insert("value".to_owned(), one.value.clone().unwrap_or_default());
        fields.extend(origin.as_object().cloned().unwrap_or_default());
        (one.key.name.to_owned(), Value::Object(fields))
    };
    Value::Object(values.iter().map(of).collect())
}
