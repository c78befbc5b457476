//! Moves blocks between the arenas of a device and the prefix cache on disk, on the compute thread.
//!
//! A step copies a bounded number of bytes. Blocks of ended texts are not held: what is evicted before it is copied is not written.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::prefix_disk::{PrefixDisk, TextNames};
use super::queue::TextQueue;
use super::scheduler::{EndedText, ModelId, TextBlock};
use super::workload::TextWorkload;
use crate::ids::RequestId;
use outpost_models::kv::BlockId;
use outpost_models::state_arenas::StateArenas;

/// Bytes that a step copies in each direction, besides the block that reaches them.
const STEP_BYTES: usize = 8 << 20;
/// Bytes that a step reads if no request runs.
const IDLE_BYTES: usize = 64 << 20;
/// Max ended texts that wait to be written. Later ones are not written.
const MAX_ENDED: usize = 64;
/// Requests start without the blocks that they wait for if none was read for so long.
const MAX_STALL: Duration = Duration::from_secs(2);
/// Max time for which a request waits for blocks.
const MAX_WAIT: Duration = Duration::from_secs(30);
/// Rounds, and the pause after one that finds no room, in which the last texts are copied when the device stops.
const LAST_ROUNDS: usize = 400;
const LAST_PAUSE: Duration = Duration::from_millis(5);

/// The ended texts that are to be written.
#[derive(Default)]
pub struct PrefixWriter {
    /// The oldest is written first.
    texts: VecDeque<EndedText>,
    /// The progress of the first one.
    current: Option<TextProgress>,
}

/// What of a text is written.
struct TextProgress {
    names: TextNames,
    /// The blocks that are on disk, were copied or could not be copied.
    handled: Vec<TextBlock>,
    /// Bytes that were copied.
    bytes: u64,
}

impl PrefixWriter {
    /// Copies blocks of ended texts for the disk. `false`: nothing was copied.
    pub fn save(&mut self, queue: &TextQueue, arenas: &HashMap<ModelId, StateArenas>) -> bool {
        let Some(disk) = queue.prefix_disk() else { return false };
        let ended = queue.lock().scheduler.take_ended();
        let free = MAX_ENDED.saturating_sub(self.texts.len());
        self.texts.extend(ended.into_iter().take(free));
        let mut copied = 0;
        while copied < STEP_BYTES
            && disk.can_write()
            && let Some(text) = self.texts.pop_front()
        {
            let progress = self.current.take().unwrap_or_else(|| TextProgress::new(&text, disk));
            let left = STEP_BYTES - copied;
            let (bytes, rest) = match arenas.get(&text.model) {
                Some(arenas) => progress.save(&text, queue, disk, arenas, left),
                None => (0, None),
            };
            copied += bytes;
            if rest.is_some() {
                self.texts.push_front(text);
            }
            self.current = rest;
        }
        copied > 0
    }

    /// Copies what is left, because the device stops.
    pub fn finish(&mut self, queue: &TextQueue, arenas: &HashMap<ModelId, StateArenas>) {
        for _ in 0..LAST_ROUNDS {
            let has_copied = self.save(queue, arenas);
            if self.texts.is_empty() {
                return;
            }
            if !has_copied {
                std::thread::sleep(LAST_PAUSE);
            }
        }
    }
}

impl TextProgress {
    fn new(text: &EndedText, disk: &PrefixDisk) -> Self {
        let names = disk.names(text.disk, text.keys.iter().copied());
        // What is on disk already must not be evicted for the rest.
        let of_group = |group| (0..text.keys.len()).map(move |index| TextBlock { index, group });
        let mut all: Vec<TextBlock> = (0..text.groups).flat_map(of_group).collect();
        all.sort_unstable();
        disk.mark_used(&names, &all);
        Self { names, handled: Vec::new(), bytes: 0 }
    }

    /// Copies blocks of up to `max_bytes` bytes, besides the one that reaches them. Returns their bytes, and the progress if there
    /// are more. A text that is larger than the disk may hold is cut.
    fn save(
        mut self,
        text: &EndedText,
        queue: &TextQueue,
        disk: &PrefixDisk,
        arenas: &StateArenas,
        max_bytes: usize,
    ) -> (usize, Option<Self>) {
        let last = self.handled.last().copied();
        let blocks = queue.lock().scheduler.blocks_to_write(text, last.map_or(0, |last| last.index));
        let mut copied = 0;
        for (at, id) in blocks.into_iter().filter(|(at, _)| last.is_none_or(|last| *at > last)) {
            if copied >= max_bytes {
                return (copied, Some(self));
            }
            self.handled.push(at);
            if !disk.lacks(&self.names, at) {
                continue;
            }
            let mut contents = Vec::new();
            if let Err(error) = arenas.save(at.group, id, &mut contents) {
                tracing::error!(%error, "a block of the prefix cache cannot be copied for the disk");
                break;
            }
            self.bytes += contents.len() as u64;
            if self.bytes > disk.max_bytes() {
                break;
            }
            copied += contents.len();
            disk.write(&self.names, at, contents);
        }
        disk.mark_used(&self.names, &self.handled);
        (copied, None)
    }
}

