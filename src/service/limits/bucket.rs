//! A bucket of a project: one that this process has for itself, or a lease of one that nodes share.

use std::time::Duration;

use super::lease::{Lease, Refusal};
use super::token_bucket::{BucketSize, TokenBucket};

#[derive(Clone, Copy, Debug)]
pub enum Bucket {
    Own(TokenBucket),
    Leased(Lease),
}

/// Points of the uptime.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    pub now: Duration,
    /// Until when a bucket of this process refills: until a change of its rate that is not loaded yet.
    pub refill_until: Duration,
}

impl Bucket {
    /// Takes `amount` tokens.
    pub fn take(&mut self, amount: u64, times: Times) -> Result<(), Refusal> {
        match self {
            Self::Own(bucket) => bucket.take(amount, times.refill_until).map_err(Refusal::Wait),
            Self::Leased(lease) => lease.take(amount, times.now),
        }
    }

    /// Charges tokens that are already used. A negative `amount` is a refund.
    pub fn settle(&mut self, amount: i128, times: Times) {
        match self {
            Self::Own(bucket) => bucket.settle(amount, times.refill_until),
            Self::Leased(lease) => lease.settle(amount, times.now),
        }
    }

    /// The same bucket with another size; the change adds nothing.
    #[must_use]
    pub fn changed(self, size: BucketSize, times: Times) -> Self {
        match self {
            Self::Own(bucket) => Self::Own(bucket.changed(size, times.refill_until)),
            Self::Leased(lease) => Self::Leased(lease.changed(size, times.now)),
        }
    }

    /// The bucket as far as this process knows it.
    pub fn known(&self, now: Duration) -> TokenBucket {
        match self {
            Self::Own(bucket) => *bucket,
            Self::Leased(lease) => lease.known(now),
        }
    }

    /// The level of a bucket that this process has for itself.
    pub fn own_level(&self) -> Option<i128> {
        match self {
            Self::Own(bucket) => Some(bucket.level()),
            Self::Leased(_) => None,
        }
    }

    pub fn lease(&mut self) -> Option<&mut Lease> {
        match self {
            Self::Own(_) => None,
            Self::Leased(lease) => Some(lease),
        }
    }
}
