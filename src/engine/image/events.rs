//! Delivers image events from the image thread to the request.
//!
//! Unlike a channel, the sender can take events back: images are large, and a client that does not read would hold them
//! as long as its connection is open.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::ImageEvent;
use crate::engine::error::Failure;

#[derive(Debug, Default)]
struct Channel {
    state: Mutex<State>,
    notify: Notify,
}

#[derive(Debug, Default)]
struct State {
    events: VecDeque<Result<ImageEvent, Failure>>,
    /// Finished images that were not received.
    unreceived: usize,
    /// Number of events received.
    received: u64,
    /// No more events will be sent; the receiver is gone.
    ended: bool,
    closed: bool,
}

/// Whether this is a finished image.
fn is_image(event: &Result<ImageEvent, Failure>) -> bool {
    matches!(event, Ok(ImageEvent::Done { .. }))
}

impl Channel {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The events of a request. Dropping it cancels images that are not generated yet; there is no other signal.
#[derive(Debug)]
pub struct ImageEvents(Arc<Channel>);

impl ImageEvents {
    /// The next event; `None` after the last image or a failure.
    pub async fn next(&mut self) -> Option<Result<ImageEvent, Failure>> {
        loop {
            if let Some(settled) = self.try_next() {
                return settled;
            }
            self.0.notify.notified().await;
        }
    }

    /// Like [`Self::next`] without waiting; `None` if there is no event yet.
    pub(super) fn try_next(&mut self) -> Option<Option<Result<ImageEvent, Failure>>> {
        let mut state = self.0.lock();
        let Some(event) = state.events.pop_front() else { return state.ended.then_some(None) };
        state.received += 1;
        state.unreceived -= usize::from(is_image(&event));
        Some(Some(event))
    }

    /// Stops receiving; returns how many finished images were not received.
    pub fn close(&mut self) -> usize {
        let mut state = self.0.lock();
        state.closed = true;
        state.events.clear();
        std::mem::take(&mut state.unreceived)
    }
}

impl Drop for ImageEvents {
    fn drop(&mut self) {
        self.close();
    }
}

/// Sends events; the stream ends when the last clone is dropped.
#[derive(Clone)]
pub struct Sender(Arc<LastSender>);

struct LastSender(Arc<Channel>);

impl Drop for LastSender {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.notify.notify_one();
    }
}

impl Sender {
    /// Does nothing if the receiver is gone.
    pub fn send(&self, event: Result<ImageEvent, Failure>) {
        let channel = &self.0.0;
        let mut state = channel.lock();
        if !state.closed {
            state.unreceived += usize::from(is_image(&event));
            state.events.push_back(event);
            channel.notify.notify_one();
        }
    }

    /// Whether the receiver is gone.
    pub fn is_closed(&self) -> bool {
        self.0.0.lock().closed
    }

    /// Finished images that were not received.
    pub fn unreceived(&self) -> usize {
        self.0.0.lock().unreceived
    }
}

/// Detects a receiver that does not read.
pub struct StallDetector {
    channel: Arc<Channel>,
    /// The count received at the last check, and since when it is unchanged while events wait.
    received: u64,
    since: Duration,
}

impl StallDetector {
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
            // The images were generated, so they stay counted.
            state.events.clear();
            state.events.push_back(Err(Failure::ClientStalled));
            state.closed = true;
        }
        within_limit
    }
}

/// A sender, its receiver and a stall detector.
pub fn channel(now: Duration) -> (Sender, ImageEvents, StallDetector) {
    let channel = Arc::new(Channel::default());
    let watch = StallDetector { channel: Arc::clone(&channel), received: 0, since: now };
    (Sender(Arc::new(LastSender(Arc::clone(&channel)))), ImageEvents(channel), watch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Image;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn image(index: usize) -> Result<ImageEvent, Failure> {
        Ok(ImageEvent::Done { index, image: Image { width: 1, height: 1, rgb: vec![0; 3] } })
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn events_arrive_in_order_and_end_with_the_last_sender() {
        let (sender, mut events, _) = channel(at(0));
        assert_eq!(events.try_next(), None);
        [0, 1].into_iter().for_each(|index| sender.send(image(index)));
        let other = sender.clone();
        drop(sender);
        assert_eq!(events.try_next(), Some(Some(image(0))));
        assert_eq!((events.try_next(), events.try_next()), (Some(Some(image(1))), None));
        drop(other);
        assert_eq!(events.try_next(), Some(None));
    }

    #[tokio::test]
    async fn a_receiver_is_woken_by_an_event_and_by_the_end() {
        let (sender, mut events, _) = channel(at(0));
        let sending = async {
            tokio::task::yield_now().await;
            sender.send(image(0));
            tokio::task::yield_now().await;
            drop(sender);
        };
        let (found, ()) = tokio::join!(async { (events.next().await, events.next().await) }, sending);
        assert_eq!(found, (Some(image(0)), None));
    }

    #[test]
    fn closing_returns_the_unreceived_images() {
        let (sender, mut events, mut watch) = channel(at(0));
        (0..3).for_each(|index| sender.send(image(index)));
        events.try_next();
        assert_eq!((sender.unreceived(), sender.is_closed()), (2, false));
        assert_eq!((events.close(), sender.is_closed()), (2, true));
        sender.send(image(3));
        assert_eq!((events.close(), watch.check(at(1), PATIENCE)), (0, false));
    }

    #[test]
    fn unreceived_images_are_taken_back() {
        let (sender, mut events, mut watch) = channel(at(0));
        assert!(watch.check(at(100), PATIENCE), "there was nothing to read");
        (0..4).for_each(|index| sender.send(image(index)));
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
