//! The thread that reads, writes and deletes files.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use super::files::{self, disk_bytes, file_name};
use super::index::BlockFile;
use super::names::FolderKeys;
use super::{MAX_READ_BYTES, MAX_WRITE_BYTES, Read, ReadBlock, Shared, State, Write};
use crate::ids::RequestId;
use crate::runtime::metrics::PrefixDiskEvent;
use crate::runtime::{DeviceIndex, Runtime};
use crate::text::scheduler::TextBlock;
use outpost_common::disk_space::DataClass;

/// Time for which nothing is written after the disk failed.
const PAUSE: Duration = Duration::from_secs(10);
/// Max files that are deleted for one that is written, where the disk is nearly full.
const MAX_DELETED_FOR_SPACE: usize = 64;

/// What the thread does next.
enum Task {
    Delete(PathBuf),
    Read { device: DeviceIndex, runtime: Weak<Runtime>, request: RequestId, block: Option<(TextBlock, Located)> },
    Write(Located, Vec<u8>),
    Touch(Vec<BlockFile>),
    End,
}

/// A file with its path and keys.
struct Located {
    file: BlockFile,
    path: PathBuf,
    keys: Arc<FolderKeys>,
}

impl Shared {
    /// Works until the cache is closed.
    pub fn run(&self) {
        self.work();
        self.lock().has_ended = true;
        self.ended.notify_all();
    }

    fn work(&self) {
        let (mut paused_until, mut works) = (Duration::ZERO, true);
        // The limit may be lower than that of the run before.
        while self.lock().index.bytes() > self.settings.max_bytes && self.evict() {}
        loop {
            match self.next_task() {
                Task::Delete(folder) => self.delete_folder(&folder),
                Task::Read { device, runtime, request, block } => self.read(device, &runtime, request, block),
                Task::Write(located, contents) => {
                    let now = self.clock.uptime();
                    if now < paused_until {
                        continue;
                    }
                    let written = self.write(&located, contents);
                    if let Err(error) = &written {
                        paused_until = now + PAUSE;
                        self.metrics.count_prefix_disk(PrefixDiskEvent::Unwritten);
                        if works {
                            tracing::warn!(%error, "blocks cannot be written to the prefix cache on disk for now");
                        }
                    }
                    works = written.is_ok();
                }
                Task::Touch(files) => self.set_used(&files),
                Task::End => return,
            }
        }
    }

