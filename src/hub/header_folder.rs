//! A temporary folder with the small files and the headers of a model. Each file of weights is a hole of the right length
//! behind its header, which takes no space, so the model can be examined as if it were there.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::error::HubError;
use crate::engine::{MemoryNeed, ModelInfo, Settings, model_memory};

pub(super) struct HeaderFolder {
    folder: TempDir,
}

impl HeaderFolder {
    pub fn new() -> Result<Self, HubError> {
        let folder = tempfile::tempdir();
        Ok(Self { folder: folder.map_err(|source| HubError::Io { path: std::env::temp_dir(), source })? })
    }

    /// Adds a file of `length` bytes that begins with `start`. `name` must be a checked path.
    pub fn add(&self, name: &str, start: &[u8], length: u64) -> Result<(), HubError> {
        let path = self.path().join(name);
        let write = || -> io::Result<()> {
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            let mut file = File::create_new(&path)?;
            file.write_all(start)?;
            file.set_len(length)
        };
        write().map_err(|source| HubError::Io { path: self.path(), source })
    }

    /// Describes the model, and the memory that it needs; or why it cannot be served.
    pub fn examine(&self, settings: &Settings) -> Result<(ModelInfo, MemoryNeed), String> {
        model_memory(&self.path(), settings)
    }

    fn path(&self) -> PathBuf {
        // The folder's own name begins with a dot, like those that are no models.
        Path::new(self.folder.path()).join("model")
    }
}
