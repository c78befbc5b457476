//! The state of a project's buckets, for response headers.

use std::time::Duration;

use super::buckets::{Buckets, MILLIS_PER_SECOND};
use super::token_bucket::TokenBucket;

/// A bucket's status for response headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketStatus {
    pub limit: u64,
    pub remaining: u64,
    pub reset: Duration,
}

/// Rate limit status of a project after a request was admitted or refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateLimitStatus {
    pub requests: Option<BucketStatus>,
    pub tokens: Option<BucketStatus>,
    /// In seconds of audio.
    pub audio: Option<BucketStatus>,
}

impl RateLimitStatus {
    pub(super) fn new(buckets: Buckets<Option<TokenBucket>>) -> Self {
        let status = |bucket: TokenBucket, unit: u64| BucketStatus {
            limit: bucket.size().rate / unit,
            remaining: bucket.remaining() / unit,
            reset: bucket.reset(),
        };
        Self {
            requests: buckets.requests.map(|bucket| status(bucket, 1)),
            tokens: buckets.tokens.map(|bucket| status(bucket, 1)),
            audio: buckets.audio.map(|bucket| status(bucket, MILLIS_PER_SECOND)),
        }
    }
}
