//! Power loss at every point of a history: what was acknowledged is there, and nothing torn.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use outpost::storage::DATABASE_FILE;

use crate::history::{Crash, Event, Fate, History, TestRng};
use crate::panics;
use crate::recovery::{Precondition, Recovered, intact, recover};
use crate::server::{Home, runtime};
use crate::simulated_disk::Disk;
use crate::workload::Workload;

const THREADS: usize = 2;

/// How much of all that could happen is tried.
#[derive(Clone, Copy)]
struct Effort {
    seed: u64,
    rounds: usize,
    /// Of a thousand first crashes.
    first: usize,
    /// Of a thousand recoveries, how many are crashed themselves, and in how many ways.
    again: usize,
    ways: usize,
    /// Of a thousand first crashes, how many are given to `outpost check` as a file.
    files: usize,
}

/// A busy life with a clean restart in its middle.
fn record(home: &Home, effort: Effort) -> (Workload, History) {
    let (mut workload, mut rng) = (Workload::default(), TestRng::new(effort.seed, 0));
    let disk = Disk::new(home.database.clone());
    for _ in 0..2 {
        let server = home.open(&disk).unwrap();
        runtime().block_on(workload.go_on(home, &server, &disk, effort.rounds / 2, &mut rng));
        server.close();
    }
    intact(&disk).unwrap();
    let history = disk.take_history();
    let grown = history.events.iter().filter(|event| matches!(event, Event::SetLen(_))).count();
    assert!(grown > 2, "the file never grew");
    (workload, history)
}

/// The fates of a point: more of them where more hangs in the air.
fn fates(crash: &Crash<'_>, history: &History) -> Vec<Fate> {
    let case = crash.at * 8;
    let mut fates = vec![Fate::All, Fate::Subset(case), Fate::Torn(case + 1)];
    if crash.is_before(history) {
        fates.extend([Fate::Nothing, Fate::Subset(case + 2), Fate::Subset(case + 3), Fate::Torn(case + 4)]);
    }
    fates
}

#[derive(Default)]
struct Tally {
    points: AtomicUsize,
    first: AtomicUsize,
    second: AtomicUsize,
}

struct Trial<'a> {
    effort: Effort,
    workload: &'a Workload,
    history: &'a History,
    tally: &'a Tally,
}

impl Trial<'_> {
    /// Every crash whose number falls to this thread.
    fn run(&self, home: &Home, thread: usize) -> Result<(), String> {
        let (mut failure, mut rng) = (Ok(()), TestRng::new(self.effort.seed, thread + 1));
        self.history.crashes(|crash| {
            if crash.at % THREADS != thread || failure.is_err() {
                return;
            }
            self.tally.points.fetch_add(1, SeqCst);
            for fate in fates(crash, self.history) {
                if failure.is_ok() && rng.below(1000) < self.effort.first {
                    failure = self.first(home, crash, fate, &mut rng);
                }
            }
        });
        failure
    }

    fn first(&self, home: &Home, crash: &Crash<'_>, fate: Fate, rng: &mut TestRng) -> Result<(), String> {
        let Some(image) = crash.image(fate, self.effort.seed) else { return Ok(()) };
        let expected = Precondition::new(self.workload, crash.begun, crash.acknowledged);
        self.tally.first.fetch_add(1, SeqCst);
        let place = || {
            let next = self.history.events.get(crash.at).map_or("the end".into(), what);
            format!("seed {}, crash before event {} ({next}), fate {fate:?}", self.effort.seed, crash.at)
        };
        if rng.below(1000) < self.effort.files {
            check(home, &image).map_err(|problem| format!("{}: {problem}", place()))?;
        }
        let recovered = recover(home, image, &expected).map_err(|problem| format!("{}: {problem}", place()))?;
        if rng.below(1000) >= self.effort.again {
            return Ok(());
        }
        (0..self.effort.ways)
            .try_for_each(|_| self.second(home, &recovered, &expected, rng))
            .map_err(|problem| format!("{}, {problem}", place()))
    }

    /// The power goes again while the first recovery is under way.
    fn second<'e>(
        &self,
        home: &Home,
        recovered: &Recovered<'e>,
        before: &Precondition<'e>,
        rng: &mut TestRng,
    ) -> Result<(), String> {
        let (wanted, case) = (rng.below(recovered.history.events.len() + 1), rng.below(1 << 20));
        let mut outcome = Ok(());
        recovered.history.crashes(|crash| {
            let fate = match case % 4 {
                0 => Fate::Nothing,
                1 => Fate::All,
                2 => Fate::Subset(case),
                _ => Fate::Torn(case),
            };
            let Some(image) = crash.image(fate, self.effort.seed).filter(|_| crash.at == wanted) else { return };
            self.tally.second.fetch_add(1, SeqCst);
            let expected = recovered.expected(before, crash.begun, crash.acknowledged);
            let recovered = recover(home, image, &expected).map(drop);
            outcome =
                recovered.map_err(|problem| format!("then before event {wanted} of the recovery, {fate:?}: {problem}"));
        });
        outcome
    }
}

