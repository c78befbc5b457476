//! A version of a package, and what a pull takes from it.

use std::fmt;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::PathBuf;

use super::error::{FolderError, PullError};
use super::sources::Registry;

/// One version of a package of a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackageId {
    pub registry: Registry,
    pub name: String,
    pub version: String,
}

impl PackageId {
    /// The error for content that the catalog does not expect.
    pub fn bad(&self, entry: &str, why: impl Into<String>) -> PullError {
        PullError::BadPackage { package: self.to_string(), entry: entry.to_owned(), why: why.into() }
    }
}

/// As it is written for pip and npm.
impl fmt::Display for PackageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = match self.registry {
            Registry::Pypi => "==",
            Registry::Npm => "@",
        };
        write!(f, "{}{separator}{}", self.name, self.version)
    }
}

/// An entry of a package, and the place of its bytes.
#[derive(Clone, Debug)]
pub struct Extract {
    /// Path inside the package.
    pub entry: String,
    /// Unpacked size.
    pub bytes: u64,
    /// The file that receives it.
    pub path: PathBuf,
    /// Where in that file.
    pub offset: u64,
}

impl Extract {
    /// Opens the file at the right place. Whatever else it contains is kept.
    pub fn open(&self) -> Result<File, FolderError> {
        let at = || FolderError::at(&self.path);
        if let Some(parent) = self.path.parent() {
            std::fs::create_dir_all(parent).map_err(FolderError::at(parent))?;
        }
        let mut file = File::options().create(true).truncate(false).write(true).open(&self.path).map_err(at())?;
        file.seek(SeekFrom::Start(self.offset)).map_err(at())?;
        Ok(file)
    }
}
