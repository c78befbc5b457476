//! Moves blocks between the arenas of a device and the prefix cache on disk, on the compute thread.
//!
//! A step copies a few megabytes at most, so running requests hardly notice. Blocks of ended texts are not held: what is evicted
//! before it is copied is not written.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::prefix_disk::{PrefixDisk, TextNames};
use super::queue::TextQueue;
use super::scheduler::{EndedText, ModelId, TextBlock};
use crate::ids::RequestId;
use outpost_models::kv::BlockId;
use outpost_models::state_arenas::StateArenas;

/// Bytes that a step copies for the disk, besides the block that reaches them.
const STEP_BYTES: usize = 8 << 20;
/// Max ended texts that wait to be written. Later ones are not written.
const MAX_ENDED: usize = 64;
/// A request starts without the blocks that it waits for if none was read for so long.
const MAX_WAIT: Duration = Duration::from_secs(2);
/// Rounds, and the pause after one that finds no room, in which the last texts are copied when the device stops.
const LAST_ROUNDS: usize = 400;
const LAST_PAUSE: Duration = Duration::from_millis(5);

#[derive(Default)]
pub struct PrefixTransfer {
    /// The oldest is written first.
    ended: VecDeque<Ended>,
}

/// The text of a sequence that has ended.
struct Ended {
    text: EndedText,
    names: TextNames,
    /// For each block, which groups are on disk.
    on_disk: Vec<Vec<bool>>,
    /// The blocks that are on disk or were copied.
    done: Vec<TextBlock>,
}

impl PrefixTransfer {
    /// Puts the blocks that were read since the last step into the prefix cache. `false`: there were none.
    pub fn restore(&self, queue: &TextQueue, arenas: &mut HashMap<ModelId, StateArenas>) -> bool {
        let Some(disk) = queue.prefix_disk() else { return false };
        let (device, mut by_request) = (queue.runtime().device.index, BTreeMap::<RequestId, (Vec<_>, bool)>::new());
        for read in disk.take_read(device) {
            let (blocks, has_ended) = by_request.entry(read.request).or_default();
            *has_ended |= read.contents.is_none();
            blocks.extend(read.contents);
        }
        let busy = !by_request.is_empty();
        for (request, (blocks, has_ended)) in by_request {
            let restored = restore_blocks(queue, arenas, request, &blocks).is_some();
            let mut state = queue.lock();
            if restored && !has_ended {
                let now = queue.runtime().clock.uptime();
                state.restoring.entry(request).and_modify(|last| *last = now);
                continue;
            }
            state.restoring.remove(&request);
            state.scheduler.end_restore(request);
            drop(state);
            disk.cancel(device, request);
        }
        busy
    }

    /// Lets requests start whose blocks are not read in time. `true`: others still wait.
    pub fn expire(&self, queue: &TextQueue) -> bool {
        let Some(disk) = queue.prefix_disk() else { return false };
        let (now, device) = (queue.runtime().clock.uptime(), queue.runtime().device.index);
        let mut state = queue.lock();
        let late = state.restoring.extract_if(.., |_, last| now.saturating_sub(*last) > MAX_WAIT);
        let late: Vec<RequestId> = late.map(|(request, _)| request).collect();
        late.iter().for_each(|request| state.scheduler.end_restore(*request));
        let others_wait = !state.restoring.is_empty();
        drop(state);
        late.iter().for_each(|request| disk.cancel(device, *request));
        others_wait
    }

    /// Copies blocks of ended texts for the disk. `false`: nothing was copied.
    pub fn save(&mut self, queue: &TextQueue, arenas: &HashMap<ModelId, StateArenas>) -> bool {
        let Some(disk) = queue.prefix_disk() else { return false };
        let ended = queue.lock().scheduler.take_ended();
        let free = MAX_ENDED.saturating_sub(self.ended.len());
        self.ended.extend(ended.into_iter().take(free).map(|text| Ended::new(text, disk)));
        let mut copied = 0;
        while copied < STEP_BYTES
            && disk.can_write()
            && let Some(ended) = self.ended.front_mut()
        {
            let bytes = arenas.get(&ended.text.model).and_then(|arenas| ended.save(queue, disk, arenas));
            copied += bytes.unwrap_or(0);
            if bytes.is_none()
                && let Some(ended) = self.ended.pop_front()
            {
                disk.mark_used(&ended.names, &ended.done);
            }
        }
        copied > 0
    }

