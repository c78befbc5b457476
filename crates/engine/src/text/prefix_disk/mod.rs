//! The prefix cache on disk: it outlives the process and unloaded models.
//!
//! When a sequence has ended, the blocks of its text that the prefix cache holds are written behind the requests, one file for each
//! block of a group. When a request arrives and files continue the prefix that is in memory, the request waits until these are read
//! into the prefix cache, where it finds them as usual.
//!
//! A file's path names all that decides the contents of a block: the model ([`ModelIdentity`]), the project, and the text up to the
//! block ([`names`]). Contents are encrypted with a key of the model and project, and authenticated together with the name, so a file
//! that is damaged, incomplete or in the wrong place is a miss. Nothing is synced, and a file that cannot be written is left out: the
//! cache may forget, but a block that it returns has the bits that were computed.
//!
//! After each write, all files together take at most [`PrefixDiskSettings::max_bytes`]. The least recently used are deleted first, and the
//! blocks of a text in reverse order, because a block is of no use without those before it. The order is kept in the files' modification
//! times.
//!
//! One thread reads and writes. Reads come before writes. The requests of a project are served in order, and projects take turns.

mod files;
mod index;
pub mod names;
#[cfg(test)]
mod tests;
mod worker;

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use ring::hmac;

use crate::ids::{RequestId, Tenant};
use crate::runtime::metrics::Metrics;
use crate::runtime::{DeviceIndex, Runtime};
use crate::settings::PrefixDiskSettings;
use crate::text::prompt::BlockKey;
use crate::text::scheduler::TextBlock;
use index::{BlockFile, Index};
use names::{BlockName, DiskRoot, FolderId, FolderKeys, FolderPath};
use outpost_common::clock_rng::ClockRng;

/// Max bytes of blocks that wait to be written. One block may exceed it.
const MAX_WRITE_BYTES: usize = 32 << 20;
/// Max bytes of blocks that were read for a device and not taken yet. One block may exceed it.
const MAX_READ_BYTES: usize = 32 << 20;
/// Max writes that wait. Beyond it, uses are not recorded.
const MAX_WRITES: usize = 4096;
/// Max time for the task in progress when the cache is closed, besides the time for those that are queued.
const LAST_TASK: Duration = Duration::from_secs(1);

/// What decides the contents of a model's blocks, besides the text.
#[derive(Clone, Copy, Debug)]
pub struct ModelIdentity<'a> {
    pub id: &'a str,
    /// The weights, the device and its kernels, the type of the KV cache and the layout of blocks. The blocks of a model with this
    /// ID and another description are deleted.
    pub description: &'a str,
}

/// The names of a text's blocks.
#[derive(Clone, Debug)]
pub struct TextNames {
    folder: FolderId,
    names: Vec<BlockName>,
}

/// What was read for a request.
#[derive(Debug)]
pub struct ReadBlock {
    pub request: RequestId,
    /// `None`: nothing more is read for the request.
    pub contents: Option<(TextBlock, Vec<u8>)>,
}

pub struct PrefixDisk {
    shared: Arc<Shared>,
}

/// The folder of a project's blocks of a model.
struct Folder {
    path: FolderPath,
    keys: Arc<FolderKeys>,
}

struct Shared {
    settings: PrefixDiskSettings,
    key: hmac::Key,
    /// The hash of this program, whose kernels computed the blocks.
    program: [u8; 32],
    state: Mutex<State>,
    /// Work was added.
    changed: Condvar,
    /// The thread has ended.
    ended: Condvar,
    clock: Arc<dyn ClockRng>,
    metrics: Arc<Metrics>,
}

#[derive(Default)]
struct State {
    folders: Vec<Folder>,
    folder_ids: HashMap<FolderPath, FolderId>,
    /// The identities of models that are in use.
    current: HashSet<([u8; 16], [u8; 16])>,
    index: Index,
    /// Folders whose files are to be deleted.
    deletions: VecDeque<PathBuf>,
    reads: VecDeque<Read>,
    /// By device.
    inboxes: HashMap<DeviceIndex, Inbox>,
    /// The tenant whose block was read last.
    last_reader: Option<Tenant>,
    writes: VecDeque<Write>,
    write_bytes: usize,
    /// The files of the blocks in `writes`.
    queued: HashSet<BlockFile>,
    /// The devices whose blocks are written.
    runtimes: Vec<Weak<Runtime>>,
    /// The uptime after which the thread begins no other task.
    closes_at: Option<Duration>,
    has_ended: bool,
}

/// Blocks that are read for a request.
struct Read {
    device: DeviceIndex,
    runtime: Weak<Runtime>,
    tenant: Tenant,
    request: RequestId,
    files: VecDeque<(TextBlock, BlockFile)>,
    /// The files of the whole prefix.
    used: Vec<BlockFile>,
}

#[derive(Default)]
struct Inbox {
    blocks: VecDeque<ReadBlock>,
    bytes: usize,
}

