//! Checks of an installation after a power cut.

use std::sync::Arc;

use outpost::storage::CheckReport;

use crate::history::{Event, History};
use crate::server::{Installation, Server, runtime};
use crate::simulated_disk::Disk;
use crate::workload::{Done, Id, Op, Step, Target, View, Workload};

/// Rows of the audit log that the first start writes.
const FIRST_ROWS: u64 = 2;

/// The states of a target that are allowed after a crash.
#[derive(Clone, Copy)]
struct Allowed<'a> {
    target: &'a Target,
    /// The last acknowledged step, if any.
    acknowledged_step: Option<usize>,
    /// The step that was in flight, if any.
    in_flight_step: Option<usize>,
}

/// The states that are allowed after a crash.
#[derive(Clone)]
pub struct ExpectedState<'a> {
    targets: Vec<Allowed<'a>>,
    /// A write of an earlier recovery, and whether it was acknowledged.
    later_write: Option<(Arc<Done>, bool)>,
    /// Rows of the audit log that do not belong to a target.
    audit: u64,
    /// Rows of refused changes, which may have been applied.
    audit_slack: u64,
}

impl<'a> ExpectedState<'a> {
    /// The expected state after `begun` rounds were begun and `acknowledged` rounds were acknowledged.
    pub fn new(workload: &'a Workload, begun: usize, acknowledged: usize) -> Self {
        let targets = workload.targets.iter().map(|target| {
            let acknowledged_step = target.steps.iter().rposition(|step| step.round < acknowledged);
            let in_flight_step = target.steps.iter().position(|step| (acknowledged..begun).contains(&step.round));
            Allowed { target, acknowledged_step, in_flight_step }
        });
        Self { targets: targets.collect(), later_write: None, audit: FIRST_ROWS, audit_slack: 0 }
    }

    /// The expected state after all rounds, with `refused` changes that may have left rows in the audit log.
    pub fn all(workload: &'a Workload, refused: u64) -> Self {
        Self { audit_slack: refused, ..Self::new(workload, usize::MAX, usize::MAX) }
    }
}

/// The disk operations of a recovery, and the state that was found.
pub struct Recovered<'a> {
    pub history: History,
    found: ExpectedState<'a>,
    write: Arc<Done>,
}

impl<'a> Recovered<'a> {
    /// The expected state after a second crash: `before`, until the recovered installation acknowledged a write; then
    /// the state that was found.
    pub fn expected(&self, before: &ExpectedState<'a>, begun: usize, acknowledged: usize) -> ExpectedState<'a> {
        let base = if acknowledged > 0 { &self.found } else { before };
        ExpectedState { later_write: (begun > 0).then(|| (self.write.clone(), acknowledged > 0)), ..base.clone() }
    }
}

/// Opens the image of a crashed disk and compares it with the expected state.
pub fn recover<'a>(
    installation: &Installation,
    image: Vec<u8>,
    expected: &ExpectedState<'a>,
) -> Result<Recovered<'a>, String> {
    let disk = Disk::new(image);
    let server = installation.open(&disk).map_err(|error| format!("the store does not open: {error}"))?;
    let report = server.store.verify().map_err(|error| format!("the check failed: {error}"))?;
    if !report.is_clean() {
        return Err(format!("the check found {:?}", report.problems));
    }
    let (found, write) = runtime().block_on(async {
        let found = compare(installation, &server, expected, &report).await?;
        // The recovered installation accepts new writes.
        disk.note(Event::Begun(0));
        let access = server.admin(installation).await.map_err(|error| format!("no admin: {error}"))?;
        let write = server.change(installation, &access, Op::NewProject).await;
        disk.note(Event::Acknowledged(0));
        Ok::<_, String>((found, write.map_err(|error| format!("the store accepts no writes: {error}"))?))
    })?;
    server.close();
    check_integrity(&disk)?;
    Ok(Recovered { history: disk.take_history(), found, write: write.into() })
}

/// Runs redb's integrity check. The disk is empty afterwards.
pub fn check_integrity(disk: &Disk) -> Result<(), String> {
    let copy = Disk::new(disk.take_bytes());
    let mut db =
        redb::Builder::new().create_with_backend(copy).map_err(|error| format!("redb cannot open it: {error}"))?;
    match db.check_integrity() {
        Ok(true) => Ok(()),
        Ok(false) => Err("redb repaired a database that was closed cleanly".into()),
        Err(error) => Err(format!("redb finds damage: {error}")),
    }
}

/// Compares the installation with the expected state. Returns the state that was found.
pub async fn compare<'a>(
    installation: &Installation,
    server: &Server,
    expected: &ExpectedState<'a>,
    report: &CheckReport,
) -> Result<ExpectedState<'a>, String> {
    let mut found = expected.clone();
    let mut audit = expected.audit;
    for allowed in &mut found.targets {
        let step = check_target(installation, server, *allowed).await?;
        // Records that are written directly have no audit row.
        let audited = !matches!(allowed.target.id, Id::Record(_));
        audit += step.filter(|_| audited).map_or(0, |step| step as u64 + 1);
        *allowed = Allowed { acknowledged_step: step, in_flight_step: None, ..*allowed };
    }
    if let Some((done, acknowledged_step)) = &mut found.later_write {
        let there = view_of(installation, server, done.id).await? == done.view;
        if *acknowledged_step && !there {
            return Err(format!("{:?}, written after the first crash, is lost", done.id));
        }
        *acknowledged_step = there;
        audit += u64::from(there);
    }
    for table in ["audit", "audit_by_time"] {
        if !(audit..=audit + expected.audit_slack).contains(&report.records[table]) {
            return Err(format!("{table} has {} rows, not {audit}", report.records[table]));
        }
    }
    Ok(found)
}

async fn view_of(installation: &Installation, server: &Server, id: Id) -> Result<View, String> {
    let access = server.admin(installation).await.map_err(|error| format!("no admin: {error}"))?;
    server.view(&access, id).await.map_err(|error| format!("{id:?} cannot be read: {error}"))
}

/// The step whose state the target has. An error if the state is not allowed.
async fn check_target(
    installation: &Installation,
    server: &Server,
    allowed: Allowed<'_>,
) -> Result<Option<usize>, String> {
    let Allowed { target, acknowledged_step, in_flight_step } = allowed;
    let view = view_of(installation, server, target.id).await?;
    let after = |step: Option<usize>| step.map_or(&View::Absent, |step| &target.steps[step].view);
    let step = match in_flight_step {
        Some(step) if *after(Some(step)) == view => Some(step),
        _ if *after(acknowledged_step) == view => acknowledged_step,
        _ => {
            return Err(format!(
                "{:?} is {view:?}, not {:?} or {in_flight_step:?}",
                target.id,
                after(acknowledged_step)
            ));
        }
    };
    let nothing = Step { round: 0, view: View::Absent, issued: 0 };
    let state = step.map_or(&nothing, |step| &target.steps[step]);
    for (number, secret) in target.secrets.iter().enumerate() {
        let code = server.keys.authenticate(secret.expose()).await.err().map(|error| error.code());
        if !target.allows(state, number, code) {
            return Err(format!("secret {number} of {:?}, now {view:?}, gets {code:?}", target.id));
        }
    }
    Ok(step)
}
