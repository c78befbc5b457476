//! Quotas: how much a project may hold. Every write that creates or removes a project's resource calls [`charge`] in
//! its transaction.

use crate::clock_rng::Timestamp;
use crate::error::{Code, Error, Result};
use crate::ids::ProjectId;
use crate::storage::limits::{self, Quotas};
use crate::storage::quota_usage::{self, QuotaUsageRecord};
use crate::storage::{Reader, WriteTx};

/// The resources that quotas count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaKind {
    ApiKey,
    Conversation,
    Agent,
    File,
    Job,
    Response,
}

impl QuotaKind {
    pub const ALL: [QuotaKind; 6] = [
        QuotaKind::ApiKey,
        QuotaKind::Conversation,
        QuotaKind::Agent,
        QuotaKind::File,
        QuotaKind::Job,
        QuotaKind::Response,
    ];

    /// The name of its quota in the API.
    pub fn field(self) -> &'static str {
        match self {
            QuotaKind::ApiKey => "api_keys",
            QuotaKind::Conversation => "conversations",
            QuotaKind::Agent => "agents",
            QuotaKind::File => "files",
            QuotaKind::Job => "fine_tuning_jobs",
            QuotaKind::Response => "responses",
        }
    }

    fn noun(self) -> &'static str {
        match self {
            QuotaKind::ApiKey => "API keys",
            QuotaKind::Conversation => "conversations",
            QuotaKind::Agent => "agents",
            QuotaKind::File => "files",
            QuotaKind::Job => "fine-tuning jobs",
            QuotaKind::Response => "stored responses",
        }
    }

    fn count(self, usage: &mut QuotaUsageRecord) -> &mut u64 {
        match self {
            QuotaKind::ApiKey => &mut usage.api_keys,
            QuotaKind::Conversation => &mut usage.conversations,
            QuotaKind::Agent => &mut usage.agents,
            QuotaKind::File => &mut usage.files,
            QuotaKind::Job => &mut usage.jobs,
            QuotaKind::Response => &mut usage.responses,
        }
    }
}

/// The default quotas.
pub const DEFAULTS: Quotas = Quotas {
    api_keys: Some(1_000),
    conversations: Some(1_000_000),
    agents: Some(10_000),
    files: Some(10_000),
    jobs: Some(10_000),
    responses: Some(1_000_000),
    bytes: Some(100 << 30),
};

/// The effective quota of a kind of resource.
pub fn quota(quotas: &Quotas, kind: QuotaKind) -> u64 {
    let pick = |quotas: &Quotas| match kind {
        QuotaKind::ApiKey => quotas.api_keys,
        QuotaKind::Conversation => quotas.conversations,
        QuotaKind::Agent => quotas.agents,
        QuotaKind::File => quotas.files,
        QuotaKind::Job => quotas.jobs,
        QuotaKind::Response => quotas.responses,
    };
    pick(quotas).or(pick(&DEFAULTS)).unwrap_or(u64::MAX)
}

/// The effective quota of content bytes.
pub fn byte_quota(quotas: &Quotas) -> u64 {
    quotas.bytes.or(DEFAULTS.bytes).unwrap_or(u64::MAX)
}

/// Changes the quota usage of `project` by `count` resources of `kind` and `bytes` of content. Growth beyond a quota
/// fails with `insufficient_quota`; a decrease never fails.
pub(in crate::service) fn charge(
    tx: &WriteTx,
    project: ProjectId,
    now: Timestamp,
    kind: QuotaKind,
    count: i64,
    bytes: i64,
) -> Result<()> {
    let held = quota_usage::of(tx, project)?;
    require_within(&held, &limits::of(tx, project)?.quotas, kind, count, bytes)?;
    quota_usage::put(tx, project, &held, changed(held, kind, count, bytes), now)
}

/// Like [`charge`], for bytes only.
pub(in crate::service) fn charge_bytes(tx: &WriteTx, project: ProjectId, now: Timestamp, bytes: i64) -> Result<()> {
    charge(tx, project, now, QuotaKind::File, 0, bytes)
}

/// Like [`charge`], without checking the quotas.
pub(in crate::service) fn charge_unchecked(
    tx: &WriteTx,
    project: ProjectId,
    now: Timestamp,
    kind: QuotaKind,
    count: i64,
    bytes: i64,
) -> Result<()> {
    let held = quota_usage::of(tx, project)?;
    quota_usage::put(tx, project, &held, changed(held, kind, count, bytes), now)
}

/// Checks whether the quota allows `bytes` more bytes of content.
pub(in crate::service) fn check_bytes(tx: &impl Reader, project: ProjectId, bytes: i64) -> Result<()> {
    check(tx, project, QuotaKind::File, 0, bytes)
}

/// Checks whether the quotas allow such a change.
pub(in crate::service) fn check(
    tx: &impl Reader,
    project: ProjectId,
    kind: QuotaKind,
    count: i64,
    bytes: i64,
) -> Result<()> {
    require_within(&quota_usage::of(tx, project)?, &limits::of(tx, project)?.quotas, kind, count, bytes)
}

fn changed(mut held: QuotaUsageRecord, kind: QuotaKind, count: i64, bytes: i64) -> QuotaUsageRecord {
    let counted = kind.count(&mut held);
    *counted = counted.saturating_add_signed(count);
    held.bytes = held.bytes.saturating_add_signed(bytes);
    held
}

fn require_within(held: &QuotaUsageRecord, quotas: &Quotas, kind: QuotaKind, count: i64, bytes: i64) -> Result<()> {
    let mut would = changed(*held, kind, count, bytes);
    let (max, max_bytes) = (quota(quotas, kind), byte_quota(quotas));
    if count > 0 && *kind.count(&mut would) > max {
        let (noun, field) = (kind.noun(), kind.field());
        let text = format!(
            "The project has its maximum of {max} {noun}. Remove some, or have an admin raise its quota '{field}'."
        );
        return Err(Error::new(Code::InsufficientQuota, text));
    }
    if bytes > 0 && would.bytes > max_bytes {
        let text = format!(
            "The project may store {max_bytes} bytes of content, and this would make {}. Remove something, or have an admin raise its quota 'storage_bytes'.",
            would.bytes
        );
        return Err(Error::new(Code::InsufficientQuota, text));
    }
    Ok(())
}

/// A size as a signed difference.
pub(in crate::service) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
