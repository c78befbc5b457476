//! The tokens that a project has used in the calendar month, for its budget.
//!
//! A process that has the store for itself counts them. On a shared store the sums of usage have what all nodes have
//! recorded; they are read again when they are a second old. To them a node adds what it has reserved and what it has
//! used but not recorded yet. It does not see what runs on other nodes: together, the nodes overspend a budget at most by the
//! prompts of the requests that run on other nodes and by what these nodes have recorded within the last second.

use std::time::Duration;

use crate::clock_rng::Timestamp;

/// How old sums of a shared store may be.
const MAX_AGE: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
pub struct MonthlyTokens {
    pub ends: Timestamp,
    /// Recorded, as far as it is known.
    pub used: u64,
    /// Reserved by running requests.
    pub held: u64,
    /// Shared store: used by requests of this node that are not recorded yet.
    unrecorded: u64,
    /// Shared store: recorded by this node since the last reading of the sums began, and since the one before it, which is
    /// still the last that has ended.
    since_reading: u64,
    before_reading: u64,
    /// Shared store: uptime when the last reading began.
    read: Option<Duration>,
}

impl MonthlyTokens {
    /// The month of `now` with what was recorded in it.
    pub fn new(now: Timestamp, used: u64) -> Self {
        let ends = now.next_month();
        Self { ends, used, held: 0, unrecorded: 0, since_reading: 0, before_reading: 0, read: None }
    }

    /// Begins a new month if it is time.
    pub fn roll(&mut self, now: Timestamp) {
        if now >= self.ends {
            *self = Self { held: self.held, unrecorded: self.unrecorded, ..Self::new(now, 0) };
        }
    }

    /// Used in the month, without what is reserved.
    pub fn known(&self) -> u64 {
        [self.unrecorded, self.since_reading, self.before_reading].into_iter().fold(self.used, u64::saturating_add)
    }

    /// Counts tokens that are used and not recorded yet.
    pub fn add_unrecorded(&mut self, tokens: u64) {
        self.unrecorded = self.unrecorded.saturating_add(tokens);
    }

    /// The tokens are recorded, or never will be.
    pub fn recorded(&mut self, tokens: u64) {
        self.unrecorded = self.unrecorded.saturating_sub(tokens);
        self.since_reading = self.since_reading.saturating_add(tokens);
    }

    /// Whether the sums must be read again.
    pub fn is_old(&self, now: Duration) -> bool {
        self.read.is_none_or(|read| now.saturating_sub(read) >= MAX_AGE)
    }

    /// A reading begins. It may miss what is recorded from now on.
    pub fn begin_reading(&mut self) {
        self.before_reading = self.before_reading.saturating_add(std::mem::take(&mut self.since_reading));
    }

    /// The reading that began at `began` has found `used` tokens in the month that ends at `ends`.
    pub fn end_reading(&mut self, began: Duration, ends: Timestamp, used: u64) {
        if ends == self.ends {
            (self.used, self.before_reading, self.read) = (used, 0, Some(began));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_node_records_is_counted_once() {
        let (now, second) = (Timestamp::from_millis(1_700_000_000_000), Duration::from_secs(1));
        let mut month = MonthlyTokens::new(now, 100);
        assert!(month.is_old(Duration::ZERO));
        month.add_unrecorded(10);
        month.add_unrecorded(5);
        assert_eq!(month.known(), 115);
        month.recorded(10);
        assert_eq!(month.known(), 115, "the sums do not have it yet");
        month.begin_reading();
        month.recorded(5);
        assert_eq!(month.known(), 115);
        // Another node has recorded 7. The 5 may be missing.
        month.end_reading(second, month.ends, 117);
        assert_eq!(month.known(), 122);
        assert!(!month.is_old(second) && month.is_old(second * 2));
        month.begin_reading();
        month.end_reading(second * 2, month.ends, 122);
        assert_eq!(month.known(), 122);
    }

    #[test]
    fn a_new_month_begins_with_what_is_not_recorded() {
        let now = Timestamp::from_millis(1_700_000_000_000);
        let mut month = MonthlyTokens::new(now, 100);
        month.add_unrecorded(10);
        month.begin_reading();
        let old_end = month.ends;
        month.roll(old_end);
        // A reading of the old month that ends late does not count.
        month.end_reading(Duration::ZERO, old_end, 110);
        assert_eq!(month.known(), 10);
        assert!(month.is_old(Duration::ZERO));
    }
}
