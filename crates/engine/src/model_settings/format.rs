//! The formats of `models.toml` and `model.toml`.

use std::collections::BTreeMap;
use std::sync::Arc;

use toml::Spanned;
use toml::de::DeTable;

use super::reader::{Reader, Value, check_name};
use super::{FileSettings, GenerationDefaults, LATEST, ModelSettings, TUNED_PREFIX};
use crate::moderation::ModerationSettings;
use crate::text::sampler::parameters::{SAMPLING_PARAMETERS, SamplingParameter};
use outpost_common::toml_text;

/// Max aliases of `models.toml`, and of a `model.toml`.
const MAX_ALIASES: usize = 1024;
const MAX_ALIASES_OF_MODEL: usize = 64;
/// Max models with settings in `models.toml`.
const MAX_MODELS: usize = 1024;

/// Max labels of a model with a meaning.
const MAX_LABELS: usize = 1024;

const KEYS: &[&str] = &["aliases", "models", "unload_after", "unload_on_request"];
const KEYS_OF_MODEL: &[&str] = &["pinned", "unload_after", "unload_on_request", "system", "defaults", "moderation"];
const KEYS_OF_FILE: &[&str] =
    &["aliases", "pinned", "unload_after", "unload_on_request", "system", "defaults", "moderation", "from", "license"];
/// The keys of a model.toml that are not for a derived model: its memory is that of the model for which it stands.
const KEYS_OF_INSTALLED: &[&str] = &["aliases", "pinned", "unload_after", "unload_on_request"];
const KEYS_OF_MODERATION: &[&str] = &["threshold", "labels"];
/// The errors of a file, with their lines.
pub type Errors = Vec<(usize, String)>;

/// Reads a `models.toml`.
pub fn all_models(text: &str) -> Result<FileSettings, Errors> {
    let table = toml_text::parse(text)?;
    let (mut reader, mut file) = (Reader::new(text), FileSettings::default());
    for (key, value) in table.get_ref() {
        match &**key.get_ref() {
            "unload_after" => file.unload_after = reader.unload_after("unload_after", value),
            "unload_on_request" => file.unload_on_request = reader.flag("unload_on_request", value),
            "aliases" => file.aliases = aliases(&mut reader, value),
            "models" => file.models = models(&mut reader, value),
            other => reader.unknown_key("", key, other, value, KEYS),
        }
    }
    finish(reader, file)
}

/// Reads the `model.toml` of the model `id`.
pub fn one_model(id: &str, text: &str) -> Result<FileSettings, Errors> {
    let table = toml_text::parse(text)?;
    let (mut reader, mut file) = (Reader::new(text), FileSettings::default());
    let settings = model(&mut reader, "", table.get_ref(), KEYS_OF_FILE);
    if let Some((_, value)) = table.get_ref().iter().find(|(key, _)| key.get_ref() == "aliases") {
        let names = reader.names("aliases", value);
        if names.len() > MAX_ALIASES_OF_MODEL {
            let text = format!("aliases has {} names; at most {MAX_ALIASES_OF_MODEL} are allowed", names.len());
            reader.error(value.span(), text);
        }
        for name in names {
            add_alias(&mut reader, &mut file.aliases, value, &name, id.to_owned());
        }
    }
    if let Some(from) = &settings.from {
        derive(&mut reader, &mut file.aliases, table.get_ref(), id, from);
    }
    file.models.insert(id.to_owned(), settings);
    finish(reader, file)
}

/// Makes `id` a derived model: an alias of the model `from`.
fn derive(reader: &mut Reader, aliases: &mut BTreeMap<String, String>, table: &DeTable<'_>, id: &str, from: &str) {
    for (key, value) in table {
        if KEYS_OF_INSTALLED.contains(&&**key.get_ref()) {
            let text = format!("{} is not for a derived model; write it for '{from}'", key.get_ref());
            reader.error(value.span(), text);
        }
        if key.get_ref() == "from" {
            add_alias(reader, aliases, value, id, from.to_owned());
        }
    }
}

/// The settings, unless there is an error.
fn finish(mut reader: Reader, file: FileSettings) -> Result<FileSettings, Errors> {
    reader.errors.sort();
    if reader.errors.is_empty() { Ok(file) } else { Err(reader.errors) }
}

fn aliases(reader: &mut Reader, value: &Value<'_>) -> BTreeMap<String, String> {
    let Some(table) = reader.section("aliases", value) else { return BTreeMap::new() };
    if table.len() > MAX_ALIASES {
        let text = format!("aliases has {} names; at most {MAX_ALIASES} are allowed", table.len());
        reader.error(value.span(), text);
    }
    let mut aliases = BTreeMap::new();
    for (alias, value) in table {
        if let Some(target) = reader.name(&format!("aliases.{}", alias.get_ref()), value) {
            add_alias(reader, &mut aliases, alias, alias.get_ref(), target);
        }
    }
    for (alias, value) in table {
        let target = value.get_ref().as_str().unwrap_or_default();
        if aliases.contains_key(target) {
            let text = format!("aliases.{}: '{target}' is an alias itself; name the ID of a model", alias.get_ref());
            reader.error(value.span(), text);
        }
    }
    aliases
}