    /// Copies what is left, because the device stops.
    pub fn finish(&mut self, queue: &TextQueue, arenas: &HashMap<ModelId, StateArenas>) {
        for _ in 0..LAST_ROUNDS {
            let has_copied = self.save(queue, arenas);
            if self.ended.is_empty() {
                return;
            }
            if !has_copied {
                std::thread::sleep(LAST_PAUSE);
            }
        }
    }
}

impl Ended {
    fn new(text: EndedText, disk: &PrefixDisk) -> Self {
        let names = disk.names(text.disk, text.keys.iter().copied());
        let on_disk = disk.find(&names, text.groups);
        Self { text, names, on_disk, done: Vec::new() }
    }

    /// Copies its next blocks. Returns their bytes; `None`: all are copied.
    fn save(&mut self, queue: &TextQueue, disk: &PrefixDisk, arenas: &StateArenas) -> Option<usize> {
        let from = self.done.last().map_or(0, |last| last.index);
        let blocks = queue.lock().scheduler.blocks_to_write(&self.text, from);
        let mut copied = 0;
        for (at, id) in blocks {
            if self.done.last().is_some_and(|last| at <= *last) {
                continue;
            }
            if copied >= STEP_BYTES {
                return Some(copied);
            }
            self.done.push(at);
            if self.on_disk.get(at.index).and_then(|groups| groups.get(at.group)) == Some(&true) {
                continue;
            }
            let mut contents = Vec::new();
            match arenas.save(at.group, id, &mut contents) {
                Ok(()) => {
                    copied += contents.len();
                    disk.write(&self.names, at, contents);
                }
                Err(error) => tracing::error!(%error, "a block of the prefix cache cannot be copied for the disk"),
            }
        }
        Some(copied).filter(|copied| *copied > 0)
    }
}

/// Puts blocks that were read into the prefix cache. `None`: not all could be.
fn restore_blocks(
    queue: &TextQueue,
    arenas: &mut HashMap<ModelId, StateArenas>,
    request: RequestId,
    blocks: &[(TextBlock, Vec<u8>)],
) -> Option<()> {
    let runtime = queue.runtime();
    let mut state = queue.lock();
    let model = state.waiting.get(&request).map(|queued| Arc::clone(&queued.model))?;
    let max_bytes = runtime.memory.available();
    let mut allocate = |at: &TextBlock| Some((*at, state.scheduler.allocate_restored(request, at.group, max_bytes)?));
    let allocated: Vec<(TextBlock, BlockId)> = blocks.iter().map_while(|(at, _)| allocate(at)).collect();
    drop(state);
    let arenas = arenas.entry(model.key).or_insert_with(|| model.network.new_arenas(runtime.settings.kv_type));
    let load = |((at, id), (_, contents)): (&(TextBlock, BlockId), &(TextBlock, Vec<u8>))| {
        let loaded = arenas.ensure(at.group, *id).and_then(|()| arenas.load(at.group, *id, contents));
        loaded.inspect_err(|error| tracing::error!(model = model.id(), %error, "a block from disk is not used")).is_ok()
    };
    let loaded = allocated.iter().zip(blocks).map(load).take_while(|loaded| *loaded).count();
    let (good, bad) = allocated.split_at(loaded);
    let mut state = queue.lock();
    let inserted = state.scheduler.insert_restored(request, good);
    state.scheduler.release_restored(model.key, bad);
    (inserted && good.len() == blocks.len()).then_some(())
}