    /// Waits for work.
    fn next_task(&self) -> Task {
        let mut state = self.lock();
        loop {
            let is_late = state.closes_at.is_some_and(|at| self.clock.uptime() >= at);
            if !is_late && let Some(task) = self.take_task(&mut state) {
                return task;
            }
            if state.closes_at.is_some() {
                return Task::End;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn take_task(&self, state: &mut State) -> Option<Task> {
        if let Some(folder) = state.deletions.pop_front() {
            return Some(Task::Delete(folder));
        }
        if let Some(read) = self.take_read_task(state) {
            return Some(read);
        }
        loop {
            match state.writes.pop_front()? {
                Write::Touch(files) => return Some(Task::Touch(files)),
                Write::Block(file, contents) => {
                    state.queued.remove(&file);
                    let was_full = state.write_bytes >= MAX_WRITE_BYTES;
                    state.write_bytes -= contents.len();
                    if was_full && state.write_bytes < MAX_WRITE_BYTES {
                        state.runtimes.iter().filter_map(Weak::upgrade).for_each(|runtime| runtime.wake());
                    }
                    if let Some(located) = self.locate(state, file).filter(|_| !state.index.contains(&file)) {
                        return Some(Task::Write(located, contents));
                    }
                }
            }
        }
    }

    /// The next block of a request whose device has room for it: the oldest request of another project than that which was served
    /// last, or else of that project.
    fn take_read_task(&self, state: &mut State) -> Option<Task> {
        let has_room = |read: &Read| state.inboxes.get(&read.device).is_none_or(|inbox| inbox.bytes < MAX_READ_BYTES);
        let ready = || state.reads.iter().enumerate().filter(|(_, read)| has_room(read));
        let other = ready().find(|(_, read)| Some(read.tenant) != state.last_reader);
        let (index, _) = other.or_else(|| ready().next())?;
        let mut read = state.reads.remove(index)?;
        state.last_reader = Some(read.tenant);
        let (device, runtime, request) = (read.device, Weak::clone(&read.runtime), read.request);
        let next = read.files.pop_front().and_then(|(block, file)| Some((block, self.locate(state, file)?)));
        let known = next.filter(|(_, located)| state.index.contains(&located.file));
        if known.is_some() {
            state.reads.insert(index, read);
        } else {
            state.writes.push_back(Write::Touch(read.used));
        }
        Some(Task::Read { device, runtime, request, block: known })
    }

    fn locate(&self, state: &State, file: BlockFile) -> Option<Located> {
        let folder = state.folders.get(file.folder as usize)?;
        let path = files::folder(&self.settings.folder, &folder.path).join(file_name(&file));
        Some(Located { file, path, keys: Arc::clone(&folder.keys) })
    }

    fn read(
        &self,
        device: DeviceIndex,
        runtime: &Weak<Runtime>,
        request: RequestId,
        block: Option<(TextBlock, Located)>,
    ) {
        let contents = block.and_then(|(block, located)| Some((block, self.read_file(&located)?)));
        let mut state = self.lock();
        if contents.is_none() {
            // Without one block, those after it are of no use.
            state.reads.retain(|read| (read.device, read.request) != (device, request));
        }
        let inbox = state.inboxes.entry(device).or_default();
        inbox.bytes += contents.as_ref().map_or(0, |(_, bytes)| bytes.len());
        inbox.blocks.push_back(ReadBlock { request, contents });
        drop(state);
        runtime.upgrade().iter().for_each(|runtime| runtime.wake());
    }

    fn read_file(&self, located: &Located) -> Option<Vec<u8>> {
        let path = located.path.display();
        let sealed = match std::fs::read(&located.path) {
            Ok(sealed) => sealed,
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, %path, "a block of the prefix cache on disk cannot be read; it is computed again");
                return None;
            }
            Err(_) => Vec::new(),
        };
        let contents = located.keys.open(&file_name(&located.file), &sealed);
        if contents.is_some() {
            self.metrics.count_prefix_disk(PrefixDiskEvent::Read);
            return contents;
        }
        self.metrics.count_prefix_disk(PrefixDiskEvent::Damaged);
        tracing::warn!(%path, "a block of the prefix cache on disk is damaged; it is computed again");
        let mut state = self.lock();
        state.index.remove(&located.file);
        self.metrics.set_prefix_disk_bytes(state.index.bytes());
        drop(state);
        self.delete(&located.path);
        None
    }

    /// # Errors
    /// If the disk fails or is full.
    fn write(&self, located: &Located, contents: Vec<u8>) -> io::Result<()> {
        let mut nonce = [0; ring::aead::NONCE_LEN];
        self.clock.fill(&mut nonce);
        let Some(sealed) = located.keys.seal(&file_name(&located.file), nonce, contents) else { return Ok(()) };
        let bytes = disk_bytes(sealed.len());
        if bytes > self.settings.max_bytes {
            return Ok(());
        }
        let excess = |state: &State| (state.index.bytes() + bytes).saturating_sub(self.settings.max_bytes) > 0;
        while excess(&self.lock()) && self.evict() {}
        let reserve = &self.settings.reserve;
        for _ in 0..MAX_DELETED_FOR_SPACE {
            if reserve.require(DataClass::Bulk, bytes).is_ok() || !self.evict() {
                break;
            }
        }
        reserve.require(DataClass::Bulk, bytes).map_err(io::Error::other)?;
        files::write(&located.path, &sealed)?;
        let mut state = self.lock();
        // The folder may have been forgotten meanwhile.
        let id = located.file.folder;
        let folder = state.folders.get(id as usize);
        let is_known = folder.is_some_and(|folder| state.folder_ids.get(&folder.path) == Some(&id));
        if is_known {
            state.index.insert(located.file, bytes);
        }
        self.metrics.set_prefix_disk_bytes(state.index.bytes());
        drop(state);
        self.metrics.count_prefix_disk(PrefixDiskEvent::Written);
        if !is_known {
            self.delete(&located.path);
        }
        Ok(())
    }

    /// Deletes the least recently used file. `false`: there is none.
    fn evict(&self) -> bool {
        let mut state = self.lock();
        let Some(file) = state.index.pop_oldest() else { return false };
        let located = self.locate(&state, file);
        self.metrics.set_prefix_disk_bytes(state.index.bytes());
        drop(state);
        located.iter().for_each(|located| self.delete(&located.path));
        self.metrics.count_prefix_disk(PrefixDiskEvent::Evicted);
        true
    }

    fn delete(&self, path: &Path) {
        if let Err(error) = std::fs::remove_file(path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, path = %path.display(), "a block of the prefix cache on disk cannot be deleted");
        }
    }

    fn delete_folder(&self, path: &Path) {
        match std::fs::remove_dir_all(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, path = %path.display(), "a folder of the prefix cache on disk cannot be deleted");
            }
            _ => {}
        }
        // Its parents are shared with other projects.
        for parent in path.ancestors().skip(1).take(2) {
            if std::fs::remove_dir(parent).is_err() {
                break;
            }
        }
        self.metrics.set_prefix_disk_bytes(self.lock().index.bytes());
    }

    /// Records a use of the files of a text: the last one first, because it is the first to be evicted.
    fn set_used(&self, files: &[BlockFile]) {
        let now = self.clock.now();
        for (later, file) in files.iter().rev().enumerate() {
            let mut state = self.lock();
            let located = self.locate(&state, *file).filter(|_| state.index.touch(file));
            drop(state);
            // If it fails, the file is evicted earlier.
            let _ = located.map(|located| files::set_used(&located.path, now, later));
        }
    }
}
