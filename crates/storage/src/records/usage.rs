//! Metered requests: a raw record each, and sums over minutes, hours and days.
//!
//! A series is the combination of API key, endpoint and model that a request is counted under. Raw records and sums
//! refer to it by number to stay small. They change in one transaction, so they are always consistent. Requests whose tokens
//! are estimated have series of their own, so that records and sums of every width can be told apart by their series.
//!
//! A mark for estimates in each record would change the format of the largest table. A table that marks series leaves
//! the records as they are.
//!
//! Sums in memory that are written periodically would be cheaper, but a crash would lose or duplicate counts. On a
//! shared store, the number of the node ends the key of a sum, and reports add them up: if nodes shared the rows, all
//! metered requests would conflict. For the same reason, the last use of a key is stored at most every ten seconds
//! there.

use std::ops::ControlFlow;

use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use crate::cluster::NodeProcess;
use crate::codec::{self, Record};
use crate::error::{Error, Result};
use crate::ids::{KeyId, ProjectId};
use crate::tables::{ESTIMATED_SERIES, HORIZON, SERIES, SERIES_BY_NAME, Table, USAGE, USAGE_SUMS};
use crate::transaction::{Reader, WriteTx};
use outpost_common::clock_rng::Timestamp;

/// How a request ended. The number is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum Outcome {
    Succeeded = 0,
    /// 4xx other than 429.
    Refused = 1,
    /// 429.
    Limited = 2,
    /// 5xx.
    Failed = 3,
    /// The client disconnected early.
    Abandoned = 4,
}

impl Outcome {
    pub const ALL: [Outcome; 5] =
        [Outcome::Succeeded, Outcome::Refused, Outcome::Limited, Outcome::Failed, Outcome::Abandoned];

    /// The outcome of a response with this HTTP status.
    pub fn of_status(status: u16) -> Self {
        match status {
            429 => Outcome::Limited,
            500.. => Outcome::Failed,
            400.. => Outcome::Refused,
            _ => Outcome::Succeeded,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Outcome::Succeeded => "succeeded",
            Outcome::Refused => "refused",
            Outcome::Limited => "limited",
            Outcome::Failed => "failed",
            Outcome::Abandoned => "abandoned",
        }
    }
}

/// Amounts used. `cached` tokens are part of `input`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amounts {
    pub input: u64,
    pub cached: u64,
    pub output: u64,
    pub images: u64,
    pub audio_millis: u64,
}

impl Amounts {
    pub fn tokens(&self) -> u64 {
        self.input.saturating_add(self.output)
    }

    /// True if anything was generated.
    pub fn has_output(&self) -> bool {
        self.output > 0 || self.images > 0 || self.audio_millis > 0
    }

    fn add(&mut self, other: &Amounts) {
        self.input = self.input.saturating_add(other.input);
        self.cached = self.cached.saturating_add(other.cached);
        self.output = self.output.saturating_add(other.output);
        self.images = self.images.saturating_add(other.images);
        self.audio_millis = self.audio_millis.saturating_add(other.audio_millis);
    }

    fn subtract(&mut self, other: &Amounts) {
        self.input = self.input.saturating_sub(other.input);
        self.cached = self.cached.saturating_sub(other.cached);
        self.output = self.output.saturating_sub(other.output);
        self.images = self.images.saturating_sub(other.images);
        self.audio_millis = self.audio_millis.saturating_sub(other.audio_millis);
    }
}

/// One metered request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageRecord {
    pub series: u32,
    pub outcome: Outcome,
    pub amounts: Amounts,
}

impl Record for UsageRecord {
    const TABLE: Table = USAGE;
    const VERSION: u8 = 1;
}

/// Sums over many requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sums {
    /// Requests by [`Outcome`].
    pub requests: [u64; 5],
    pub amounts: Amounts,
}

impl Record for Sums {
    const TABLE: Table = USAGE_SUMS;
    const VERSION: u8 = 1;
}

