//! Records usage: each request exactly once, however it ends.
//!
//! A request is recorded when it ends: before the last byte of its response is sent, or as soon as its client is gone. If something
//! leaves earlier that is worth as much as the whole, such as an image, the request is recorded before that, as an
//! abandoned one, and the record is replaced at the end.
//!
//! Every request costs one durable commit, reads included: about one fsync, shared by all requests that wait. In
//! return, totals match what clients have counted, even after the process is killed. `cargo bench --bench usage`
//! measures it. The last use of the key is one more small record in the same transaction; a time in memory would be
//! lost in a restart, and the cost is within the noise of `cargo bench --bench http`.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use crate::clock_rng::{ClockRng, Timestamp};
use crate::error::Result;
use crate::ids::{KeyId, ProjectId};
use crate::service::access::Access;
use crate::service::limits::{AudioReservation, Limits, TokenReservation, UnrecordedTokens};
use crate::storage::usage::{self, Amounts, Outcome, SeriesRecord, UsageRecord};
use crate::storage::{Store, WriteTx, keys, limits as levels};

/// Max pending records of abandoned requests; more than connections can produce while a disk stalls.
const MAX_PENDING: usize = 100_000;

/// Creates usage recorders. Clones share it.
#[derive(Clone)]
pub struct Meter {
    store: Store,
    clock_rng: Arc<dyn ClockRng>,
    limits: Limits,
    unwritten: Arc<Mutex<Unwritten>>,
    /// Running requests that use the engine and do not belong to a batch.
    outside_batches: Arc<AtomicUsize>,
}

/// Records that are not durable.
#[derive(Default)]
struct Unwritten {
    /// Those that did not fit into the writer's queue, or whose write failed. They are written with the next record.
    pending: Vec<Entry>,
    /// Those of abandoned requests, whose writes nothing waits for. They are written in this order.
    queued: VecDeque<(oneshot::Receiver<Result<()>>, Entry)>,
}

/// Records that are being written and must not be lost. When it is dropped, those that are left are pending.
struct Writing<'a> {
    meter: &'a Meter,
    entries: Vec<Entry>,
}

/// A record to be written. Created once, because its transaction may run more than once.
#[derive(Clone, Debug)]
pub(in crate::service) struct Entry {
    project: ProjectId,
    at: Timestamp,
    tail: [u8; 6],
    series: SeriesRecord,
    outcome: Outcome,
    amounts: Amounts,
    is_estimated: bool,
    /// An earlier record of the request may be durable, which this one replaces: the request was recorded before its end, or
    /// an earlier write of this record seemed to fail.
    may_be_recorded: bool,
    /// Counts its tokens until its last copy is dropped, which is once it is durable.
    _unrecorded: Option<Arc<UnrecordedTokens>>,
}

/// The usage of one request. It is recorded by [`UsageRecorder::close`], or as abandoned when it is
/// dropped unclosed because the client has disconnected.
pub struct UsageRecorder {
    meter: Meter,
    project: ProjectId,
    key: KeyId,
    endpoint: String,
    /// Whether its tokens count against the rate per minute.
    is_rated: bool,
    state: Mutex<State>,
    /// The response is sent as it is generated. Its body closes the recorder, instead of the middleware.
    deferred: AtomicBool,
    closed: AtomicBool,
}

#[derive(Default)]
struct State {
    model: Option<String>,
    amounts: Amounts,
    reservation: Option<TokenReservation>,
    audio_reservation: Option<AudioReservation>,
    /// While it uses the engine and does not belong to a batch.
    outside_batches: Option<OutsideBatches>,
    /// Whether its tokens are estimated.
    is_estimated: bool,
    /// The key of its record, and the amounts that are durable, if it is recorded before its end.
    recorded: Option<(RecordKey, Amounts)>,
    /// Once it is closed.
    outcome: Option<Outcome>,
}

/// The time and the tail of a record's key.
type RecordKey = (Timestamp, [u8; 6]);

