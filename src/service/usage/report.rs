//! Usage reports: totals and buckets of a window.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::reported_sums::{AudioSplit, EstimatedSeries, ReportedSums};
use super::window;
use crate::clock_rng::{ClockRng, Timestamp};
use crate::display::shorten;
use crate::error::{Error, Result};
use crate::ids::ProjectId;
use crate::service::access::Access;
use crate::service::access::authorize;
use crate::service::limited_read::LimitedRead;
use crate::storage::usage::{self, Width};
use crate::storage::{ReadTx, Store, quota_usage};

/// Max buckets of a report.
const MAX_BUCKETS: i64 = 1_500;
/// Max results of a report.
const MAX_RESULTS: usize = 100_000;
/// Bytes of a result in memory, and about as many as JSON.
const RESULT_BYTES: u64 = 768;
/// How much more a report may have if it was too large.
const GROWTH: u64 = 16;
const THIRTY_DAYS: Duration = Duration::from_secs(30 * 86_400);

/// A dimension to group results by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dimension {
    Model,
    ApiKey,
    Endpoint,
}

impl Dimension {
    pub const ALL: [Dimension; 3] = [Dimension::Model, Dimension::ApiKey, Dimension::Endpoint];

    pub fn as_str(self) -> &'static str {
        match self {
            Dimension::Model => "model",
            Dimension::ApiKey => "api_key_id",
            Dimension::Endpoint => "endpoint",
        }
    }

    /// Parses names separated by commas.
    pub fn parse_list(text: &str) -> Result<Vec<Dimension>> {
        let find = |name: &str| Dimension::ALL.into_iter().find(|dimension| dimension.as_str() == name.trim());
        let dimensions = text.split(',').map(|name| {
            find(name).ok_or_else(|| {
                let name = shorten(name);
                let text = format!(
                    "'group_by' names '{name}'; it accepts model, api_key_id and endpoint, separated by commas."
                );
                Error::invalid("group_by", text)
            })
        });
        let mut dimensions = dimensions.collect::<Result<Vec<_>>>()?;
        dimensions.sort_unstable();
        dimensions.dedup();
        Ok(dimensions)
    }
}

/// The query of a report.
#[derive(Clone, Debug, Default)]
pub struct ReportQuery {
    /// Inclusive; default 30 days before the end, on a whole minute.
    pub start: Option<Timestamp>,
    /// Exclusive; default now.
    pub end: Option<Timestamp>,
    /// Default: one day, or more if the window would have too many buckets.
    pub width: Option<Width>,
    pub group_by: Vec<Dimension>,
}

/// The width of a report's buckets: a number of slots of stored sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketWidth {
    unit: Width,
    slots: i64,
}

impl BucketWidth {
    /// The requested width, or the least number of whole days with which the window has at most [`MAX_BUCKETS`]
    /// buckets.
    fn of(requested: Option<Width>, start: Timestamp, end: Timestamp) -> Self {
        requested.map_or_else(
            || Self { unit: Width::Day, slots: rounded_up(slots_between(Width::Day, start, end), MAX_BUCKETS) },
            |unit| Self { unit, slots: 1 },
        )
    }

    fn millis(self) -> i64 {
        self.unit.millis() * self.slots
    }
}

/// In the format of `bucket_width`: `1m`, `1h`, `1d`, or a number of days.
impl fmt::Display for BucketWidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = match self.unit {
            Width::Minute => 'm',
            Width::Hour => 'h',
            Width::Day => 'd',
        };
        write!(f, "{}{unit}", self.slots)
    }
}

fn rounded_up(count: i64, by: i64) -> i64 {
    (count + by - 1) / by
}

/// Slots of stored sums that a window touches.
fn slots_between(unit: Width, start: Timestamp, end: Timestamp) -> i64 {
    (unit.ceil(end).as_millis() - unit.floor(start).as_millis()) / unit.millis()
}

/// Values of the requested dimensions; the model may be absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group {
    pub model: Option<String>,
    pub api_key: Option<String>,
    pub endpoint: Option<String>,
}

