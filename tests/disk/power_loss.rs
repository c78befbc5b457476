//! Power cuts at every point of a history: acknowledged writes survive, and no write is torn.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use outpost::storage::DATABASE_FILE;

use crate::history::{Crash, CrashOutcome, Event, History, TestRng};
use crate::panics;
use crate::recovery::{ExpectedState, Recovered, check_integrity, recover};
use crate::server::{Installation, runtime};
use crate::simulated_disk::Disk;
use crate::workload::Workload;

const THREADS: usize = 2;

/// How many of the possible crashes are tested.
#[derive(Clone, Copy)]
struct Coverage {
    seed: u64,
    rounds: usize,
    /// First crashes that are tested, per thousand.
    first_crashes: usize,
    /// Recoveries during which a second crash is tested, per thousand tested first crashes.
    recoveries: usize,
    /// Second crashes per recovery.
    second_crashes: usize,
    /// Images that are also checked as a file, per thousand tested first crashes.
    file_checks: usize,
}

/// Records a workload with a clean restart in the middle.
fn record_history(installation: &Installation, coverage: Coverage) -> (Workload, History) {
    let (mut workload, mut rng) = (Workload::default(), TestRng::new(coverage.seed, 0));
    let disk = Disk::new(installation.database.clone());
    for _ in 0..2 {
        let server = installation.open(&disk).unwrap();
        runtime().block_on(workload.run_rounds(installation, &server, &disk, coverage.rounds / 2, &mut rng));
        server.close();
    }
    check_integrity(&disk).unwrap();
    let history = disk.take_history();
    let grown = history.events.iter().filter(|event| matches!(event, Event::SetLen(_))).count();
    assert!(grown > 2, "the file never grew");
    (workload, history)
}

/// The outcomes to test for a crash: more of them if there are more unsynced writes.
fn outcomes(crash: &Crash<'_>, history: &History) -> Vec<CrashOutcome> {
    let case = crash.at * 8;
    let mut outcomes = vec![CrashOutcome::All, CrashOutcome::Subset(case), CrashOutcome::Torn(case + 1)];
    if crash.is_before_sync(history) {
        outcomes.extend([
            CrashOutcome::Nothing,
            CrashOutcome::Subset(case + 2),
            CrashOutcome::Subset(case + 3),
            CrashOutcome::Torn(case + 4),
        ]);
    }
    outcomes
}

#[derive(Default)]
struct Counters {
    points: AtomicUsize,
    first_crashes: AtomicUsize,
    second_crashes: AtomicUsize,
}

struct CrashTest<'a> {
    coverage: Coverage,
    workload: &'a Workload,
    history: &'a History,
    tally: &'a Counters,
}

impl CrashTest<'_> {
    /// Tests the crashes of this thread: every `THREADS`-th one.
    fn run(&self, installation: &Installation, thread: usize) -> Result<(), String> {
        let (mut failure, mut rng) = (Ok(()), TestRng::new(self.coverage.seed, thread + 1));
        self.history.crashes(|crash| {
            if crash.at % THREADS != thread || failure.is_err() {
                return;
            }
            self.tally.points.fetch_add(1, SeqCst);
            for outcome_kind in outcomes(crash, self.history) {
                if failure.is_ok() && rng.below(1000) < self.coverage.first_crashes {
                    failure = self.test_first_crash(installation, crash, outcome_kind, &mut rng);
                }
            }
        });
        failure
    }

    fn test_first_crash(
        &self,
        installation: &Installation,
        crash: &Crash<'_>,
        outcome_kind: CrashOutcome,
        rng: &mut TestRng,
    ) -> Result<(), String> {
        let Some(image) = crash.image(outcome_kind, self.coverage.seed) else { return Ok(()) };
        let expected = ExpectedState::new(self.workload, crash.begun, crash.acknowledged);
        self.tally.first_crashes.fetch_add(1, SeqCst);
        let crash_description = || {
            let next = self.history.events.get(crash.at).map_or("the end".into(), describe);
            format!("seed {}, crash before event {} ({next}), outcome {outcome_kind:?}", self.coverage.seed, crash.at)
        };
        if rng.below(1000) < self.coverage.file_checks {
            check(installation, &image).map_err(|problem| format!("{}: {problem}", crash_description()))?;
        }
        let recovered =
            recover(installation, image, &expected).map_err(|problem| format!("{}: {problem}", crash_description()))?;
        if rng.below(1000) >= self.coverage.recoveries {
            return Ok(());
        }
        (0..self.coverage.second_crashes)
            .try_for_each(|_| self.test_second_crash(installation, &recovered, &expected, rng))
            .map_err(|problem| format!("{}, {problem}", crash_description()))
    }

    /// Tests a second crash during the first recovery.
    fn test_second_crash<'e>(
        &self,
        installation: &Installation,
        recovered: &Recovered<'e>,
        before: &ExpectedState<'e>,
        rng: &mut TestRng,
    ) -> Result<(), String> {
        let (position, case) = (rng.below(recovered.history.events.len() + 1), rng.below(1 << 20));
        let mut outcome = Ok(());
        recovered.history.crashes(|crash| {
            let outcome_kind = match case % 4 {
                0 => CrashOutcome::Nothing,
                1 => CrashOutcome::All,
                2 => CrashOutcome::Subset(case),
                _ => CrashOutcome::Torn(case),
            };
            let Some(image) = crash.image(outcome_kind, self.coverage.seed).filter(|_| crash.at == position) else {
                return;
            };
            self.tally.second_crashes.fetch_add(1, SeqCst);
            let expected = recovered.expected(before, crash.begun, crash.acknowledged);
            let recovered = recover(installation, image, &expected).map(drop);
            outcome = recovered.map_err(|problem| {
                format!("then before event {position} of the recovery, {outcome_kind:?}: {problem}")
            });
        });
        outcome
    }
}

