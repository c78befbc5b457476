//! Limits: how often a project may ask, how many tokens it may use, how much it may hold.
//!
//! A project sets its own rates below the ceiling that an admin sets; quotas are the admin's
//! alone. The limiter works in memory on the clock that never jumps. The levels of its buckets
//! are stored with each answered request, so that a restart gives nothing away.

mod account;
mod bucket;
mod policy;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

pub use account::{Gauge, Standing};
pub use policy::{LimitsChange, ProjectLimits, QuotasChange, RatesChange};

use account::{Account, Loaded, Month};

use super::access::Access;
use super::audit::Note;
use super::usage::window;
use super::{authority, claim};
use crate::clock_rng::{ClockRng, Timestamp};
use crate::error::Result;
use crate::ids::ProjectId;
use crate::storage::limits::{self, LimitsRecord};
use crate::storage::{LevelsRecord, Reader, Record, Store, Table, Watcher, WriteTx, quota_usage};

const SHARDS: usize = 16;

/// The rules of limits, and the limiter. Clones share it.
#[derive(Clone)]
pub struct Limits {
    store: Store,
    clock_rng: Arc<dyn ClockRng>,
    accounts: Arc<Accounts>,
}

/// An entry for each project that has asked since the start; only admins make projects.
#[derive(Default)]
struct Accounts {
    shards: [Mutex<HashMap<ProjectId, Arc<Account>>>; SHARDS],
}

impl Accounts {
    fn with<T>(&self, project: ProjectId, f: impl FnOnce(&mut HashMap<ProjectId, Arc<Account>>) -> T) -> T {
        let [.., last] = project.to_bytes();
        f(&mut self.shards[usize::from(last) % SHARDS].lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn get(&self, project: ProjectId) -> Arc<Account> {
        self.with(project, |accounts| accounts.entry(project).or_default().clone())
    }
}

impl Watcher for Accounts {
    fn changed(&self, table: Table, key: &[u8]) {
        if table != LimitsRecord::TABLE {
            return;
        }
        let Ok(project) = key.try_into().map(ProjectId::from_bytes) else { return self.changes_unknown() };
        if let Some(account) = self.with(project, |accounts| accounts.get(&project).cloned()) {
            account.outdate();
        }
    }

    fn changes_unknown(&self) {
        for shard in &self.shards {
            let accounts = shard.lock().unwrap_or_else(PoisonError::into_inner);
            accounts.values().for_each(|account| account.outdate());
        }
    }
}

/// Tokens that a running request has taken. They are settled when its usage is recorded.
pub(super) struct Hold {
    account: Arc<Account>,
    pub tokens: u64,
}

impl Limits {
    pub fn new(store: Store, clock_rng: Arc<dyn ClockRng>) -> Self {
        let accounts = Arc::new(Accounts::default());
        let watcher: Arc<dyn Watcher> = accounts.clone();
        store.watch(Arc::downgrade(&watcher));
        Self { store, clock_rng, accounts }
    }

    /// Lets a request of `project` in, or refuses it with 429. Either way says where it stands.
    pub async fn admit(&self, project: ProjectId) -> Result<(Standing, Result<()>)> {
        Ok(self.account(project).await?.take_request(self.clock_rng.uptime()))
    }

    /// Where `project` stands, at no cost.
    pub async fn standing(&self, project: ProjectId) -> Result<Standing> {
        Ok(self.account(project).await?.standing())
    }

    /// Takes the tokens of a prompt from rate and budget.
    pub(super) fn hold(&self, project: ProjectId, prompt: u64) -> Result<Hold> {
        let account = self.accounts.get(project);
        account.take_tokens(prompt, (self.clock_rng.now(), self.clock_rng.uptime()))?;
        Ok(Hold { account, tokens: prompt })
    }

    /// Books what a request really used.
    pub(super) fn settle(&self, project: ProjectId, hold: Option<Hold>, used: u64) {
        let now = (self.clock_rng.now(), self.clock_rng.uptime());
        match hold {
            Some(hold) => hold.account.settle(hold.tokens, used, now),
            None if used > 0 => self.accounts.get(project).settle(0, used, now),
            None => {}
        }
    }

    /// The levels to store beside a usage record.
    pub(super) fn levels(&self, project: ProjectId) -> Option<LevelsRecord> {
        self.accounts.get(project).levels(self.clock_rng.now())
    }

    /// The account, with the limits that hold now.
    async fn account(&self, project: ProjectId) -> Result<Arc<Account>> {
        let account = self.accounts.get(project);
        // Noted before the snapshot begins: what changes later is loaded by the next request.
        if let Some(generation) = account.outdated() {
            let now = self.clock_rng.now();
            let read = self.store.read(move |tx| {
                let record = limits::of(tx, project)?;
                let levels = limits::levels(tx, project)?;
                let used = window::tokens_since(tx, project, now.month_start())?;
                Ok(Loaded { rates: policy::effective(&record), levels, month: Month { used, ..Month::of(now) } })
            });
            account.load(generation, read.await?, &*self.clock_rng);
        }
        Ok(account)
    }

    pub async fn get(&self, access: &Access, project: ProjectId) -> Result<ProjectLimits> {
        let (access, now) = (access.clone(), self.clock_rng.now());
        let read = self.store.read(move |tx| {
            authority::project(tx, &access, project)?;
            view(tx, project, limits::of(tx, project)?, now)
        });
        read.await
    }

    /// Changes what is named; holds from the next request on.
    pub async fn update(&self, access: &Access, project: ProjectId, change: LimitsChange) -> Result<ProjectLimits> {
        let now = self.clock_rng.now();
        let note = Note::new(&self.clock_rng, Some(access), "project.limits_updated");
        let by_admin = change.is_admins();
        let permit = move |tx: &WriteTx, caller: &Access| {
            if by_admin { caller.require_admin() } else { authority::manages(project)(tx, caller) }
        };
        let run = move |tx: &WriteTx, caller: &Access| {
            let living = authority::project(tx, caller, project)?;
            authority::living(&living)?;
            if change.is_admins() {
                caller.require_admin()?;
            }
            let old = limits::of(tx, project)?;
            let new = LimitsRecord { updated_at: Some(now), ..change.apply(old)? };
            limits::put(tx, project, &new)?;
            note.write(tx, project, project, &policy::difference(&old, &new))?;
            view(tx, project, new, now)
        };
        claim::write(&self.store, access, now, permit, run).await
    }
}

fn view(tx: &impl Reader, project: ProjectId, record: LimitsRecord, now: Timestamp) -> Result<ProjectLimits> {
    let used = window::tokens_since(tx, project, now.month_start())?;
    Ok(ProjectLimits::new(project, record, quota_usage::of(tx, project)?, used))
}