/// Counts a request until it is dropped.
struct OutsideBatches(Arc<AtomicUsize>);

impl OutsideBatches {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for OutsideBatches {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request's usage so far, for the log.
#[derive(Clone, Debug)]
pub struct UsageSummary {
    pub project: ProjectId,
    pub key: KeyId,
    /// Once it is known to exist.
    pub model: Option<String>,
    pub amounts: Amounts,
    /// Once the request has ended.
    pub outcome: Option<Outcome>,
}

impl Meter {
    pub fn new(store: Store, clock_rng: Arc<dyn ClockRng>, limits: Limits) -> Self {
        Self { store, clock_rng, limits, unwritten: Arc::default(), outside_batches: Arc::default() }
    }

    /// A recorder for a request to `endpoint` (method and path below the mount).
    pub fn open(&self, access: &Access, endpoint: String) -> UsageRecorder {
        self.recorder(access, endpoint, true)
    }

    /// A recorder for a request of a batch to `endpoint`. Its tokens count against the budget, but not against the rate per
    /// minute, which is for clients that wait.
    pub async fn open_for_batch(&self, access: &Access, endpoint: String) -> Result<UsageRecorder> {
        // Loads the current limits.
        self.limits.status(access.project()).await?;
        Ok(self.recorder(access, endpoint, false))
    }

    /// A recorder for what the server does later for a request to `endpoint`, which no client waits for. Its tokens count
    /// like those of other requests.
    pub async fn open_in_background(&self, access: &Access, endpoint: String) -> Result<UsageRecorder> {
        self.limits.status(access.project()).await?;
        Ok(self.recorder(access, endpoint, true))
    }

    /// The number of running requests that use the engine and do not belong to a batch.
    pub fn running_outside_batches(&self) -> usize {
        self.outside_batches.load(Ordering::Relaxed)
    }

    fn recorder(&self, access: &Access, endpoint: String, is_rated: bool) -> UsageRecorder {
        UsageRecorder {
            meter: self.clone(),
            project: access.project(),
            key: access.key(),
            endpoint,
            is_rated,
            state: Mutex::default(),
            deferred: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        }
    }

    fn unwritten(&self) -> MutexGuard<'_, Unwritten> {
        self.unwritten.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A write of `entries` and the limiter's levels, if the limiter does not store them itself.
    fn write_entries(&self, entries: Vec<Entry>) -> impl FnMut(&WriteTx) -> Result<()> + Send + 'static {
        let limits = self.limits.clone();
        move |tx| {
            entries.iter().try_for_each(|entry| {
                entry.write(tx)?;
                limits.levels(entry.project).map_or(Ok(()), |found| levels::put_levels(tx, entry.project, &found))
            })
        }
    }

    /// Writes an entry, with those that are pending. `is_kept`: it becomes pending if it may not be durable at the end; if its write
    /// fails, as that of a request that failed.
    async fn record(&self, entry: Entry, is_kept: bool) -> Result<()> {
        let pending = self.unwritten().take_pending();
        let entries = pending.iter().chain([&entry]).cloned().collect();
        let mut writing = Writing { meter: self, entries: pending };
        let pending = writing.entries.len();
        writing.entries.extend(is_kept.then_some(entry));
        let written = self.store.write(self.write_entries(entries)).await;
        match written {
            Ok(()) => writing.entries.clear(),
            Err(_) => writing.entries.iter_mut().skip(pending).for_each(|entry| entry.outcome = Outcome::Failed),
        }
        written
    }

    /// Queues a write without waiting. If the queue is full, the entry stays pending.
    fn record_later(&self, entry: Entry) {
        let queued = self.store.enqueue(self.write_entries(vec![entry.clone()]));
        let mut unwritten = self.unwritten();
        unwritten.sweep();
        match queued {
            // The write itself counts the tokens as unrecorded.
            Ok(written) => unwritten.queued.push_back((written, Entry { _unrecorded: None, ..entry })),
            Err(_) => unwritten.keep(entry),
        }
    }

