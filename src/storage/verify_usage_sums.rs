//! Verifies usage: the sums of raw records, minutes, hours and days must agree.

use std::collections::BTreeMap;

use super::check_report::{CheckReport, records};
use super::codec::Record;
use super::tables;
use super::transaction::{ReadTx, Reader as _};
use super::usage::{self, EstimatedSeries, Horizon, SeriesRecord, Sums, UsageRecord, Width};
use crate::clock_rng::Timestamp;
use crate::error::{Error, Result};
use crate::ids::ProjectId;

type Totals = BTreeMap<ProjectId, Sums>;

/// Totals per project; each level of detail must equal the next.
#[derive(Default)]
struct Levels {
    raw: Totals,
    /// Minutes that still have their raw records.
    minutes_of_raw: Totals,
    minutes: Totals,
    /// Hours that still have their minutes.
    hours_of_minutes: Totals,
    hours: Totals,
    days: Totals,
}

pub(super) fn check(tx: &ReadTx, report: &mut CheckReport) -> Result<()> {
    let horizon = usage::horizon(tx)?;
    let mut levels = Levels::default();
    records(tx, report, &mut |key, raw: UsageRecord| {
        let (project, at) = (project(key)?, usage::time_of(key)?);
        add(&mut levels.raw, project, &Sums::from(&raw), at >= horizon.raw);
        named(tx, project, raw.series)
    })?;
    records(tx, report, &mut |key, sums: Sums| {
        let project = project(key)?;
        let width = key.get(16).and_then(|byte| Width::ALL.into_iter().find(|width| *width as u8 == *byte));
        let width = width.ok_or_else(|| Error::internal("a usage sum has no known width"))?;
        let (start, series) = usage::slot_of(key, width)?;
        levels.add(project, width, start, &sums, horizon);
        named(tx, project, series)
    })?;
    records(tx, report, &mut |_, _: SeriesRecord| Ok(None))?;
    records(tx, report, &mut |key, _: EstimatedSeries| {
        let exists = tx.raw(tables::SERIES, key)?.is_some();
        Ok((!exists).then(|| "a series that does not exist is marked as estimated".to_owned()))
    })?;
    let pairs = [
        ("raw records and minutes", &levels.raw, &levels.minutes_of_raw),
        ("minutes and hours", &levels.minutes, &levels.hours_of_minutes),
        ("hours and days", &levels.hours, &levels.days),
    ];
    for (what, one, other) in pairs {
        for project in one.keys().chain(other.keys().filter(|project| !one.contains_key(project))) {
            if one.get(project) != other.get(project) {
                report.problem(format!("the usage of {project} does not add up: {what} differ"));
            }
        }
    }
    Ok(())
}

impl Levels {
    fn add(&mut self, project: ProjectId, width: Width, start: Timestamp, sums: &Sums, horizon: Horizon) {
        match width {
            Width::Minute => {
                add(&mut self.minutes_of_raw, project, sums, start >= horizon.raw);
                add(&mut self.minutes, project, sums, start >= horizon.minutes);
            }
            Width::Hour => {
                add(&mut self.hours_of_minutes, project, sums, start >= horizon.minutes);
                add(&mut self.hours, project, sums, true);
            }
            Width::Day => add(&mut self.days, project, sums, true),
        }
    }
}

fn add(totals: &mut Totals, project: ProjectId, sums: &Sums, counts: bool) {
    if counts {
        totals.entry(project).or_default().add(sums);
    }
}

fn named(tx: &ReadTx, project: ProjectId, series: u32) -> Result<Option<String>> {
    let exists = tx.raw(tables::SERIES, &usage::series_key(project, series))?.is_some();
    Ok((!exists).then(|| format!("usage of {project} is counted under series {series}, which does not exist")))
}

fn project(key: &[u8]) -> Result<ProjectId> {
    let id = key.get(..16).and_then(|id| id.try_into().ok()).map(ProjectId::from_bytes);
    id.ok_or_else(|| Error::internal(format!("a malformed key in table {}", UsageRecord::TABLE.name())))
}