/// Adds an alias whose place is `at`.
fn add_alias<T>(
    reader: &mut Reader,
    aliases: &mut BTreeMap<String, String>,
    at: &Spanned<T>,
    name: &str,
    target: String,
) {
    let alias = name.strip_suffix(LATEST).unwrap_or(name);
    let checked = check_name(alias).and_then(|()| match () {
        () if alias.starts_with(TUNED_PREFIX) => {
            Err(format!("begins with '{TUNED_PREFIX}', as the names of trained models; choose another name"))
        }
        () if alias == target => Err("is the model's own ID; remove it".to_owned()),
        () if aliases.contains_key(alias) => Err(format!("is there twice, with and without '{LATEST}'; remove one")),
        () => Ok(()),
    });
    match checked {
        Ok(()) => drop(aliases.insert(alias.to_owned(), target)),
        Err(what) => reader.error(at.span(), format!("the alias '{}' {what}", outpost_common::display::shorten(name))),
    }
}

fn models(reader: &mut Reader, value: &Value<'_>) -> BTreeMap<String, ModelSettings> {
    let Some(table) = reader.section("models", value) else { return BTreeMap::new() };
    if table.len() > MAX_MODELS {
        let text = format!("models has {} sections; at most {MAX_MODELS} are allowed", table.len());
        reader.error(value.span(), text);
    }
    let mut models = BTreeMap::new();
    for (id, value) in table {
        let id = id.get_ref();
        let path = format!("models.{}", toml_key(id));
        if let Err(what) = check_name(id) {
            reader.error(value.span(), format!("the model '{}' {what}", outpost_common::display::shorten(id)));
        } else if let Some(table) = reader.section(&path, value) {
            let settings = model(reader, &format!("{path}."), table, KEYS_OF_MODEL);
            let pin = table.iter().find(|(key, _)| key.get_ref() == "pinned");
            if let Some((_, value)) = pin.filter(|_| settings.pinned == Some(true) && id.starts_with(TUNED_PREFIX)) {
                let text = "is true, but a model that a project has trained cannot be pinned; remove it";
                reader.error(value.span(), format!("{path}.pinned {text}"));
            }
            models.insert(id.to_string(), settings);
        }
    }
    models
}

/// A key as it is written in a path.
fn toml_key(name: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if name.chars().all(is_bare) { name.to_owned() } else { format!("\"{}\"", outpost_common::display::shorten(name)) }
}

/// The settings in a section. `section`: its path with a dot at its end, or nothing.
fn model(reader: &mut Reader, section: &str, table: &DeTable<'_>, keys: &[&str]) -> ModelSettings {
    let mut settings = ModelSettings::default();
    for (key, value) in table {
        let name = &**key.get_ref();
        let path = format!("{section}{name}");
        match name {
            "pinned" => settings.pinned = reader.flag(&path, value),
            "unload_after" => settings.unload_after = reader.unload_after(&path, value),
            "unload_on_request" => settings.unload_on_request = reader.flag(&path, value),
            "system" => settings.system = reader.text(&path, value).map(Arc::from),
            "from" if keys.contains(&name) => settings.from = reader.name(&path, value),
            "license" if keys.contains(&name) => settings.license = reader.text(&path, value).map(Arc::from),
            "defaults" => {
                if let Some(table) = reader.section(&path, value) {
                    settings.defaults = Arc::new(defaults(reader, &format!("{path}."), table));
                }
            }
            "moderation" => {
                if let Some(table) = reader.section(&path, value) {
                    settings.moderation = moderation(reader, &format!("{path}."), table);
                }
            }
            known if keys.contains(&known) => {}
            unknown => reader.unknown_key(section, key, unknown, value, keys),
        }
    }
    settings
}

/// Reads the meanings of a classifier's labels.
fn moderation(reader: &mut Reader, section: &str, table: &DeTable<'_>) -> ModerationSettings {
    let mut settings = ModerationSettings::default();
    for (key, value) in table {
        let name = &**key.get_ref();
        let path = format!("{section}{name}");
        match name {
            "threshold" => settings.threshold = reader.fraction(&path, value),
            "labels" => {
                let Some(labels) = reader.section(&path, value) else { continue };
                if labels.len() > MAX_LABELS {
                    let text = format!("{path} has {} labels; at most {MAX_LABELS} are allowed", labels.len());
                    reader.error(value.span(), text);
                }
                for (label, value) in labels {
                    let meaning = reader.meaning(&format!("{path}.{}", toml_key(label.get_ref())), value);
                    settings.labels.extend(meaning.map(|meaning| (label.get_ref().to_string(), meaning)));
                }
            }
            unknown => reader.unknown_key(section, key, unknown, value, KEYS_OF_MODERATION),
        }
    }
    settings
}

fn defaults(reader: &mut Reader, section: &str, table: &DeTable<'_>) -> GenerationDefaults {
    let mut defaults = GenerationDefaults::default();
    for (key, value) in table {
        let name = &**key.get_ref();
        let path = format!("{section}{name}");
        if let Some(row) = SamplingParameter::named(name) {
            reader.sampling(&path, row, value, &mut defaults.sampling);
            continue;
        }
        match name {
            "max_tokens" => {
                let count = reader.whole(&path, value, 1, u32::MAX.into());
                defaults.max_tokens = count.and_then(|count| u32::try_from(count).ok());
            }
            "seed" => defaults.seed = reader.whole(&path, value, i64::MIN, i64::MAX).map(i64::cast_unsigned),
            "stop" => defaults.stop = reader.stop(&path, value),
            unknown => {
                let sampling = SAMPLING_PARAMETERS.iter().map(|row| row.name);
                let known: Vec<_> = sampling.chain(["max_tokens", "seed", "stop"]).collect();
                reader.unknown_key(section, key, unknown, value, &known);
            }
        }
    }
    defaults
}