    /// Writes pending entries before the store closes.
    pub async fn flush(&self) -> Result<()> {
        let pending = self.unwritten().take_pending();
        if pending.is_empty() { Ok(()) } else { self.store.write(self.write_entries(pending)).await }
    }
}

impl Unwritten {
    fn take_pending(&mut self) -> Vec<Entry> {
        self.sweep();
        std::mem::take(&mut self.pending)
    }

    /// Removes queued entries that are written. Those whose write has failed become pending.
    fn sweep(&mut self) {
        while let Some((mut written, entry)) = self.queued.pop_front() {
            match written.try_recv() {
                Ok(Ok(())) => {}
                Err(TryRecvError::Empty) => return self.queued.push_front((written, entry)),
                Ok(Err(_)) | Err(TryRecvError::Closed) => self.keep(Entry { may_be_recorded: true, ..entry }),
            }
        }
    }

    fn keep(&mut self, entry: Entry) {
        match self.pending.len() < MAX_PENDING {
            true => self.pending.push(entry),
            false => tracing::error!(project = %entry.project, "the usage of a request is lost"),
        }
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let left = std::mem::take(&mut self.entries).into_iter();
        let mut unwritten = self.meter.unwritten();
        left.for_each(|entry| unwritten.keep(Entry { may_be_recorded: true, ..entry }));
    }
}

impl Entry {
    pub(in crate::service) fn write(&self, tx: &WriteTx) -> Result<()> {
        let series = usage::number(tx, self.project, &self.series, self.is_estimated)?;
        let record = UsageRecord { series, outcome: self.outcome, amounts: self.amounts };
        keys::used(tx, self.series.key, self.at)?;
        let write = if self.may_be_recorded { usage::replace } else { usage::append };
        write(tx, self.project, self.at, self.tail, &record)
    }
}

impl UsageRecorder {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the model, once it is known to exist.
    pub fn set_model(&self, name: &str) {
        self.state().model = Some(name.to_owned());
    }

    /// Charges the prompt tokens to the project's rate and budget.
    pub async fn charge_prompt(&self, tokens: u64) -> Result<()> {
        let reservation = self.meter.limits.reserve_tokens(self.project, tokens, self.is_rated).await?;
        let mut state = self.state();
        state.reservation = Some(reservation);
        state.outside_batches = self.is_rated.then(|| OutsideBatches::new(&self.meter.outside_batches));
        state.amounts.input = tokens;
        Ok(())
    }

    /// 429 if the project's rate or budget does not allow `tokens` now; charges nothing. For an estimate before the
    /// prompt is tokenised.
    pub async fn check_budget(&self, tokens: u64) -> Result<()> {
        let reservation = self.meter.limits.reserve_tokens(self.project, tokens, self.is_rated).await?;
        self.meter.limits.settle(self.project, Some(reservation), 0, self.is_rated);
        Ok(())
    }

    /// Sets the tokens of the prompt, which [`Self::charge_prompt`] has charged by an estimate.
    pub fn set_input(&self, tokens: u64) {
        self.state().amounts.input = tokens;
    }

    /// Sets whether the tokens are estimated, because the server that has used them has not told their number.
    pub fn set_estimated(&self, is_estimated: bool) {
        self.state().is_estimated = is_estimated;
    }

    /// Sets the number of cached prompt tokens.
    pub fn set_cached(&self, tokens: u64) {
        self.state().amounts.cached = tokens;
    }

    /// Cancels the charge for a request that never ran.
    pub fn waive(&self) {
        self.state().amounts = Amounts::default();
    }

    /// Sets the number of tokens generated so far.
    pub fn set_output(&self, tokens: u64) {
        self.state().amounts.output = tokens;
    }

    /// Sets the number of images generated so far.
    pub fn set_images(&self, count: u64) {
        self.state().amounts.images = count;
    }

