//! Delivers the events of a job from its thread to the request.
//!
//! Unlike a channel, the sender can take events back: results are large, and a client that does not read would hold them
//! as long as its connection is open.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::error::Failure;

/// An event of a job.
pub trait JobEvent: Send {
    /// Whether it is one of the job's results, rather than a report of progress.
    fn is_result(&self) -> bool;

    /// The metered amount of a result: an image, or samples of speech.
    fn amount(&self) -> u64 {
        1
    }
}

#[derive(Debug)]
struct Channel<E> {
    state: Mutex<State<E>>,
    notify: Notify,
}

#[derive(Debug)]
struct State<E> {
    events: VecDeque<Result<E, Failure>>,
    /// Results that were not received, and what is metered of them.
    unreceived: usize,
    unreceived_amount: u64,
    /// Number of events received.
    received: u64,
    /// The last report of progress among the events that were taken back.
    progress: Option<E>,
    /// No more events will be sent; the receiver is gone.
    ended: bool,
    closed: bool,
}

/// The amount of a result; `None` for other events.
fn amount<E: JobEvent>(event: &Result<E, Failure>) -> Option<u64> {
    event.as_ref().ok().filter(|event| event.is_result()).map(JobEvent::amount)
}

/// Takes the last event if it is a report of progress.
fn take_progress<E: JobEvent>(events: &mut VecDeque<Result<E, Failure>>) -> Option<E> {
    let is_progress = events.back()?.as_ref().is_ok_and(|event| !event.is_result());
    if is_progress { events.pop_back()?.ok() } else { None }
}

impl<E> Channel<E> {
    fn lock(&self) -> MutexGuard<'_, State<E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The events of a job. Dropping it cancels results that are not computed yet; there is no other signal.
#[derive(Debug)]
pub struct Events<E: JobEvent>(Arc<Channel<E>>);

impl<E: JobEvent> Events<E> {
    /// The results of a job that another server has done.
    pub fn finished(results: Vec<E>) -> Self {
        let (sender, events, _) = channel(Duration::ZERO);
        results.into_iter().for_each(|result| sender.send(Ok(result)));
        events
    }

    /// The next event; `None` after the last result or a failure.
    pub async fn next(&mut self) -> Option<Result<E, Failure>> {
        loop {
            if let Some(settled) = self.try_next() {
                return settled;
            }
            self.0.notify.notified().await;
        }
    }

    /// Like [`Self::next`] without waiting; `None` if there is no event yet.
    pub(super) fn try_next(&mut self) -> Option<Option<Result<E, Failure>>> {
        let mut state = self.0.lock();
        let Some(event) = state.events.pop_front() else { return state.ended.then_some(None) };
        state.received += 1;
        if let Some(amount) = amount(&event) {
            state.unreceived = state.unreceived.saturating_sub(1);
            state.unreceived_amount = state.unreceived_amount.saturating_sub(amount);
        }
        Some(Some(event))
    }

    /// The report of progress that came last and was not received, if no result came after it. For a receiver that is about
    /// to close.
    pub fn take_progress(&mut self) -> Option<E> {
        let mut state = self.0.lock();
        state.progress.take().or_else(|| take_progress(&mut state.events))
    }

    /// Stops receiving; returns the amount of the results that were not received.
    pub fn close(&mut self) -> u64 {
        let mut state = self.0.lock();
        state.closed = true;
        state.events.clear();
        state.unreceived = 0;
        std::mem::take(&mut state.unreceived_amount)
    }
}

impl<E: JobEvent> Drop for Events<E> {
    fn drop(&mut self) {
        self.close();
    }
}

/// Sends events; the stream ends when the last clone is dropped.
pub struct Sender<E>(Arc<LastSender<E>>);

impl<E> Clone for Sender<E> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

struct LastSender<E>(Arc<Channel<E>>);

impl<E> Drop for LastSender<E> {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.notify.notify_one();
    }
}

impl<E: JobEvent> Sender<E> {
    /// Does nothing if the receiver is gone.
    pub fn send(&self, event: Result<E, Failure>) {
        let channel = &self.0.0;
        let mut state = channel.lock();
        if !state.closed {
            if let Some(amount) = amount(&event) {
                state.unreceived += 1;
                state.unreceived_amount += amount;
            }
            state.events.push_back(event);
            channel.notify.notify_one();
        }
    }

