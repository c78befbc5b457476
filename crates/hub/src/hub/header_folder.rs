//! A temporary folder with the small files and the headers of a model. Each file of weights is a hole of the right length
//! behind its header, which takes no space, so the model can be examined as if it were there.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::error::HubError;
use outpost_engine::{MemoryNeed, ModelInfo, Settings, model_memory};
use outpost_models::whisper::GgmlFile;

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

    /// Adds the part of a `ggml-*.bin` file that is before its tensors. `start` is the beginning of the file.
    pub fn add_ggml(&self, name: &str, start: &[u8]) -> Result<(), String> {
        self.add(name, start, start.len() as u64).map_err(|error| error.to_string())?;
        let path = self.path().join(name);
        let length = GgmlFile::header_length(&path).map_err(|error| error.to_string())?;
        let cut = File::options().write(true).open(&path).and_then(|file| file.set_len(length));
        cut.map_err(|error| error.to_string())
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
