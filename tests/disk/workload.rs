//! A random workload: rounds of changes that share a transaction, and the state that each change must have after its
//! acknowledgement.

use futures_util::FutureExt as _;
use futures_util::future::{LocalBoxFuture, join_all};
use outpost::error::{Code, Result};
use outpost::ids::{KeyId, ProjectId};
use outpost::service::{Access, Key, NewKey, NewProject, Patch, Project, Rotation, Secret};
use outpost::storage::Store;
use outpost::storage::projects::{self, ProjectRecord};

use crate::history::{Event, TestRng};
use crate::server::{Installation, Server};
use crate::simulated_disk::Disk;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Id {
    Key(KeyId),
    Project(ProjectId),
    /// A record that is written directly to the store.
    Record(ProjectId),
}

/// The visible state of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum View {
    Absent,
    Key(Key),
    Project(Project),
    /// The size of a record's content.
    Record(usize),
}

/// A change of one target.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    NewProject,
    ReplaceProject(ProjectId, usize),
    NewKey,
    Rename(KeyId, usize),
    Rotate(KeyId, i64),
    Revoke(KeyId),
    Put(ProjectId, usize),
    Remove(ProjectId),
}

/// An acknowledged change.
pub struct Done {
    pub id: Id,
    pub view: View,
    pub secret: Option<Secret>,
}

impl Server {
    /// Makes a change and waits for its acknowledgement.
    pub async fn change(&self, installation: &Installation, access: &Access, op: Op) -> Result<Done> {
        let project =
            |project: Project| Done { id: Id::Project(project.id), view: View::Project(project), secret: None };
        let key = |key: Key| Done { id: Id::Key(key.id), view: View::Key(key), secret: None };
        let secret = |(it, secret): (Key, Option<Secret>)| Done { secret, ..key(it) };
        Ok(match op {
            Op::NewProject => project(self.projects.create(access, new_project()).await?),
            Op::ReplaceProject(id, number) => {
                let (name, environment) = (format!("name {number}"), Some("test".into()));
                project(self.projects.replace(access, id, name, environment).await?)
            }
            Op::NewKey => secret(self.keys.create(access, new_key(installation.first.project.id)).await?),
            Op::Rename(id, number) => key(self.keys.update(access, id, format!("name {number}"), Patch::Keep).await?),
            Op::Rotate(id, grace) => {
                let rotation = Rotation { grace_period_seconds: Some(grace), reason: Some("yearly".into()) };
                secret(self.keys.rotate(access, id, rotation).await?)
            }
            Op::Revoke(id) => key(self.keys.revoke(access, id).await?),
            Op::Put(id, size) => {
                self.store.write(move |tx| projects::put(tx, id, &record(size))).await?;
                Done { id: Id::Record(id), view: View::Record(size), secret: None }
            }
            Op::Remove(id) => {
                self.store.write(move |tx| tx.remove::<ProjectRecord>(&id.to_bytes())).await?;
                Done { id: Id::Record(id), view: View::Absent, secret: None }
            }
        })
    }

    /// The current state of a target.
    pub async fn view(&self, access: &Access, id: Id) -> Result<View> {
        let found = match id {
            Id::Key(id) => self.keys.get(access, id).await.map(View::Key),
            Id::Project(id) => self.projects.get(access, id).await.map(View::Project),
            Id::Record(id) => self.store.read(move |tx| projects::find(tx, id)).await.map(|found| {
                found.map_or(View::Absent, |found| View::Record(found.metadata.unwrap_or_default().len()))
            }),
        };
        found.or_else(|error| if error.code() == Code::NotFound { Ok(View::Absent) } else { Err(error) })
    }
}

fn new_project() -> NewProject {
    NewProject { name: "shop".into(), environment: None, metadata: Some("{\"size\":\"small\"}".into()) }
}

fn new_key(project: ProjectId) -> NewKey {
    NewKey { name: "ci".into(), project, expires_at: None, scopes: None, models: None }
}

fn record(size: usize) -> ProjectRecord {
    let now = outpost::clock_rng::Timestamp::from_millis(1);
    ProjectRecord {
        name: "raw".into(),
        environment: None,
        metadata: Some("x".repeat(size)),
        created_at: now,
        updated_at: now,
        archived_at: None,
    }
}

/// A key, project or record, and its history.
pub struct Target {
    pub id: Id,
    pub secrets: Vec<Secret>,
    pub steps: Vec<Step>,
    /// A refused rotation may have been applied, with an unknown secret.
    pub rotation_uncertain: bool,
}

impl Target {
    /// Whether this is an allowed authentication result for a secret after this step.
    pub fn allows(&self, step: &Step, number: usize, code: Option<Code>) -> bool {
        let old = number + 1 < step.issued;
        code == step.code(number)
            || self.rotation_uncertain && old && matches!(code, Some(Code::InvalidApiKey | Code::RevokedApiKey))
    }
}

