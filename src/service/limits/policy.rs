//! The settings themselves: what may be asked for, and what is in force.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::clock_rng::Timestamp;
use crate::error::{Error, Result};
use crate::ids::ProjectId;
use crate::service::change::Change;
use crate::service::holdings::{self, Holding};
use crate::storage::limits::{LimitsRecord, Quotas, Rates};
use crate::storage::quota_usage::QuotaUsageRecord;

const MOST_REQUESTS: u64 = 1_000_000;
const MOST_TOKENS: u64 = 1_000_000_000;
const MOST_BUDGET: u64 = 1_000_000_000_000_000;
/// How much larger than the rate a burst may be.
const WIDEST_BURST: u64 = 10;

/// What a project may use and hold, and what it does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProjectLimits {
    pub project: ProjectId,
    /// What the project asked for.
    pub own: Rates,
    pub ceiling: Rates,
    /// What is in force: the project's own, within the ceiling.
    pub effective: Rates,
    /// The quotas in force.
    pub quotas: Quotas,
    pub holdings: QuotaUsageRecord,
    /// Tokens used in this calendar month.
    pub tokens_this_month: u64,
    pub updated_at: Option<Timestamp>,
}

impl ProjectLimits {
    pub(super) fn new(
        project: ProjectId,
        record: LimitsRecord,
        held: QuotaUsageRecord,
        tokens_this_month: u64,
    ) -> Self {
        let quota = |holding| Some(holdings::quota(&record.quotas, holding));
        let quotas = Quotas {
            api_keys: quota(Holding::ApiKey),
            conversations: quota(Holding::Conversation),
            agents: quota(Holding::Agent),
            files: quota(Holding::File),
            jobs: quota(Holding::Job),
            bytes: Some(holdings::byte_quota(&record.quotas)),
        };
        let effective = effective(&record);
        let LimitsRecord { own, ceiling, updated_at, .. } = record;
        Self { project, own, ceiling, effective, quotas, holdings: held, tokens_this_month, updated_at }
    }
}

/// A change of rates and budgets, field by field. Numbers as the client sent them.
#[derive(Clone, Copy, Debug)]
pub struct RatesChange {
    pub requests_per_minute: Change<i64>,
    pub burst_limit: Change<i64>,
    pub tokens_per_minute: Change<i64>,
    pub token_budget: Change<i64>,
}

impl Default for RatesChange {
    fn default() -> Self {
        let keep = Change::Keep;
        Self { requests_per_minute: keep, burst_limit: keep, tokens_per_minute: keep, token_budget: keep }
    }
}

/// A change of quotas, field by field.
#[derive(Clone, Copy, Debug)]
pub struct QuotasChange {
    pub api_keys: Change<i64>,
    pub conversations: Change<i64>,
    pub agents: Change<i64>,
    pub files: Change<i64>,
    pub jobs: Change<i64>,
    pub bytes: Change<i64>,
}

/// A change of a project's limits.
#[derive(Clone, Copy, Debug)]
pub struct LimitsChange {
    pub own: RatesChange,
    /// Admins only; clearing it removes every ceiling.
    pub ceiling: Change<RatesChange>,
    /// Admins only; clearing it brings the defaults back.
    pub quotas: Change<QuotasChange>,
}

impl LimitsChange {
    /// A change of the project's own rates alone.
    pub fn own(own: RatesChange) -> Self {
        Self { own, ceiling: Change::Keep, quotas: Change::Keep }
    }

    pub(super) fn is_admins(&self) -> bool {
        !matches!((self.ceiling, self.quotas), (Change::Keep, Change::Keep))
    }

    pub(super) fn apply(&self, old: LimitsRecord) -> Result<LimitsRecord> {
        let ceiling = match self.ceiling {
            Change::Keep => old.ceiling,
            Change::Clear => Rates::default(),
            Change::Set(change) => rates(old.ceiling, change, "ceiling.")?,
        };
        let quotas = match self.quotas {
            Change::Keep => old.quotas,
            Change::Clear => Quotas::default(),
            Change::Set(change) => quotas(old.quotas, change)?,
        };
        let own = rates(old.own, self.own, "")?;
        self.below(&own, &ceiling)?;
        Ok(LimitsRecord { own, ceiling, quotas, ..old })
    }

