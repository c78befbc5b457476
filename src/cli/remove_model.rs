//! `outpost models remove`: removes a model from the models folder.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::hub_pull::check_owner;
use super::output::Outcome;
use crate::catalog::{FolderError, Staging, is_model_name, is_reserved};
use crate::config::ConfigFile;
use crate::display::{format_bytes, one_line, shorten};
use crate::engine::{DerivedModel, InstalledSettings, ModelInfo, installed_models, model_entries};
use crate::new_folder::{self, is_there};

/// The key of the configuration file with the draft models, and its variable.
const DRAFT_KEY: &str = "compute.draft_model";
const DRAFT_VARIABLE: &str = "OUTPOST_DRAFT_MODEL";
/// Endings of models that are single files.
const FILE_ENDINGS: [&str; 3] = ["gguf", "safetensors", "bin"];

/// Why a model was not removed.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    #[error("'{0}' cannot be the name of a model; write a name from `outpost models list`")]
    BadName(String),
    #[error("{folder} has no model '{name}', so there is nothing to remove")]
    Absent { name: String, folder: PathBuf },
    #[error("{0} is not a model; remove it yourself if you no longer need it")]
    NoModel(PathBuf),
    #[error("cannot remove {path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Folder(#[from] FolderError),
}

/// Removes a model. A running server notices it at the next use or listing. `file`: the configuration file, which may name
/// the model.
pub fn remove(name: &str, models_dir: &Path, file: Option<&ConfigFile>, out: &mut dyn Write) -> Outcome {
    check_owner(models_dir, "models remove NAME")?;
    let models = installed_models(models_dir);
    let entries = model_entries(models_dir, name);
    let Some(model) = models.iter().find(|model| model.id == name && !entries.is_empty()) else {
        if let Some((name, _)) = InstalledSettings::read(models_dir).derived(name) {
            let failed = |source| RemoveError::Io { path: models_dir.join(name), source };
            DerivedModel::remove(models_dir, name).map_err(failed)?;
            writeln!(out, "the derived model {name} is removed")?;
            return Ok(());
        }
        return Err(no_model(name, models_dir).into());
    };
    let dependents = dependents(name, &models, file);
    take_away(name, models_dir, &entries)?;
    writeln!(out, "{name} ({}) is removed", format_bytes(model.bytes))?;
    dependents.iter().try_for_each(|dependent| writeln!(out, "{dependent}"))?;
    Ok(())
}

/// Why there is no model of that name.
fn no_model(name: &str, models_dir: &Path) -> RemoveError {
    if !is_model_name(name) || is_reserved(name) {
        return RemoveError::BadName(shorten(&one_line(name)));
    }
    let files = FILE_ENDINGS.map(|ending| models_dir.join(format!("{name}.{ending}")));
    match std::iter::once(models_dir.join(name)).chain(files).find(|path| is_there(path)) {
        Some(path) => RemoveError::NoModel(path),
        None => RemoveError::Absent { name: name.to_owned(), folder: models_dir.to_owned() },
    }
}

/// Removes each entry by one rename, and then its files. A link is removed, not what it leads to.
fn take_away(name: &str, models_dir: &Path, entries: &[PathBuf]) -> Result<(), RemoveError> {
    let failed = |path: &Path, source| RemoveError::Io { path: path.to_owned(), source };
    // Not while another process installs a model of that name.
    let staging = Staging::open(models_dir, name)?;
    let removed = staging.path("removed");
    for entry in entries {
        // Left by an interrupted removal, or by the previous entry.
        let renamed = new_folder::remove(&removed).and_then(|()| fs::rename(entry, &removed));
        renamed.map_err(|source| failed(entry, source))?;
    }
    let synced = fs::File::open(models_dir).and_then(|folder| folder.sync_all());
    synced.map_err(|source| failed(models_dir, source))?;
    staging.discard();
    Ok(())
}

/// The models and settings that no longer work without the model.
fn dependents(name: &str, models: &[ModelInfo], file: Option<&ConfigFile>) -> Vec<String> {
    let mut found = Vec::new();
    let adapters = models.iter().filter(|model| model.base.as_deref() == Some(name)).map(|model| model.id.as_str());
    let adapters: Vec<&str> = adapters.collect();
    if !adapters.is_empty() {
        found.push(format!("Adapters that need it as their base model: {}", adapters.join(", ")));
    }
    let is_named = |pairs: &str| {
        pairs.split(',').filter_map(|pair| pair.split_once('=')).any(|(target, draft)| [target, draft].contains(&name))
    };
    if std::env::var(DRAFT_VARIABLE).is_ok_and(|value| is_named(&value)) {
        found.push(format!("{DRAFT_VARIABLE} names it"));
    }
    let setting = file.into_iter().flat_map(|file| &file.settings).find(|it| it.key.name == DRAFT_KEY);
    if let (Some(setting), Some(file)) = (setting.filter(|it| is_named(&it.text)), file) {
        found.push(format!("{}, line {}: {DRAFT_KEY} names it", file.path.display(), setting.line));
    }
    found
}