/// The state of a target after the acknowledgement of a round.
pub struct Step {
    pub round: usize,
    pub view: View,
    /// The number of secrets of the target that were issued by then.
    pub issued: usize,
}

impl Step {
    /// The authentication result for the secret with this number.
    fn code(&self, number: usize) -> Option<Code> {
        let View::Key(key) = &self.view else { return Some(Code::InvalidApiKey) };
        let event_count = self.issued.checked_sub(number + 1);
        let alive = event_count == Some(0) || event_count == Some(1) && key.previous_valid_until.is_some();
        match event_count {
            Some(0 | 1) if alive && key.fields.revoked_at.is_none() => None,
            Some(0 | 1) => Some(Code::RevokedApiKey),
            _ => Some(Code::InvalidApiKey),
        }
    }
}

/// A history of changes on a disk.
#[derive(Default)]
pub struct Workload {
    pub targets: Vec<Target>,
    round: usize,
}

impl Workload {
    /// Runs `rounds` rounds, and records on the disk when each was begun and acknowledged.
    pub async fn run_rounds(
        &mut self,
        installation: &Installation,
        server: &Server,
        disk: &Disk,
        rounds: usize,
        rng: &mut TestRng,
    ) {
        let access = server.admin(installation).await.unwrap();
        for _ in 0..rounds {
            let ops = self.choose(server, rng);
            let release = hold(&server.store).await;
            disk.note(Event::Begun(self.round));
            let changes: Vec<LocalBoxFuture<'_, _>> =
                ops.iter().map(|op| server.change(installation, &access, *op).boxed_local()).collect();
            let mut responses = join_all(changes);
            // The first poll submits all of them, so they share the next transaction.
            assert!((&mut responses).now_or_never().is_none());
            drop(release);
            responses.await.into_iter().for_each(|done| self.note(done.unwrap()));
            disk.note(Event::Acknowledged(self.round));
            self.round += 1;
        }
    }

    /// Records an acknowledged change.
    pub fn note(&mut self, Done { id, view, secret }: Done) {
        let round = self.round;
        let target = self.target(id);
        target.secrets.extend(secret);
        target.steps.push(Step { round, view, issued: target.secrets.len() });
    }

    pub fn target(&mut self, id: Id) -> &mut Target {
        let index = self.targets.iter().position(|target| target.id == id).unwrap_or_else(|| {
            self.targets.push(Target { id, secrets: Vec::new(), steps: Vec::new(), rotation_uncertain: false });
            self.targets.len() - 1
        });
        &mut self.targets[index]
    }

    /// One to six changes of different targets.
    fn choose(&self, server: &Server, rng: &mut TestRng) -> Vec<Op> {
        let mut free: Vec<&Target> = self.targets.iter().collect();
        (0..=rng.below(6))
            .map(|_| {
                if free.is_empty() || rng.below(3) == 0 {
                    return match rng.below(4) {
                        0 => Op::NewProject,
                        1 => Op::Put(ProjectId::generate(&*server.clock_rng), size(rng)),
                        _ => Op::NewKey,
                    };
                }
                let target = free.swap_remove(rng.below(free.len()));
                random_change(target, rng)
            })
            .collect()
    }
}

/// A change that the target's state allows and that changes its visible state.
fn random_change(target: &Target, rng: &mut TestRng) -> Op {
    let revoked =
        matches!(target.steps.last().map(|step| &step.view), Some(View::Key(key)) if key.fields.revoked_at.is_some());
    match (target.id, rng.below(4)) {
        (Id::Key(_), _) if revoked => Op::NewKey,
        (Id::Key(id), 0) => Op::Revoke(id),
        (Id::Key(id), 1) => Op::Rename(id, target.steps.len()),
        (Id::Key(id), grace) => Op::Rotate(id, if grace == 2 { 0 } else { 3600 }),
        (Id::Project(id), _) => Op::ReplaceProject(id, target.steps.len()),
        (Id::Record(id), 0 | 1) => Op::Remove(id),
        (Id::Record(id), _) => Op::Put(id, size(rng)),
    }
}

/// Mostly the size of a page, sometimes so large that the file grows.
fn size(rng: &mut TestRng) -> usize {
    if rng.below(4) == 0 { 60_000 + rng.below(300_000) } else { rng.below(6000) }
}

/// Blocks the writer, so that writes that are submitted meanwhile become one group.
pub async fn hold(store: &Store) -> std::sync::mpsc::Sender<()> {
    let (release, wait) = std::sync::mpsc::channel::<()>();
    let (begun, started) = tokio::sync::oneshot::channel();
    let (mut begun, store) = (Some(begun), store.clone());
    let mut blocker = tokio::task::JoinSet::new();
    blocker.spawn(async move {
        let held = store.write(move |_| {
            begun.take().map(|begun| begun.send(()));
            let _ = wait.recv();
            Ok(())
        });
        held.await
    });
    started.await.unwrap();
    blocker.detach_all();
    release
}
