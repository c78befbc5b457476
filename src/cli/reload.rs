//! Reads the settings of `serve` again while it runs.

use crate::config::{DataPaths, Effective, ServeArgs};

/// The settings of `serve` as the command line, the environment and the configuration file have them.
pub(super) struct ServeSettings {
    pub paths: DataPaths,
    pub args: ServeArgs,
    pub values: Vec<Effective>,
}

/// Reads the settings again.
pub(super) struct ConfigReload {
    read: Box<dyn Fn() -> Result<ServeSettings, String> + Send + Sync>,
}

impl ConfigReload {
    pub(super) fn new(read: impl Fn() -> Result<ServeSettings, String> + Send + Sync + 'static) -> Self {
        Self { read: Box::new(read) }
    }
}
