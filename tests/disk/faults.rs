//! Disk errors at every operation: nothing is acknowledged that is not safe, refusals come at
//! once, and the store finds back by itself.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use outpost::error::{Code, Error};
use outpost::ids::ProjectId;
use outpost::service::Access;
use outpost::storage::OpenError;

use crate::history::{Fate, TestRng};
use crate::panics;
use crate::recovery::{Precondition, compare, intact, recover};
use crate::server::{Home, Server, runtime};
use crate::simulated_disk::{Disk, Fault, Kind};
use crate::workload::{Id, Op, View, Workload};

/// So little that most reads reach the disk.
const CACHE: usize = 64 << 10;
const REFUSAL: Duration = Duration::from_secs(1);
const RECOVERY: Duration = Duration::from_secs(10);
/// How often a lasting fault must refuse before the disk is repaired.
const PATIENCE: u64 = 3;

/// One life with one fault.
struct Case<'a> {
    home: &'a Home,
    disk: Disk,
    /// A fault after which nothing can be written.
    deadly: bool,
    lasting: bool,
    workload: Workload,
    refused: u64,
    repaired: Option<Instant>,
    /// How much was done to the disk before that.
    counts: [u64; 4],
}

fn fits<T>(began: Instant, outcome: Result<T, Error>) -> Result<Option<T>, String> {
    let took = began.elapsed();
    match outcome {
        Ok(done) => Ok(Some(done)),
        Err(error) if error.code() != Code::StorageUnavailable => {
            Err(format!("refused as {:?}: {error}", error.code()))
        }
        Err(_) if took > REFUSAL => Err(format!("the refusal took {took:?}")),
        Err(_) => Ok(None),
    }
}

impl<'a> Case<'a> {
    fn new(home: &'a Home, fault: Fault) -> Self {
        let disk = Disk::new(home.database.clone());
        let (deadly, lasting) = match fault {
            Fault::Nth { kind, lasting, .. } => (lasting && matches!(kind, Kind::Write | Kind::Sync), lasting),
            Fault::Full { .. } => (false, true),
        };
        disk.fail(Some(fault));
        Self { home, disk, deadly, lasting, workload: Workload::default(), refused: 0, repaired: None, counts: [0; 4] }
    }

    fn repair(&mut self) {
        self.counts = self.disk.counts();
        self.disk.fail(None);
        self.repaired = Some(Instant::now());
    }

    /// Opens the store; a failure must be told as what it is, and be over when the fault is.
    fn open(&mut self) -> Result<Server, String> {
        let began = Instant::now();
        let error = match self.home.open_with(&self.disk, CACHE) {
            Ok(server) => return Ok(server),
            Err(error) => error,
        };
        if self.disk.failures() == 0 || !matches!(error, OpenError::Io { .. }) {
            return Err(format!("opening says: {error}"));
        }
        if began.elapsed() > REFUSAL {
            return Err(format!("opening failed only after {:?}", began.elapsed()));
        }
        if self.lasting {
            self.repair();
        }
        self.home.open_with(&self.disk, CACHE).map_err(|error| format!("opening again says: {error}"))
    }

