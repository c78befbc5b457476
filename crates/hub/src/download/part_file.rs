//! An unfinished file, and the record of its finished parts.
//!
//! `KEY.part` has the length of the whole file from the beginning, so a full disk shows at once. `KEY.state` says which
//! parts are on the disk; it is replaced only after they have been synced. The key is the hash of the content, so the
//! parts are found again even if the hub has renamed the file.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{FallocateFlags, OFlags, fallocate};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::error::DownloadError;

/// Max bytes of a record.
const MAX_STATE_BYTES: u64 = 4 << 20;
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct State {
    version: u32,
    length: u64,
    part_bytes: u64,
    /// The indices of finished parts.
    done: Vec<u64>,
}

pub(super) struct PartFile {
    file: File,
    path: PathBuf,
    state_path: PathBuf,
    length: u64,
    part_bytes: u64,
    progress: Mutex<Written>,
    /// The number of parts in the record. One thread at a time writes it.
    recorded: Mutex<usize>,
}

#[derive(Default)]
struct Written {
    done: Vec<u64>,
    /// Bytes of finished parts that are not recorded yet.
    unrecorded: u64,
}

impl PartFile {
    /// Opens or begins the file `key` in `folder`, which must belong to this process alone.
    pub fn open(folder: &Path, key: &str, length: u64, part_bytes: u64) -> Result<Self, DownloadError> {
        let (path, state_path) = (folder.join(format!("{key}.part")), folder.join(format!("{key}.state")));
        fs::create_dir_all(folder).map_err(DownloadError::at(folder))?;
        let mut options = File::options();
        // A link could lead to a file outside of the folder.
        let no_links = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or_default();
        options.read(true).write(true).create(true).truncate(false).custom_flags(no_links);
        let file = options.open(&path).map_err(DownloadError::at(&path))?;
        let metadata = file.metadata().map_err(DownloadError::at(&path))?;
        let resumed = read_state(&state_path).filter(|state| {
            let State { version, length: of, part_bytes: by, .. } = *state;
            (version, of, by, metadata.len()) == (VERSION, length, part_bytes, length)
        });
        let parts = length.div_ceil(part_bytes);
        let mut done = resumed.map(|state| state.done).unwrap_or_default();
        done.retain(|index| *index < parts);
        done.sort_unstable();
        done.dedup();
        if done.is_empty() {
            let reserved = file.set_len(0).and_then(|()| reserve(&file, length));
            // A file system may keep what it has found before the disk was full.
            reserved.inspect_err(|_| drop(file.set_len(0))).map_err(DownloadError::at(&path))?;
        }
        let recorded = Mutex::new(done.len());
        let progress = Mutex::new(Written { done, unrecorded: 0 });
        Ok(Self { file, path, state_path, length, part_bytes, progress, recorded })
    }

    /// Begins the file `key` in `folder` anew, as one part.
    pub fn begin(folder: &Path, key: &str, length: u64) -> Result<Self, DownloadError> {
        remove_state(&folder.join(format!("{key}.state")))?;
        Self::open(folder, key, length, length.max(1))
    }

    /// The parts that are missing, in order: index, first byte and length.
    pub fn missing(&self) -> Vec<(u64, u64, u64)> {
        let written = self.written();
        let indices = (0..self.length.div_ceil(self.part_bytes)).filter(|it| written.done.binary_search(it).is_err());
        indices.map(|index| (index, index * self.part_bytes, self.part_length(index))).collect()
    }

    fn part_length(&self, index: u64) -> u64 {
        self.part_bytes.min(self.length - index * self.part_bytes)
    }

    /// Bytes of finished parts.
    pub fn done_bytes(&self) -> u64 {
        self.written().done.iter().map(|index| self.part_length(*index)).sum()
    }

    /// Writes to the page cache, which takes no longer than a copy.
    pub fn write_at(&self, bytes: &[u8], start: u64) -> Result<(), DownloadError> {
        self.file.write_all_at(bytes, start).map_err(DownloadError::at(&self.path))
    }

    /// A part has been written. Returns whether it is time to record what is there.
    pub fn finish(&self, index: u64, record_bytes: u64) -> bool {
        let mut written = self.written();
        if let Err(place) = written.done.binary_search(&index) {
            written.done.insert(place, index);
        }
        written.unrecorded += self.part_length(index);
        let is_time = written.unrecorded >= record_bytes;
        if is_time {
            written.unrecorded = 0;
        }
        is_time
    }