/// Checks the image as a file, like `outpost check`.
fn check(installation: &Installation, image: &[u8]) -> Result<(), String> {
    std::fs::write(installation.path().join(DATABASE_FILE), image).unwrap();
    let report =
        outpost::storage::check(installation.path()).map_err(|error| format!("it cannot be checked: {error}"))?;
    if report.is_clean() { Ok(()) } else { Err(format!("the check of the file found {:?}", report.problems)) }
}

fn describe(event: &Event) -> String {
    match event {
        Event::Write { at, bytes } => format!("write of {} at {at}", bytes.len()),
        other => format!("{other:?}"),
    }
}

fn test_power_loss(coverage: Coverage) {
    let panics = panics::watch();
    let installation = Installation::new(coverage.seed);
    let (workload, history) = record_history(&installation, coverage);
    let tally = Counters::default();
    let crash_test = CrashTest { coverage, workload: &workload, history: &history, tally: &tally };
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let run = |thread| {
            let (crash_test, installation) = (&crash_test, installation.copy());
            scope.spawn(move || crash_test.run(&installation, thread))
        };
        let threads: Vec<_> = (0..THREADS).map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for outcome in outcomes {
        outcome.unwrap_or_else(|problem| panic!("{problem}"));
    }
    assert_eq!(panics.count(), 0, "something panicked, seed {}", coverage.seed);
    let Counters { points, first_crashes, second_crashes } = tally;
    println!(
        "seed {}: {} bytes at first, {} operations, {points:?} points, {first_crashes:?} crashes, {second_crashes:?} second crashes",
        coverage.seed,
        history.start.len(),
        history.events.len()
    );
}

#[test]
fn no_acknowledged_write_is_lost_in_a_power_cut() {
    test_power_loss(Coverage {
        seed: 1,
        rounds: 40,
        first_crashes: 300,
        recoveries: 300,
        second_crashes: 2,
        file_checks: 50,
    });
}

#[test]
fn a_disk_that_loses_synced_writes_is_detected() {
    let _panics = panics::watch();
    let coverage = Coverage { seed: 3, rounds: 20, first_crashes: 0, recoveries: 0, second_crashes: 0, file_checks: 0 };
    let installation = Installation::new(coverage.seed);
    let (workload, mut history) = record_history(&installation, coverage);
    let half = history.events.len() / 2;
    let mut index = 0..;
    history.events.retain(|event| index.next() < Some(half) || !matches!(event, Event::Sync));
    let expected = ExpectedState::new(&workload, coverage.rounds, coverage.rounds);
    history.crashes(|crash| {
        if crash.at < history.events.len() {
            return;
        }
        recover(&installation, crash.image(CrashOutcome::All, 0).unwrap(), &expected)
            .map(drop)
            .expect("nothing is lost yet");
        for outcome_kind in [CrashOutcome::Nothing, CrashOutcome::Subset(1), CrashOutcome::Subset(2)] {
            let image = crash.image(outcome_kind, coverage.seed).unwrap();
            assert!(recover(&installation, image, &expected).is_err(), "{outcome_kind:?} was not detected");
        }
    });
}

#[test]
#[ignore = "every point of several histories: minutes"]
fn no_acknowledged_write_is_lost_in_a_power_cut_at_any_point() {
    for seed in 1..=4 {
        test_power_loss(Coverage {
            seed,
            rounds: 60,
            first_crashes: 1000,
            recoveries: 500,
            second_crashes: 3,
            file_checks: 100,
        });
    }
}
