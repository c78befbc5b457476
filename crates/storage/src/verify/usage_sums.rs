//! Verifies usage: the sums of raw records, minutes, hours and days must agree.

use std::collections::BTreeMap;

use super::report::{CheckReport, Related, records, records_with};
use crate::codec::Record;
use crate::error::{Error, Result};
use crate::ids::ProjectId;
use crate::records::usage::{self, EstimatedSeries, Horizon, SeriesRecord, Sums, UsageRecord, Width};
use crate::tables;
use crate::transaction::ReadTx;
use outpost_common::clock_rng::Timestamp;

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

pub(crate) fn check(tx: &ReadTx, report: &mut CheckReport) -> Result<()> {
    let horizon = usage::horizon(tx)?;
    let mut levels = Levels::default();
    let series = |key: &[u8], raw: &UsageRecord| Ok([usage::series_key(project(key)?, raw.series)]);
    records_with(tx, report, [tables::SERIES], series, |key, raw, [series]| {
        let (project, at) = (project(key)?, usage::time_of(key)?);
        add(&mut levels.raw, project, &Sums::from(&raw), at >= horizon.raw);
        named(series, project, raw.series)
    })?;
    let series = |key: &[u8], _: &Sums| Ok([usage::series_key(project(key)?, slot(key)?.2)]);
    records_with(tx, report, [tables::SERIES], series, |key, sums, [found]| {
        let (project, (width, start, series)) = (project(key)?, slot(key)?);
        levels.add(project, width, start, &sums, horizon);
        named(found, project, series)
    })?;
    records(tx, report, &mut |_, _: SeriesRecord| Ok(None))?;
    let series = |key: &[u8], _: &EstimatedSeries| Ok([key.to_vec()]);
    records_with(tx, report, [tables::SERIES], series, |_, _, [series]| {
        Ok((!series.exists()?).then(|| "a series that does not exist is marked as estimated".to_owned()))
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

fn named(found: Related, project: ProjectId, series: u32) -> Result<Option<String>> {
    Ok((!found.exists()?).then(|| format!("usage of {project} is counted under series {series}, which does not exist")))
}

/// Width, start and series of a sum.
fn slot(key: &[u8]) -> Result<(Width, Timestamp, u32)> {
    let width = key.get(16).and_then(|byte| Width::ALL.into_iter().find(|width| *width as u8 == *byte));
    let width = width.ok_or_else(|| Error::internal("a usage sum has no known width"))?;
    let (start, series) = usage::slot_of(key, width)?;
    Ok((width, start, series))
}

fn project(key: &[u8]) -> Result<ProjectId> {
    let id = key.get(..16).and_then(|id| id.try_into().ok()).map(ProjectId::from_bytes);
    id.ok_or_else(|| Error::internal(format!("a malformed key in table {}", UsageRecord::TABLE.name())))
}
