//! Export of raw usage records.

use std::collections::HashMap;

use super::reported_sums::AudioMillis;
use crate::clock_rng::Timestamp;
use crate::error::Result;
use crate::ids::ProjectId;
use crate::storage::usage::{self, SeriesRecord, UsageRecord};
use crate::storage::{Reader, Store, projects};

/// A filter of usage records.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportFilter {
    /// `None` means all projects.
    pub project: Option<ProjectId>,
    /// Inclusive.
    pub start: Option<Timestamp>,
    /// Exclusive.
    pub end: Option<Timestamp>,
}

/// One metered request.
#[derive(Clone, Debug, serde::Serialize)]
pub struct UsageRow {
    pub time: Timestamp,
    pub project_id: String,
    pub api_key_id: String,
    pub endpoint: String,
    pub model: Option<String>,
    pub outcome: &'static str,
    pub input_tokens: u64,
    pub cached_tokens: u64,
    pub output_tokens: u64,
    pub images: u64,
    pub audio_seconds: f64,
    pub audio_input_seconds: f64,
    pub audio_output_seconds: f64,
    /// Whether the tokens are estimated, because the server of an upstream model has not told their number.
    pub is_estimated: bool,
}

impl UsageRow {
    /// Visits the records of one snapshot, project by project, latest first. Blocking. For the owner of the data
    /// folder: it needs no key.
    pub fn each(store: &Store, filter: ExportFilter, mut visit: impl FnMut(&UsageRow) -> Result<()>) -> Result<()> {
        store.read_blocking(|tx| {
            let projects = match filter.project {
                Some(project) => vec![project],
                None => projects::newest(tx, None, usize::MAX)?.into_iter().map(|(id, _)| id).collect(),
            };
            projects.into_iter().try_for_each(|project| export_project(tx, project, filter, &mut visit))
        })
    }

    fn new(
        at: Timestamp,
        project: ProjectId,
        (series, is_estimated): &(SeriesRecord, bool),
        record: &UsageRecord,
    ) -> Self {
        let UsageRecord { outcome, amounts, .. } = record;
        let audio = AudioMillis::of(&series.endpoint, amounts.audio_millis);
        Self {
            time: at,
            project_id: project.to_string(),
            api_key_id: series.key.to_string(),
            endpoint: series.endpoint.clone(),
            model: series.model.clone(),
            outcome: outcome.as_str(),
            input_tokens: amounts.input,
            cached_tokens: amounts.cached,
            output_tokens: amounts.output,
            images: amounts.images,
            audio_seconds: seconds(amounts.audio_millis),
            audio_input_seconds: seconds(audio.input),
            audio_output_seconds: seconds(audio.output),
            is_estimated: *is_estimated,
        }
    }
}

fn export_project(
    tx: &impl Reader,
    project: ProjectId,
    filter: ExportFilter,
    visit: &mut impl FnMut(&UsageRow) -> Result<()>,
) -> Result<()> {
    let (start, end) = (filter.start.unwrap_or(Timestamp::ORIGIN), filter.end.unwrap_or(Timestamp::LAST));
    let mut series_by_number: HashMap<u32, (SeriesRecord, bool)> = HashMap::new();
    usage::each_raw(tx, project, start, end, |at, record| {
        let series = match series_by_number.entry(record.series) {
            std::collections::hash_map::Entry::Occupied(found) => found.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => {
                let number = record.series;
                entry.insert((usage::series(tx, project, number)?, usage::is_estimated(tx, project, number)?))
            }
        };
        visit(&UsageRow::new(at, project, series, &record))
    })
}

/// Milliseconds as seconds.
#[expect(clippy::cast_precision_loss, reason = "2^53 ms are 285,000 years")]
pub fn seconds(millis: u64) -> f64 {
    millis as f64 / 1000.0
}
