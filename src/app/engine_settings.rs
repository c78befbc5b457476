//! The engine's settings, from those of the server or of a command.

use std::path::PathBuf;
use std::sync::Arc;
use std::{fs, io};

use super::start_error::StartError;
use crate::clock_rng::ClockRng;
use crate::config::{self, ComputeArgs, Config, DraftModel, ModelDevice, ModelPrecision, Precision};
use crate::disk_space::DiskReserve;
use crate::engine::{self, Engine};
use crate::storage::Store;

/// Folder of the prefix cache on disk, in the data folder.
pub const PREFIX_CACHE_FOLDER: &str = "prefix-cache";

/// The engine's settings of a server.
pub(super) fn engine_settings(config: &Config, devices: engine::Devices, store: &Store) -> engine::Settings {
    let defaults = engine::Settings::new(config.paths.models.clone(), config.memory);
    let kv_type = match config.kv_type {
        config::KvType::F16 => engine::KvType::F16,
        config::KvType::Q8 => engine::KvType::Q8,
        config::KvType::F32 => engine::KvType::F32,
    };
    engine::Settings {
        threads: config.threads,
        max_running: config.max_running,
        max_queued_requests: config.max_queued,
        kv_type,
        prefix_disk: prefix_disk(config, store),
        speculate: config.speculate,
        drafts: drafts(&config.draft_model),
        precisions: precisions(&config.precision),
        devices,
        sandbox: config.sandbox.clone(),
        ..defaults
    }
}

/// Deletes the prefix cache on disk of an earlier run, if there is none any more.
pub(super) fn delete_unused_prefix_cache(config: &Config) {
    let folder = config.paths.data.join(PREFIX_CACHE_FOLDER);
    if config.prefix_cache_disk.is_none()
        && let Err(error) = fs::remove_dir_all(&folder)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(%error, path = %folder.display(), "the prefix cache on disk is off, but its folder cannot be deleted");
    }
}

fn prefix_disk(config: &Config, store: &Store) -> Option<engine::PrefixDiskSettings> {
    Some(engine::PrefixDiskSettings {
        folder: config.paths.data.join(PREFIX_CACHE_FOLDER),
        max_bytes: config.prefix_cache_disk?,
        key: engine::PrefixDiskKey(store.pepper().prefix_cache_key()),
        reserve: DiskReserve::new(&config.paths.data, config.min_free_disk),
    })
}

impl From<Precision> for engine::Precision {
    fn from(precision: Precision) -> Self {
        match precision {
            Precision::F32 => Self::Full,
            Precision::Bf16 => Self::Bf16,
            Precision::Int8 => Self::Int8,
        }
    }
}

fn precisions(choices: &[ModelPrecision]) -> engine::Precisions {
    choices.iter().map(|choice| (choice.model.clone(), choice.precision.into())).collect()
}

/// # Errors
/// If a device cannot be used.
pub(super) fn select_devices(choices: &[ModelDevice]) -> Result<engine::Devices, StartError> {
    let choices = choices.iter().map(|choice| (choice.model.clone(), choice.device));
    engine::Devices::select(choices).map_err(StartError::Device)
}

/// The settings of a command that uses models without a server.
///
/// # Errors
/// If a device cannot be used.
pub fn command_settings(models: PathBuf, compute: &ComputeArgs) -> Result<engine::Settings, StartError> {
    let (threads, devices) = (compute.threads(), select_devices(&compute.device)?);
    Ok(engine::Settings { threads, devices, ..engine::Settings::new(models, compute.memory()) })
}

/// Starts an engine without a server, for a training or a measurement. It does not speculate.
pub fn start_engine(
    models: PathBuf,
    compute: &ComputeArgs,
    sandbox: PathBuf,
    clock_rng: Arc<dyn ClockRng>,
) -> Result<Engine, StartError> {
    let settings = engine::Settings {
        sandbox: Some(sandbox),
        // A training does not use draft models, and a measurement must not depend on how predictable a text is.
        speculate: false,
        drafts: engine::Drafts { auto: false, ..engine::Drafts::default() },
        ..command_settings(models, compute)?
    };
    Ok(Engine::start(settings, clock_rng)?)
}

/// For models that are not named, the last `auto` or `none` applies.
fn drafts(choices: &[DraftModel]) -> engine::Drafts {
    choices.iter().fold(engine::Drafts::default(), |mut drafts, choice| {
        match choice {
            DraftModel::Auto => drafts.auto = true,
            DraftModel::None => drafts.auto = false,
            DraftModel::Named { target, draft } => drop(drafts.pairs.insert(target.clone(), draft.clone())),
        }
        drafts
    })
}
