//! A disk in memory. It keeps what a program did to it, in order, so that a test can cut the power
//! at any point; and it fails when told to.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use outpost::storage::Opener;
use redb::StorageBackend;

use crate::history::{Event, History, apply};

/// Bytes that a disk writes whole or not at all.
pub const SECTOR: usize = 512;

/// An operation that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Read,
    Write,
    SetLen,
    Sync,
}

impl Kind {
    pub const ALL: [Kind; 4] = [Kind::Read, Kind::Write, Kind::SetLen, Kind::Sync];
}

/// When a disk fails.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// The nth operation of a kind from now on, counted from 1; with `lasting`, all after it too.
    Nth { kind: Kind, nth: u64, lasting: bool },
    /// There is room for so many bytes. A sparse file may be made longer; what fails is to fill it.
    Full { bytes: usize, sparse: bool },
}

#[derive(Default)]
struct State {
    bytes: Vec<u8>,
    start: Vec<u8>,
    events: Vec<Event>,
    counts: [u64; 4],
    fault: Option<Fault>,
    failures: u64,
}

impl State {
    fn pass(&mut self, kind: Kind, end: usize) -> io::Result<()> {
        let count = &mut self.counts[kind as usize];
        *count += 1;
        let failed = match self.fault {
            Some(Fault::Nth { kind: bad, nth, lasting })
                if bad == kind && (*count == nth || lasting && *count > nth) =>
            {
                Err(io::Error::other("the disk failed"))
            }
            Some(Fault::Full { bytes, sparse }) if end > bytes && (kind == Kind::Write || !sparse) => {
                Err(io::ErrorKind::StorageFull.into())
            }
            _ => Ok(()),
        };
        self.failures += u64::from(failed.is_err());
        failed
    }

    /// After a sync that failed, Linux takes the pages for clean: reads see them, and no later sync
    /// brings them to the disk.
    fn forget(&mut self) {
        let synced = self.events.iter().rposition(|event| matches!(event, Event::Sync));
        self.events.truncate(synced.map_or(0, |place| place + 1));
    }

    /// How much of a write to `at` finds room.
    fn room(&self, at: usize) -> usize {
        match self.fault {
            Some(Fault::Full { bytes, .. }) => bytes.saturating_sub(at),
            _ => usize::MAX,
        }
    }

    fn note(&mut self, event: Event) {
        apply(&mut self.bytes, &event);
        self.events.push(event);
    }
}

/// A handle; clones are the same disk.
#[derive(Clone, Default)]
pub struct Disk(Arc<Mutex<State>>);

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Disk")
    }
}

impl Disk {
    /// A disk on which `bytes` are safe.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Arc::new(Mutex::new(State { start: bytes.clone(), bytes, ..State::default() })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Has a store keep its database here.
    pub fn opener(&self) -> Opener {
        let disk = self.clone();
        Box::new(move |builder, _| builder.create_with_backend(disk.clone()))
    }

    pub fn note(&self, event: Event) {
        self.state().note(event);
    }

    /// Begins to fail, or is repaired.
    pub fn fail(&self, fault: Option<Fault>) {
        let mut state = self.state();
        state.counts = [0; 4];
        state.fault = fault;
    }

    /// How many operations of each [`Kind`] there were since [`Disk::fail`].
    pub fn counts(&self) -> [u64; 4] {
        self.state().counts
    }

    /// How many operations have failed.
    pub fn failures(&self) -> u64 {
        self.state().failures
    }

    /// How much was done so far.
    pub fn age(&self) -> u64 {
        self.state().events.len() as u64
    }

    /// What a program reads; nothing is left.
    pub fn take_bytes(&self) -> Vec<u8> {
        std::mem::take(&mut self.state().bytes)
    }

    /// All that was done so far; the disk forgets it.
    pub fn take_history(&self) -> History {
        let mut state = self.state();
        History { start: std::mem::take(&mut state.start), events: std::mem::take(&mut state.events) }
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state().bytes.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut state = self.state();
        state.pass(Kind::Read, 0)?;
        let at = offset as usize;
        let found = state.bytes.get(at..at + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(found);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.state();
        state.pass(Kind::SetLen, len as usize)?;
        state.note(Event::SetLen(len as usize));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.state();
        let passed = state.pass(Kind::Sync, 0);
        match passed {
            Ok(()) => state.note(Event::Sync),
            Err(_) => state.forget(),
        }
        passed
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        let at = offset as usize;
        let passed = state.pass(Kind::Write, at + data.len());
        // A write that fails may have reached the disk in part.
        let reached = if passed.is_ok() { data.len() } else { (data.len() / SECTOR / 2 * SECTOR).min(state.room(at)) };
        if reached > 0 {
            state.note(Event::Write { at, bytes: data[..reached].to_vec() });
        }
        passed
    }
}
