//! A disk in memory. It records all operations in order, so that a test can simulate a power cut at any point, and it
//! injects faults.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use outpost::storage::Opener;
use redb::StorageBackend;

use crate::history::{Event, History, apply};

/// Bytes that a disk writes atomically.
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

/// Which operations fail.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// The nth operation of a kind from now on, counted from 1. With `lasting`, also all later ones.
    Nth { kind: Kind, nth: u64, lasting: bool },
    /// The disk has space for `bytes` bytes. If `sparse`, the file can grow further, and only writes beyond them fail.
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
    fn begin_operation(&mut self, kind: Kind, end: usize) -> io::Result<()> {
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

    /// Forgets the events since the last sync. After a failed sync, Linux marks the pages as clean: reads see them, but no
    /// later sync writes them to the disk.
    fn drop_unsynced(&mut self) {
        let synced = self.events.iter().rposition(|event| matches!(event, Event::Sync));
        self.events.truncate(synced.map_or(0, |index| index + 1));
    }

    /// The free space for a write to `at`, in bytes.
    fn free_space(&self, at: usize) -> usize {
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

/// A handle of a disk. Clones share the disk.
#[derive(Clone, Default)]
pub struct Disk(Arc<Mutex<State>>);

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Disk")
    }
}

impl Disk {
    /// A disk with synced content.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Arc::new(Mutex::new(State { start: bytes.clone(), bytes, ..State::default() })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// An opener for a store with its database on this disk.
    pub fn opener(&self) -> Opener {
        let disk = self.clone();
        Box::new(move |builder, _| builder.create_with_backend(disk.clone()))
    }

    pub fn note(&self, event: Event) {
        self.state().note(event);
    }

    /// Sets a fault, or repairs the disk.
    pub fn fail(&self, fault: Option<Fault>) {
        let mut state = self.state();
        state.counts = [0; 4];
        state.fault = fault;
    }

    /// The number of operations of each [`Kind`] since [`Disk::fail`].
    pub fn counts(&self) -> [u64; 4] {
        self.state().counts
    }

    /// The number of failed operations.
    pub fn failures(&self) -> u64 {
        self.state().failures
    }

    /// The number of events so far.
    pub fn event_count(&self) -> u64 {
        self.state().events.len() as u64
    }

    /// Takes the content, as a program reads it. The disk is empty afterwards.
    pub fn take_bytes(&self) -> Vec<u8> {
        std::mem::take(&mut self.state().bytes)
    }

    /// Takes the history so far.
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
        state.begin_operation(Kind::Read, 0)?;
        let at = offset as usize;
        let found = state.bytes.get(at..at + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(found);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.state();
        state.begin_operation(Kind::SetLen, len as usize)?;
        state.note(Event::SetLen(len as usize));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.state();
        let outcome = state.begin_operation(Kind::Sync, 0);
        match outcome {
            Ok(()) => state.note(Event::Sync),
            Err(_) => state.drop_unsynced(),
        }
        outcome
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        let at = offset as usize;
        let outcome = state.begin_operation(Kind::Write, at + data.len());
        // A part of a failed write may have reached the disk.
        let reached =
            if outcome.is_ok() { data.len() } else { (data.len() / SECTOR / 2 * SECTOR).min(state.free_space(at)) };
        if reached > 0 {
            state.note(Event::Write { at, bytes: data[..reached].to_vec() });
        }
        outcome
    }
}
