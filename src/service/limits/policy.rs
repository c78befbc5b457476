//! Limit settings: validation, and the effective limits.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::quotas::{self, QuotaKind};
use crate::clock_rng::Timestamp;
use crate::error::{Error, Result};
use crate::ids::ProjectId;
use crate::service::writes::patch::Patch;
use crate::storage::limits::{LimitsRecord, Quotas, Rates};
use crate::storage::quota_usage::QuotaUsageRecord;

const MAX_REQUESTS: u64 = 1_000_000;
const MAX_TOKENS: u64 = 1_000_000_000;
const MAX_AUDIO_SECONDS: u64 = 1_000_000;
const MAX_BUDGET: u64 = 1_000_000_000_000_000;
/// Max ratio of burst to rate.
const MAX_BURST_FACTOR: u64 = 10;

/// A project's limits and usage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProjectLimits {
    pub project: ProjectId,
    /// The project's own settings.
    pub own: Rates,
    pub ceiling: Rates,
    /// The effective limits: the project's own, capped by the ceiling.
    pub effective: Rates,
    /// The effective quotas.
    pub quotas: Quotas,
    pub quota_usage: QuotaUsageRecord,
    /// Tokens used in this calendar month.
    pub tokens_this_month: u64,
    pub updated_at: Option<Timestamp>,
}

impl ProjectLimits {
    pub(super) fn new(
        project: ProjectId,
        record: LimitsRecord,
        quota_usage: QuotaUsageRecord,
        tokens_this_month: u64,
    ) -> Self {
        let quota = |kind| Some(quotas::quota(&record.quotas, kind));
        let quotas = Quotas {
            api_keys: quota(QuotaKind::ApiKey),
            conversations: quota(QuotaKind::Conversation),
            agents: quota(QuotaKind::Agent),
            files: quota(QuotaKind::File),
            jobs: quota(QuotaKind::Job),
            responses: quota(QuotaKind::Response),
            bytes: Some(quotas::byte_quota(&record.quotas)),
        };
        let effective = effective(&record);
        let LimitsRecord { own, ceiling, updated_at, .. } = record;
        Self { project, own, ceiling, effective, quotas, quota_usage, tokens_this_month, updated_at }
    }
}

/// An update of rates and budgets, field by field, with unvalidated numbers.
#[derive(Clone, Copy, Debug)]
pub struct RatesPatch {
    pub requests_per_minute: Patch<i64>,
    pub burst_limit: Patch<i64>,
    pub tokens_per_minute: Patch<i64>,
    pub audio_seconds_per_minute: Patch<i64>,
    pub token_budget: Patch<i64>,
}

impl Default for RatesPatch {
    fn default() -> Self {
        let keep = Patch::Keep;
        Self {
            requests_per_minute: keep,
            burst_limit: keep,
            tokens_per_minute: keep,
            audio_seconds_per_minute: keep,
            token_budget: keep,
        }
    }
}

/// An update of quotas, field by field.
#[derive(Clone, Copy, Debug)]
pub struct QuotasPatch {
    pub api_keys: Patch<i64>,
    pub conversations: Patch<i64>,
    pub agents: Patch<i64>,
    pub files: Patch<i64>,
    pub jobs: Patch<i64>,
    pub responses: Patch<i64>,
    pub bytes: Patch<i64>,
}

/// An update of a project's limits.
#[derive(Clone, Copy, Debug)]
pub struct LimitsPatch {
    pub own: RatesPatch,
    /// Admins only; `Clear` removes every ceiling.
    pub ceiling: Patch<RatesPatch>,
    /// Admins only; `Clear` restores the defaults.
    pub quotas: Patch<QuotasPatch>,
}

impl LimitsPatch {
    /// An update of the project's own rates alone.
    pub fn own(own: RatesPatch) -> Self {
        Self { own, ceiling: Patch::Keep, quotas: Patch::Keep }
    }

    pub(super) fn is_admins(&self) -> bool {
        !matches!((self.ceiling, self.quotas), (Patch::Keep, Patch::Keep))
    }

    pub(super) fn apply(&self, old: LimitsRecord) -> Result<LimitsRecord> {
        let ceiling = match self.ceiling {
            Patch::Keep => old.ceiling,
            Patch::Clear => Rates::default(),
            Patch::Set(change) => rates(old.ceiling, change, "ceiling.")?,
        };
        let quotas = match self.quotas {
            Patch::Keep => old.quotas,
            Patch::Clear => Quotas::default(),
            Patch::Set(change) => quotas(old.quotas, change)?,
        };
        let own = rates(old.own, self.own, "")?;
        self.below(&own, &ceiling)?;
        Ok(LimitsRecord { own, ceiling, quotas, ..old })
    }

    /// New values must not exceed the ceiling. (A ceiling that is lowered later does not change the stored values;
    /// `effective` is the result.)
    fn below(&self, own: &Rates, ceiling: &Rates) -> Result<()> {
        let check = |field: &str, change: Patch<i64>, requested: Option<u64>, max: Option<u64>| match (
            change, requested, max,
        ) {
            (Patch::Set(_), Some(requested), Some(max)) if requested > max => {
                let text = format!(
                    "'{field}' is {requested}, above the project's ceiling of {max}. Request a lower value, or have an admin raise the ceiling."
                );
                Err(Error::invalid(field, text))
            }
            _ => Ok(()),
        };
        let burst = ceiling.burst_limit.or(ceiling.requests_per_minute);
        let change = &self.own;
        check("requests_per_minute", change.requests_per_minute, own.requests_per_minute, ceiling.requests_per_minute)?;
        check("burst_limit", change.burst_limit, own.burst_limit, burst)?;
        check("tokens_per_minute", change.tokens_per_minute, own.tokens_per_minute, ceiling.tokens_per_minute)?;
        let audio = (own.audio_seconds_per_minute, ceiling.audio_seconds_per_minute);
        check("audio_seconds_per_minute", change.audio_seconds_per_minute, audio.0, audio.1)?;
        check("token_budget", change.token_budget, own.token_budget, ceiling.token_budget)
    }
}

