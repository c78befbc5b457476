//! Background work: pieces of work in the store that processes claim, do and give up.
//!
//! A loop looks at the store when something changes, begins what there is room for and waits for what has ended. The
//! projects take turns. A piece that cannot be completed now is tried again later. If nodes share the store, each claims a
//! piece before it does it, so that no two of them do the same.

pub mod stop_signal;

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::hash::Hash;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::watch;

use self::stop_signal::StopSignal;
use crate::clock_rng::ClockRng;
use crate::error::{Code, Error, Result};
use crate::ids::ProjectId;
use crate::service::is_taken_over;
use crate::service::usage::UsageRecorder;

/// The time between two looks at the store if nothing changes.
const IDLE_WAIT: Duration = Duration::from_secs(3600);

/// One kind of background work.
pub(super) trait Work {
    /// What its pieces are called in the log.
    const NAME: &'static str;
    /// The time until it tries again after an error.
    const RETRY_DELAY: Duration;
    /// The time between two looks while something is open, if nothing changes.
    const LOOK_INTERVAL: Duration = IDLE_WAIT;

    /// The ID of a piece.
    type Id: Copy + Eq + Hash + Display;
    /// A piece of work that has not ended.
    type Piece: Clone;
    /// What is remembered of a piece until it is tried again.
    type Memo: Default;

    /// Changes when there may be other work.
    fn changes(&self) -> watch::Receiver<()>;

    /// All pieces that may begin and that no other process does. Those of a project begin in this order.
    async fn open(&self) -> Result<Vec<Self::Piece>>;

    /// The ID and the project of a piece.
    fn key(piece: &Self::Piece) -> (Self::Id, ProjectId);

    /// True if a piece may begin while others run.
    fn may_begin(&self, piece: &Self::Piece, running: &[Self::Piece]) -> bool;

    /// True if a piece that is tried again later counts as running until then.
    fn keeps_place(&self) -> bool;

    /// Claims a piece. `false`: another process does it.
    async fn claim(&self, id: Self::Id) -> Result<bool>;

    /// Gives a piece up.
    async fn release(&self, id: Self::Id);

    /// Does a piece, as far as it can be done now. After an error, it is tried again.
    async fn attempt(&self, piece: Self::Piece, memo: &mut Self::Memo) -> Result<Attempt>;
}

/// The outcome of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    /// The piece has ended, or its next step may begin.
    Done,
    /// The piece is to be tried again after this time.
    Again(Duration),
}

