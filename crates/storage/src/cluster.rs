//! The nodes that share a database, as this process sees them.
//!
//! A process asks the database several times a second who is alive, what has changed, and what time it is. What it caches
//! may be used only while the last answer is fresh, so that a revoked key is refused on every node within a second, even on
//! one that has lost the database.
//!
//! The clock of a shared store is the database's. A node adds its uptime to the time that the database showed. Of the
//! last sixteen samples, the one with the shortest round trip counts, because its error is at most half of that. So
//! grace periods and expiry do not depend on the clocks of the nodes.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use outpost_common::clock_rng::{ClockRng, Timestamp};

/// Max age of the last answer while caches are used.
pub(super) const MAX_CACHE_AGE: Duration = Duration::from_millis(750);

/// Samples of the database's clock that are compared.
const CLOCK_SAMPLES: usize = 16;

/// One process of a node. A node that starts again has the same number and a later epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NodeProcess {
    /// Counts from 1.
    pub number: u16,
    pub epoch: u64,
}

/// The nodes of a shared database, and its clock.
pub struct Cluster {
    process: NodeProcess,
    clock_rng: Arc<dyn ClockRng>,
    /// Uptime when the last question that was answered was sent, in microseconds.
    asked_micros: AtomicU64,
    answer_count: AtomicU64,
    /// The database's clock minus the uptime, in milliseconds.
    clock_offset: AtomicI64,
    /// The latest time that was shown, in milliseconds.
    latest_shown: AtomicI64,
    answers: Mutex<Answers>,
}

#[derive(Default)]
struct Answers {
    alive: Vec<NodeProcess>,
    samples: Vec<ClockSample>,
}

/// A reading of the database's clock between a request and its answer.
#[derive(Clone, Copy)]
struct ClockSample {
    round_trip: Duration,
    /// The database's clock minus the uptime, in milliseconds. The error is half the round trip.
    offset: i64,
}

/// An answer of the database.
pub(super) struct Answer {
    /// Uptime when the question was sent, and when its answer arrived.
    pub asked: Duration,
    pub answered: Duration,
    /// The database's clock, in milliseconds since 1970.
    pub database_millis: i64,
    /// The processes whose heartbeat is valid.
    pub alive: Vec<NodeProcess>,
}

impl Cluster {
    pub(super) fn new(process: NodeProcess, clock_rng: Arc<dyn ClockRng>, first: Answer) -> Self {
        let cluster = Self {
            process,
            clock_rng,
            asked_micros: AtomicU64::new(0),
            answer_count: AtomicU64::new(0),
            clock_offset: AtomicI64::new(0),
            latest_shown: AtomicI64::new(0),
            answers: Mutex::default(),
        };
        cluster.note(first);
        cluster
    }

    fn answers(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This process.
    pub fn process(&self) -> NodeProcess {
        self.process
    }

    /// True if the process was alive at the last answer. A process that cannot reach the database may be alive
    /// nevertheless, but cannot write.
    pub fn is_alive(&self, process: NodeProcess) -> bool {
        process == self.process || self.answers().alive.contains(&process)
    }

    /// The number of nodes that were alive at the last answer, including this one.
    pub fn alive(&self) -> usize {
        self.answers().alive.iter().filter(|process| **process != self.process).count() + 1
    }

    /// True if all changes that were committed up to 0.75 seconds ago have been announced to the store's watchers, so
    /// that caches may be used.
    pub fn is_current(&self) -> bool {
        let asked = Duration::from_micros(self.asked_micros.load(Acquire));
        self.clock_rng.uptime().saturating_sub(asked) < MAX_CACHE_AGE
    }

    /// The number of answers so far.
    pub(super) fn answer_count(&self) -> u64 {
        self.answer_count.load(Relaxed)
    }

    /// The time of the database's clock; never goes back.
    pub fn now(&self) -> Timestamp {
        let now = millis(self.clock_rng.uptime()).saturating_add(self.clock_offset.load(Relaxed));
        Timestamp::from_millis(self.latest_shown.fetch_max(now, AcqRel).max(now))
    }

    /// Notes an answer, after its changes have been announced.
    pub(super) fn note(&self, answer: Answer) {
        let mut answers = self.answers();
        self.add_sample(&mut answers, &answer);
        answers.alive = answer.alive;
        let asked = u64::try_from(answer.asked.as_micros()).unwrap_or(u64::MAX);
        self.asked_micros.store(asked, Release);
        self.answer_count.fetch_add(1, Relaxed);
    }

    /// Follows the sample with the shortest round trip of the last ones, because its error is the smallest.
    fn add_sample(&self, answers: &mut Answers, answer: &Answer) {
        let round_trip = answer.answered.saturating_sub(answer.asked);
        let middle = answer.asked + round_trip / 2;
        let sample = ClockSample { round_trip, offset: answer.database_millis.saturating_sub(millis(middle)) };
        if answers.samples.len() == CLOCK_SAMPLES {
            answers.samples.remove(0);
        }
        answers.samples.push(sample);
        // Of equally good samples the latest counts.
        let best = answers.samples.iter().rev().min_by_key(|sample| sample.round_trip);
        self.clock_offset.store(best.map_or(sample.offset, |best| best.offset), Relaxed);
    }
}

/// Whole milliseconds.
pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// The database's clock as the wall clock, so that all nodes agree on the time however their own clocks are set.
pub(super) struct DatabaseClock {
    pub cluster: Arc<Cluster>,
    pub machine: Arc<dyn ClockRng>,
}

impl ClockRng for DatabaseClock {
    fn now(&self) -> Timestamp {
        self.cluster.now()
    }