/// The project's own rates, capped by the ceiling.
pub(super) fn effective(record: &LimitsRecord) -> Rates {
    let LimitsRecord { own, ceiling, .. } = record;
    let requests_per_minute = min_option(own.requests_per_minute, ceiling.requests_per_minute);
    let burst = own.burst_limit.or(own.requests_per_minute);
    Rates {
        requests_per_minute,
        burst_limit: requests_per_minute
            .and(min_option(burst, ceiling.burst_limit.or(ceiling.requests_per_minute)).or(requests_per_minute)),
        tokens_per_minute: min_option(own.tokens_per_minute, ceiling.tokens_per_minute),
        audio_seconds_per_minute: min_option(own.audio_seconds_per_minute, ceiling.audio_seconds_per_minute),
        token_budget: min_option(own.token_budget, ceiling.token_budget),
    }
}

fn min_option(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

fn rates(old: Rates, change: RatesPatch, prefix: &str) -> Result<Rates> {
    let number = |name: &str, old, change, max| number(&format!("{prefix}{name}"), old, change, 1, max);
    let new = Rates {
        requests_per_minute: number(
            "requests_per_minute",
            old.requests_per_minute,
            change.requests_per_minute,
            MAX_REQUESTS,
        )?,
        burst_limit: number("burst_limit", old.burst_limit, change.burst_limit, MAX_REQUESTS * MAX_BURST_FACTOR)?,
        tokens_per_minute: number("tokens_per_minute", old.tokens_per_minute, change.tokens_per_minute, MAX_TOKENS)?,
        audio_seconds_per_minute: number(
            "audio_seconds_per_minute",
            old.audio_seconds_per_minute,
            change.audio_seconds_per_minute,
            MAX_AUDIO_SECONDS,
        )?,
        token_budget: number("token_budget", old.token_budget, change.token_budget, MAX_BUDGET)?,
    };
    // Clearing the rate clears the burst.
    let new = match (change.requests_per_minute, change.burst_limit) {
        (Patch::Clear, Patch::Keep) => Rates { burst_limit: None, ..new },
        _ => new,
    };
    let field = format!("{prefix}burst_limit");
    match (new.burst_limit, new.requests_per_minute) {
        (Some(_), None) => {
            let text = format!("'{field}' needs 'requests_per_minute': a burst limit has no effect without a rate.");
            Err(Error::invalid(field, text))
        }
        (Some(burst), Some(rate)) if burst > rate * MAX_BURST_FACTOR => {
            let max = rate * MAX_BURST_FACTOR;
            let text = format!(
                "'{field}' is {burst}; with {rate} requests per minute it may be at most {max} ({MAX_BURST_FACTOR} times the rate)."
            );
            Err(Error::invalid(field, text))
        }
        _ => Ok(new),
    }
}

fn quotas(old: Quotas, change: QuotasPatch) -> Result<Quotas> {
    let max = i64::MAX.unsigned_abs();
    let number = |name: &str, old, change| number(&format!("quotas.{name}"), old, change, 0, max);
    Ok(Quotas {
        api_keys: number(QuotaKind::ApiKey.field(), old.api_keys, change.api_keys)?,
        conversations: number(QuotaKind::Conversation.field(), old.conversations, change.conversations)?,
        agents: number(QuotaKind::Agent.field(), old.agents, change.agents)?,
        files: number(QuotaKind::File.field(), old.files, change.files)?,
        jobs: number(QuotaKind::Job.field(), old.jobs, change.jobs)?,
        responses: number(QuotaKind::Response.field(), old.responses, change.responses)?,
        bytes: number("storage_bytes", old.bytes, change.bytes)?,
    })
}

fn number(field: &str, old: Option<u64>, change: Patch<i64>, min: u64, max: u64) -> Result<Option<u64>> {
    match change {
        Patch::Keep => Ok(old),
        Patch::Clear => Ok(None),
        Patch::Set(given) => match u64::try_from(given) {
            Ok(value) if (min..=max).contains(&value) => Ok(Some(value)),
            _ => {
                let text = format!("'{field}' is {given}; it must be {min} to {max}, or null for none.");
                Err(Error::invalid(field, text))
            }
        },
    }
}

/// The audit detail of a change: old and new values of the changed fields.
pub(super) fn difference(old: &LimitsRecord, new: &LimitsRecord) -> Value {
    let fields = |record: &LimitsRecord| {
        let parts = [("", json!(record.own)), ("ceiling.", json!(record.ceiling)), ("quotas.", json!(record.quotas))];
        let fields = parts.into_iter().flat_map(|(prefix, part)| {
            let Value::Object(part) = part else { return Vec::new() };
            part.into_iter().map(|(name, value)| (format!("{prefix}{name}"), value)).collect()
        });
        fields.collect::<Map<String, Value>>()
    };
    let (old, new) = (fields(old), fields(new));
    let unlike = |one: &Map<String, Value>, other: &Map<String, Value>| {
        let differs = |(name, value): &(&String, &Value)| other.get(*name) != Some(value);
        one.iter().filter(differs).map(|(name, value)| (name.clone(), value.clone())).collect::<Map<_, _>>()
    };
    json!({ "old": unlike(&old, &new), "new": unlike(&new, &old) })
}
