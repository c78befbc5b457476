//! The operations of a disk in order, and the possible contents of the disk after a power cut.

use crate::simulated_disk::SECTOR;

/// A disk operation, or a mark of the test.
#[derive(Clone, Debug)]
pub enum Event {
    Write {
        at: usize,
        bytes: Vec<u8>,
    },
    SetLen(usize),
    Sync,
    /// The writes of this round were submitted.
    Begun(usize),
    /// All writes of this round were acknowledged.
    Acknowledged(usize),
}

/// Which unsynced writes survive a crash. A prefix of them is equal to `All` at an earlier point, because nothing is
/// acknowledged between two syncs.
#[derive(Clone, Copy, Debug)]
pub enum CrashOutcome {
    Nothing,
    All,
    /// A random subset; the number seeds the choice.
    Subset(usize),
    /// A random subset of the sectors of one write; of the other writes all or a random subset.
    Torn(usize),
}

/// The initial content of a disk and its later events.
pub struct History {
    pub start: Vec<u8>,
    pub events: Vec<Event>,
}

/// A power cut before the event `at`.
pub struct Crash<'a> {
    pub at: usize,
    /// The content of the disk after the last sync.
    synced: &'a [u8],
    /// The events since the last sync.
    unsynced: &'a [Event],
    /// The number of rounds that were begun, and that were acknowledged.
    pub begun: usize,
    pub acknowledged: usize,
}

impl History {
    /// Calls `visit` for a crash between every two operations, in order.
    pub fn crashes(&self, mut visit: impl FnMut(&Crash<'_>)) {
        let (mut synced, mut sync_index, mut begun, mut acknowledged) = (self.start.clone(), 0, 0, 0);
        for at in 0..=self.events.len() {
            match self.events.get(at) {
                Some(Event::Begun(round)) => begun = round + 1,
                Some(Event::Acknowledged(round)) => acknowledged = round + 1,
                _ => visit(&Crash { at, synced: &synced, unsynced: &self.events[sync_index..at], begun, acknowledged }),
            }
            if let Some(Event::Sync) = self.events.get(at) {
                self.events[sync_index..at].iter().for_each(|event| apply(&mut synced, event));
                sync_index = at;
            }
        }
    }
}

impl Crash<'_> {
    /// Whether a sync is next, so that the number of unsynced writes is at its maximum.
    pub fn is_before_sync(&self, history: &History) -> bool {
        matches!(history.events.get(self.at), None | Some(Event::Sync))
    }

    /// The content of the disk after the crash. `None` if there is no write that can be torn.
    pub fn image(&self, outcome_kind: CrashOutcome, seed: u64) -> Option<Vec<u8>> {
        let mut image = self.synced.to_vec();
        match outcome_kind {
            CrashOutcome::Nothing => {}
            CrashOutcome::All => self.unsynced.iter().for_each(|event| apply(&mut image, event)),
            CrashOutcome::Subset(case) => {
                let mut rng = TestRng::new(seed, case);
                self.unsynced.iter().filter(|_| rng.below(2) == 0).for_each(|event| apply(&mut image, event));
            }
            CrashOutcome::Torn(case) => self.tear(&mut image, &mut TestRng::new(seed, case))?,
        }
        Some(image)
    }

    fn tear(&self, image: &mut Vec<u8>, rng: &mut TestRng) -> Option<()> {
        let long = |event: &Event| matches!(event, Event::Write { bytes, .. } if bytes.len() > SECTOR);
        let candidates: Vec<_> = (0..self.unsynced.len()).filter(|index| long(&self.unsynced[*index])).collect();
        let torn = *candidates.get(rng.below(candidates.len().max(1)))?;
        let all = rng.below(2) == 0;
        for (index, event) in self.unsynced.iter().enumerate() {
            match event {
                Event::Write { at, bytes } if index == torn => {
                    for (number, sector) in bytes.chunks(SECTOR).enumerate().filter(|_| rng.below(2) == 0) {
                        put(image, at + number * SECTOR, sector);
                    }
                }
                event if all || rng.below(2) == 0 => apply(image, event),
                _ => {}
            }
        }
        Some(())
    }
}

pub fn apply(bytes: &mut Vec<u8>, event: &Event) {
    match event {
        Event::Write { at, bytes: new } => put(bytes, *at, new),
        Event::SetLen(len) => bytes.resize(*len, 0),
        Event::Sync | Event::Begun(_) | Event::Acknowledged(_) => {}
    }
}

fn put(bytes: &mut Vec<u8>, at: usize, new: &[u8]) {
    if bytes.len() < at + new.len() {
        bytes.resize(at + new.len(), 0);
    }
    bytes[at..at + new.len()].copy_from_slice(new);
}

/// A small random number generator with a seed, so that failures are reproducible.
#[derive(Clone)]
pub struct TestRng(u64);

impl TestRng {
    pub fn new(seed: u64, case: usize) -> Self {
        let mut rng = Self(seed << 32 ^ case as u64);
        // The first numbers of similar seeds are similar.
        (0..4).for_each(|_| _ = rng.below(2));
        rng
    }

    pub fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}