/// Does all work of a kind until it is stopped. Then it waits for what runs.
pub(super) async fn run<W: Work>(work: &W, clock: &dyn ClockRng, stop: &StopSignal) {
    let (mut schedule, mut attempts) = (Schedule::new(), FuturesUnordered::new());
    let mut changes = work.changes();
    while !stop.is_set() {
        changes.mark_unchanged();
        let wait = match work.open().await {
            Ok(open) => {
                let look = if open.is_empty() { IDLE_WAIT } else { W::LOOK_INTERVAL };
                let now = clock.uptime();
                let begun = schedule.begin(work, open, now);
                attempts.extend(begun.into_iter().map(|(piece, memo)| attempt(work, piece, memo)));
                schedule.time_until_due(now).map_or(look, |due| due.min(look))
            }
            Err(error) => {
                tracing::warn!(%error, "the open {} cannot be read", W::NAME);
                W::RETRY_DELAY
            }
        };
        tokio::select! {
            Some((id, attempt, memo)) = attempts.next() => schedule.end(id, attempt, memo, clock.uptime()),
            _ = changes.changed() => {}
            () = stop.wait() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
    while attempts.next().await.is_some() {}
}

/// Claims a piece, does it and gives it up.
async fn attempt<W: Work>(work: &W, piece: W::Piece, mut memo: W::Memo) -> (W::Id, Attempt, W::Memo) {
    let (id, _) = W::key(&piece);
    let attempted = match work.claim(id).await {
        Ok(true) => match work.attempt(piece, &mut memo).await {
            Err(error) if is_taken_over(&error) => {
                tracing::info!(%id, "another server has taken background work over");
                Ok(Attempt::Done)
            }
            attempted => {
                work.release(id).await;
                attempted
            }
        },
        Ok(false) => Ok(Attempt::Done),
        Err(error) => Err(error),
    };
    let attempt = attempted.unwrap_or_else(|error| {
        tracing::warn!(%id, %error, "background work was interrupted; it is tried again");
        Attempt::Again(W::RETRY_DELAY)
    });
    (id, attempt, memo)
}

/// Which pieces run, and which wait until they are tried again.
struct Schedule<W: Work> {
    running: Vec<W::Piece>,
    waiting: HashMap<W::Id, Waiting<W>>,
    /// The number of pieces that have begun.
    begun: u64,
    /// That number when a piece of each project last began.
    turns: HashMap<ProjectId, u64>,
}

/// A piece that is tried again.
struct Waiting<W: Work> {
    piece: W::Piece,
    memo: W::Memo,
    /// An uptime.
    until: Duration,
}

impl<W: Work> Schedule<W> {
    fn new() -> Self {
        Self { running: Vec::new(), waiting: HashMap::new(), begun: 0, turns: HashMap::new() }
    }

    /// Chooses the pieces that begin now. The next one is of the project that has the fewest running, or among equals of the
    /// one whose turn is longest ago.
    fn begin(&mut self, work: &W, mut open: Vec<W::Piece>, now: Duration) -> Vec<(W::Piece, W::Memo)> {
        let ids: HashSet<W::Id> = open.iter().map(|piece| W::key(piece).0).collect();
        self.waiting.retain(|id, _| ids.contains(id));
        let running: HashSet<W::Id> = self.running.iter().map(|piece| W::key(piece).0).collect();
        let is_due = |id: &W::Id| self.waiting.get(id).is_none_or(|waiting| waiting.until <= now);
        open.retain(|piece| !running.contains(&W::key(piece).0) && is_due(&W::key(piece).0));
        let mut occupied = self.running.clone();
        if work.keeps_place() {
            let waiting = self.waiting.values().filter(|waiting| waiting.until > now);
            occupied.extend(waiting.map(|waiting| waiting.piece.clone()));
        }
        let mut begun = Vec::new();
        loop {
            open.retain(|piece| work.may_begin(piece, &occupied));
            let order = |(at, piece): &(usize, &W::Piece)| {
                let (_, project) = W::key(piece);
                let running = occupied.iter().filter(|other| W::key(other).1 == project).count();
                (running, self.turns.get(&project).copied(), *at)
            };
            let Some((at, _)) = open.iter().enumerate().min_by_key(order) else { return begun };
            let piece = open.remove(at);
            let (id, project) = W::key(&piece);
            self.begun += 1;
            self.turns.insert(project, self.begun);
            self.running.push(piece.clone());
            occupied.push(piece.clone());
            begun.push((piece, self.waiting.remove(&id).map(|waiting| waiting.memo).unwrap_or_default()));
        }
    }

    fn end(&mut self, id: W::Id, attempt: Attempt, memo: W::Memo, now: Duration) {
        let Some(at) = self.running.iter().position(|piece| W::key(piece).0 == id) else { return };
        let piece = self.running.remove(at);
        if let Attempt::Again(after) = attempt {
            self.waiting.insert(id, Waiting { piece, memo, until: now + after });
        }
    }

    /// The time until a piece that waits is due.
    fn time_until_due(&self, now: Duration) -> Option<Duration> {
        self.waiting.values().filter_map(|waiting| waiting.until.checked_sub(now)).filter(|time| !time.is_zero()).min()
    }
}

/// What became of a metered attempt.
pub(super) enum Settled<T> {
    /// It has ended, and its usage is to be recorded.
    Ended(Result<T>),
    /// The server stops.
    Stopped,
    /// It is to be tried again.
    Retry,
}

/// Decides whether an attempt has ended. The usage of one that begins again is discarded. `model_attempts`: the attempts that
/// found the model unavailable. `is_temporary`: of an error after that many.
pub(super) fn settle<T>(
    result: Result<T>,
    recorder: &UsageRecorder,
    model_attempts: &mut u32,
    is_temporary: impl FnOnce(&Error, u32) -> bool,
) -> Settled<T> {
    match result {
        Err(error) if error.code() == Code::ShuttingDown => {
            recorder.discard();
            Settled::Stopped
        }
        Err(error) if is_temporary(&error, *model_attempts) => {
            recorder.discard();
            *model_attempts += u32::from(error.code() == Code::ModelUnavailable);
            Settled::Retry
        }
        result => Settled::Ended(result),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::stop_signal::{LoopStopper, stop_signal};
    use super::*;
    use crate::clock_rng::StoppedClock;
    use crate::ids::JobId;

    /// The numbers of a project and of a piece.
    type Piece = (u8, u8);

    /// Pieces of several projects. The loop is stopped by the last one.
    struct Pieces {
        open: RefCell<Vec<Piece>>,
        max_running: usize,
        max_running_of_project: usize,
        keeps_place: bool,
        is_free: bool,
        /// Attempts that fail.
        failures: Cell<u32>,
        released: Cell<u32>,
        changes: watch::Sender<()>,
        stopper: LoopStopper,
    }

    fn pieces(open: Vec<Piece>) -> (Pieces, StopSignal) {
        let (stopper, stop) = stop_signal();
        let pieces = Pieces {
            open: RefCell::new(open),
            max_running: 16,
            max_running_of_project: 8,
            keeps_place: false,
            is_free: true,
            failures: Cell::new(0),
            released: Cell::new(0),
            changes: watch::channel(()).0,
            stopper,
        };
        (pieces, stop)
    }

    fn id(piece: u8) -> JobId {
        JobId::from_bytes([piece; 16])
    }

    impl Work for Pieces {
        const NAME: &'static str = "pieces";
        const RETRY_DELAY: Duration = Duration::ZERO;

        type Id = JobId;
        type Piece = Piece;
        /// Earlier attempts.
        type Memo = u32;

        fn changes(&self) -> watch::Receiver<()> {
            self.changes.subscribe()
        }

        async fn open(&self) -> Result<Vec<Piece>> {
            Ok(self.open.borrow().clone())
        }

        fn key(&(project, piece): &Piece) -> (JobId, ProjectId) {
            (id(piece), ProjectId::from_bytes([project; 16]))
        }

        fn may_begin(&self, piece: &Piece, running: &[Piece]) -> bool {
            let of_project = running.iter().filter(|other| other.0 == piece.0).count();
            running.len() < self.max_running && of_project < self.max_running_of_project
        }

        fn keeps_place(&self) -> bool {
            self.keeps_place
        }

        async fn claim(&self, _id: JobId) -> Result<bool> {
            Ok(self.is_free)
        }

        async fn release(&self, _id: JobId) {
            self.released.update(|released| released + 1);
        }

        async fn attempt(&self, piece: Piece, attempts: &mut u32) -> Result<Attempt> {
            tokio::task::yield_now().await;
            *attempts += 1;
            if self.failures.get() > 0 {
                self.failures.update(|failures| failures - 1);
                return Err(Error::internal("broken"));
            }
            self.open.borrow_mut().retain(|open| *open != piece);
            if self.open.borrow().is_empty() {
                self.stopper.stop();
            }
            Ok(Attempt::Done)
        }
    }

    /// The numbers of the pieces that begin now.
    fn begin(schedule: &mut Schedule<Pieces>, pieces: &Pieces, now: Duration) -> Vec<u8> {
        let open = pieces.open.borrow().clone();
        schedule.begin(pieces, open, now).into_iter().map(|((_, piece), _)| piece).collect()
    }

    #[tokio::test]
    async fn all_work_is_done() {
        let (pieces, stop) = pieces((0..70).map(|piece| (piece % 3, piece)).collect());
        pieces.failures.set(5);
        run(&pieces, &StoppedClock, &stop).await;
        assert!(pieces.open.borrow().is_empty());
        assert_eq!(pieces.released.get(), 75);
    }

    #[tokio::test]
    async fn only_claimed_work_is_done_and_given_up() {
        let (mut pieces, _stop) = pieces(vec![(1, 1), (1, 2)]);
        assert_eq!(attempt(&pieces, (1, 1), 0).await, (id(1), Attempt::Done, 1));
        pieces.failures.set(1);
        assert_eq!(attempt(&pieces, (1, 2), 0).await, (id(2), Attempt::Again(Duration::ZERO), 1));
        assert_eq!(pieces.released.get(), 2);
        pieces.is_free = false;
        assert_eq!(attempt(&pieces, (1, 2), 1).await, (id(2), Attempt::Done, 1));
        assert_eq!(pieces.released.get(), 2);
    }

    #[test]
    fn projects_share_the_slots() {
        let mut open: Vec<Piece> = (0..20).map(|piece| (1, piece)).collect();
        open.extend([(2, 100), (2, 101)]);
        let (pieces, _stop) = pieces(open);
        let (mut schedule, now) = (Schedule::new(), Duration::ZERO);
        assert_eq!(begin(&mut schedule, &pieces, now), [0, 100, 1, 101, 2, 3, 4, 5, 6, 7]);
        assert!(begin(&mut schedule, &pieces, now).is_empty(), "those of one project have their bound");
        schedule.end(id(1), Attempt::Done, 0, now);
        pieces.open.borrow_mut().retain(|piece| piece.1 != 1);
        assert_eq!(begin(&mut schedule, &pieces, now), [8]);
    }

    #[test]
    fn projects_take_turns() {
        let (mut pieces, _stop) = pieces(vec![(1, 1), (1, 2), (2, 3), (3, 4)]);
        pieces.max_running = 1;
        let mut schedule = Schedule::new();
        for expected in [1, 3, 4, 2] {
            assert_eq!(begin(&mut schedule, &pieces, Duration::ZERO), [expected]);
            schedule.end(id(expected), Attempt::Done, 0, Duration::ZERO);
            pieces.open.borrow_mut().retain(|piece| piece.1 != expected);
        }
    }

    #[test]
    fn a_piece_that_waits_keeps_its_memo_and_no_slot() {
        let (mut pieces, _stop) = pieces(vec![(1, 1), (2, 2)]);
        pieces.max_running = 1;
        let (mut schedule, second) = (Schedule::new(), Duration::from_secs(1));
        for attempts in 0..3 {
            let now = second * attempts;
            assert_eq!(schedule.begin(&pieces, vec![(1, 1)], now), [((1, 1), attempts)]);
            assert_eq!(schedule.time_until_due(now), None);
            schedule.end(id(1), Attempt::Again(second), attempts + 1, now);
            assert!(schedule.begin(&pieces, vec![(1, 1)], now).is_empty() && schedule.running.is_empty());
            assert_eq!(schedule.time_until_due(now), Some(second));
        }
        assert_eq!(begin(&mut schedule, &pieces, second * 2), [2]);
        assert!(schedule.begin(&pieces, vec![(2, 2)], second * 2).is_empty() && schedule.waiting.is_empty());
    }

    #[test]
    fn a_piece_that_waits_may_keep_its_slot() {
        let (mut pieces, _stop) = pieces(vec![(1, 1), (2, 2)]);
        (pieces.max_running, pieces.keeps_place) = (1, true);
        let (mut schedule, second) = (Schedule::new(), Duration::from_secs(1));
        assert_eq!(begin(&mut schedule, &pieces, Duration::ZERO), [1]);
        schedule.end(id(1), Attempt::Again(second), 1, Duration::ZERO);
        assert!(begin(&mut schedule, &pieces, Duration::ZERO).is_empty());
        assert_eq!(begin(&mut schedule, &pieces, second), [2], "it is the other project's turn");
    }
}