impl Sums {
    pub fn add(&mut self, other: &Sums) {
        for (mine, theirs) in self.requests.iter_mut().zip(other.requests) {
            *mine = mine.saturating_add(theirs);
        }
        self.amounts.add(&other.amounts);
    }

    fn subtract(&mut self, other: &Sums) {
        for (mine, theirs) in self.requests.iter_mut().zip(other.requests) {
            *mine = mine.saturating_sub(theirs);
        }
        self.amounts.subtract(&other.amounts);
    }

    pub fn total_requests(&self) -> u64 {
        self.requests.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }
}

impl From<&UsageRecord> for Sums {
    fn from(record: &UsageRecord) -> Self {
        let mut requests = [0; 5];
        requests[record.outcome as usize] = 1;
        Self { requests, amounts: record.amounts }
    }
}

/// The series of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeriesRecord {
    pub key: KeyId,
    /// Method and path below the mount, such as `POST /chat/completions`.
    pub endpoint: String,
    pub model: Option<String>,
}

impl Record for SeriesRecord {
    const TABLE: Table = SERIES;
    const VERSION: u8 = 1;
}

#[derive(Serialize, Deserialize)]
struct SeriesNumber(u32);

impl Record for SeriesNumber {
    const TABLE: Table = SERIES_BY_NAME;
    const VERSION: u8 = 1;
}

/// Marks a series of requests whose tokens are estimated.
#[derive(Serialize, Deserialize)]
pub struct EstimatedSeries;

impl Record for EstimatedSeries {
    const TABLE: Table = ESTIMATED_SERIES;
    const VERSION: u8 = 1;
}

/// The time span of a sum. The number is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Width {
    Minute = 1,
    Hour = 2,
    Day = 3,
}

impl Width {
    pub const ALL: [Width; 3] = [Width::Minute, Width::Hour, Width::Day];

    pub fn millis(self) -> i64 {
        match self {
            Width::Minute => 60_000,
            Width::Hour => 3_600_000,
            Width::Day => 86_400_000,
        }
    }

    /// The start of the slot that contains `at`.
    pub fn floor(self, at: Timestamp) -> Timestamp {
        Timestamp::from_millis(at.as_millis() / self.millis() * self.millis())
    }

    /// The first slot start not before `at`.
    pub fn ceil(self, at: Timestamp) -> Timestamp {
        let width = self.millis();
        Timestamp::from_millis(at.as_millis().saturating_add(width - 1) / width * width)
    }

    fn slot(self, at: Timestamp) -> u32 {
        u32::try_from(at.as_millis() / self.millis()).unwrap_or(u32::MAX)
    }
}

/// The times before which raw records and minutes have been removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Horizon {
    /// Raw records before this time, a whole minute, are deleted.
    pub raw: Timestamp,
    /// Minutes before this time, a whole hour, are deleted.
    pub minutes: Timestamp,
}

impl Record for Horizon {
    const TABLE: Table = HORIZON;
    const VERSION: u8 = 1;
}

pub fn horizon(tx: &impl Reader) -> Result<Horizon> {
    Ok(tx.get(&[])?.unwrap_or(Horizon { raw: Timestamp::ORIGIN, minutes: Timestamp::ORIGIN }))
}

pub fn put_horizon(tx: &WriteTx, horizon: &Horizon) -> Result<()> {
    tx.put(&[], horizon)
}