impl TextWorkload {
    /// Puts blocks that were read into the prefix cache. `false`: there were none.
    pub(super) fn restore_prefixes(&mut self) -> bool {
        let queue = Arc::clone(&self.queue);
        let Some(disk) = queue.prefix_disk() else { return false };
        let (device, max_bytes) =
            (self.runtime.device.index, if self.active.is_empty() { IDLE_BYTES } else { STEP_BYTES });
        let mut by_request = BTreeMap::<RequestId, (Vec<_>, bool)>::new();
        for read in disk.take_read(device, max_bytes) {
            let (blocks, has_ended) = by_request.entry(read.request).or_default();
            *has_ended |= read.contents.is_none();
            blocks.extend(read.contents);
        }
        let busy = !by_request.is_empty();
        for (request, (blocks, has_ended)) in by_request {
            let restored = self.restore_blocks(request, &blocks).is_some();
            let mut state = queue.lock();
            state.last_restored = self.runtime.clock.uptime();
            if !restored || has_ended {
                state.restoring.remove(&request);
                state.scheduler.end_restore(request);
                drop(state);
                disk.cancel(device, request);
            }
        }
        self.is_restoring = expire_restores(&queue, disk);
        busy
    }

    /// `None`: not all blocks could be put into the prefix cache.
    fn restore_blocks(&mut self, request: RequestId, blocks: &[(TextBlock, Vec<u8>)]) -> Option<()> {
        self.runtime.faults.point("text.restore_blocks");
        let queue = Arc::clone(&self.queue);
        let mut state = queue.lock();
        let model = state.waiting.get(&request).map(|queued| Arc::clone(&queued.model))?;
        let max_bytes = self.runtime.memory.available();
        let mut allocate =
            |at: &TextBlock| Some((*at, state.scheduler.allocate_restored(request, at.group, max_bytes)?));
        let allocated: Vec<(TextBlock, BlockId)> = blocks.iter().map_while(|(at, _)| allocate(at)).collect();
        let released = state.scheduler.take_released();
        drop(state);
        // The IDs of released blocks may be used again.
        self.release(&released);
        let kv_type = self.runtime.settings.kv_type;
        let arenas = self.arenas.entry(model.key).or_insert_with(|| model.network.new_arenas(kv_type));
        let load = |((at, id), (_, contents)): (&(TextBlock, BlockId), &(TextBlock, Vec<u8>))| {
            let loaded = arenas.ensure(at.group, *id).and_then(|()| arenas.load(at.group, *id, contents));
            loaded
                .inspect_err(|error| tracing::error!(model = model.id(), %error, "a block from disk is not used"))
                .is_ok()
        };
        let loaded = allocated.iter().zip(blocks).map(load).take_while(|loaded| *loaded).count();
        let (good, bad) = allocated.split_at(loaded);
        let mut state = queue.lock();
        let inserted = state.scheduler.insert_restored(request, good);
        state.scheduler.release_restored(model.key, bad);
        (inserted && good.len() == blocks.len()).then_some(())
    }
}

/// Lets requests start that have waited too long for blocks. `true`: others still wait.
fn expire_restores(queue: &TextQueue, disk: &PrefixDisk) -> bool {
    let (now, device) = (queue.runtime().clock.uptime(), queue.runtime().device.index);
    let mut state = queue.lock();
    let is_stalled = now.saturating_sub(state.last_restored) > MAX_STALL;
    let late = state.restoring.extract_if(.., |_, since| is_stalled || now.saturating_sub(*since) > MAX_WAIT);
    let late: Vec<RequestId> = late.map(|(request, _)| request).collect();
    late.iter().for_each(|request| state.scheduler.end_restore(*request));
    let others_wait = !state.restoring.is_empty();
    drop(state);
    late.iter().for_each(|request| disk.cancel(device, *request));
    others_wait
}
