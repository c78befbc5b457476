//! A folder of files that appears under its name complete, or not at all: it is written beside its place and renamed.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use tempfile::TempDir;

/// A folder that has no name yet. It is removed when it is dropped.
pub struct NewFolder {
    /// Its name begins with a dot, so that it is not listed as a model.
    unnamed: TempDir,
    path: PathBuf,
}

impl NewFolder {
    /// Creates an empty folder that becomes `path`.
    ///
    /// # Errors
    /// If a folder cannot be created beside `path`.
    pub fn create(path: &Path) -> io::Result<Self> {
        let readable = fs::Permissions::from_mode(0o777);
        let unnamed = tempfile::Builder::new().prefix(".outpost-").permissions(readable).tempdir_in(parent(path))?;
        Ok(Self { unnamed, path: path.to_owned() })
    }

    /// Creates the folder `path` with these files. `replace`: another folder of that name is removed; else this is an error.
    pub fn write_files(path: &Path, files: &[(&str, &[u8])], replace: bool) -> io::Result<()> {
        let folder = Self::create(path)?;
        files.iter().try_for_each(|(name, content)| folder.write(name, content))?;
        folder.publish(replace)
    }

    /// Writes a new file in it.
    fn write(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let mut file = File::create_new(self.unnamed.path().join(name))?;
        file.write_all(content)?;
        file.sync_all()
    }

    /// Gives it its name.
    fn publish(self, replace: bool) -> io::Result<()> {
        let Self { unnamed, path } = self;
        File::open(unnamed.path())?.sync_all()?;
        match replace && is_there(&path) {
            true => exchange(unnamed.path(), &path)?,
            false => rename(unnamed.path(), &path)?,
        }
        File::open(parent(&path))?.sync_all()
    }
}

/// True if the name is taken, even by a broken link.
pub fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Renames a folder; never overwrites.
fn rename(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Some file systems cannot do this in one operation.
        Err(Errno::INVAL | Errno::NOSYS) if !is_there(to) => fs::rename(from, to),
        Err(Errno::INVAL | Errno::NOSYS) => Err(io::ErrorKind::AlreadyExists.into()),
        renamed => Ok(renamed?),
    }
}

/// Swaps two folders. On file systems without an atomic swap, `other` is briefly absent.
pub fn exchange(new: &Path, other: &Path) -> io::Result<()> {
    if renameat_with(CWD, new, CWD, other, RenameFlags::EXCHANGE).is_ok() {
        return Ok(());
    }
    let aside = new.with_extension("replaced");
    remove(&aside)?;
    fs::rename(other, &aside)?;
    if let Err(error) = fs::rename(new, other) {
        let _way_back = fs::rename(&aside, other);
        return Err(error);
    }
    fs::rename(aside, new)
}

/// Removes a file or a folder, if it exists.
pub fn remove(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(path: &Path, content: &str) -> NewFolder {
        let folder = NewFolder::create(path).unwrap();
        folder.write("file", content.as_bytes()).unwrap();
        folder
    }

    #[test]
    fn a_folder_appears_complete_and_replaces_another_only_on_request() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("folder");
        let content = || fs::read_to_string(path.join("file")).unwrap();
        drop(new(&path, "dropped"));
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);

        new(&path, "first").publish(false).unwrap();
        assert_eq!(new(&path, "second").publish(false).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(content(), "first");
        new(&path, "second").publish(true).unwrap();
        assert_eq!(content(), "second");
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);

        fs::remove_dir_all(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(new(&path, "third").publish(false).is_err(), "an empty folder is not replaced either");
        assert!(NewFolder::create(&root.path().join("missing/folder")).is_err());
    }
}
