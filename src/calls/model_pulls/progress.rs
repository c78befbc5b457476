//! Turns the progress of a transfer into the status of a pull.
//!
//! A pull takes minutes, and browsers reload; so it belongs to the server and not to a request. Readers see only the
//! latest state, so a slow reader delays nothing and needs no buffer.

use std::time::Duration;

use super::job::{Job, PullState};
use crate::clock_rng::ClockRng;
use crate::disk_space::{DataClass, DiskReserve};
use crate::display::one_line;
use crate::error::Error;
use crate::progress::Progress;

/// The time over which the speed is measured.
const SPEED_WINDOW: Duration = Duration::from_secs(1);

/// After this many bytes, the free space of the disk is looked at again.
const SPACE_CHECK_BYTES: u64 = 32 << 20;

/// Reports to a pull, and ends it before it takes the reserve of the disk.
pub(super) struct JobProgress<'a> {
    job: &'a Job,
    clock: &'a dyn ClockRng,
    /// Of the disk with the models folder.
    reserve: &'a DiskReserve,
    /// Bytes since the free space was looked at.
    unchecked: u64,
    /// The error that ends the pull.
    refused: Option<Error>,
    step: PullState,
    /// Size of the current step, and how much of it is done.
    step_bytes: (u64, u64),
    /// Bytes of files that are downloaded, and of those that are verified.
    downloaded: u64,
    verified: u64,
    has_total: bool,
    speed: Speed,
}

/// Bytes per second.
#[derive(Default)]
struct Speed {
    /// When the window began, an uptime, and its bytes so far.
    window: Option<(Duration, u64)>,
    per_second: Option<u64>,
}

impl<'a> JobProgress<'a> {
    pub fn new(job: &'a Job, clock: &'a dyn ClockRng, reserve: &'a DiskReserve) -> Self {
        Self {
            job,
            clock,
            reserve,
            unchecked: 0,
            refused: None,
            step: PullState::Resolving,
            step_bytes: (0, 0),
            downloaded: 0,
            verified: 0,
            has_total: false,
            speed: Speed::default(),
        }
    }

    /// Why the pull was ended, if it was because of the disk.
    pub fn refused(self) -> Option<Error> {
        self.refused
    }

    fn check_space(&mut self) {
        self.unchecked = 0;
        if let Err(error) = self.reserve.require(DataClass::Bulk, SPACE_CHECK_BYTES) {
            self.refused = Some(error.into());
        }
    }

    /// The size of all files is known.
    pub fn set_total(&mut self, bytes: u64) {
        self.has_total = true;
        self.job.status.send_modify(|status| status.total_bytes = Some(bytes));
    }
}

impl Progress for JobProgress<'_> {
    fn start(&mut self, what: &str, total_bytes: u64) {
        self.check_space();
        let (step, file) = step(what);
        (self.step, self.step_bytes) = (step, (total_bytes, 0));
        let total = self.downloaded.saturating_add(total_bytes);
        let has_total = self.has_total || step != PullState::Downloading;
        self.speed = Speed::default();
        self.job.status.send_modify(|status| {
            status.state = step;
            status.file = Some(one_line(file).into_owned());
            status.bytes_per_second = None;
            status.message = None;
            if !has_total {
                status.total_bytes = Some(total);
            }
        });
    }

    fn advance(&mut self, bytes: u64) {
        self.unchecked = self.unchecked.saturating_add(bytes);
        if self.unchecked >= SPACE_CHECK_BYTES {
            self.check_space();
        }
        let (total, done) = self.step_bytes;
        let done = done.saturating_add(bytes).min(total);
        self.step_bytes.1 = done;
        if self.step != PullState::Downloading {
            return;
        }
        let completed = self.downloaded.saturating_add(done);
        let speed = self.speed.add(bytes, self.clock.uptime());
        self.job.status.send_if_modified(|status| {
            let changed = status.completed_bytes != completed || status.bytes_per_second != speed;
            (status.completed_bytes, status.bytes_per_second) = (completed, speed);
            changed
        });
    }

    fn done(&mut self) {
        let (total, done) = self.step_bytes;
        match self.step {
            PullState::Downloading => self.downloaded = self.downloaded.saturating_add(done),
            PullState::Verifying if done == total => self.verified = self.verified.saturating_add(total),
            _ => {}
        }
        // Files that were there already are only verified.
        self.downloaded = self.downloaded.max(self.verified);
        let (downloaded, verified) = (self.downloaded, self.verified);
        self.job.status.send_modify(|status| {
            status.completed_bytes = downloaded;
            status.bytes_per_second = None;
            if status.total_bytes.is_some_and(|total| verified >= total) {
                status.state = PullState::Installing;
            }
        });
    }

    fn note(&mut self, text: &str) {
        let text = one_line(text);
        tracing::info!(pull = %self.job.id, "{text}");
        self.job.status.send_modify(|status| status.message = Some(text.into_owned()));
    }

    fn is_cancelled(&self) -> bool {
        self.refused.is_some() || self.job.is_cancelled()
    }
}

