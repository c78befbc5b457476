//! Copies blocks of ended texts from the arenas of a device for the prefix cache on disk, on the compute thread.
//!
//! A step copies a bounded number of bytes. Blocks of ended texts are not held: what is evicted before it is copied is not written.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::prefix_disk::{PrefixDisk, TextNames};
use super::queue::TextQueue;
use super::scheduler::{EndedText, ModelId, TextBlock};
use outpost_models::state_arenas::StateArenas;

/// Bytes that a step copies, besides the block that reaches them.
const STEP_BYTES: usize = 8 << 20;
/// Max ended texts that wait to be written. Later ones are not written.
const MAX_ENDED: usize = 64;
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
