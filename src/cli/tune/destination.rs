//! The folder that an adapter is written to.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::arguments::TuneArgs;
use crate::catalog::is_model_name;
use crate::config::DEFAULT_MODELS;
use crate::engine::AdapterFiles;
use crate::models::peft::{CONFIG_FILE, WEIGHTS_FILE};
use crate::new_folder::{NewFolder, is_there};

/// A folder that can be written.
pub struct Destination {
    folder: PathBuf,
    /// The name of the model that it becomes, if it is in the models folder.
    model: Option<String>,
    replace: bool,
    /// The command that serves the models folder.
    serve: String,
}

impl Destination {
    /// Chooses the folder, and checks that it can be written. A training may take hours.
    ///
    /// # Errors
    /// For the user, with the remedy.
    pub fn new(args: &TuneArgs, models: &Path) -> Result<Self, String> {
        let folder = match &args.output {
            Some(folder) => folder.clone(),
            None => models.join(default_name(args)),
        };
        let model = in_folder(&folder, models);
        if let Some(name) = model.as_deref().filter(|name| !is_model_name(name)) {
            return Err(format!(
                "'{name}' cannot be a model's name: it may have 96 letters, digits, '.', '_' and '-'; set --suffix or --output"
            ));
        }
        if is_there(&folder) {
            let path = folder.display();
            if !args.force {
                return Err(format!(
                    "{path} exists already; use --force to replace it, or --suffix or --output for another name"
                ));
            }
            if !folder.join(CONFIG_FILE).is_file() || folder.is_symlink() {
                return Err(format!("{path} has no adapter, so --force does not replace it; use --suffix or --output"));
            }
        }
        let serve = match models == Path::new(DEFAULT_MODELS) {
            true => "outpost serve".to_owned(),
            false => format!("outpost serve --models {}", models.display()),
        };
        let destination = Self { folder, model, replace: args.force, serve };
        match NewFolder::create(&destination.folder) {
            Ok(_removed) => Ok(destination),
            Err(cause) => Err(destination.failed(&cause)),
        }
    }

    /// Writes the adapter. The folder appears complete.
    pub fn write(&self, adapter: &AdapterFiles) -> Result<(), String> {
        let files: [(_, &[u8]); 2] = [(CONFIG_FILE, &adapter.config), (WEIGHTS_FILE, &adapter.weights)];
        NewFolder::write_files(&self.folder, &files, self.replace).map_err(|cause| self.failed(&cause))
    }

    /// What or where the adapter is, after `The adapter is`.
    pub fn describe(&self) -> String {
        let path = self.folder.display();
        match &self.model {
            Some(name) => format!("the model '{name}' in {path}"),
            None => format!("in {path}"),
        }
    }

    /// How to serve the adapter.
    pub fn next_command(&self) -> String {
        match &self.model {
            Some(_) => format!("A running server lists it within a second; otherwise start one with: {}", self.serve),
            None => format!("To serve it: outpost models import {}", self.folder.display()),
        }
    }

    fn failed(&self, cause: &io::Error) -> String {
        format!("{} cannot be written: {cause}", self.folder.display())
    }
}

/// `MODEL-SUFFIX`, where characters that a model's name cannot have become hyphens.
fn default_name(args: &TuneArgs) -> String {
    let stem = || args.file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let suffix = args.suffix.clone().unwrap_or_else(stem);
    let allowed = |char: char| if char.is_ascii_alphanumeric() || "._-".contains(char) { char } else { '-' };
    format!("{}-{}", args.model, suffix.chars().map(allowed).collect::<String>())
}

/// The name of an entry of `models`, if the folder is one.
fn in_folder(folder: &Path, models: &Path) -> Option<String> {
    let parent = std::path::absolute(folder).ok()?.parent()?.to_owned();
    let same = match (fs::canonicalize(&parent), fs::canonicalize(models)) {
        (Ok(parent), Ok(models)) => parent == models,
        _ => false,
    };
    same.then(|| folder.file_name().unwrap_or_default().to_string_lossy().into_owned())
}