/// The number of a series; a new one if it is new. `is_estimated`: whether the tokens of its requests are estimated.
pub fn number(tx: &WriteTx, project: ProjectId, series: &SeriesRecord, is_estimated: bool) -> Result<u32> {
    // No model's name has a control character.
    let mark: &[u8] = if is_estimated { b"\0estimated" } else { b"" };
    let name = [&series.key.to_bytes()[..], series.endpoint.as_bytes(), b"\0", model_bytes(series), mark].concat();
    let name = digest(&SHA256, &name);
    let key = [&project.to_bytes()[..], &name.as_ref()[..16]].concat();
    if let Some(SeriesNumber(number)) = tx.get(&key)? {
        return Ok(number);
    }
    let last = tx.newest::<SeriesRecord>(&project.to_bytes(), None, 1)?;
    let last = last.first().and_then(|(key, _)| key.get(16..)?.try_into().ok()).map_or(0, u32::from_be_bytes);
    let number = last.checked_add(1).ok_or_else(|| Error::internal("a project has no series left"))?;
    tx.put(&series_key(project, number), series)?;
    tx.put(&key, &SeriesNumber(number))?;
    if is_estimated {
        tx.put(&series_key(project, number), &EstimatedSeries)?;
    }
    Ok(number)
}

/// No model and an empty name must differ.
fn model_bytes(series: &SeriesRecord) -> &[u8] {
    series.model.as_ref().map_or(b"\0", |model| model.as_bytes())
}

pub fn series(tx: &impl Reader, project: ProjectId, number: u32) -> Result<SeriesRecord> {
    let found = tx.get(&series_key(project, number))?;
    found.ok_or_else(|| codec::inconsistent(format!("series {number} of {project} does not exist")))
}

/// True if the tokens of a series are estimated.
pub fn is_estimated(tx: &impl Reader, project: ProjectId, number: u32) -> Result<bool> {
    Ok(tx.get::<EstimatedSeries>(&series_key(project, number))?.is_some())
}

pub(crate) fn series_key(project: ProjectId, number: u32) -> Vec<u8> {
    [&project.to_bytes()[..], &number.to_be_bytes()].concat()
}

/// Stores a raw record and adds it to its minute, hour and day. `tail` distinguishes records of one millisecond.
///
/// Nodes that share a database have sums of their own, so that they do not write the same rows. The number of the node ends
/// the key. Readers add the sums up.
pub fn append(tx: &WriteTx, project: ProjectId, at: Timestamp, tail: [u8; 6], record: &UsageRecord) -> Result<()> {
    tx.put(&raw_key(project, at, tail), record)?;
    let sums = Sums::from(record);
    for key in sum_keys(tx, project, at, record.series) {
        let mut total: Sums = tx.get(&key)?.unwrap_or_default();
        total.add(&sums);
        tx.put(&key, &total)?;
    }
    Ok(())
}

/// As [`append`], for a request that this process may have recorded before: the new record takes the place of the old one.
pub fn replace(tx: &WriteTx, project: ProjectId, at: Timestamp, tail: [u8; 6], record: &UsageRecord) -> Result<()> {
    if let Some(old) = tx.get::<UsageRecord>(&raw_key(project, at, tail))? {
        let sums = Sums::from(&old);
        for key in sum_keys(tx, project, at, old.series) {
            let mut total: Sums = tx.get(&key)?.unwrap_or_default();
            total.subtract(&sums);
            match total == Sums::default() {
                true => tx.remove::<Sums>(&key)?,
                false => tx.put(&key, &total)?,
            }
        }
    }
    append(tx, project, at, tail, record)
}

/// The keys of the sums that a record of this process is part of.
fn sum_keys(tx: &WriteTx, project: ProjectId, at: Timestamp, series: u32) -> [Vec<u8>; 3] {
    let part = tx.process().map_or_else(Vec::new, |process| process.number.to_be_bytes().to_vec());
    Width::ALL.map(|width| [&slot(project, width, at)[..], &series.to_be_bytes(), &part].concat())
}

/// True for sums that only this process writes, which need not be read again.
pub(crate) fn is_sum_of(process: NodeProcess, table: Table, key: &[u8]) -> bool {
    // Project, width, start and series.
    table == USAGE_SUMS && key.get(25..) == Some(&process.number.to_be_bytes())
}