    /// True once the receiver was dropped, which cancels the job.
    pub fn is_closed(&self) -> bool {
        self.0.0.lock().closed
    }

    /// Results that were not received.
    pub fn unreceived(&self) -> usize {
        self.0.0.lock().unreceived
    }
}

/// Detects a receiver that does not read.
pub struct StallDetector<E> {
    channel: Arc<Channel<E>>,
    /// The count received at the last check, and since when it is unchanged while events wait.
    received: u64,
    since: Duration,
}

impl<E: JobEvent> StallDetector<E> {
    /// Takes back events that were not received within `timeout`. `false`: there is nothing left to watch.
    pub fn check(&mut self, now: Duration, timeout: Duration) -> bool {
        let mut state = self.channel.lock();
        if state.closed || (state.ended && state.events.is_empty()) {
            return false;
        }
        if state.events.is_empty() || state.received != self.received {
            (self.received, self.since) = (state.received, now);
        }
        let within_limit = now.saturating_sub(self.since) <= timeout;
        if !within_limit {
            // The results were computed, so they stay counted.
            state.progress = take_progress(&mut state.events);
            state.events.clear();
            state.events.push_back(Err(Failure::ClientStalled));
            state.closed = true;
        }
        within_limit
    }
}

/// A sender, its receiver and a stall detector.
pub fn channel<E: JobEvent>(now: Duration) -> (Sender<E>, Events<E>, StallDetector<E>) {
    let state = State {
        events: VecDeque::new(),
        unreceived: 0,
        unreceived_amount: 0,
        received: 0,
        progress: None,
        ended: false,
        closed: false,
    };
    let channel = Arc::new(Channel { state: Mutex::new(state), notify: Notify::new() });
    let watch = StallDetector { channel: Arc::clone(&channel), received: 0, since: now };
    (Sender(Arc::new(LastSender(Arc::clone(&channel)))), Events(channel), watch)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    impl JobEvent for usize {
        fn is_result(&self) -> bool {
            true
        }
    }

    fn result(index: usize) -> Result<usize, Failure> {
        Ok(index)
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn events_arrive_in_order_and_end_with_the_last_sender() {
        let (sender, mut events, _) = channel(at(0));
        assert_eq!(events.try_next(), None);
        [0, 1].into_iter().for_each(|index| sender.send(result(index)));
        let other = sender.clone();
        drop(sender);
        assert_eq!(events.try_next(), Some(Some(result(0))));
        assert_eq!((events.try_next(), events.try_next()), (Some(Some(result(1))), None));
        drop(other);
        assert_eq!(events.try_next(), Some(None));
    }

    #[tokio::test]
    async fn a_receiver_is_woken_by_an_event_and_by_the_end() {
        let (sender, mut events, _) = channel(at(0));
        let sending = async {
            tokio::task::yield_now().await;
            sender.send(result(0));
            tokio::task::yield_now().await;
            drop(sender);
        };
        let (found, ()) = tokio::join!(async { (events.next().await, events.next().await) }, sending);
        assert_eq!(found, (Some(result(0)), None));
    }

    #[test]
    fn closing_returns_the_unreceived_results() {
        let (sender, mut events, mut watch) = channel(at(0));
        (0..3).for_each(|index| sender.send(result(index)));
        events.try_next();
        assert_eq!((sender.unreceived(), sender.is_closed()), (2, false));
        assert_eq!((events.close(), sender.is_closed()), (2, true));
        sender.send(result(3));
        assert_eq!((events.close(), watch.check(at(1), PATIENCE)), (0, false));
    }

    #[test]
    fn unreceived_results_are_taken_back() {
        let (sender, mut events, mut watch) = channel(at(0));
        assert!(watch.check(at(100), PATIENCE), "there was nothing to read");
        (0..4).for_each(|index| sender.send(result(index)));
        assert!(watch.check(at(150), PATIENCE));
        events.try_next();
        assert!(watch.check(at(200), PATIENCE) && watch.check(at(260), PATIENCE), "one was received");
        assert!(!watch.check(at(261), PATIENCE));
        assert!(sender.is_closed());
        drop(sender);
        assert_eq!(events.try_next(), Some(Some(Err(Failure::ClientStalled))));
        assert_eq!((events.try_next(), events.close()), (Some(None), 3));
    }
}
