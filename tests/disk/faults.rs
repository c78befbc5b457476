//! Disk errors at every operation: no write is acknowledged before it is durable, refusals are immediate, and the store
//! recovers by itself.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use outpost::error::{Code, Error};
use outpost::ids::ProjectId;
use outpost::service::Access;
use outpost::storage::OpenError;

use crate::history::{CrashOutcome, TestRng};
use crate::panics;
use crate::recovery::{ExpectedState, check_integrity, compare, recover};
use crate::server::{Installation, Server, runtime};
use crate::simulated_disk::{Disk, Fault, Kind};
use crate::workload::{Id, Op, View, Workload};

/// A cache so small that most reads reach the disk.
const CACHE: usize = 64 << 10;
const REFUSAL: Duration = Duration::from_secs(1);
const RECOVERY: Duration = Duration::from_secs(10);
/// The number of refusals after which a disk with a permanent fault is repaired.
const PATIENCE: u64 = 3;

/// A run of the operations with one fault.
struct Case<'a> {
    installation: &'a Installation,
    disk: Disk,
    /// After the fault, no write succeeds.
    blocks_writes: bool,
    lasting: bool,
    workload: Workload,
    refused: u64,
    repaired: Option<Instant>,
    /// Operations of each kind before the repair.
    counts: [u64; 4],
}

/// Checks that an error is `storage_unavailable` and came at once. Returns `None` for it.
fn allow_unavailable<T>(began: Instant, outcome: Result<T, Error>) -> Result<Option<T>, String> {
    let elapsed = began.elapsed();
    match outcome {
        Ok(done) => Ok(Some(done)),
        Err(error) if error.code() != Code::StorageUnavailable => {
            Err(format!("refused as {:?}: {error}", error.code()))
        }
        Err(_) if elapsed > REFUSAL => Err(format!("the refusal took {elapsed:?}")),
        Err(_) => Ok(None),
    }
}

impl<'a> Case<'a> {
    fn new(installation: &'a Installation, fault: Fault) -> Self {
        let disk = Disk::new(installation.database.clone());
        let (blocks_writes, lasting) = match fault {
            Fault::Nth { kind, lasting, .. } => (lasting && matches!(kind, Kind::Write | Kind::Sync), lasting),
            Fault::Full { .. } => (false, true),
        };
        disk.fail(Some(fault));
        Self {
            installation,
            disk,
            blocks_writes,
            lasting,
            workload: Workload::default(),
            refused: 0,
            repaired: None,
            counts: [0; 4],
        }
    }

    fn repair(&mut self) {
        self.counts = self.disk.counts();
        self.disk.fail(None);
        self.repaired = Some(Instant::now());
    }

    /// Opens the store. Checks that a failure is reported as an I/O error, and that opening succeeds after the repair.
    fn open(&mut self) -> Result<Server, String> {
        let began = Instant::now();
        let error = match self.installation.open_with_cache(&self.disk, CACHE) {
            Ok(server) => return Ok(server),
            Err(error) => error,
        };
        if self.disk.failures() == 0 || !matches!(error, OpenError::Io { .. }) {
            return Err(format!("unexpected error on opening: {error}"));
        }
        if began.elapsed() > REFUSAL {
            return Err(format!("opening failed only after {:?}", began.elapsed()));
        }
        if self.lasting {
            self.repair();
        }
        self.installation
            .open_with_cache(&self.disk, CACHE)
            .map_err(|error| format!("opening failed after the repair: {error}"))
    }