    /// Charges audio that the request sends to the project's rate. [`Self::set_audio`] sets what is processed of it; the
    /// rest is refunded at the end.
    pub async fn charge_audio(&self, millis: u64) -> Result<()> {
        let reservation = match self.is_rated {
            true => Some(self.meter.limits.reserve_audio(self.project, millis).await?),
            false => None,
        };
        let mut state = self.state();
        state.audio_reservation = reservation;
        state.outside_batches = self.is_rated.then(|| OutsideBatches::new(&self.meter.outside_batches));
        Ok(())
    }

    /// Sets the milliseconds of audio processed or generated so far.
    pub fn set_audio(&self, millis: u64) {
        self.state().amounts.audio_millis = millis;
    }

    /// Sets the milliseconds of audio generated so far and charges them to the project's rate, which may go into debt.
    /// [`Self::charge_audio`] comes first.
    pub fn set_generated_audio(&self, millis: u64) {
        let mut state = self.state();
        state.amounts.audio_millis = millis;
        if let Some(reservation) = &mut state.audio_reservation {
            self.meter.limits.raise_audio(reservation, millis);
        }
    }

    /// The response is sent as it is generated: what is generated is charged even if the request fails later. Leaves the
    /// closing to the response body.
    pub fn defer(&self) {
        self.deferred.store(true, Ordering::Relaxed);
    }

    pub fn is_deferred(&self) -> bool {
        self.deferred.load(Ordering::Relaxed)
    }

    /// The usage so far, for the access log.
    pub fn summary(&self) -> UsageSummary {
        let state = self.state();
        UsageSummary {
            project: self.project,
            key: self.key,
            model: state.model.clone(),
            amounts: state.amounts,
            outcome: state.outcome,
        }
    }

    /// Records what is metered so far durably, as of an abandoned request. Called before something leaves that a client may
    /// be content with. [`Self::close`] replaces the record.
    pub async fn record_so_far(&self) -> Result<()> {
        let Some((entry, key)) = self.entry_so_far() else { return Ok(()) };
        let amounts = entry.amounts;
        self.meter.record(entry, false).await?;
        self.state().recorded = Some((key, amounts));
        Ok(())
    }

    /// `None` if the same is recorded already, or the request has ended.
    fn entry_so_far(&self) -> Option<(Entry, RecordKey)> {
        let mut state = self.state();
        let amounts = state.amounts;
        let is_recorded = state.recorded.is_some_and(|(_, recorded)| recorded == amounts);
        if is_recorded || self.closed.load(Ordering::Acquire) {
            return None;
        }
        let is_first = state.recorded.is_none();
        let (key, _) = *state.recorded.get_or_insert_with(|| (self.record_key(), Amounts::default()));
        let entry = Entry {
            project: self.project,
            at: key.0,
            tail: key.1,
            series: self.series(&state),
            outcome: Outcome::Abandoned,
            amounts,
            is_estimated: state.is_estimated,
            may_be_recorded: !is_first,
            _unrecorded: None,
        };
        Some((entry, key))
    }

    fn series(&self, state: &State) -> SeriesRecord {
        SeriesRecord { key: self.key, endpoint: self.endpoint.clone(), model: state.model.clone() }
    }

    fn record_key(&self) -> RecordKey {
        let mut tail = [0; 6];
        self.meter.clock_rng.fill(&mut tail);
        (self.meter.clock_rng.now(), tail)
    }

    /// Records the outcome durably. Further calls have no effect.
    ///
    /// # Errors
    /// If the record cannot be written. If a part of the response is sent already, it is written later.
    pub async fn close(&self, outcome: Outcome) -> Result<()> {
        match self.entry(outcome) {
            Some(entry) => self.meter.record(entry, self.is_deferred()).await,
            None => Ok(()),
        }
    }

    /// Ends a request that is tried again later. It is neither recorded nor charged.
    pub fn discard(&self) {
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        let (tokens, audio) = {
            let mut state = self.state();
            (state.reservation.take(), state.audio_reservation.take())
        };
        self.meter.limits.settle(self.project, tokens, 0, self.is_rated);
        self.meter.limits.settle_audio(self.project, audio, 0);
    }

