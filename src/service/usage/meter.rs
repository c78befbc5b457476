//! The writing half: a receipt a request, recorded once, whatever becomes of the request.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::clock_rng::{ClockRng, Timestamp};
use crate::error::Result;
use crate::ids::{KeyId, ProjectId};
use crate::service::access::Access;
use crate::service::limits::{Hold, Limits};
use crate::storage::usage::{self, Amounts, Outcome, SeriesRecord, UsageRecord};
use crate::storage::{Store, WriteTx, keys, limits as levels};

/// Records of abandoned requests that wait for room in the writer's queue; more than connections
/// can make while a disk stalls.
const MOST_OWED: usize = 100_000;

/// Opens receipts. Clones share it.
#[derive(Clone)]
pub struct Meter {
    store: Store,
    clock_rng: Arc<dyn ClockRng>,
    limits: Limits,
    /// What could not be written at once, for it had nobody to wait.
    owed: Arc<Mutex<Vec<Entry>>>,
}

/// A record about to be written. Made once: its transaction may run more than once.
#[derive(Clone, Debug)]
struct Entry {
    project: ProjectId,
    at: Timestamp,
    tail: [u8; 6],
    series: SeriesRecord,
    outcome: Outcome,
    amounts: Amounts,
}

/// What one request uses. It is recorded by [`Receipt::close`], or as abandoned when it is
/// dropped unclosed: then the client has left.
pub struct Receipt {
    meter: Meter,
    project: ProjectId,
    key: KeyId,
    endpoint: String,
    bill: Mutex<Bill>,
    /// Someone else than the middleware will close it: the body is still being made.
    deferred: AtomicBool,
    closed: AtomicBool,
}

#[derive(Default)]
struct Bill {
    model: Option<String>,
    amounts: Amounts,
    hold: Option<Hold>,
}

impl Meter {
    pub fn new(store: Store, clock_rng: Arc<dyn ClockRng>, limits: Limits) -> Self {
        Self { store, clock_rng, limits, owed: Arc::default() }
    }

    /// A receipt for a request to `endpoint`, named by method and path below the mount.
    pub fn open(&self, access: &Access, endpoint: String) -> Receipt {
        Receipt {
            meter: self.clone(),
            project: access.project(),
            key: access.key(),
            endpoint,
            bill: Mutex::default(),
            deferred: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        }
    }

    fn owed(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A closure that writes `entries` and the limiter's levels.
    fn writing(&self, entries: Vec<Entry>) -> impl FnMut(&WriteTx) -> Result<()> + Send + 'static {
        let limits = self.limits.clone();
        move |tx| {
            entries.iter().try_for_each(|entry| {
                entry.write(tx)?;
                limits.levels(entry.project).map_or(Ok(()), |found| levels::put_levels(tx, entry.project, &found))
            })
        }
    }

    async fn record(&self, entry: Entry) -> Result<()> {
        let owed = std::mem::take(&mut *self.owed());
        let all = owed.iter().cloned().chain([entry]).collect();
        let written = self.store.write(self.writing(all)).await;
        if written.is_err() {
            self.owed().extend(owed);
        }
        written
    }

    /// Writes without anybody who waits. What finds no room is owed.
    fn record_later(&self, entry: Entry) {
        if self.store.enqueue(self.writing(vec![entry.clone()])).is_ok() {
            return;
        }
        let mut owed = self.owed();
        match owed.len() < MOST_OWED {
            true => owed.push(entry),
            false => tracing::error!(project = %entry.project, "the usage of an abandoned request is lost"),
        }
    }

    /// Writes what is owed; before the store closes.
    pub async fn flush(&self) -> Result<()> {
        let owed = std::mem::take(&mut *self.owed());
        if owed.is_empty() { Ok(()) } else { self.store.write(self.writing(owed)).await }
    }
}

impl Entry {
    fn write(&self, tx: &WriteTx) -> Result<()> {
        let series = usage::number(tx, self.project, &self.series)?;
        let record = UsageRecord { series, outcome: self.outcome, amounts: self.amounts };
        keys::used(tx, self.series.key, self.at)?;
        usage::append(tx, self.project, self.at, self.tail, &record)
    }
}

impl Receipt {
    fn bill(&self) -> MutexGuard<'_, Bill> {
        self.bill.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model that is called, once it is known to exist.
    pub fn model(&self, name: &str) {
        self.bill().model = Some(name.to_owned());
    }

    /// Takes the tokens of the prompt from the project's rate and budget.
    pub fn prompt(&self, tokens: u64) -> Result<()> {
        let hold = self.meter.limits.hold(self.project, tokens)?;
        let mut bill = self.bill();
        bill.hold = Some(hold);
        bill.amounts.input = tokens;
        Ok(())
    }

    /// Refuses with 429 what the project's rate and budget cannot give now, and takes nothing: for an estimate, before
    /// the work of counting the prompt's tokens.
    pub fn check(&self, tokens: u64) -> Result<()> {
        let hold = self.meter.limits.hold(self.project, tokens)?;
        self.meter.limits.settle(self.project, Some(hold), 0);
        Ok(())
    }

    /// Of the prompt's tokens, so many needed no computing.
    pub fn cached(&self, tokens: u64) {
        self.bill().amounts.cached = tokens;
    }

    /// Takes back the tokens of a prompt that never ran.
    pub fn waive(&self) {
        self.bill().amounts = Amounts::default();
    }

    /// Tokens generated so far.
    pub fn output(&self, tokens: u64) {
        self.bill().amounts.output = tokens;
    }

    /// Pictures painted so far.
    pub fn images(&self, count: u64) {
        self.bill().amounts.images = count;
    }

    /// Leaves the closing to whoever makes the rest of the body.
    pub fn defer(&self) {
        self.deferred.store(true, Ordering::Relaxed);
    }

    pub fn deferred(&self) -> bool {
        self.deferred.load(Ordering::Relaxed)
    }

    /// Records how the request ended; when it returns, that is on the disk. Again: nothing.
    pub async fn close(&self, outcome: Outcome) -> Result<()> {
        match self.entry(outcome) {
            Some(entry) => self.meter.record(entry).await,
            None => Ok(()),
        }
    }

    /// The record, once.
    fn entry(&self, outcome: Outcome) -> Option<Entry> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return None;
        }
        let Bill { model, amounts, hold } = std::mem::take(&mut *self.bill());
        // Nobody pays for a failure of the server's. All else is paid for as far as it was made:
        // else a stream that is refused at its very end would be free.
        let amounts = if outcome == Outcome::Failed { Amounts::default() } else { amounts };
        self.meter.limits.settle(self.project, hold, amounts.tokens());
        let mut tail = [0; 6];
        self.meter.clock_rng.fill(&mut tail);
        let series = SeriesRecord { key: self.key, endpoint: self.endpoint.clone(), model };
        Some(Entry { project: self.project, at: self.meter.clock_rng.now(), tail, series, outcome, amounts })
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        if let Some(entry) = self.entry(Outcome::Abandoned) {
            self.meter.record_later(entry);
        }
    }
}
