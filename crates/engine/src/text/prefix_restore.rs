//! Puts blocks that were read from the prefix cache on disk into the prefix cache, on the compute thread. A step takes a bounded number
//! of bytes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::prefix_disk::PrefixDisk;
use super::queue::TextQueue;
use super::scheduler::TextBlock;
use super::workload::TextWorkload;
use crate::ids::RequestId;
use outpost_models::kv::BlockId;

/// Bytes that a step takes while requests run, and while none does, besides the block that reaches them.
const STEP_BYTES: usize = 8 << 20;
const IDLE_BYTES: usize = 64 << 20;
/// Requests start without the blocks that they wait for if none was read for so long.
const MAX_STALL: Duration = Duration::from_secs(2);
/// Max time for which a request waits for blocks.
const MAX_WAIT: Duration = Duration::from_secs(30);

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
