//! A circuit breaker: it keeps requests away from a target that fails.
//!
//! It opens after a few failures in a row, or when more than half of the recent requests failed. After a while one request may try
//! the target. If that fails, the breaker stays open for twice as long. It closes when the response begins, since a text can
//! take minutes, but a failure opens it again until a response has ended well.

use std::collections::VecDeque;
use std::time::Duration;

/// Failures in a row that open the breaker.
const MAX_CONSECUTIVE: u32 = 5;
/// The number of recent requests. If more than half of this number have failed, the breaker opens.
const WINDOW: usize = 20;
/// How long the breaker is open at first.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// The longest time that it is open before another try.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// The state of a target's circuit breaker. Times are uptimes of the server.
#[derive(Debug, Default)]
pub struct Breaker {
    state: State,
    /// Outcomes of the recent requests, the oldest first; true: failed.
    recent: VecDeque<bool>,
    consecutive: u32,
    /// Set if a closed connection was forgiven since the last success. The next one counts as a failure.
    has_forgiven: bool,
    /// How long it is to be open the next time.
    next_wait: Option<Duration>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Closed,
    /// No request until this time; then one.
    Open { until: Duration },
    /// One request tries the target.
    Probing,
}

impl Breaker {
    /// How long no request may be sent; zero if one may be sent now. While another request tries the target, it is not
    /// known how long that takes.
    pub fn wait(&self, now: Duration) -> Duration {
        match self.state {
            State::Closed => Duration::ZERO,
            State::Open { until } => until.saturating_sub(now),
            State::Probing => FIRST_WAIT,
        }
    }

    /// True while requests are kept away from the target.
    pub fn is_open(&self) -> bool {
        self.state != State::Closed
    }

    /// Notes that a request is sent, which [`Self::wait`] has allowed. Returns whether it is the one that tries the target.
    pub fn begin(&mut self) -> bool {
        let is_probe = matches!(self.state, State::Open { .. });
        if is_probe {
            self.state = State::Probing;
        }
        is_probe
    }

    /// The response to a request has begun. It may still break off.
    pub fn answer(&mut self, is_probe: bool) {
        if is_probe {
            self.state = State::Closed;
            // The next failure opens it again.
            self.consecutive = MAX_CONSECUTIVE;
        }
    }

    /// The response to a request has ended well.
    pub fn succeed(&mut self, is_probe: bool) {
        if is_probe {
            *self = Self::default();
        } else if !self.is_open() {
            self.consecutive = 0;
            self.has_forgiven = false;
            self.next_wait = None;
            self.note(false);
        }
    }

    /// Handles a connection that was closed before the target answered. It may have been idle for too long, so one of
    /// them is not counted as a failure until the next success. Returns true if this one is not counted.
    pub fn forgive_close(&mut self, is_probe: bool) -> bool {
        let forgives = !is_probe && !self.has_forgiven;
        self.has_forgiven |= forgives;
        forgives
    }

    /// A request has failed because of the target. Returns whether this opens the breaker.
    pub fn fail(&mut self, now: Duration, is_probe: bool) -> bool {
        if self.is_open() && !is_probe {
            // It was sent before the breaker opened.
            return false;
        }
        self.consecutive = self.consecutive.saturating_add(1);
        self.note(true);
        let failed = self.recent.iter().filter(|failed| **failed).count();
        let opens = is_probe || self.consecutive >= MAX_CONSECUTIVE || failed * 2 > WINDOW;
        if opens {
            let wait = self.next_wait.unwrap_or(FIRST_WAIT);
            self.state = State::Open { until: now + wait };
            self.next_wait = Some((wait * 2).min(MAX_WAIT));
            self.recent.clear();
        }
        opens
    }

    /// The request that tries the target was cancelled before its outcome was known. Another one may try it at once.
    pub fn cancel_probe(&mut self) {
        if self.state == State::Probing {
            self.state = State::Open { until: Duration::ZERO };
        }
    }

    fn note(&mut self, failed: bool) {
        self.recent.push_back(failed);
        if self.recent.len() > WINDOW {
            self.recent.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// A breaker after `count` failures in a row.
    fn failed(count: u32) -> Breaker {
        let mut breaker = Breaker::default();
        (0..count).for_each(|_| {
            breaker.begin();
            breaker.fail(at(0), false);
        });
        breaker
    }

    #[test]
    fn five_failures_in_a_row_open_it() {
        assert!(!failed(4).is_open());
        let breaker = failed(5);
        assert_eq!((breaker.wait(at(0)), breaker.wait(at(1))), (at(1), at(0)));
    }

    #[test]
    fn a_success_in_between_begins_the_count_again() {
        let mut breaker = failed(4);
        breaker.succeed(false);
        assert!(!(0..4).any(|_| breaker.fail(at(0), false)));
        assert!(breaker.fail(at(0), false));
    }

    #[test]
    fn it_opens_when_more_than_half_of_the_recent_requests_failed() {
        let mut breaker = Breaker::default();
        for _ in 0..10 {
            breaker.succeed(false);
            assert!(!breaker.fail(at(0), false));
        }
        assert!(breaker.fail(at(0), false));
    }

    #[test]
    fn one_request_at_a_time_tries_the_target() {
        let mut breaker = failed(5);
        assert!(breaker.begin());
        assert!(breaker.wait(at(60)) > at(0));
        breaker.cancel_probe();
        assert_eq!(breaker.wait(at(60)), at(0));
        assert!(breaker.begin());
        breaker.succeed(true);
        assert!(!breaker.is_open() && breaker.wait(at(60)) == at(0));
    }

    #[test]
    fn the_wait_doubles_up_to_half_a_minute_and_begins_again_after_a_success() {
        let mut breaker = failed(5);
        for wait in [2, 4, 8, 16, 30, 30] {
            assert!(breaker.begin());
            assert!(breaker.fail(at(100), true));
            assert_eq!(breaker.wait(at(100)), at(wait));
        }
        assert!(breaker.begin());
        breaker.succeed(true);
        let opened: Vec<bool> = (0..5).map(|_| breaker.fail(at(200), false)).collect();
        assert_eq!(opened, [false, false, false, false, true]);
        assert_eq!(breaker.wait(at(200)), at(1));
    }

    #[test]
    fn responses_that_begin_and_break_off_open_it() {
        let mut breaker = Breaker::default();
        for number in 1..=5 {
            assert!(!breaker.begin());
            breaker.answer(false);
            assert_eq!(breaker.fail(at(0), false), number == 5);
        }
        assert!(breaker.begin());
        breaker.answer(true);
        assert!(!breaker.is_open());
        assert!(breaker.fail(at(1), false));
        assert_eq!(breaker.wait(at(1)), at(2));
        assert!(breaker.begin());
        breaker.answer(true);
        breaker.succeed(false);
        assert!(!breaker.fail(at(3), false));
    }

    #[test]
    fn one_closed_connection_is_forgiven_until_the_next_success() {
        let mut breaker = Breaker::default();
        assert!(!breaker.forgive_close(true));
        assert!(breaker.forgive_close(false));
        assert!(!breaker.forgive_close(false));
        breaker.succeed(false);
        assert!(breaker.forgive_close(false));
    }

    #[test]
    fn requests_from_before_it_opened_change_nothing() {
        let mut breaker = failed(5);
        assert!(!breaker.fail(at(0), false));
        breaker.succeed(false);
        assert_eq!(breaker.wait(at(0)), at(1));
    }
}
