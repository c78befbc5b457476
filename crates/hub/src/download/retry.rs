//! When to try again.

use std::time::Duration;

use http1::StatusCode;

use super::error::DownloadError;
use super::settings::Settings;
use outpost_common::clock_rng::ClockRng;

/// Counts failed attempts in a row.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    failed: u32,
    /// Waits that a server asked for.
    asked: u32,
}

/// Windows of a rate limit that are waited for.
const MAX_ASKED: u32 = 3;

/// What to do after a failed attempt.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Fail,
    /// `asked`: the server asked for this wait.
    Wait {
        wait: Duration,
        asked: bool,
    },
}

impl Attempts {
    /// The last attempt brought something.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// Decides after an attempt failed. `limit`: attempts in a row.
    pub fn after(&mut self, error: &DownloadError, limit: u32, settings: &Settings, random: &dyn ClockRng) -> Next {
        if let Some(wait) = requested(error) {
            self.asked += 1;
            return match self.asked <= MAX_ASKED && wait <= settings.max_server_wait {
                true => Next::Wait { wait: wait + jitter(Duration::from_secs(1), random), asked: true },
                false => Next::Fail,
            };
        }
        self.failed += 1;
        if !is_transient(error) || self.failed >= limit {
            return Next::Fail;
        }
        let doubled = settings.first_wait.saturating_mul(1 << (self.failed - 1).min(16));
        let wait = doubled.min(settings.max_wait);
        Next::Wait { wait: wait / 2 + jitter(wait / 2, random), asked: false }
    }
}

fn requested(error: &DownloadError) -> Option<Duration> {
    let refusal = error.refusal()?;
    matches!(refusal.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE).then_some(refusal.wait)?
}

fn is_transient(error: &DownloadError) -> bool {
    match error {
        DownloadError::Unreachable { .. } | DownloadError::Interrupted { .. } | DownloadError::Stalled { .. } => true,
        DownloadError::Refused(refusal) => {
            refusal.status.is_server_error() || matches!(refusal.status.as_u16(), 408 | 425 | 429)
        }
        _ => false,
    }
}

/// A random time up to `max`.
fn jitter(max: Duration, random: &dyn ClockRng) -> Duration {
    let mut byte = [0];
    random.fill(&mut byte);
    max * u32::from(byte[0]) / 255
}
