//! The staging folder in which a model is assembled, and the rename that installs it.
//!
//! `<models>/.pull/<name>/` belongs to the process that holds the lock `<models>/.pull/<name>.lock`. The
//! operating system releases the lock when the process ends, so a killed pull never blocks the next one. The lock
//! file itself stays, because after its removal two processes could lock two different files of the same name.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use super::error::FolderError;
use outpost_common::disk_space::DiskSpace;
use outpost_common::file_lock::FileLock;
use outpost_common::new_folder::{exchange, remove};

/// Folder of unfinished models; the leading dot prevents it from being listed as a model.
pub const STAGING_FOLDER: &str = ".pull";

/// The file with the operator's settings of a model.
pub(super) const SETTINGS: &str = "model.toml";

/// A locked working folder for one model.
pub struct Staging {
    models_dir: PathBuf,
    name: String,
    dir: PathBuf,
    _lock: FileLock,
}

impl Staging {
    /// Locks the working folder of `name`, which must be a checked model name. Keeps what an earlier,
    /// interrupted attempt left there, except for `files`.
    pub fn open(models_dir: &Path, name: &str) -> Result<Self, FolderError> {
        let root = models_dir.join(STAGING_FOLDER);
        let dir = root.join(name);
        fs::create_dir_all(&root).map_err(FolderError::at(&root))?;
        let lock = lock(&root.join(format!("{name}.lock")), name)?;
        fs::create_dir_all(&dir).map_err(FolderError::at(&dir))?;
        let models_dir = models_dir.to_owned();
        let staging = Self { models_dir, name: name.to_owned(), dir, _lock: lock };
        fresh_dir(&staging.files())?;
        Ok(staging)
    }

    /// A path in the working folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The folder that becomes the model.
    pub fn files(&self) -> PathBuf {
        self.dir.join("files")
    }

    /// The folder of the installed model.
    pub fn target(&self) -> PathBuf {
        self.models_dir.join(&self.name)
    }

    /// Creates a file of the model, with the folders above it. `name` must be a checked file path.
    pub fn create(&self, name: &str) -> Result<(File, PathBuf), FolderError> {
        let path = self.make_path(name)?;
        let file = File::create_new(&path).map_err(FolderError::at(&path))?;
        Ok((file, path))
    }

    /// The path of a file of the model, whose folders are created. `name` must be a checked file path.
    pub fn make_path(&self, name: &str) -> Result<PathBuf, FolderError> {
        let path = self.files().join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(FolderError::at(parent))?;
        }
        Ok(path)
    }

    /// Fails if the disk has fewer than `needed` free bytes.
    pub fn check_space(&self, needed: u64) -> Result<(), FolderError> {
        // If the file system does not report its free space, a full disk is detected later.
        let Ok(DiskSpace { free, .. }) = DiskSpace::of(&self.dir) else { return Ok(()) };
        match free < needed {
            true => Err(FolderError::NoSpace { path: self.models_dir.clone(), needed, free }),
            false => Ok(()),
        }
    }

    /// Installs the model under its name; `replace` allows replacing another, which is deleted with the working folder.
    /// The operator's settings of the other one are kept.
    pub fn publish(self, replace: bool) -> Result<PathBuf, FolderError> {
        let (files, target) = (self.files(), self.target());
        let settings = target.join(SETTINGS);
        if replace && settings.symlink_metadata().is_ok_and(|file| file.is_file()) {
            fs::copy(&settings, files.join(SETTINGS)).map_err(FolderError::at(&settings))?;
        }
        sync_tree(&files).map_err(FolderError::at(&files))?;
        match replace && target.symlink_metadata().is_ok() {
            true => exchange(&files, &target).map_err(FolderError::at(&target))?,
            false => fs::rename(&files, &target).map_err(FolderError::at(&target))?,
        }
        sync_dir(&self.models_dir).map_err(FolderError::at(&self.models_dir))?;
        self.discard();
        Ok(target)
    }

    /// Removes the working folder. Errors are ignored, because leftovers only cost space.
    pub fn discard(self) {
        let _left_behind = fs::remove_dir_all(&self.dir);
    }

    /// Removes an unfinished model, but keeps the parts from which an interrupted pull can resume.
    pub fn abandon(self) {
        let _left_behind = fs::remove_dir_all(self.files());
        let _others_need_it = fs::remove_dir(&self.dir);
    }
}

fn lock(path: &Path, name: &str) -> Result<FileLock, FolderError> {
    let file = File::options().create(true).truncate(false).write(true).open(path).map_err(FolderError::at(path))?;
    FileLock::try_acquire(file).map_err(|error| match error {
        TryLockError::WouldBlock => FolderError::Busy(name.to_owned()),
        TryLockError::Error(e) => FolderError::at(path)(e),
    })
}

/// Creates an empty folder at `path`, replacing an existing file or folder.
pub fn fresh_dir(path: &Path) -> Result<(), FolderError> {
    remove(path).and_then(|()| fs::create_dir(path)).map_err(FolderError::at(path))
}

/// Syncs everything below `dir` to disk, children before their folder.
fn sync_tree(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => sync_tree(&entry.path())?,
            false => File::open(entry.path())?.sync_all()?,
        }
    }
    sync_dir(dir)
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::Staging;

    #[test]
    fn a_model_that_is_installed_again_keeps_its_settings() {
        let dir = tempfile::tempdir().unwrap();
        for version in ["one", "two"] {
            let staging = Staging::open(dir.path(), "model").unwrap();
            fs::write(staging.files().join("weights"), version).unwrap();
            let installed = staging.publish(version == "two").unwrap();
            if version == "one" {
                fs::write(installed.join("model.toml"), "pinned = true").unwrap();
            }
        }
        let read = |name: &str| fs::read_to_string(dir.path().join("model").join(name)).unwrap();
        assert_eq!((read("weights"), read("model.toml")), ("two".to_owned(), "pinned = true".to_owned()));
    }
}
