//! Removes what a failed start created.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use crate::storage::{DATABASE_FILE, FolderLock, OpenError, lock_folder};

const LOCK_ATTEMPTS: usize = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

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
        let state = match fs::read_dir(folder) {
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

    /// Removes what was created since, except for the files with the names `kept`. Does nothing if another process uses the
    /// folder by now.
    pub async fn restore_except(self, kept: &[&str]) {
        if let Err(cause) = self.try_restore(kept).await {
            tracing::warn!(path = %self.folder.display(), %cause, "the new data folder of the failed start cannot be removed");
        }
    }

    async fn try_restore(&self, kept: &[&str]) -> io::Result<()> {
        let none = HashSet::new();
        let before = match &self.state {
            State::Untouchable => return Ok(()),
            State::Missing { .. } => &none,
            State::WithoutDatabase { entries } => entries,
        };
        if self.folder.exists() {
            let _lock = self.lock().await.map_err(io::Error::other)?;
            self.remove_new_files(before, kept)?;
        }
        self.remove_new_folders()
    }

    /// The tasks of the failed start end, and release the store, soon after it.
    async fn lock(&self) -> Result<FolderLock, OpenError> {
        for _ in 0..LOCK_ATTEMPTS {
            match lock_folder(&self.folder) {
                Err(OpenError::Locked { .. }) => actix_web::rt::time::sleep(LOCK_PAUSE).await,
                outcome => return outcome,
            }
        }
        lock_folder(&self.folder)
    }

    /// Removes the database first: without it the pepper is harmless, but not the other way round.
    fn remove_new_files(&self, before: &HashSet<OsString>, kept: &[&str]) -> io::Result<()> {
        let mut new: Vec<OsString> = fs::read_dir(&self.folder)?.flatten().map(|entry| entry.file_name()).collect();
        new.retain(|name| !before.contains(name) && !kept.iter().any(|kept| name == kept));
        new.sort_by_key(|name| name != DATABASE_FILE);
        new.iter().map(|name| self.folder.join(name)).try_for_each(|path| match path.is_dir() {
            true => fs::remove_dir_all(path),
            false => fs::remove_file(path),
        })
    }

    /// Removes the folder and its new parents, unless something is left in them.
    fn remove_new_folders(&self) -> io::Result<()> {
        let State::Missing { parents } = &self.state else { return Ok(()) };
        for folder in [&self.folder].into_iter().chain(parents) {
            match fs::remove_dir(folder) {
                Err(cause) if cause.kind() == io::ErrorKind::DirectoryNotEmpty => break,
                Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(cause),
                _ => {}
            }
        }
        Ok(())
    }
}

/// An empty path is the working directory.
fn is_missing(folder: &Path) -> bool {
    !folder.as_os_str().is_empty() && !folder.exists()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{DATABASE_FILE, DataFolderSnapshot, lock_folder};

    fn restore(before: DataFolderSnapshot, kept: &[&str]) {
        actix_web::rt::System::new().block_on(before.restore_except(kept));
    }

    #[test]
    fn only_new_files_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let data = root.path().join("a/b/data");
        let before = DataFolderSnapshot::of(&data);
        fs::create_dir_all(&data).unwrap();
        fs::write(data.join("pepper"), "new").unwrap();
        restore(before, &[]);
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);

        fs::create_dir_all(&data).unwrap();
        fs::write(data.join("mine"), "old").unwrap();
        let before = DataFolderSnapshot::of(&data);
        fs::write(data.join(DATABASE_FILE), "new").unwrap();
        restore(before, &[]);
        assert!(data.join("mine").exists() && !data.join(DATABASE_FILE).exists());

        let before = DataFolderSnapshot::of(&data);
        for name in ["pepper", "new"] {
            fs::write(data.join(name), "new").unwrap();
        }
        restore(before, &["pepper"]);
        assert!(data.join("pepper").exists() && !data.join("new").exists());

        fs::write(data.join(DATABASE_FILE), "old").unwrap();
        let before = DataFolderSnapshot::of(&data);
        fs::write(data.join("new"), "new").unwrap();
        restore(before, &[]);
        assert!(data.join("new").exists(), "a database that was there is left alone");
    }

    #[test]
    fn the_folder_of_another_process_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let data = root.path().join("data");
        let before = DataFolderSnapshot::of(&data);
        fs::create_dir_all(&data).unwrap();
        fs::write(data.join(DATABASE_FILE), "another's").unwrap();
        let _lock = lock_folder(&data).unwrap();
        restore(before, &[]);
        assert!(data.join(DATABASE_FILE).exists());
    }
}