    /// Syncs the file and then records its finished parts. Does nothing if they are recorded: a thread that is late must not
    /// disturb the next download of the file.
    pub fn record(&self) -> Result<(), DownloadError> {
        let mut recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        let done = self.written().done.clone();
        let count = done.len();
        if count == *recorded {
            return Ok(());
        }
        self.file.sync_data().map_err(DownloadError::at(&self.path))?;
        let state = State { version: VERSION, length: self.length, part_bytes: self.part_bytes, done };
        let text = serde_json::to_vec(&state).map_err(|error| DownloadError::at(&self.state_path)(error.into()))?;
        let new = self.state_path.with_extension("state.new");
        let written = fs::write(&new, text).and_then(|()| fs::rename(&new, &self.state_path));
        written.map_err(DownloadError::at(&self.state_path))?;
        *recorded = count;
        Ok(())
    }

    /// The file from its beginning.
    pub fn reader(&self) -> Result<File, DownloadError> {
        File::open(&self.path).map_err(DownloadError::at(&self.path))
    }

    /// Gives the complete file its name.
    pub fn publish(self, to: &Path) -> Result<(), DownloadError> {
        self.file.sync_all().map_err(DownloadError::at(&self.path))?;
        fs::rename(&self.path, to).map_err(DownloadError::at(to))?;
        remove_state(&self.state_path)
    }

    /// Removes the file, because its content is wrong.
    pub fn discard(self) -> Result<(), DownloadError> {
        fs::remove_file(&self.path).map_err(DownloadError::at(&self.path))?;
        remove_state(&self.state_path)
    }

    fn written(&self) -> MutexGuard<'_, Written> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reserves the space; on file systems that cannot, only sets the length.
fn reserve(file: &File, length: u64) -> io::Result<()> {
    if length == 0 {
        return Ok(());
    }
    match fallocate(file, FallocateFlags::empty(), 0, length) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => file.set_len(length),
        reserved => Ok(reserved?),
    }
}

fn remove_state(path: &Path) -> Result<(), DownloadError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(DownloadError::at(path)(error)),
        _ => Ok(()),
    }
}

/// An unreadable record counts as absent.
fn read_state(path: &Path) -> Option<State> {
    let is_small = path.symlink_metadata().is_ok_and(|it| it.is_file() && it.len() <= MAX_STATE_BYTES);
    serde_json::from_slice(&fs::read(path).ok().filter(|_| is_small)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_parts_are_kept_and_others_are_fetched_again() {
        let folder = tempfile::tempdir().unwrap();
        let open = |length| PartFile::open(folder.path(), "k", length, 4).unwrap();
        let file = open(10);
        assert_eq!(file.missing(), [(0, 0, 4), (1, 4, 4), (2, 8, 2)]);
        file.write_at(b"4567", 4).unwrap();
        assert!(!file.finish(1, 100));
        file.record().unwrap();
        file.write_at(b"89", 8).unwrap();
        assert!(file.finish(2, 1));
        drop(file);

        let file = open(10);
        assert_eq!((file.missing(), file.done_bytes()), (vec![(0, 0, 4), (2, 8, 2)], 4));
        drop(file);
        assert_eq!(open(11).done_bytes(), 0, "another length is another file");
        drop(open(10));
        fs::write(folder.path().join("k.state"), "{").unwrap();
        assert_eq!(open(10).done_bytes(), 0, "a damaged record is none");
    }

    #[test]
    fn a_record_without_new_parts_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("k.state");
        let file = PartFile::open(folder.path(), "k", 10, 4).unwrap();
        file.finish(1, 100);
        file.record().unwrap();
        fs::write(&state, "of the next download").unwrap();
        file.record().unwrap();
        assert_eq!(fs::read(&state).unwrap(), b"of the next download");
        file.finish(2, 100);
        file.record().unwrap();
        assert_eq!(read_state(&state).unwrap().done, [1, 2]);
    }

    #[test]
    fn links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let victim = folder.path().join("victim");
        fs::write(&victim, "keep").unwrap();
        std::os::unix::fs::symlink(&victim, folder.path().join("k.part")).unwrap();
        assert!(PartFile::open(folder.path(), "k", 10, 4).is_err());
        assert_eq!(fs::read(&victim).unwrap(), b"keep");
    }
}