    fn uptime(&self) -> Duration {
        self.machine.uptime()
    }

    fn fill(&self, bytes: &mut [u8]) {
        self.machine.fill(bytes);
    }
}

/// The processes that share the database, as one of them sees them.
#[derive(Clone)]
pub struct Peers(Option<Arc<Cluster>>);

impl Peers {
    pub(super) fn new(cluster: Option<Arc<Cluster>>) -> Self {
        Self(cluster)
    }

    /// True if a process may still do the work that it has claimed. If this process does not follow the others, each of
    /// them may.
    ///
    /// A process that has just started may look dead for as long as the last answer of the database is old. If it loses
    /// work by that, the work is still done once.
    pub fn is_alive(&self, process: NodeProcess) -> bool {
        self.0.as_ref().is_some_and(|cluster| cluster.is_alive(process) || !cluster.is_current())
    }

    /// This process; `None` if it has the store for itself.
    pub(super) fn process(&self) -> Option<NodeProcess> {
        self.0.as_ref().map(|cluster| cluster.process())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An uptime that the test sets.
    #[derive(Default)]
    struct Uptime(AtomicU64);

    impl Uptime {
        fn set(&self, millis: u64) {
            self.0.store(millis, Relaxed);
        }
    }

    impl ClockRng for Uptime {
        fn now(&self) -> Timestamp {
            Timestamp::ORIGIN
        }

        fn uptime(&self) -> Duration {
            Duration::from_millis(self.0.load(Relaxed))
        }

        fn fill(&self, _: &mut [u8]) {}
    }

    const ME: NodeProcess = NodeProcess { number: 1, epoch: 3 };
    const OTHER: NodeProcess = NodeProcess { number: 2, epoch: 1 };

    fn answer(asked: u64, answered: u64, database_millis: i64, alive: &[NodeProcess]) -> Answer {
        let (asked, answered) = (Duration::from_millis(asked), Duration::from_millis(answered));
        Answer { asked, answered, database_millis, alive: alive.to_vec() }
    }

    fn cluster() -> (Arc<Uptime>, Cluster) {
        let uptime = Arc::new(Uptime::default());
        (uptime.clone(), Cluster::new(ME, uptime, answer(0, 10, 1_000_005, &[ME])))
    }

    #[test]
    fn the_time_is_that_of_the_database() {
        let (uptime, cluster) = cluster();
        uptime.set(100);
        assert_eq!(cluster.now().as_millis(), 1_000_100);
        // A slow answer tells less than a quick one.
        cluster.note(answer(200, 600, 1_000_599, &[ME]));
        uptime.set(700);
        assert_eq!(cluster.now().as_millis(), 1_000_700);
        cluster.note(answer(800, 802, 1_000_811, &[ME]));
        uptime.set(900);
        assert_eq!(cluster.now().as_millis(), 1_000_910);
    }

    #[test]
    fn the_time_never_goes_back() {
        let (uptime, cluster) = cluster();
        uptime.set(100);
        let shown = cluster.now();
        cluster.note(answer(100, 100, 5, &[ME]));
        assert_eq!(cluster.now(), shown);
    }

    #[test]
    fn caches_are_current_for_a_while_after_an_answer() {
        let (uptime, cluster) = cluster();
        cluster.note(answer(1000, 1400, 0, &[ME]));
        uptime.set(1749);
        assert!(cluster.is_current());
        uptime.set(1750);
        assert!(!cluster.is_current());
    }

    #[test]
    fn a_process_that_has_started_again_is_another_one() {
        let (_, cluster) = cluster();
        cluster.note(answer(1, 2, 0, &[ME, OTHER]));
        assert!(cluster.is_alive(OTHER) && cluster.is_alive(ME));
        assert!(!cluster.is_alive(NodeProcess { epoch: 2, ..OTHER }));
        assert_eq!(cluster.alive(), 2);
        cluster.note(answer(3, 4, 0, &[]));
        assert_eq!(cluster.alive(), 1);
    }
}