impl Speed {
    /// The speed after `bytes` more at `now`. The first bytes may be those of an earlier attempt, so they only begin the
    /// measurement.
    fn add(&mut self, bytes: u64, now: Duration) -> Option<u64> {
        let Some((since, before)) = self.window else {
            self.window = Some((now, 0));
            return None;
        };
        let (took, bytes) = (now.saturating_sub(since), before.saturating_add(bytes));
        if took < SPEED_WINDOW {
            self.window = Some((since, bytes));
            return self.per_second;
        }
        let millis = u64::try_from(took.as_millis()).unwrap_or(u64::MAX).max(1);
        let now_per_second = bytes.saturating_mul(1000) / millis;
        let smooth = self.per_second.map_or(now_per_second, |before| before / 2 + now_per_second / 2);
        (self.window, self.per_second) = (Some((now, 0)), Some(smooth));
        self.per_second
    }
}

/// The state that a step of a transfer means, and the file.
fn step(what: &str) -> (PullState, &str) {
    match what.split_once(' ') {
        Some(("verifying" | "checking", file)) => (PullState::Verifying, file),
        Some(("unpacking" | "converting" | "writing", file)) => (PullState::Installing, file),
        Some(("downloading", file)) => (PullState::Downloading, file),
        _ => (PullState::Downloading, what),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::calls::model_pulls::request::PullRequest;
    use crate::clock_rng::Timestamp;
    use crate::ids::{KeyId, ProjectId, PullId};
    use crate::service::access::{Access, Scopes};

    #[derive(Default)]
    struct Clock(AtomicU64);

    impl ClockRng for Clock {
        fn now(&self) -> Timestamp {
            Timestamp::ORIGIN
        }

        fn uptime(&self) -> Duration {
            Duration::from_millis(self.0.load(Ordering::Relaxed))
        }

        fn fill(&self, _: &mut [u8]) {}
    }

    fn no_reserve() -> DiskReserve {
        DiskReserve::new("/", Some(0))
    }

    fn job() -> Job {
        let access = Access::for_tests(KeyId::from_bytes([1; 16]), ProjectId::from_bytes([1; 16]), Scopes::ALL, None);
        let request = PullRequest::new("hf:u/r", None, false, None).unwrap();
        Job::new(PullId::from_bytes([1; 16]), request, access, Timestamp::ORIGIN)
    }

    #[test]
    fn the_bytes_of_several_files_are_added_up() {
        let (job, clock) = (job(), Clock::default());
        let reserve = no_reserve();
        let mut progress = JobProgress::new(&job, &clock, &reserve);
        let status = || job.status.borrow().clone();
        progress.set_total(300);
        progress.start("a", 100);
        progress.advance(40);
        assert_eq!((status().state, status().completed_bytes), (PullState::Downloading, 40));
        progress.advance(60);
        progress.done();
        progress.start("verifying a", 100);
        progress.advance(100);
        assert_eq!((status().state, status().completed_bytes), (PullState::Verifying, 100));
        progress.done();
        // This one was there already.
        progress.start("verifying b", 150);
        progress.advance(150);
        progress.done();
        assert_eq!((status().state, status().completed_bytes), (PullState::Verifying, 250));
        progress.start("c", 50);
        progress.advance(50);
        progress.done();
        progress.start("verifying c", 50);
        progress.advance(50);
        progress.done();
        assert_eq!((status().state, status().completed_bytes), (PullState::Installing, 300));
        assert_eq!((status().total_bytes, status().file.as_deref()), (Some(300), Some("c")));
    }

    #[test]
    fn a_failed_verification_does_not_count() {
        let (job, clock) = (job(), Clock::default());
        let reserve = no_reserve();
        let mut progress = JobProgress::new(&job, &clock, &reserve);
        progress.set_total(100);
        progress.start("verifying a", 100);
        progress.advance(60);
        progress.done();
        assert_eq!((job.state(), job.status.borrow().completed_bytes), (PullState::Verifying, 0));
    }

    #[test]
    fn the_speed_leaves_out_what_was_there_before() {
        let (job, clock) = (job(), Clock::default());
        let reserve = no_reserve();
        let mut progress = JobProgress::new(&job, &clock, &reserve);
        progress.start("a", 10_000);
        progress.advance(5000);
        assert_eq!(job.status.borrow().bytes_per_second, None);
        for _ in 0..10 {
            clock.0.fetch_add(100, Ordering::Relaxed);
            progress.advance(100);
        }
        assert_eq!(job.status.borrow().bytes_per_second, Some(1000));
    }
}