    /// Does one thing as often as it takes.
    async fn insist(&mut self, server: &Server, op: Op) -> Result<Id, String> {
        let (first, mut refused_here) = (Instant::now(), 0);
        loop {
            let began = Instant::now();
            let outcome = match server.admin(self.home).await {
                Ok(access) => server.change(self.home, &access, op).await,
                Err(error) => Err(error),
            };
            let failing = self.deadly && self.repaired.is_none() && self.disk.failures() > 0;
            match fits(began, outcome).map_err(|problem| format!("{op:?}: {problem}"))? {
                Some(_) if failing => return Err(format!("{op:?} was acknowledged by a disk that fails")),
                Some(done) => {
                    let id = done.id;
                    self.workload.note(done);
                    return Ok(id);
                }
                None => (self.refused, refused_here) = (self.refused + 1, refused_here + 1),
            }
            if let Op::Rotate(id, _) = op {
                self.workload.target(Id::Key(id)).muddled = true;
            }
            if self.lasting && self.repaired.is_none() && refused_here >= PATIENCE {
                self.repair();
            }
            let waited = self.repaired.unwrap_or(first).elapsed();
            if waited > RECOVERY {
                return Err(format!("{op:?} is still refused after {waited:?}"));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// What anyone may ask at any time.
    async fn look(&self, server: &Server, access: &Access) -> Result<(), String> {
        for target in &self.workload.targets {
            let began = Instant::now();
            let seen = fits(began, server.view(access, target.id).await)?;
            let Some(last) = target.steps.last() else { continue };
            if seen.is_some_and(|view| view != last.view) {
                return Err(format!("{:?} does not look like {:?}", target.id, last.view));
            }
            for (number, secret) in target.secrets.iter().enumerate() {
                let code = server.keys.authenticate(secret.expose()).await.err().map(|error| error.code());
                // In doubt a key is refused, never admitted.
                if code != Some(Code::StorageUnavailable) && !target.allows(last, number, code) {
                    return Err(format!("secret {number} of {:?} is answered {code:?}", target.id));
                }
            }
        }
        Ok(())
    }

    /// Everything acknowledged is there: now, and after a power cut that takes all unsynced writes.
    async fn judge(&self, server: &Server) -> Result<(), String> {
        let expected = Precondition::all(&self.workload, self.refused);
        let report = server.store.verify().map_err(|error| format!("the check broke off: {error}"))?;
        if !report.is_clean() {
            return Err(format!("the check found {:?}", report.problems));
        }
        compare(self.home, server, &expected, &report).await.map(drop)
    }

    fn end(self, server: Server) -> Result<(), String> {
        let history = self.disk.take_history();
        server.close();
        intact(&self.disk)?;
        let expected = Precondition::all(&self.workload, self.refused);
        let mut outcome = Ok(());
        history.crashes(|crash| {
            if crash.at == history.events.len()
                && let Some(image) = crash.image(Fate::Nothing, 0)
            {
                let cut = recover(self.home, image, &expected).map(drop);
                outcome = cut.map_err(|problem| format!("after a power cut {problem}"));
            }
        });
        outcome
    }
}

/// Makes, changes and ends things, and looks at them in between.
async fn live(case: &mut Case<'_>, server: &Server) -> Result<(), String> {
    let access = loop {
        match fits(Instant::now(), server.admin(case.home).await)? {
            Some(access) => break access,
            None if case.lasting => case.repair(),
            None => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    let big = ProjectId::generate(&*server.clock_rng);
    let Id::Project(project) = case.insist(server, Op::NewProject).await? else { return Err("no project".into()) };
    let Id::Key(first) = case.insist(server, Op::NewKey).await? else { return Err("no key".into()) };
    let Id::Key(second) = case.insist(server, Op::NewKey).await? else { return Err("no key".into()) };
    let ops = [
        Op::Revoke(first),
        Op::Put(big, 1_200_000),
        Op::Rotate(second, 3600),
        Op::ReplaceProject(project, 1),
        Op::Put(big, 2_600_000),
        Op::Rename(second, 1),
        Op::Remove(big),
        Op::Rotate(second, 0),
    ];
    for op in ops {
        case.look(server, &access).await?;
        case.insist(server, op).await?;
    }
    if case.repaired.is_none() {
        case.repair();
    }
    case.insist(server, Op::NewKey).await?;
    case.judge(server).await
}

/// One life: how many operations of each kind there were before the repair, and whether one failed.
fn run(home: &Home, fault: Fault) -> Result<([u64; 4], bool), String> {
    let mut case = Case::new(home, fault);
    let server = case.open()?;
    runtime().block_on(live(&mut case, &server))?;
    let (counts, fired) = (case.counts, case.disk.failures() > 0);
    case.end(server)?;
    Ok((counts, fired))
}

/// Runs all cases on two threads; says how many of them met their fault.
fn run_all(home: &Home, cases: &[Fault]) -> usize {
    let fired = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (home, fired) = (home.twin(), &fired);
            scope.spawn(move || {
                for fault in cases.iter().skip(thread).step_by(2) {
                    let (_, met) = run(&home, *fault).unwrap_or_else(|problem| panic!("{fault:?}: {problem}"));
                    fired.fetch_add(usize::from(met), SeqCst);
                }
            });
        }
    });
    fired.into_inner()
}

/// Faults spread over a life, `most` of each sort.
fn spread(counts: [u64; 4], most: u64, rng: &mut TestRng) -> Vec<Fault> {
    let mut cases = Vec::new();
    for (kind, count) in Kind::ALL.into_iter().zip(counts) {
        let parts = most.min(count);
        for part in 0..parts {
            let (from, to) = (count * part / parts, count * (part + 1) / parts);
            let nth = 1 + from + rng.below((to - from) as usize) as u64;
            cases.extend([false, true].map(|lasting| Fault::Nth { kind, nth, lasting }));
        }
    }
    cases
}

fn fail_everywhere(seed: u64, most: u64) {
    let alone = panics::watch();
    let home = Home::new(seed);
    let (counts, _) = run(&home, Fault::Nth { kind: Kind::Sync, nth: u64::MAX, lasting: false }).unwrap();
    assert!(counts.iter().all(|count| *count > 2), "{counts:?}");
    let cases = spread(counts, most, &mut TestRng::new(seed, 0));
    let fired = run_all(&home, &cases);
    println!("seed {seed}: {counts:?} reads, writes, resizes, syncs; {} faults, {fired} met", cases.len());
    assert!(fired * 10 >= cases.len() * 9, "only {fired} of {} faults were met", cases.len());
    assert_eq!(alone.count(), 0, "something panicked, seed {seed}");
}

#[test]
fn an_operation_of_the_disk_that_fails_costs_no_acknowledged_write() {
    fail_everywhere(1, 16);
}

#[test]
#[ignore = "every operation: minutes"]
fn any_operation_of_the_disk_may_fail() {
    fail_everywhere(2, u64::MAX);
}

#[test]
fn a_full_disk_refuses_writes_until_there_is_room() {
    let alone = panics::watch();
    let home = Home::new(4);
    let room = |part: usize| home.database.len() + part * 300_000;
    let cases: Vec<Fault> = (0..16).map(|part| Fault::Full { bytes: room(part / 2), sparse: part % 2 == 0 }).collect();
    assert!(run_all(&home, &cases) >= 8);
    assert_eq!(alone.count(), 0, "something panicked");
}

#[test]
fn on_a_full_disk_keys_go_on_working() {
    let _alone = panics::watch();
    let home = Home::new(5);
    let disk = Disk::new(home.database.clone());
    let server = home.open(&disk).unwrap();
    disk.fail(Some(Fault::Full { bytes: home.database.len(), sparse: false }));
    runtime().block_on(async {
        let id = ProjectId::generate(&*server.clock_rng);
        let access = server.admin(&home).await.unwrap();
        let refused = server.change(&home, &access, Op::Put(id, 3_000_000)).await.err().unwrap();
        assert_eq!(refused.code(), Code::StorageUnavailable);
        let since = Instant::now();
        while server.admin(&home).await.is_err() {
            assert!(since.elapsed() < RECOVERY, "no key works while the disk is full");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(server.view(&access, Id::Record(id)).await.unwrap(), View::Absent);
    });
    server.close();
}