/// What is to be written.
enum Write {
    Block(BlockFile, Vec<u8>),
    /// Records that the files of a text, in its order, were used.
    Touch(Vec<BlockFile>),
}

impl PrefixDisk {
    /// Reads which files there are, and starts the thread.
    ///
    /// # Errors
    /// If the folder cannot be created or read, or the operating system cannot start the thread.
    pub fn start(
        settings: PrefixDiskSettings,
        clock: Arc<dyn ClockRng>,
        metrics: Arc<Metrics>,
    ) -> std::io::Result<Self> {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &settings.key.0);
        let mut state = State::default();
        for (path, file, bytes) in files::scan(&settings.folder)? {
            let folder = state.folder(&key, path);
            state.index.insert(BlockFile { folder, ..file }, bytes);
        }
        metrics.set_prefix_disk_bytes(state.index.bytes());
        let shared = Arc::new(Shared {
            program: names::program_hash()?,
            settings,
            key,
            state: Mutex::new(state),
            changed: Condvar::new(),
            ended: Condvar::new(),
            clock,
            metrics,
        });
        let own = Arc::clone(&shared);
        // It is not joined: it may wait for a disk that hangs.
        std::thread::Builder::new().name("prefix-cache".to_owned()).spawn(move || own.run())?;
        Ok(Self { shared })
    }

    /// Adds a device, which is woken when blocks were read for it and when more can be written.
    pub fn attach(&self, runtime: &Arc<Runtime>) {
        self.shared.lock().runtimes.push(Arc::downgrade(runtime));
    }

    /// The root of a project's texts. `adapter`: the hash of the adapter's weights; `long`: whether they are long sequences.
    pub fn root(&self, model: &ModelIdentity<'_>, tenant: Tenant, adapter: Option<u64>, long: bool) -> DiskRoot {
        let Shared { key, program, .. } = &*self.shared;
        let path = FolderPath {
            model: names::short_hash(key, &[b"model", model.id.as_bytes()]),
            identity: names::short_hash(key, &[b"identity", model.description.as_bytes(), program]),
            tenant,
        };
        let mut state = self.shared.lock();
        if state.current.insert((path.model, path.identity)) {
            state.forget(&self.shared.settings.folder, |other| {
                other.model == path.model && other.identity != path.identity
            });
            self.shared.changed.notify_one();
        }
        let folder = state.folder(key, path);
        let keys = state.keys(folder);
        drop(state);
        DiskRoot { folder, name: keys.map_or([0; 16], |keys| keys.root(adapter, long)) }
    }

    /// The names of a text's blocks, from its first one on.
    pub fn names(&self, root: DiskRoot, blocks: impl Iterator<Item = BlockKey>) -> TextNames {
        let keys = self.shared.lock().keys(root.folder);
        let mut parent = root.name;
        let next = |block: BlockKey| {
            parent = keys.as_ref()?.next(&parent, &block);
            Some(parent)
        };
        TextNames { folder: root.folder, names: blocks.map_while(next).collect() }
    }

    /// For each block of a text, which of the first `groups` groups have a file.
    pub fn find(&self, text: &TextNames, groups: usize) -> Vec<Vec<bool>> {
        let state = self.shared.lock();
        let has = |index, group| text.file(TextBlock { index, group }).is_some_and(|file| state.index.contains(&file));
        (0..text.names.len()).map(|index| (0..groups).map(|group| has(index, group)).collect()).collect()
    }

    /// Reads blocks for a request; [`Self::take_read`] returns them, in this order, and then an end. It comes early if one cannot be
    /// read. `prefix`: all blocks of the prefix that the request will use, which count as used.
    pub fn read(
        &self,
        runtime: &Arc<Runtime>,
        request: RequestId,
        text: &TextNames,
        wanted: &[TextBlock],
        prefix: &[TextBlock],
    ) {
        let files = wanted.iter().filter_map(|block| Some((*block, text.file(*block)?))).collect();
        let used = prefix.iter().filter_map(|block| text.file(*block)).collect();
        let (device, runtime) = (runtime.device.index, Arc::downgrade(runtime));
        let mut state = self.shared.lock();
        let tenant = state.folders.get(text.folder as usize).map_or(0, |folder| folder.path.tenant);
        state.reads.push_back(Read { device, runtime, tenant, request, files, used });
        self.shared.changed.notify_one();
    }

    /// Takes blocks of at least `bytes` bytes that were read for a device, if there are as many.
    pub fn take_read(&self, device: DeviceIndex, bytes: usize) -> Vec<ReadBlock> {
        let mut state = self.shared.lock();
        let Some(inbox) = state.inboxes.get_mut(&device) else { return Vec::new() };
        let (mut taken, mut left) = (Vec::new(), bytes);
        while left > 0
            && let Some(block) = inbox.blocks.pop_front()
        {
            let size = block.contents.as_ref().map_or(0, |(_, contents)| contents.len());
            (inbox.bytes, left) = (inbox.bytes - size, left.saturating_sub(size));
            taken.push(block);
        }
        if !taken.is_empty() {
            self.shared.changed.notify_one();
        }
        taken
    }

    /// Stops reading for a request.
    pub fn cancel(&self, device: DeviceIndex, request: RequestId) {
        self.shared.lock().reads.retain(|read| (read.device, read.request) != (device, request));
    }

    /// True if a block can be queued to be written.
    pub fn can_write(&self) -> bool {
        self.shared.lock().write_bytes < MAX_WRITE_BYTES
    }

    /// Max bytes of all files.
    pub fn max_bytes(&self) -> u64 {
        self.shared.settings.max_bytes
    }

    /// True if a block is neither on disk nor queued.
    pub fn lacks(&self, text: &TextNames, block: TextBlock) -> bool {
        let state = self.shared.lock();
        text.file(block).is_some_and(|file| !state.index.contains(&file) && !state.queued.contains(&file))
    }

    /// Queues the contents of a block to be written.
    pub fn write(&self, text: &TextNames, block: TextBlock, contents: Vec<u8>) {
        let Some(file) = text.file(block) else { return };
        let mut state = self.shared.lock();
        if state.queued.insert(file) {
            state.write_bytes += contents.len();
            state.writes.push_back(Write::Block(file, contents));
            self.shared.changed.notify_one();
        }
    }

    /// Records that blocks of a text, in its order, were used.
    pub fn mark_used(&self, text: &TextNames, blocks: &[TextBlock]) {
        let files = blocks.iter().filter_map(|block| text.file(*block)).collect();
        let mut state = self.shared.lock();
        if state.writes.len() < MAX_WRITES {
            state.writes.push_back(Write::Touch(files));
            self.shared.changed.notify_one();
        }
    }

    /// The tenants that may have files.
    pub fn tenants(&self) -> HashSet<Tenant> {
        self.shared.lock().folder_ids.keys().map(|path| path.tenant).collect()
    }

    /// Deletes the files of a tenant.
    pub fn forget(&self, tenant: Tenant) {
        self.shared.lock().forget(&self.shared.settings.folder, |path| path.tenant == tenant);
        self.shared.changed.notify_one();
    }

    /// Writes what is queued, for about this time at most, and ends the thread. A disk that hangs does not delay it longer.
    pub fn close(&self, within: Duration) {
        let mut state = self.shared.lock();
        state.closes_at = Some(self.shared.clock.uptime() + within);
        self.shared.changed.notify_all();
        let waited = self.shared.ended.wait_timeout_while(state, within + LAST_TASK, |state| !state.has_ended);
        drop(waited);
    }
}