    /// What is newly asked for must not exceed the ceiling. (A ceiling that is lowered later
    /// leaves the wish as it is, and `effective` tells what holds.)
    fn below(&self, own: &Rates, ceiling: &Rates) -> Result<()> {
        let check = |field: &str, change: Change<i64>, wish: Option<u64>, most: Option<u64>| match (change, wish, most)
        {
            (Change::Set(_), Some(wish), Some(most)) if wish > most => {
                let text = format!(
                    "'{field}' is {wish}, above the project's ceiling of {most}. Ask for less, or have an admin raise the ceiling."
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
        check("token_budget", change.token_budget, own.token_budget, ceiling.token_budget)
    }
}

/// What holds: the project's own rates within the ceiling.
pub(super) fn effective(record: &LimitsRecord) -> Rates {
    let LimitsRecord { own, ceiling, .. } = record;
    let requests_per_minute = least(own.requests_per_minute, ceiling.requests_per_minute);
    let burst = own.burst_limit.or(own.requests_per_minute);
    Rates {
        requests_per_minute,
        burst_limit: requests_per_minute
            .and(least(burst, ceiling.burst_limit.or(ceiling.requests_per_minute)).or(requests_per_minute)),
        tokens_per_minute: least(own.tokens_per_minute, ceiling.tokens_per_minute),
        token_budget: least(own.token_budget, ceiling.token_budget),
    }
}

fn least(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

fn rates(old: Rates, change: RatesChange, place: &str) -> Result<Rates> {
    let number = |name: &str, old, change, most| number(&format!("{place}{name}"), old, change, 1, most);
    let new = Rates {
        requests_per_minute: number(
            "requests_per_minute",
            old.requests_per_minute,
            change.requests_per_minute,
            MOST_REQUESTS,
        )?,
        burst_limit: number("burst_limit", old.burst_limit, change.burst_limit, MOST_REQUESTS * WIDEST_BURST)?,
        tokens_per_minute: number("tokens_per_minute", old.tokens_per_minute, change.tokens_per_minute, MOST_TOKENS)?,
        token_budget: number("token_budget", old.token_budget, change.token_budget, MOST_BUDGET)?,
    };
    // A burst goes with its rate.
    let new = match (change.requests_per_minute, change.burst_limit) {
        (Change::Clear, Change::Keep) => Rates { burst_limit: None, ..new },
        _ => new,
    };
    let field = format!("{place}burst_limit");
    match (new.burst_limit, new.requests_per_minute) {
        (Some(_), None) => {
            let text =
                format!("'{field}' needs 'requests_per_minute': without a rate there is nothing to burst above.");
            Err(Error::invalid(field, text))
        }
        (Some(burst), Some(rate)) if burst > rate * WIDEST_BURST => {
            let most = rate * WIDEST_BURST;
            let text = format!(
                "'{field}' is {burst}; with {rate} requests a minute it may be at most {most} ({WIDEST_BURST} times the rate)."
            );
            Err(Error::invalid(field, text))
        }
        _ => Ok(new),
    }
}

fn quotas(old: Quotas, change: QuotasChange) -> Result<Quotas> {
    let most = i64::MAX.unsigned_abs();
    let number = |name: &str, old, change| number(&format!("quotas.{name}"), old, change, 0, most);
    Ok(Quotas {
        api_keys: number(Holding::ApiKey.field(), old.api_keys, change.api_keys)?,
        conversations: number(Holding::Conversation.field(), old.conversations, change.conversations)?,
        agents: number(Holding::Agent.field(), old.agents, change.agents)?,
        files: number(Holding::File.field(), old.files, change.files)?,
        jobs: number(Holding::Job.field(), old.jobs, change.jobs)?,
        bytes: number("storage_bytes", old.bytes, change.bytes)?,
    })
}

fn number(field: &str, old: Option<u64>, change: Change<i64>, least: u64, most: u64) -> Result<Option<u64>> {
    match change {
        Change::Keep => Ok(old),
        Change::Clear => Ok(None),
        Change::Set(given) => match u64::try_from(given) {
            Ok(value) if (least..=most).contains(&value) => Ok(Some(value)),
            _ => {
                let text = format!("'{field}' is {given}; it must be {least} to {most}, or null for none.");
                Err(Error::invalid(field, text))
            }
        },
    }
}

/// What the audit log says of a change: the fields that differ, as they were and as they are.
pub(super) fn difference(old: &LimitsRecord, new: &LimitsRecord) -> Value {
    let fields = |record: &LimitsRecord| {
        let parts = [("", json!(record.own)), ("ceiling.", json!(record.ceiling)), ("quotas.", json!(record.quotas))];
        let fields = parts.into_iter().flat_map(|(place, part)| {
            let Value::Object(part) = part else { return Vec::new() };
            part.into_iter().map(|(name, value)| (format!("{place}{name}"), value)).collect()
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