/// A bucket of the window, clipped to it. Without `group_by` it has one result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    pub start: Timestamp,
    pub end: Timestamp,
    pub results: Vec<(Group, ReportedSums)>,
}

/// The usage of a project in a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub start: Timestamp,
    pub end: Timestamp,
    pub width: BucketWidth,
    pub totals: ReportedSums,
    /// Totals by group, if groups were requested.
    pub groups: Vec<(Group, ReportedSums)>,
    pub buckets: Vec<Bucket>,
    /// Bytes of content stored now.
    pub storage_now: u64,
    /// Bytes of content stored at the window's end.
    pub storage_at_end: u64,
}

/// The usage service.
#[derive(Clone)]
pub struct Usage {
    pub(super) store: Store,
    pub(super) clock_rng: Arc<dyn ClockRng>,
}

/// A validated query.
#[derive(Clone)]
struct CheckedQuery {
    start: Timestamp,
    end: Timestamp,
    width: BucketWidth,
    group_by: Vec<Dimension>,
}

impl Usage {
    pub fn new(store: Store, clock_rng: Arc<dyn ClockRng>) -> Self {
        Self { store, clock_rng }
    }

    /// The usage of a project in a window, if it has at most `limit` bytes.
    pub async fn report(
        &self,
        access: &Access,
        project: ProjectId,
        query: ReportQuery,
        limit: u64,
    ) -> Result<LimitedRead<Report>> {
        let plan = plan(query, self.clock_rng.now())?;
        let access = access.clone();
        let read = self.store.read(move |tx| {
            authorize::project(tx, &access, project)?;
            let found = report(tx, project, &plan, limit / RESULT_BYTES)?;
            Ok(found.map_or(LimitedRead::TooLarge { bytes: limit.saturating_mul(GROWTH) }, LimitedRead::Read))
        });
        read.await
    }
}

fn plan(query: ReportQuery, now: Timestamp) -> Result<CheckedQuery> {
    // One millisecond after now, to include requests of this millisecond.
    let end = query.end.unwrap_or_else(|| now.after(Duration::from_millis(1)));
    let month_ago = end.as_millis().saturating_sub(i64::try_from(THIRTY_DAYS.as_millis()).unwrap_or(i64::MAX));
    let start = query.start.unwrap_or_else(|| Width::Minute.floor(Timestamp::from_millis(month_ago)));
    if start >= end {
        let text = format!("'start_time' is {start}, which must be before 'end_time', {end}.");
        return Err(Error::invalid("start_time", text));
    }
    let width = BucketWidth::of(query.width, start, end);
    let buckets = rounded_up(slots_between(width.unit, start, end), width.slots);
    if buckets > MAX_BUCKETS {
        let text = format!(
            "The window has {buckets} buckets of this width; at most {MAX_BUCKETS} are allowed. Use a wider 'bucket_width' or a shorter window."
        );
        return Err(Error::invalid("bucket_width", text));
    }
    Ok(CheckedQuery { start, end, width, group_by: query.group_by })
}

