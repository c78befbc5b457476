//! What must be true of an installation whose power went and came back.

use std::sync::Arc;

use outpost::storage::CheckReport;

use crate::history::{Event, History};
use crate::server::{Home, Server, runtime};
use crate::simulated_disk::Disk;
use crate::workload::{Done, Id, Op, Step, Target, View, Workload};

/// Rows of the audit log that the first start writes.
const FIRST_ROWS: u64 = 2;

/// How a target may look after a crash.
#[derive(Clone, Copy)]
struct Allowed<'a> {
    target: &'a Target,
    /// After the last acknowledged step; none if there was no step yet.
    sure: Option<usize>,
    /// After the step that was in flight.
    perhaps: Option<usize>,
}

/// What may be found after a crash.
#[derive(Clone)]
pub struct Precondition<'a> {
    targets: Vec<Allowed<'a>>,
    /// What an earlier recovery wrote: how it looks, and whether that was acknowledged.
    later: Option<(Arc<Done>, bool)>,
    /// Rows of the audit log beside those of the targets: what lay there before, and how many of
    /// changes that were refused may have come all the same.
    audit: u64,
    spare: u64,
}

impl<'a> Precondition<'a> {
    /// After so many rounds were begun and so many acknowledged.
    pub fn new(workload: &'a Workload, begun: usize, acknowledged: usize) -> Self {
        let targets = workload.targets.iter().map(|target| {
            let sure = target.steps.iter().rposition(|step| step.round < acknowledged);
            let perhaps = target.steps.iter().position(|step| (acknowledged..begun).contains(&step.round));
            Allowed { target, sure, perhaps }
        });
        Self { targets: targets.collect(), later: None, audit: FIRST_ROWS, spare: 0 }
    }

    /// Everything, and what as many refused changes may have left in the audit log.
    pub fn all(workload: &'a Workload, refused: u64) -> Self {
        Self { spare: refused, ..Self::new(workload, usize::MAX, usize::MAX) }
    }
}

/// What a recovery did to the disk, and what was found then.
pub struct Recovered<'a> {
    pub history: History,
    found: Precondition<'a>,
    wrote: Arc<Done>,
}

impl<'a> Recovered<'a> {
    /// What a second crash may leave of it: what was `before`, until the recovered installation
    /// acknowledged a write; from then on all that it had shown.
    pub fn expected(&self, before: &Precondition<'a>, begun: usize, acknowledged: usize) -> Precondition<'a> {
        let base = if acknowledged > 0 { &self.found } else { before };
        Precondition { later: (begun > 0).then(|| (self.wrote.clone(), acknowledged > 0)), ..base.clone() }
    }
}

/// Opens what a crash left, and says what is wrong with it.
pub fn recover<'a>(home: &Home, image: Vec<u8>, expected: &Precondition<'a>) -> Result<Recovered<'a>, String> {
    let disk = Disk::new(image);
    let server = home.open(&disk).map_err(|error| format!("it does not open: {error}"))?;
    let report = server.store.verify().map_err(|error| format!("the check broke off: {error}"))?;
    if !report.is_clean() {
        return Err(format!("the check found {:?}", report.problems));
    }
    let (found, wrote) = runtime().block_on(async {
        let found = compare(home, &server, expected, &report).await?;
        // It must take new writes too, and remember them.
        disk.note(Event::Begun(0));
        let access = server.admin(home).await.map_err(|error| format!("no admin: {error}"))?;
        let wrote = server.change(home, &access, Op::NewProject).await;
        disk.note(Event::Acknowledged(0));
        Ok::<_, String>((found, wrote.map_err(|error| format!("it takes no writes: {error}"))?))
    })?;
    server.close();
    intact(&disk)?;
    Ok(Recovered { history: disk.take_history(), found, wrote: wrote.into() })
}

/// Whether redb finds all its pages as they should be. The disk is empty afterwards.
pub fn intact(disk: &Disk) -> Result<(), String> {
    let copy = Disk::new(disk.take_bytes());
    let mut db =
        redb::Builder::new().create_with_backend(copy).map_err(|error| format!("redb cannot open it: {error}"))?;
    match db.check_integrity() {
        Ok(true) => Ok(()),
        Ok(false) => Err("redb had to repair what was closed cleanly".into()),
        Err(error) => Err(format!("redb finds damage: {error}")),
    }
}

/// Compares all that can be seen with what is allowed, and says which of it was found.
pub async fn compare<'a>(
    home: &Home,
    server: &Server,
    expected: &Precondition<'a>,
    report: &CheckReport,
) -> Result<Precondition<'a>, String> {
    let mut found = expected.clone();
    let mut audit = expected.audit;
    for allowed in &mut found.targets {
        let step = look(home, server, *allowed).await?;
        // What goes past the rules leaves no audit row.
        let audited = !matches!(allowed.target.id, Id::Record(_));
        audit += step.filter(|_| audited).map_or(0, |step| step as u64 + 1);
        *allowed = Allowed { sure: step, perhaps: None, ..*allowed };
    }
    if let Some((done, sure)) = &mut found.later {
        let there = see(home, server, done.id).await? == done.view;
        if *sure && !there {
            return Err(format!("{:?}, written after the first crash, is gone", done.id));
        }
        *sure = there;
        audit += u64::from(there);
    }
    for table in ["audit", "audit_by_time"] {
        if !(audit..=audit + expected.spare).contains(&report.records[table]) {
            return Err(format!("{table} has {} rows, not {audit}", report.records[table]));
        }
    }
    Ok(found)
}

async fn see(home: &Home, server: &Server, id: Id) -> Result<View, String> {
    let access = server.admin(home).await.map_err(|error| format!("no admin: {error}"))?;
    server.view(&access, id).await.map_err(|error| format!("{id:?} cannot be read: {error}"))
}

/// After which step the target stands, if that is allowed.
async fn look(home: &Home, server: &Server, allowed: Allowed<'_>) -> Result<Option<usize>, String> {
    let Allowed { target, sure, perhaps } = allowed;
    let view = see(home, server, target.id).await?;
    let after = |step: Option<usize>| step.map_or(&View::Absent, |step| &target.steps[step].view);
    let step = match perhaps {
        Some(step) if *after(Some(step)) == view => Some(step),
        _ if *after(sure) == view => sure,
        _ => return Err(format!("{:?} is {view:?}, not {:?} or {perhaps:?}", target.id, after(sure))),
    };
    let nothing = Step { round: 0, view: View::Absent, issued: 0 };
    let state = step.map_or(&nothing, |step| &target.steps[step]);
    for (number, secret) in target.secrets.iter().enumerate() {
        let code = server.keys.authenticate(secret.expose()).await.err().map(|error| error.code());
        if !target.allows(state, number, code) {
            return Err(format!("secret {number} of {:?}, now {view:?}, is answered {code:?}", target.id));
        }
    }
    Ok(step)
}
