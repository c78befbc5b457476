//! Removes what a failed start created.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use crate::storage::DATABASE_FILE;

/// The state of the data folder before a start.
pub struct DataFolderSnapshot {
    folder: PathBuf,
    state: State,
}

enum State {
    /// It did not exist. `parents`: its missing ancestors, innermost first.
    Missing { parents: Vec<PathBuf> },
    /// It had these entries, and no database.
    WithoutDatabase { entries: HashSet<OsString> },
    /// It had a database, or cannot be read: nothing is removed.
    Untouchable,
}

impl DataFolderSnapshot {
    pub fn of(folder: &Path) -> Self {
        let state = match std::fs::read_dir(folder) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
                let missing = folder.ancestors().skip(1).take_while(|parent| is_missing(parent));
                State::Missing { parents: missing.map(Path::to_owned).collect() }
            }
            Err(_) => State::Untouchable,
            Ok(_) if folder.join(DATABASE_FILE).exists() => State::Untouchable,
            Ok(entries) => {
                State::WithoutDatabase { entries: entries.flatten().map(|entry| entry.file_name()).collect() }
            }
        };
        Self { folder: folder.to_owned(), state }
    }

    /// Removes what was created since.
    pub fn restore(self) {
        if let Err(cause) = self.try_restore() {
            tracing::warn!(path = %self.folder.display(), %cause, "the new data folder of the failed start cannot be removed");
        }
    }

    fn try_restore(&self) -> io::Result<()> {
        match &self.state {
            State::Untouchable => Ok(()),
            State::Missing { parents } => {
                if self.folder.exists() {
                    std::fs::remove_dir_all(&self.folder)?;
                }
                parents.iter().filter(|parent| parent.exists()).try_for_each(std::fs::remove_dir)
            }
            State::WithoutDatabase { entries } => {
                for entry in std::fs::read_dir(&self.folder)? {
                    let entry = entry?;
                    if !entries.contains(&entry.file_name()) {
                        std::fs::remove_file(entry.path())?;
                    }
                }
                Ok(())
            }
        }
    }
}

/// An empty path is the working directory.
fn is_missing(folder: &Path) -> bool {
    !folder.as_os_str().is_empty() && !folder.exists()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{DATABASE_FILE, DataFolderSnapshot};

    #[test]
    fn only_new_files_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let data = root.path().join("a/b/data");
        let before = DataFolderSnapshot::of(&data);
        fs::create_dir_all(&data).unwrap();
        fs::write(data.join("pepper"), "new").unwrap();
        before.restore();
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);

        fs::create_dir_all(&data).unwrap();
        fs::write(data.join("mine"), "old").unwrap();
        let before = DataFolderSnapshot::of(&data);
        fs::write(data.join(DATABASE_FILE), "new").unwrap();
        before.restore();
        assert!(data.join("mine").exists() && !data.join(DATABASE_FILE).exists());

        fs::write(data.join(DATABASE_FILE), "old").unwrap();
        let before = DataFolderSnapshot::of(&data);
        fs::write(data.join("new"), "new").unwrap();
        before.restore();
        assert_eq!(fs::read_dir(&data).unwrap().count(), 3, "a database that was there is left alone");
    }
}