/// What an operator sees who runs `outpost check` before the server.
fn check(home: &Home, image: &[u8]) -> Result<(), String> {
    std::fs::write(home.path().join(DATABASE_FILE), image).unwrap();
    let report = outpost::storage::check(home.path()).map_err(|error| format!("it cannot be checked: {error}"))?;
    if report.is_clean() { Ok(()) } else { Err(format!("the check of the file found {:?}", report.problems)) }
}

fn what(event: &Event) -> String {
    match event {
        Event::Write { at, bytes } => format!("write of {} at {at}", bytes.len()),
        other => format!("{other:?}"),
    }
}

fn survive(effort: Effort) {
    let alone = panics::watch();
    let home = Home::new(effort.seed);
    let (workload, history) = record(&home, effort);
    let tally = Tally::default();
    let trial = Trial { effort, workload: &workload, history: &history, tally: &tally };
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let run = |thread| {
            let (trial, home) = (&trial, home.twin());
            scope.spawn(move || trial.run(&home, thread))
        };
        let threads: Vec<_> = (0..THREADS).map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for outcome in outcomes {
        outcome.unwrap_or_else(|problem| panic!("{problem}"));
    }
    assert_eq!(alone.count(), 0, "something panicked, seed {}", effort.seed);
    let Tally { points, first, second } = tally;
    println!(
        "seed {}: {} bytes at first, {} operations, {points:?} points, {first:?} crashes, {second:?} second crashes",
        effort.seed,
        history.start.len(),
        history.events.len()
    );
}

#[test]
fn nothing_acknowledged_is_lost_when_the_power_goes() {
    survive(Effort { seed: 1, rounds: 40, first: 300, again: 300, ways: 2, files: 50 });
}

#[test]
fn a_disk_that_forgets_what_it_synced_is_found_out() {
    let _alone = panics::watch();
    let effort = Effort { seed: 3, rounds: 20, first: 0, again: 0, ways: 0, files: 0 };
    let home = Home::new(effort.seed);
    let (workload, mut history) = record(&home, effort);
    let half = history.events.len() / 2;
    let mut place = 0..;
    history.events.retain(|event| place.next() < Some(half) || !matches!(event, Event::Sync));
    let expected = Precondition::new(&workload, effort.rounds, effort.rounds);
    history.crashes(|crash| {
        if crash.at < history.events.len() {
            return;
        }
        recover(&home, crash.image(Fate::All, 0).unwrap(), &expected).map(drop).expect("nothing is lost yet");
        for fate in [Fate::Nothing, Fate::Subset(1), Fate::Subset(2)] {
            let image = crash.image(fate, effort.seed).unwrap();
            assert!(recover(&home, image, &expected).is_err(), "{fate:?} was not noticed");
        }
    });
}

#[test]
#[ignore = "every point of several histories: minutes"]
fn nothing_acknowledged_is_lost_when_the_power_goes_anywhere() {
    for seed in 1..=4 {
        survive(Effort { seed, rounds: 60, first: 1000, again: 500, ways: 3, files: 100 });
    }
}
