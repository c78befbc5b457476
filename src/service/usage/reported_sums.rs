//! The sums of a report: stored sums, with audio split into input and output.
//!
//! A stored sum belongs to a series, and the endpoint of a series either takes audio or generates it.
//!
//! A record therefore has one amount of audio, and the split needs no new column.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::error::Result;
use crate::ids::ProjectId;
use crate::storage::ReadTx;
use crate::storage::usage::{self, Amounts, Outcome, Sums};

/// The endpoint that generates audio, as series have it after the method. All others take audio.
const SPEECH: &str = " /audio/speech";

/// Sums over many requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportedSums {
    /// Requests by [`Outcome`].
    pub requests: [u64; Outcome::ALL.len()],
    pub amounts: Amounts,
    /// The audio of `amounts` by direction.
    pub audio: AudioMillis,
    /// Requests whose tokens are estimated, because the server of an upstream model has not told their number.
    pub estimated_requests: u64,
}

/// Milliseconds of audio.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AudioMillis {
    /// Sent by clients: speech to text.
    pub input: u64,
    /// Generated: text to speech.
    pub output: u64,
}

impl ReportedSums {
    pub fn total_requests(&self) -> u64 {
        self.stored().total_requests()
    }

    /// Stored sums of one series with their audio. `is_estimated`: whether its tokens are estimated.
    pub(super) fn of_series(sums: &Sums, audio: AudioMillis, is_estimated: bool) -> Self {
        let estimated_requests = if is_estimated { sums.total_requests() } else { 0 };
        Self { requests: sums.requests, amounts: sums.amounts, audio, estimated_requests }
    }

    pub(super) fn add(&mut self, other: &Self) {
        let mut stored = self.stored();
        stored.add(&other.stored());
        (self.requests, self.amounts) = (stored.requests, stored.amounts);
        self.audio.input = self.audio.input.saturating_add(other.audio.input);
        self.audio.output = self.audio.output.saturating_add(other.audio.output);
        self.estimated_requests = self.estimated_requests.saturating_add(other.estimated_requests);
    }

    fn stored(&self) -> Sums {
        Sums { requests: self.requests, amounts: self.amounts }
    }
}

impl AudioMillis {
    /// The audio of requests to `endpoint`: method and path below the mount.
    pub(super) fn of(endpoint: &str, millis: u64) -> Self {
        match endpoint.ends_with(SPEECH) {
            true => Self { input: 0, output: millis },
            false => Self { input: millis, output: 0 },
        }
    }
}

/// Splits the audio of series by their endpoints.
pub(super) struct AudioSplit<'a> {
    tx: &'a ReadTx,
    project: ProjectId,
    endpoints: HashMap<u32, String>,
}

impl<'a> AudioSplit<'a> {
    pub fn new(tx: &'a ReadTx, project: ProjectId) -> Self {
        Self { tx, project, endpoints: HashMap::new() }
    }

    /// The audio of stored sums of `series`.
    pub fn of(&mut self, series: u32, sums: &Sums) -> Result<AudioMillis> {
        let millis = sums.amounts.audio_millis;
        if millis == 0 {
            return Ok(AudioMillis::default());
        }
        let endpoint = match self.endpoints.entry(series) {
            Entry::Occupied(found) => found.into_mut(),
            Entry::Vacant(entry) => entry.insert(usage::series(self.tx, self.project, series)?.endpoint),
        };
        Ok(AudioMillis::of(endpoint, millis))
    }
}

/// Knows which series have estimated tokens.
pub(super) struct EstimatedSeries<'a> {
    tx: &'a ReadTx,
    project: ProjectId,
    known: HashMap<u32, bool>,
}

impl<'a> EstimatedSeries<'a> {
    pub fn new(tx: &'a ReadTx, project: ProjectId) -> Self {
        Self { tx, project, known: HashMap::new() }
    }

    pub fn contains(&mut self, series: u32) -> Result<bool> {
        match self.known.entry(series) {
            Entry::Occupied(found) => Ok(*found.get()),
            Entry::Vacant(entry) => Ok(*entry.insert(usage::is_estimated(self.tx, self.project, series)?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::AudioMillis;

    #[test]
    fn speech_is_output_and_other_audio_is_input() {
        let (input, output) = (AudioMillis { input: 7, output: 0 }, AudioMillis { input: 0, output: 7 });
        for endpoint in ["POST /audio/transcriptions", "POST /audio/translations", "BATCH /audio/transcriptions"] {
            assert_eq!(AudioMillis::of(endpoint, 7), input);
        }
        assert_eq!(AudioMillis::of("POST /audio/speech", 7), output);
    }
}