impl Drop for PrefixDisk {
    fn drop(&mut self) {
        self.close(Duration::ZERO);
    }
}

impl Shared {
    /// No code panics while it holds this lock, so poisoning is ignored.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TextNames {
    fn file(&self, TextBlock { index, group }: TextBlock) -> Option<BlockFile> {
        let (name, group) = (*self.names.get(index)?, u8::try_from(group).ok()?);
        Some(BlockFile { folder: self.folder, name, group })
    }
}

impl State {
    /// The number of a folder, which is added if it is new.
    fn folder(&mut self, key: &hmac::Key, path: FolderPath) -> FolderId {
        let next = self.folders.len() as FolderId;
        let id = *self.folder_ids.entry(path).or_insert(next);
        if id == next {
            self.folders.push(Folder { path, keys: Arc::new(FolderKeys::new(key, &path)) });
        }
        id
    }

    fn keys(&self, folder: FolderId) -> Option<Arc<FolderKeys>> {
        self.folders.get(folder as usize).map(|folder| Arc::clone(&folder.keys))
    }

    /// Forgets the folders that match, and has their files deleted.
    fn forget(&mut self, root: &Path, matches: impl Fn(&FolderPath) -> bool) {
        let gone: HashMap<FolderPath, FolderId> = self.folder_ids.extract_if(|path, _| matches(path)).collect();
        let ids: HashSet<FolderId> = gone.values().copied().collect();
        if ids.is_empty() {
            return;
        }
        self.index.remove_folders(&ids);
        let is_gone = |file: &BlockFile| ids.contains(&file.folder);
        self.reads.iter_mut().for_each(|read| read.files.retain(|(_, file)| !is_gone(file)));
        self.writes.retain(|write| !matches!(write, Write::Block(file, _) if is_gone(file)));
        self.queued.retain(|file| !is_gone(file));
        self.write_bytes = self.writes.iter().map(Write::bytes).sum();
        self.deletions.extend(gone.keys().map(|path| files::folder(root, path)));
    }
}

impl Write {
    /// Bytes that count towards [`MAX_WRITE_BYTES`].
    fn bytes(&self) -> usize {
        match self {
            Self::Block(_, contents) => contents.len(),
            Self::Touch(_) => 0,
        }
    }
}
