//! When previous secrets die, on the clock that never jumps.
//!
//! `previous_valid_until` is a time of day, and that can be set back. So the first sight of a
//! grace period also fixes its end in uptime, and a secret is dead once either clock says so.
//! A death that was seen is final, and is written to the record as well.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::ambient::{Ambient, Timestamp};
use crate::ids::KeyId;

/// Above this, entries of grace periods long over are cleared out.
const CROWDED: usize = 65_536;

/// Ends of the grace periods that this process has met.
#[derive(Default)]
pub(super) struct Graces {
    ends: Mutex<HashMap<KeyId, (Timestamp, Duration)>>,
}

impl Graces {
    /// The uptime at which the grace period of `key` until `valid_until` ends.
    pub fn end(&self, key: KeyId, valid_until: Timestamp, ambient: &dyn Ambient) -> Duration {
        let left = valid_until.as_millis().saturating_sub(ambient.now().as_millis());
        let left = Duration::from_millis(u64::try_from(left).unwrap_or(0));
        let uptime = ambient.uptime();
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        if ends.len() >= CROWDED {
            ends.retain(|_, (_, end)| *end > uptime);
        }
        let entry = ends.entry(key).or_insert((valid_until, uptime.saturating_add(left)));
        if entry.0 != valid_until {
            *entry = (valid_until, uptime.saturating_add(left));
        }
        entry.1
    }

    /// This grace period was seen to be over.
    pub fn over(&self, key: KeyId, valid_until: Timestamp) {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner).insert(key, (valid_until, Duration::ZERO));
    }
}
