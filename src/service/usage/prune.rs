//! Retention: raw records and minutes are dropped when they are old; no total changes by it.

use std::time::Duration;

use super::report::Usage;
use crate::clock_rng::Timestamp;
use crate::error::Result;
use crate::ids::ProjectId;
use crate::storage::usage::{self, Horizon, Width};
use crate::storage::{projects, quota_usage};

/// Rows dropped in one transaction: other writes wait for no more.
const AT_ONCE: usize = 2_000;

/// How long detail is kept. Sums over hours and days are kept for ever.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    /// Raw records, and every change of the bytes held.
    pub raw: Duration,
    /// Sums over minutes.
    pub minutes: Duration,
}

impl Usage {
    /// Drops what is older than `retention`. Returns how many rows went.
    pub async fn prune(&self, retention: Retention) -> Result<usize> {
        let now = self.clock_rng.now();
        let ago = |span: Duration| {
            let span = i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
            Timestamp::from_millis(now.as_millis().saturating_sub(span))
        };
        let raw = Width::Minute.floor(ago(retention.raw));
        let minutes = Width::Hour.floor(ago(retention.minutes.max(retention.raw)));
        // First the promise, then the deed: a report never believes in rows that may be gone.
        let horizon = self.store.write(move |tx| {
            let old = usage::horizon(tx)?;
            let new = Horizon { raw: old.raw.max(raw), minutes: old.minutes.max(minutes) };
            if new != old {
                usage::put_horizon(tx, &new)?;
            }
            Ok(new)
        });
        let horizon = horizon.await?;
        let mut dropped = 0;
        let mut before = None;
        loop {
            let some = self.store.read(move |tx| projects::newest(tx, before, 100)).await?;
            let Some((last, _)) = some.last() else { return Ok(dropped) };
            before = Some(last.to_bytes());
            for (project, _) in some {
                dropped += self.prune_project(project, horizon).await?;
            }
        }
    }

    async fn prune_project(&self, project: ProjectId, horizon: Horizon) -> Result<usize> {
        let mut dropped = 0;
        loop {
            let round = self.store.write(move |tx| {
                let raw = usage::drop_raw(tx, project, horizon.raw, AT_ONCE)?;
                let minutes = usage::drop_minutes(tx, project, horizon.minutes, AT_ONCE)?;
                let samples = quota_usage::thin(tx, project, horizon.raw, Width::Minute.millis(), AT_ONCE)?;
                Ok((raw + minutes + samples, raw == AT_ONCE || minutes == AT_ONCE || samples == AT_ONCE))
            });
            let (rows, more) = round.await?;
            dropped += rows;
            if !more {
                return Ok(dropped);
            }
        }
    }
}