/// Visits the raw records of `[from, to)`, latest first.
pub fn each_raw(
    tx: &impl Reader,
    project: ProjectId,
    from: Timestamp,
    to: Timestamp,
    mut each: impl FnMut(Timestamp, UsageRecord) -> Result<()>,
) -> Result<()> {
    let first = time_key(project, from);
    tx.each(&project.to_bytes(), Some(&time_key(project, to)), &mut |key, record: UsageRecord| {
        if key < first.as_slice() {
            return Ok(ControlFlow::Break(()));
        }
        each(time_of(key)?, record)?;
        Ok(ControlFlow::Continue(()))
    })
}

/// Visits the sums of the slots in `[from, to)`, latest first. Both times must be slot starts. A series may have several sums
/// in a slot, of different nodes.
pub fn each_sum(
    tx: &impl Reader,
    project: ProjectId,
    width: Width,
    (from, to): (Timestamp, Timestamp),
    mut each: impl FnMut(Timestamp, u32, &Sums) -> Result<()>,
) -> Result<()> {
    let first = slot(project, width, from);
    let prefix = [&project.to_bytes()[..], &[width as u8]].concat();
    tx.each(&prefix, Some(&slot(project, width, to)), &mut |key, sums: Sums| {
        if key < first.as_slice() {
            return Ok(ControlFlow::Break(()));
        }
        let (start, series) = slot_of(key, width)?;
        each(start, series, &sums)?;
        Ok(ControlFlow::Continue(()))
    })
}

/// Removes up to `limit` raw records of a project before `horizon`; returns their number.
pub fn drop_raw(tx: &WriteTx, project: ProjectId, horizon: Timestamp, limit: usize) -> Result<usize> {
    let old = tx.newest::<UsageRecord>(&project.to_bytes(), Some(&time_key(project, horizon)), limit)?;
    old.iter().try_for_each(|(key, _)| tx.remove::<UsageRecord>(key))?;
    Ok(old.len())
}

/// Removes up to `limit` minutes of a project before `horizon`; returns their number.
pub fn drop_minutes(tx: &WriteTx, project: ProjectId, horizon: Timestamp, limit: usize) -> Result<usize> {
    let prefix = [&project.to_bytes()[..], &[Width::Minute as u8]].concat();
    let old = tx.newest::<Sums>(&prefix, Some(&slot(project, Width::Minute, horizon)), limit)?;
    old.iter().try_for_each(|(key, _)| tx.remove::<Sums>(key))?;
    Ok(old.len())
}

fn raw_key(project: ProjectId, at: Timestamp, tail: [u8; 6]) -> Vec<u8> {
    [&time_key(project, at)[..], &tail].concat()
}

/// Key prefix of the raw records at a time: project and milliseconds.
fn time_key(project: ProjectId, at: Timestamp) -> Vec<u8> {
    // Times up to the year 9999 fit into 48 bits.
    [&project.to_bytes()[..], &at.as_millis().to_be_bytes()[2..]].concat()
}

pub(crate) fn time_of(key: &[u8]) -> Result<Timestamp> {
    let millis: Option<[u8; 6]> = key.get(16..22).and_then(|bytes| bytes.try_into().ok());
    let [a, b, c, d, e, f] = millis.ok_or_else(|| codec::inconsistent("a malformed key of a usage record"))?;
    Ok(Timestamp::from_millis(i64::from_be_bytes([0, 0, a, b, c, d, e, f])))
}

fn slot(project: ProjectId, width: Width, at: Timestamp) -> Vec<u8> {
    [&project.to_bytes()[..], &[width as u8], &width.slot(at).to_be_bytes()].concat()
}

pub(crate) fn slot_of(key: &[u8], width: Width) -> Result<(Timestamp, u32)> {
    let word = |at: usize| key.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes);
    match (word(17), word(21)) {
        (Some(slot), Some(series)) => Ok((Timestamp::from_millis(i64::from(slot) * width.millis()), series)),
        _ => Err(codec::inconsistent("a malformed key of a usage sum")),
    }
}
