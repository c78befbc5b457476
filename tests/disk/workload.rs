//! What a busy installation writes: rounds of changes that share a transaction, each with what
//! must be seen once it is acknowledged.

use futures_util::FutureExt as _;
use futures_util::future::{LocalBoxFuture, join_all};
use outpost::error::{Code, Result};
use outpost::ids::{KeyId, ProjectId};
use outpost::service::{Access, Key, KeyPatch, NewKey, NewProject, Patch, Project, ProjectSettings, Rotation, Secret};
use outpost::storage::Store;
use outpost::storage::projects::{self, ProjectRecord};

use crate::history::{Event, TestRng};
use crate::server::{Home, Server};
use crate::simulated_disk::Disk;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Id {
    Key(KeyId),
    Project(ProjectId),
    /// A record written past the rules.
    Record(ProjectId),
}

/// How something looks from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum View {
    Absent,
    Key(Key),
    Project(Project),
    /// The size of a record's filling.
    Record(usize),
}

/// One change of one thing.
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

/// What an acknowledgement said.
pub struct Done {
    pub id: Id,
    pub view: View,
    pub secret: Option<Secret>,
}

impl Server {
    /// Does one thing; resolves when it is acknowledged.
    pub async fn change(&self, home: &Home, access: &Access, op: Op) -> Result<Done> {
        let project =
            |project: Project| Done { id: Id::Project(project.id), view: View::Project(project), secret: None };
        let key = |key: Key| Done { id: Id::Key(key.id), view: View::Key(key), secret: None };
        let secret = |(it, secret): (Key, Option<Secret>)| Done { secret, ..key(it) };
        Ok(match op {
            Op::NewProject => project(self.projects.create(access, new_project()).await?),
            Op::ReplaceProject(id, number) => {
                let settings = ProjectSettings { name: format!("name {number}"), environment: Some("test".into()) };
                project(self.projects.replace(access, id, settings).await?)
            }
            Op::NewKey => secret(self.keys.create(access, new_key(home.first.project.id)).await?),
            Op::Rename(id, number) => {
                let change = KeyPatch { name: format!("name {number}"), expires_at: Patch::Keep };
                key(self.keys.update(access, id, change).await?)
            }
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

    /// How a thing looks now.
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

/// A thing and all that became of it.
pub struct Target {
    pub id: Id,
    pub secrets: Vec<Secret>,
    pub steps: Vec<Step>,
    /// A rotation was refused and may have happened all the same, with a secret that nobody knows.
    pub muddled: bool,
}

impl Target {
    /// Whether a secret may be answered so after this step.
    pub fn allows(&self, step: &Step, number: usize, code: Option<Code>) -> bool {
        let old = number + 1 < step.issued;
        code == step.code(number)
            || self.muddled && old && matches!(code, Some(Code::InvalidApiKey | Code::RevokedApiKey))
    }
}

/// How a target looks from a round's acknowledgement on.
pub struct Step {
    pub round: usize,
    pub view: View,
    /// How many of the target's secrets were issued by then.
    pub issued: usize,
}

impl Step {
    /// What the secret with this number is answered.
    fn code(&self, number: usize) -> Option<Code> {
        let View::Key(key) = &self.view else { return Some(Code::InvalidApiKey) };
        let age = self.issued.checked_sub(number + 1);
        let alive = age == Some(0) || age == Some(1) && key.previous_valid_until.is_some();
        match age {
            Some(0 | 1) if alive && key.revoked_at.is_none() => None,
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
    /// Does `rounds` more rounds, and has the disk note when each began and was acknowledged.
    pub async fn go_on(&mut self, home: &Home, server: &Server, disk: &Disk, rounds: usize, rng: &mut TestRng) {
        let access = server.admin(home).await.unwrap();
        for _ in 0..rounds {
            let ops = self.choose(server, rng);
            let release = hold(&server.store).await;
            disk.note(Event::Begun(self.round));
            let asked: Vec<LocalBoxFuture<'_, _>> =
                ops.iter().map(|op| server.change(home, &access, *op).boxed_local()).collect();
            let mut answers = join_all(asked);
            // The first poll submits all of them, so they share the next transaction.
            assert!((&mut answers).now_or_never().is_none());
            drop(release);
            answers.await.into_iter().for_each(|done| self.note(done.unwrap()));
            disk.note(Event::Acknowledged(self.round));
            self.round += 1;
        }
    }

    /// Keeps what was acknowledged.
    pub fn note(&mut self, Done { id, view, secret }: Done) {
        let round = self.round;
        let target = self.target(id);
        target.secrets.extend(secret);
        target.steps.push(Step { round, view, issued: target.secrets.len() });
    }

    pub fn target(&mut self, id: Id) -> &mut Target {
        let place = self.targets.iter().position(|target| target.id == id).unwrap_or_else(|| {
            self.targets.push(Target { id, secrets: Vec::new(), steps: Vec::new(), muddled: false });
            self.targets.len() - 1
        });
        &mut self.targets[place]
    }

    /// One to six changes, each of another thing.
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
                another(target, rng)
            })
            .collect()
    }
}

/// A change that the target's state allows, and after which it looks different.
fn another(target: &Target, rng: &mut TestRng) -> Op {
    let revoked =
        matches!(target.steps.last().map(|step| &step.view), Some(View::Key(key)) if key.revoked_at.is_some());
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

/// Mostly a page's worth; now and then so much that the file grows.
fn size(rng: &mut TestRng) -> usize {
    if rng.below(4) == 0 { 60_000 + rng.below(300_000) } else { rng.below(6000) }
}

/// Holds the writer, so that what is submitted meanwhile becomes one group.
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