    /// The record, on the first call. The caller writes it.
    pub(in crate::service) fn entry(&self, outcome: Outcome) -> Option<Entry> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return None;
        }
        let mut state = self.state();
        // Server failures are charged as far as the response was sent. All else is charged as far as it was generated;
        // otherwise a stream that fails at its very end would be free.
        if outcome == Outcome::Failed && !(self.is_deferred() && state.amounts.has_output()) {
            state.amounts = Amounts::default();
        }
        state.outcome = Some(outcome);
        state.outside_batches = None;
        let (series, amounts) = (self.series(&state), state.amounts);
        let is_estimated = state.is_estimated && amounts != Amounts::default();
        let (tokens, audio) = (state.reservation.take(), state.audio_reservation.take());
        let recorded = state.recorded.map(|(key, _)| key);
        drop(state);
        let unrecorded = self.meter.limits.settle(self.project, tokens, amounts.tokens(), self.is_rated);
        let rated_audio = if self.is_rated { amounts.audio_millis } else { 0 };
        self.meter.limits.settle_audio(self.project, audio, rated_audio);
        let (at, tail) = recorded.unwrap_or_else(|| self.record_key());
        Some(Entry {
            project: self.project,
            at,
            tail,
            series,
            outcome,
            amounts,
            is_estimated,
            may_be_recorded: recorded.is_some(),
            _unrecorded: unrecorded,
        })
    }
}

impl Drop for UsageRecorder {
    fn drop(&mut self) {
        if let Some(entry) = self.entry(Outcome::Abandoned) {
            self.meter.record_later(entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;
    use crate::clock_rng::StoppedClock;
    use crate::storage::{Reader as _, StoreSettings};

    #[tokio::test]
    async fn a_record_whose_write_seemed_to_fail_is_counted_once() {
        let folder = tempfile::tempdir().unwrap();
        let settings =
            StoreSettings { dir: folder.path().join("data"), cache_bytes: 1 << 20, queue: 16, min_free_disk: Some(0) };
        let clock_rng: Arc<dyn ClockRng> = Arc::new(StoppedClock);
        let store = Store::open(settings, Arc::clone(&clock_rng)).unwrap();
        let meter = Meter::new(store.clone(), Arc::clone(&clock_rng), Limits::new(store.clone(), clock_rng));
        let series = SeriesRecord { key: KeyId::from_bytes([1; 16]), endpoint: "POST /x".to_owned(), model: None };
        let entry = |number: u8| Entry {
            project: ProjectId::from_bytes([7; 16]),
            at: Timestamp::from_millis(1_700_000_000_000),
            tail: [number; 6],
            series: series.clone(),
            outcome: Outcome::Succeeded,
            amounts: Amounts { input: 5, ..Amounts::default() },
            is_estimated: false,
            may_be_recorded: false,
            _unrecorded: None,
        };
        store.write(meter.write_entries(vec![entry(1)])).await.unwrap();
        // As after an error that did not tell whether the first record is durable; the second one is not.
        let uncertain = [1, 2].map(|number| Entry { may_be_recorded: true, ..entry(number) });
        meter.unwritten().pending.extend(uncertain);
        meter.flush().await.unwrap();
        let mut records = 0;
        let mut count = |_: &[u8], _: usage::UsageRecord| {
            records += 1;
            Ok(ControlFlow::Continue(()))
        };
        store.read_blocking(|tx| tx.each(&[], None, &mut count)).unwrap();
        assert_eq!(records, 2);
        let mut tokens = 0;
        let (project, day) = (entry(1).project, Timestamp::from_millis(0)..Timestamp::from_millis(1 << 42));
        let days = |tx: &crate::storage::ReadTx| {
            usage::each_sum(tx, project, usage::Width::Day, (day.start, day.end), |_, _, sums| {
                tokens += sums.amounts.input;
                Ok(())
            })
        };
        store.read_blocking(days).unwrap();
        assert_eq!(tokens, 10);
    }
}
