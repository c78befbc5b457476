//! Quotas: how much a project may hold. Every write that makes or removes something of a
//! project's passes [`charge`], in its transaction.

use crate::clock_rng::Timestamp;
use crate::error::{Code, Error, Result};
use crate::ids::ProjectId;
use crate::storage::limits::{self, Quotas};
use crate::storage::quota_usage::{self, QuotaUsageRecord};
use crate::storage::{Reader, WriteTx};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holding {
    ApiKey,
    Conversation,
    Agent,
    File,
    Job,
}

impl Holding {
    pub const ALL: [Holding; 5] = [Holding::ApiKey, Holding::Conversation, Holding::Agent, Holding::File, Holding::Job];

    /// The name of its quota in requests and answers.
    pub fn field(self) -> &'static str {
        match self {
            Holding::ApiKey => "api_keys",
            Holding::Conversation => "conversations",
            Holding::Agent => "agents",
            Holding::File => "files",
            Holding::Job => "fine_tuning_jobs",
        }
    }

    fn noun(self) -> &'static str {
        match self {
            Holding::ApiKey => "API keys",
            Holding::Conversation => "conversations",
            Holding::Agent => "agents",
            Holding::File => "files",
            Holding::Job => "fine-tuning jobs",
        }
    }

    fn count(self, holdings: &mut QuotaUsageRecord) -> &mut u64 {
        match self {
            Holding::ApiKey => &mut holdings.api_keys,
            Holding::Conversation => &mut holdings.conversations,
            Holding::Agent => &mut holdings.agents,
            Holding::File => &mut holdings.files,
            Holding::Job => &mut holdings.jobs,
        }
    }
}

/// What applies where an admin set nothing.
pub const DEFAULTS: Quotas = Quotas {
    api_keys: Some(1_000),
    conversations: Some(1_000_000),
    agents: Some(10_000),
    files: Some(10_000),
    jobs: Some(10_000),
    bytes: Some(100 << 30),
};

/// The quota in force for a kind of resource.
pub fn quota(quotas: &Quotas, holding: Holding) -> u64 {
    let pick = |quotas: &Quotas| match holding {
        Holding::ApiKey => quotas.api_keys,
        Holding::Conversation => quotas.conversations,
        Holding::Agent => quotas.agents,
        Holding::File => quotas.files,
        Holding::Job => quotas.jobs,
    };
    pick(quotas).or(pick(&DEFAULTS)).unwrap_or(u64::MAX)
}

/// The quota in force for bytes of content.
pub fn byte_quota(quotas: &Quotas) -> u64 {
    quotas.bytes.or(DEFAULTS.bytes).unwrap_or(u64::MAX)
}

/// Books a change of what `project` holds: `count` more (or fewer) of `holding` and `bytes` more
/// (or fewer) of content. Growth beyond a quota is refused with `insufficient_quota`; shrinking
/// never is.
pub(super) fn charge(
    tx: &WriteTx,
    project: ProjectId,
    now: Timestamp,
    holding: Holding,
    count: i64,
    bytes: i64,
) -> Result<()> {
    let held = quota_usage::of(tx, project)?;
    require_room(&held, &limits::of(tx, project)?.quotas, holding, count, bytes)?;
    quota_usage::put(tx, project, &held, changed(held, holding, count, bytes), now)
}

/// The same for content that is not counted, only weighed: of no kind there are more or fewer.
pub(super) fn charge_bytes(tx: &WriteTx, project: ProjectId, now: Timestamp, bytes: i64) -> Result<()> {
    charge(tx, project, now, Holding::File, 0, bytes)
}

/// The same without a look at the quotas.
pub(super) fn book(
    tx: &WriteTx,
    project: ProjectId,
    now: Timestamp,
    holding: Holding,
    count: i64,
    bytes: i64,
) -> Result<()> {
    let held = quota_usage::of(tx, project)?;
    quota_usage::put(tx, project, &held, changed(held, holding, count, bytes), now)
}

/// Whether the quota leaves room for so many bytes of content now.
pub(super) fn admit_bytes(tx: &impl Reader, project: ProjectId, bytes: i64) -> Result<()> {
    admit(tx, project, Holding::File, 0, bytes)
}

/// Whether the quotas leave room for such a change now.
pub(super) fn admit(tx: &impl Reader, project: ProjectId, holding: Holding, count: i64, bytes: i64) -> Result<()> {
    require_room(&quota_usage::of(tx, project)?, &limits::of(tx, project)?.quotas, holding, count, bytes)
}

fn changed(mut held: QuotaUsageRecord, holding: Holding, count: i64, bytes: i64) -> QuotaUsageRecord {
    let counted = holding.count(&mut held);
    *counted = counted.saturating_add_signed(count);
    held.bytes = held.bytes.saturating_add_signed(bytes);
    held
}

fn require_room(held: &QuotaUsageRecord, quotas: &Quotas, holding: Holding, count: i64, bytes: i64) -> Result<()> {
    let mut would = changed(*held, holding, count, bytes);
    let (most, most_bytes) = (quota(quotas, holding), byte_quota(quotas));
    if count > 0 && *holding.count(&mut would) > most {
        let (noun, field) = (holding.noun(), holding.field());
        let text = format!(
            "The project may hold {most} {noun} and holds as many. Remove some, or have an admin raise its quota '{field}'."
        );
        return Err(Error::new(Code::InsufficientQuota, text));
    }
    if bytes > 0 && would.bytes > most_bytes {
        let text = format!(
            "The project may hold {most_bytes} bytes of content, and this would make {}. Remove something, or have an admin raise its quota 'storage_bytes'.",
            would.bytes
        );
        return Err(Error::new(Code::InsufficientQuota, text));
    }
    Ok(())
}

/// A size as a change of what is held.
pub(super) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