    /// Repeats an operation until it succeeds.
    async fn retry_until_done(&mut self, server: &Server, op: Op) -> Result<Id, String> {
        let (first, mut refused_here) = (Instant::now(), 0);
        loop {
            let began = Instant::now();
            let outcome = match server.admin(self.installation).await {
                Ok(access) => server.change(self.installation, &access, op).await,
                Err(error) => Err(error),
            };
            let failing = self.blocks_writes && self.repaired.is_none() && self.disk.failures() > 0;
            match allow_unavailable(began, outcome).map_err(|problem| format!("{op:?}: {problem}"))? {
                Some(_) if failing => return Err(format!("{op:?} was acknowledged although the disk fails")),
                Some(done) => {
                    let id = done.id;
                    self.workload.note(done);
                    return Ok(id);
                }
                None => (self.refused, refused_here) = (self.refused + 1, refused_here + 1),
            }
            if let Op::Rotate(id, _) = op {
                self.workload.target(Id::Key(id)).rotation_uncertain = true;
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

    /// Checks that reads and authentication give acknowledged results or `storage_unavailable`.
    async fn check_targets(&self, server: &Server, access: &Access) -> Result<(), String> {
        for target in &self.workload.targets {
            let began = Instant::now();
            let seen = allow_unavailable(began, server.view(access, target.id).await)?;
            let Some(last) = target.steps.last() else { continue };
            if seen.is_some_and(|view| view != last.view) {
                return Err(format!("{:?} is not in the state {:?}", target.id, last.view));
            }
            for (number, secret) in target.secrets.iter().enumerate() {
                let code = server.keys.authenticate(secret.expose()).await.err().map(|error| error.code());
                // If the state of a key is unknown, it is refused.
                if code != Some(Code::StorageUnavailable) && !target.allows(last, number, code) {
                    return Err(format!("secret {number} of {:?} gets {code:?}", target.id));
                }
            }
        }
        Ok(())
    }

    /// Checks that every acknowledged write is stored.
    async fn verify(&self, server: &Server) -> Result<(), String> {
        let expected = ExpectedState::all(&self.workload, self.refused);
        let report = server.store.verify().map_err(|error| format!("the check failed: {error}"))?;
        if !report.is_clean() {
            return Err(format!("the check found {:?}", report.problems));
        }
        compare(self.installation, server, &expected, &report).await.map(drop)
    }

    /// Closes the store, and checks that every acknowledged write survives a power cut that loses all unsynced writes.
    fn end(self, server: Server) -> Result<(), String> {
        let history = self.disk.take_history();
        server.close();
        check_integrity(&self.disk)?;
        let expected = ExpectedState::all(&self.workload, self.refused);
        let mut outcome = Ok(());
        history.crashes(|crash| {
            if crash.at == history.events.len()
                && let Some(image) = crash.image(CrashOutcome::Nothing, 0)
            {
                let cut = recover(self.installation, image, &expected).map(drop);
                outcome = cut.map_err(|problem| format!("after a power cut {problem}"));
            }
        });
        outcome
    }
}

/// Creates, changes and removes resources, and checks them in between.
async fn run_operations(case: &mut Case<'_>, server: &Server) -> Result<(), String> {
    let access = loop {
        match allow_unavailable(Instant::now(), server.admin(case.installation).await)? {
            Some(access) => break access,
            None if case.lasting => case.repair(),
            None => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    let big = ProjectId::generate(&*server.clock_rng);
    let Id::Project(project) = case.retry_until_done(server, Op::NewProject).await? else {
        return Err("no project".into());
    };
    let Id::Key(first) = case.retry_until_done(server, Op::NewKey).await? else { return Err("no key".into()) };
    let Id::Key(second) = case.retry_until_done(server, Op::NewKey).await? else { return Err("no key".into()) };
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
        case.check_targets(server, &access).await?;
        case.retry_until_done(server, op).await?;
    }
    if case.repaired.is_none() {
        case.repair();
    }
    case.retry_until_done(server, Op::NewKey).await?;
    case.verify(server).await
}

/// Runs the operations with a fault. Returns the number of operations of each kind before the repair, and whether one
/// failed.
fn run(installation: &Installation, fault: Fault) -> Result<([u64; 4], bool), String> {
    let mut case = Case::new(installation, fault);
    let server = case.open()?;
    runtime().block_on(run_operations(&mut case, &server))?;
    let (counts, fired) = (case.counts, case.disk.failures() > 0);
    case.end(server)?;
    Ok((counts, fired))
}

/// Runs all cases on two threads. Returns the number of cases whose fault occurred.
fn run_all(installation: &Installation, cases: &[Fault]) -> usize {
    let fired = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (installation, fired) = (installation.copy(), &fired);
            scope.spawn(move || {
                for fault in cases.iter().skip(thread).step_by(2) {
                    let (_, fired_here) =
                        run(&installation, *fault).unwrap_or_else(|problem| panic!("{fault:?}: {problem}"));
                    fired.fetch_add(usize::from(fired_here), SeqCst);
                }
            });
        }
    });
    fired.into_inner()
}

/// Faults at random operations, evenly distributed over a run, at most `max_per_kind` of each kind.
fn distributed_faults(counts: [u64; 4], max_per_kind: u64, rng: &mut TestRng) -> Vec<Fault> {
    let mut cases = Vec::new();
    for (kind, count) in Kind::ALL.into_iter().zip(counts) {
        let intervals = max_per_kind.min(count);
        for interval in 0..intervals {
            let (start, end) = (count * interval / intervals, count * (interval + 1) / intervals);
            let nth = 1 + start + rng.below((end - start) as usize) as u64;
            cases.extend([false, true].map(|lasting| Fault::Nth { kind, nth, lasting }));
        }
    }
    cases
}

fn test_faults(seed: u64, max_per_kind: u64) {
    let panics = panics::watch();
    let installation = Installation::new(seed);
    let (counts, _) = run(&installation, Fault::Nth { kind: Kind::Sync, nth: u64::MAX, lasting: false }).unwrap();
    assert!(counts.iter().all(|count| *count > 2), "{counts:?}");
    let cases = distributed_faults(counts, max_per_kind, &mut TestRng::new(seed, 0));
    let fired = run_all(&installation, &cases);
    println!("seed {seed}: {counts:?} reads, writes, resizes, syncs; {} faults, {fired} occurred", cases.len());
    assert!(fired * 10 >= cases.len() * 9, "only {fired} of {} faults occurred", cases.len());
    assert_eq!(panics.count(), 0, "something panicked, seed {seed}");
}

#[test]
fn a_failed_disk_operation_loses_no_acknowledged_write() {
    test_faults(1, 16);
}

#[test]
#[ignore = "every operation: minutes"]
fn any_disk_operation_may_fail() {
    test_faults(2, u64::MAX);
}

#[test]
fn a_full_disk_refuses_writes_until_there_is_space() {
    let panics = panics::watch();
    let installation = Installation::new(4);
    let free_space = |part: usize| installation.database.len() + part * 300_000;
    let cases: Vec<Fault> =
        (0..16).map(|part| Fault::Full { bytes: free_space(part / 2), sparse: part % 2 == 0 }).collect();
    assert!(run_all(&installation, &cases) >= 8);
    assert_eq!(panics.count(), 0, "something panicked");
}

#[test]
fn keys_work_while_the_disk_is_full() {
    let _panics = panics::watch();
    let installation = Installation::new(5);
    let disk = Disk::new(installation.database.clone());
    let server = installation.open(&disk).unwrap();
    disk.fail(Some(Fault::Full { bytes: installation.database.len(), sparse: false }));
    runtime().block_on(async {
        let id = ProjectId::generate(&*server.clock_rng);
        let access = server.admin(&installation).await.unwrap();
        let refused = server.change(&installation, &access, Op::Put(id, 3_000_000)).await.err().unwrap();
        assert_eq!(refused.code(), Code::StorageUnavailable);
        let since = Instant::now();
        while server.admin(&installation).await.is_err() {
            assert!(since.elapsed() < RECOVERY, "no key works while the disk is full");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(server.view(&access, Id::Record(id)).await.unwrap(), View::Absent);
    });
    server.close();
}