/// `None` if it has more than `limit` results.
fn report(tx: &ReadTx, project: ProjectId, plan: &CheckedQuery, limit: u64) -> Result<Option<Report>> {
    let CheckedQuery { start, end, width, .. } = *plan;
    let is_too_large = |results: usize| results as u64 > limit;
    if is_too_large(slots(plan).count()) {
        return Ok(None);
    }
    let mut groups = Groups::new(tx, project, &plan.group_by);
    let mut audio = AudioSplit::new(tx, project);
    let mut estimated = EstimatedSeries::new(tx, project);
    let mut cells: BTreeMap<(i64, usize), ReportedSums> = BTreeMap::new();
    let mut totals = ReportedSums::default();
    window::each(tx, project, (start, end), width.unit, |at, series, sums| {
        if is_too_large(cells.len()) {
            return Ok(());
        }
        let cell = (slot_of(plan, at), groups.of(series)?);
        let sums = ReportedSums::of_series(sums, audio.of(series, sums)?, estimated.contains(series)?);
        cells.entry(cell).or_default().add(&sums);
        totals.add(&sums);
        check_result_count(cells.len())
    })?;
    if is_too_large(cells.len()) {
        return Ok(None);
    }
    let mut by_group: BTreeMap<usize, ReportedSums> = BTreeMap::new();
    cells.iter().for_each(|((_, group), sums)| by_group.entry(*group).or_default().add(sums));
    let name = |group: usize| groups.order.get(group).cloned().unwrap_or_default();
    let named = |sums: BTreeMap<usize, ReportedSums>| {
        let mut named: Vec<_> = sums.into_iter().map(|(group, sums)| (name(group), sums)).collect();
        named.sort_by(|a, b| a.0.cmp(&b.0));
        named
    };
    let buckets = slots(plan).map(|(slot, start, end)| {
        let mut results: BTreeMap<usize, ReportedSums> =
            cells.range((slot, 0)..=(slot, usize::MAX)).map(|((_, group), sums)| (*group, *sums)).collect();
        if plan.group_by.is_empty() && results.is_empty() {
            results.insert(0, ReportedSums::default());
        }
        Bucket { start, end, results: named(results) }
    });
    let buckets = buckets.collect();
    Ok(Some(Report {
        start,
        end,
        width,
        totals,
        groups: if plan.group_by.is_empty() { Vec::new() } else { named(by_group) },
        buckets,
        storage_now: quota_usage::of(tx, project)?.bytes,
        storage_at_end: quota_usage::bytes_before(tx, project, end)?,
    }))
}

fn check_result_count(results: usize) -> Result<()> {
    if results <= MAX_RESULTS {
        return Ok(());
    }
    let text = format!(
        "The report has more than {MAX_RESULTS} results. Use a wider 'bucket_width', a shorter window, or fewer groups."
    );
    Err(Error::invalid("group_by", text))
}

/// Start of the first bucket before it is clipped to the window.
fn first_slot(plan: &CheckedQuery) -> i64 {
    plan.width.unit.floor(plan.start).as_millis()
}

/// Start of the bucket that contains `at`, before it is clipped to the window.
fn slot_of(plan: &CheckedQuery, at: Timestamp) -> i64 {
    let (first, width) = (first_slot(plan), plan.width.millis());
    first + (at.as_millis() - first) / width * width
}

/// The start of the slot, and the bucket's start and end.
fn slots(plan: &CheckedQuery) -> impl Iterator<Item = (i64, Timestamp, Timestamp)> {
    let CheckedQuery { start, end, width, .. } = *plan;
    let first = first_slot(plan);
    let starts = (0..).map(move |slot| first + slot * width.millis()).take_while(move |at| *at < end.as_millis());
    starts.map(move |at| {
        let next = Timestamp::from_millis(at + width.millis());
        (at, Timestamp::from_millis(at).max(start), next.min(end))
    })
}

/// Maps series numbers to indices in a list of groups.
struct Groups<'a> {
    tx: &'a ReadTx,
    project: ProjectId,
    group_by: &'a [Dimension],
    by_series: HashMap<u32, usize>,
    indices: HashMap<Group, usize>,
    order: Vec<Group>,
}

impl<'a> Groups<'a> {
    fn new(tx: &'a ReadTx, project: ProjectId, group_by: &'a [Dimension]) -> Self {
        Self { tx, project, group_by, by_series: HashMap::new(), indices: HashMap::new(), order: Vec::new() }
    }

    fn of(&mut self, series: u32) -> Result<usize> {
        if self.group_by.is_empty() {
            return Ok(0);
        }
        if let Some(index) = self.by_series.get(&series) {
            return Ok(*index);
        }
        let record = usage::series(self.tx, self.project, series)?;
        let includes = |dimension| self.group_by.contains(&dimension);
        let group = Group {
            model: record.model.filter(|_| includes(Dimension::Model)),
            api_key: includes(Dimension::ApiKey).then(|| record.key.to_string()),
            endpoint: includes(Dimension::Endpoint).then_some(record.endpoint),
        };
        let index = *self.indices.entry(group.clone()).or_insert(self.order.len());
        if index == self.order.len() {
            self.order.push(group);
        }
        self.by_series.insert(series, index);
        Ok(index)
    }
}
