//! The rates of a project as sizes of token buckets.

use std::time::Duration;

use super::token_bucket::{PARTS_PER_TOKEN, TokenBucket};
use crate::storage::limits::Rates;

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

/// Rate and capacity of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketSize {
    /// Refill per minute.
    pub rate: u64,
    pub capacity: u64,
}

impl BucketSize {
    /// The sizes of the buckets for `rates`; `None` without a limit.
    pub fn of(rates: &Rates) -> Buckets<Option<Self>> {
        let size = |rate: u64, capacity| Self { rate, capacity };
        let audio = rates.audio_seconds_per_minute.map(|seconds| seconds.saturating_mul(MILLIS_PER_SECOND));
        Buckets {
            requests: rates.requests_per_minute.map(|rate| size(rate, rates.burst_limit.unwrap_or(rate))),
            tokens: rates.tokens_per_minute.map(|rate| size(rate, rate)),
            audio: audio.map(|rate| size(rate, rate)),
        }
    }

    /// The capacity in parts of a token.
    pub fn capacity_parts(&self) -> i128 {
        i128::from(self.capacity) * PARTS_PER_TOKEN
    }

    /// A full bucket.
    pub fn full(&self, now: Duration) -> TokenBucket {
        TokenBucket::new(self.rate, self.capacity, now)
    }
}
