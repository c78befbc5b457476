//! Retention: old raw records and minutes are removed; totals do not change.

use std::time::Duration;

use super::report::Usage;
use crate::clock_rng::Timestamp;
use crate::error::Result;
use crate::ids::ProjectId;
use crate::storage::usage::{self, Horizon, Width};
use crate::storage::{projects, quota_usage};

/// Rows removed per transaction; other writes wait meanwhile.
const BATCH_ROWS: usize = 2_000;

/// How long details are kept. Sums over hours and days are kept forever.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    /// Raw records, and every change of the bytes held.
    pub raw: Duration,
    /// Sums over minutes.
    pub minutes: Duration,
}

impl Usage {
    /// Removes what is older than `retention`. Returns the number of removed rows.
    pub async fn prune(&self, retention: Retention) -> Result<usize> {
        let now = self.clock_rng.now();
        let ago = |span: Duration| {
            let span = i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
            Timestamp::from_millis(now.as_millis().saturating_sub(span))
        };
        let raw = Width::Minute.floor(ago(retention.raw));
        let minutes = Width::Hour.floor(ago(retention.minutes.max(retention.raw)));
        // The horizon is stored before rows are removed, so a report never relies on removed rows.
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
                let raw = usage::drop_raw(tx, project, horizon.raw, BATCH_ROWS)?;
                let minutes = usage::drop_minutes(tx, project, horizon.minutes, BATCH_ROWS)?;
                let samples = quota_usage::thin(tx, project, horizon.raw, Width::Minute.millis(), BATCH_ROWS)?;
                Ok((raw + minutes + samples, raw == BATCH_ROWS || minutes == BATCH_ROWS || samples == BATCH_ROWS))
            });
            let (rows, more) = round.await?;
            dropped += rows;
            if !more {
                return Ok(dropped);
            }
        }
    }
}
