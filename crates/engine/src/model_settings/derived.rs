//! Derived models: writes and removes the folders that make them.
//!
//! A derived model is an alias with settings and not an entry of the registry with an ID, permissions and a state of
//! its own. It takes no memory, allow-lists and usage need no new rule, and an operator can write the same file by
//! hand. Settings apply by the name of the request, before it is resolved.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use toml::{Table, Value};

use super::files::MAX_BYTES;
use super::format::one_model;
use super::{GenerationDefaults, ONE_MODEL_FILE};
use crate::text::sampler::parameters::{SAMPLING_PARAMETERS, SamplingValue};
use outpost_common::new_folder::{NewFolder, is_there};

/// The settings of a derived model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DerivedModel {
    /// The ID of the model for which it stands.
    pub from: String,
    pub system: Option<String>,
    pub license: Option<String>,
    pub defaults: GenerationDefaults,
}

impl DerivedModel {
    /// The text of its `model.toml`.
    ///
    /// # Errors
    /// What is wrong with the settings.
    pub fn to_toml(&self, name: &str) -> Result<String, String> {
        let mut table = Table::new();
        let texts = [("from", Some(&self.from)), ("system", self.system.as_ref()), ("license", self.license.as_ref())];
        let texts = texts.into_iter().filter_map(|(key, text)| Some((key.to_owned(), Value::from(text?.as_str()))));
        table.extend(texts);
        let defaults = defaults(&self.defaults);
        if !defaults.is_empty() {
            table.insert("defaults".to_owned(), Value::Table(defaults));
        }
        let text = toml::to_string(&table).map_err(|error| error.to_string())?;
        if text.len() as u64 > MAX_BYTES {
            return Err(format!("they have {} KiB, and at most {} KiB are allowed", text.len() >> 10, MAX_BYTES >> 10));
        }
        match one_model(name, &text) {
            Ok(_) => Ok(text),
            Err(errors) => Err(errors.into_iter().map(|(_, error)| error).collect::<Vec<_>>().join("; ")),
        }
    }

    /// Writes a `model.toml` as the only file of the folder `name` in the models folder. Replaces such a folder. The caller
    /// has checked that the name is a plain one.
    ///
    /// # Errors
    /// If it cannot be written. `AlreadyExists`: something else has the name.
    pub fn write(text: &str, models: &Path, name: &str) -> io::Result<()> {
        let folder = models.join(name);
        let is_former = is_there(&folder);
        if is_former && !is_only_settings(&folder)? {
            return Err(ErrorKind::AlreadyExists.into());
        }
        NewFolder::write_files(&folder, &[(ONE_MODEL_FILE, text.as_bytes())], is_former)
    }

    /// Removes the folder `name` of a derived model.
    ///
    /// # Errors
    /// If it cannot be removed. `DirectoryNotEmpty`: it has other files.
    pub fn remove(models: &Path, name: &str) -> io::Result<()> {
        let folder = models.join(name);
        if !is_only_settings(&folder)? {
            return Err(ErrorKind::DirectoryNotEmpty.into());
        }
        fs::remove_file(folder.join(ONE_MODEL_FILE))?;
        fs::remove_dir(folder)
    }
}

/// Whether it is a folder, not a link to one, with a `model.toml` and nothing else.
fn is_only_settings(folder: &Path) -> io::Result<bool> {
    if !folder.symlink_metadata()?.is_dir() {
        return Ok(false);
    }
    let names = fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()?;
    Ok(names == [ONE_MODEL_FILE])
}

fn defaults(defaults: &GenerationDefaults) -> Table {
    let value = |number| match number {
        // The shortest decimal number, as it was written.
        SamplingValue::Real(_) => number.to_string().parse::<f64>().ok().map(Value::from),
        SamplingValue::Count(count) => Some(Value::from(i64::from(count))),
    };
    let sampling = SAMPLING_PARAMETERS.iter().filter_map(|row| Some((row.name, value(row.of(&defaults.sampling)?)?)));
    let max_tokens = defaults.max_tokens.map(|count| ("max_tokens", Value::from(i64::from(count))));
    let seed = defaults.seed.map(|seed| ("seed", Value::from(seed.cast_signed())));
    let stop = defaults.stop.clone().map(|stop| ("stop", Value::from(stop)));
    sampling.chain(max_tokens).chain(seed).chain(stop).map(|(name, value)| (name.to_owned(), value)).collect()
}
