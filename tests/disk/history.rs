//! What was done to a disk, and what is left of it when the power goes in the middle.

use crate::simulated_disk::SECTOR;

/// One thing that a program did, or that a test saw.
#[derive(Clone, Debug)]
pub enum Event {
    Write {
        at: usize,
        bytes: Vec<u8>,
    },
    SetLen(usize),
    Sync,
    /// The writes of this round were asked for.
    Begun(usize),
    /// They were all acknowledged.
    Acknowledged(usize),
}

/// What becomes of the writes that no sync has made safe. (A prefix of them is `All` at an
/// earlier point: nothing is acknowledged between two syncs.)
#[derive(Clone, Copy, Debug)]
pub enum Fate {
    Nothing,
    All,
    /// Each on its own.
    Subset(usize),
    /// One of them by its sectors; the others all, or each on its own.
    Torn(usize),
}

/// A disk's past.
pub struct History {
    pub start: Vec<u8>,
    pub events: Vec<Event>,
}

/// A point at which the power goes: before the event `at`.
pub struct Crash<'a> {
    pub at: usize,
    /// All synced writes.
    safe: &'a [u8],
    /// What happened since the last sync.
    loose: &'a [Event],
    /// How many rounds were begun, and how many acknowledged.
    pub begun: usize,
    pub acknowledged: usize,
}

impl History {
    /// Shows every point between two operations, in order.
    pub fn crashes(&self, mut each: impl FnMut(&Crash<'_>)) {
        let (mut safe, mut synced, mut begun, mut acknowledged) = (self.start.clone(), 0, 0, 0);
        for at in 0..=self.events.len() {
            match self.events.get(at) {
                Some(Event::Begun(round)) => begun = round + 1,
                Some(Event::Acknowledged(round)) => acknowledged = round + 1,
                _ => each(&Crash { at, safe: &safe, loose: &self.events[synced..at], begun, acknowledged }),
            }
            if let Some(Event::Sync) = self.events.get(at) {
                self.events[synced..at].iter().for_each(|event| apply(&mut safe, event));
                synced = at;
            }
        }
    }
}

impl Crash<'_> {
    /// Whether a sync comes next, so that as much as ever hangs in the air.
    pub fn is_before(&self, history: &History) -> bool {
        matches!(history.events.get(self.at), None | Some(Event::Sync))
    }

    /// What the disk holds when the power is back; none if the fate asks for what is not there.
    pub fn image(&self, fate: Fate, seed: u64) -> Option<Vec<u8>> {
        let mut image = self.safe.to_vec();
        match fate {
            Fate::Nothing => {}
            Fate::All => self.loose.iter().for_each(|event| apply(&mut image, event)),
            Fate::Subset(case) => {
                let mut rng = TestRng::new(seed, case);
                self.loose.iter().filter(|_| rng.below(2) == 0).for_each(|event| apply(&mut image, event));
            }
            Fate::Torn(case) => self.tear(&mut image, &mut TestRng::new(seed, case))?,
        }
        Some(image)
    }

    fn tear(&self, image: &mut Vec<u8>, rng: &mut TestRng) -> Option<()> {
        let long = |event: &Event| matches!(event, Event::Write { bytes, .. } if bytes.len() > SECTOR);
        let places: Vec<_> = (0..self.loose.len()).filter(|place| long(&self.loose[*place])).collect();
        let torn = *places.get(rng.below(places.len().max(1)))?;
        let all = rng.below(2) == 0;
        for (place, event) in self.loose.iter().enumerate() {
            match event {
                Event::Write { at, bytes } if place == torn => {
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

/// A small generator, so that a failure can be repeated.
#[derive(Clone)]
pub struct TestRng(u64);

impl TestRng {
    pub fn new(seed: u64, case: usize) -> Self {
        let mut rng = Self(seed << 32 ^ case as u64);
        // The first numbers of neighbouring seeds are alike.
        (0..4).for_each(|_| _ = rng.below(2));
        rng
    }

    pub fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}
