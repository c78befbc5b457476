//! The values that apply, and where each comes from.

use clap::ArgMatches;
use clap::parser::ValueSource;

use super::file::ConfigFile;
use super::keys::{KEYS, Key};
use super::values::{Kind, settings_command};
use crate::storage::PostgresSettings;

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueOrigin {
    /// Built in.
    Default,
    /// The configuration file, in this line.
    File(usize),
    /// The environment variable of this name.
    Variable(String),
    CommandLine,
}

/// The value of a key that applies.
#[derive(Clone, Debug)]
pub struct Effective {
    pub key: &'static Key,
    /// `None` if there is no value, not even a default.
    pub value: Option<serde_json::Value>,
    pub origin: ValueOrigin,
}

/// The text in place of a value that contains a password.
const HIDDEN: &str = "(set)";

/// The values of all keys in `matches`, which are of a command with all arguments of `serve`. `file`: the file whose values
/// are the arguments' defaults.
pub fn effective(matches: &ArgMatches, file: Option<&ConfigFile>) -> Vec<Effective> {
    let command = settings_command();
    let of = |key: &'static Key| {
        let argument = command.get_arguments().find(|one| one.get_id() == key.argument)?;
        let texts = matches.try_get_raw(key.argument).ok()?.into_iter().flatten();
        let texts: Vec<String> = texts.map(|text| text.to_string_lossy().into_owned()).collect();
        let variable = argument.get_env().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let origin = match (matches.value_source(key.argument), file.and_then(|file| file.setting(key))) {
            (Some(ValueSource::CommandLine), _) => ValueOrigin::CommandLine,
            (Some(ValueSource::EnvVariable), _) => ValueOrigin::Variable(variable),
            (_, Some(setting)) => ValueOrigin::File(setting.line),
            (_, None) => ValueOrigin::Default,
        };
        Some(Effective { key, value: json(key, Kind::of(argument), texts), origin })
    };
    KEYS.iter().filter_map(of).collect()
}

/// The value as the configuration file has it.
fn json(key: &Key, kind: Kind, texts: Vec<String>) -> Option<serde_json::Value> {
    match kind {
        Kind::List if texts.is_empty() => None,
        Kind::List => Some(texts.into()),
        Kind::Flag => {
            let is_on = texts.first().is_some_and(|text| text == "true");
            Some((is_on != key.opposite.is_some()).into())
        }
        Kind::Single => {
            let text = texts.into_iter().next()?;
            let text = if key.argument == "store" && has_secret(&text) { HIDDEN.to_owned() } else { text };
            Some(text.parse::<u64>().map_or_else(|_| text.into(), Into::into))
        }
    }
}

/// True if the URL of a database may contain a password. Such a URL is refused, but might be shown before that.
fn has_secret(url: &str) -> bool {
    PostgresSettings::parse(url, None).is_err()
}
