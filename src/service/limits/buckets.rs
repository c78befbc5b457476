//! Values for each of a project's buckets: requests, tokens and audio.

use super::token_bucket::BucketSize;
use crate::clock_rng::Timestamp;
use crate::storage::limits::{LevelsRecord, Rates};

pub(super) const MILLIS_PER_SECOND: u64 = 1000;

/// One value for each of a project's buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Buckets<T> {
    pub requests: T,
    pub tokens: T,
    /// In milliseconds of audio.
    pub audio: T,
}

impl<T> Buckets<T> {
    pub fn map<U>(self, mut f: impl FnMut(T) -> U) -> Buckets<U> {
        Buckets { requests: f(self.requests), tokens: f(self.tokens), audio: f(self.audio) }
    }

    pub fn zip<U>(self, other: Buckets<U>) -> Buckets<(T, U)> {
        Buckets {
            requests: (self.requests, other.requests),
            tokens: (self.tokens, other.tokens),
            audio: (self.audio, other.audio),
        }
    }

    pub fn as_mut(&mut self) -> Buckets<&mut T> {
        Buckets { requests: &mut self.requests, tokens: &mut self.tokens, audio: &mut self.audio }
    }

    pub fn into_array(self) -> [T; 3] {
        [self.requests, self.tokens, self.audio]
    }
}

impl Buckets<Option<BucketSize>> {
    /// The sizes of the buckets for `rates`; `None` without a limit.
    pub fn sizes(rates: &Rates) -> Self {
        let size = |rate: u64, capacity| BucketSize { rate, capacity };
        let audio = rates.audio_seconds_per_minute.map(|seconds| seconds.saturating_mul(MILLIS_PER_SECOND));
        Self {
            requests: rates.requests_per_minute.map(|rate| size(rate, rates.burst_limit.unwrap_or(rate))),
            tokens: rates.tokens_per_minute.map(|rate| size(rate, rate)),
            audio: audio.map(|rate| size(rate, rate)),
        }
    }
}

impl Buckets<Option<i128>> {
    /// The stored levels, in parts of a token; `None` where there are none.
    pub fn levels(record: Option<LevelsRecord>) -> Self {
        let Some(LevelsRecord { requests, tokens, audio, .. }) = record else { return Self::default() };
        Self { requests, tokens, audio }
    }

    /// The record of these levels.
    pub fn record(self, at: Timestamp) -> LevelsRecord {
        let Self { requests, tokens, audio } = self;
        LevelsRecord { at, requests, tokens, audio }
    }
}
