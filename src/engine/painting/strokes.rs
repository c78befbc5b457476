//! The way of strokes from the painter to whoever asked for them.
//!
//! Unlike in a channel, what lies here can be taken away by whoever gave it: pictures are large, and a reader that takes
//! nothing would hold them for as long as his connection stays.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::Stroke;
use crate::engine::error::Failure;

#[derive(Debug, Default)]
struct Way {
    state: Mutex<State>,
    more: Notify,
}

#[derive(Debug, Default)]
struct State {
    strokes: VecDeque<Result<Stroke, Failure>>,
    /// Finished pictures that were not received.
    unreceived: usize,
    /// How many strokes were.
    received: u64,
    /// Nothing more is given; or nothing more will be taken.
    ended: bool,
    left: bool,
}

/// Whether it is a finished picture.
fn is_picture(stroke: &Result<Stroke, Failure>) -> bool {
    matches!(stroke, Ok(Stroke::Done { .. }))
}

impl Way {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The pictures on their way. Dropping it cancels what is not painted: there is no other signal.
#[derive(Debug)]
pub struct Strokes(Arc<Way>);

impl Strokes {
    /// The next one; `None` after the last picture, or after a failure.
    pub async fn next(&mut self) -> Option<Result<Stroke, Failure>> {
        loop {
            if let Some(settled) = self.try_next() {
                return settled;
            }
            self.0.more.notified().await;
        }
    }

    /// The same where it is known already.
    pub(super) fn try_next(&mut self) -> Option<Option<Result<Stroke, Failure>>> {
        let mut state = self.0.lock();
        let Some(stroke) = state.strokes.pop_front() else { return state.ended.then_some(None) };
        state.received += 1;
        state.unreceived -= usize::from(is_picture(&stroke));
        Some(Some(stroke))
    }

    /// Takes no more, and tells how many pictures were painted but not received.
    pub fn leave(&mut self) -> usize {
        let mut state = self.0.lock();
        state.left = true;
        state.strokes.clear();
        std::mem::take(&mut state.unreceived)
    }
}

impl Drop for Strokes {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Who gives strokes; when the last of its clones is dropped, there are no more.
#[derive(Clone)]
pub(in crate::engine) struct Sender(Arc<End>);

struct End(Arc<Way>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.more.notify_one();
    }
}

impl Sender {
    /// To nobody, where nobody waits any more.
    pub fn send(&self, stroke: Result<Stroke, Failure>) {
        let way = &self.0.0;
        let mut state = way.lock();
        if !state.left {
            state.unreceived += usize::from(is_picture(&stroke));
            state.strokes.push_back(stroke);
            way.more.notify_one();
        }
    }

    /// Whether nobody waits any more.
    pub fn is_closed(&self) -> bool {
        self.0.0.lock().left
    }

    /// Finished pictures that were not received.
    pub fn unreceived(&self) -> usize {
        self.0.0.lock().unreceived
    }
}

/// Watches whether somebody reads.
pub(super) struct Watch {
    way: Arc<Way>,
    /// What was received when it was looked at last, and since when that is so or nothing was there.
    received: u64,
    since: Duration,
}

impl Watch {
    /// Takes away what nobody received for longer than `patience`. `false`: there is nothing to watch any more.
    pub fn heed(&mut self, now: Duration, patience: Duration) -> bool {
        let mut state = self.way.lock();
        if state.left || (state.ended && state.strokes.is_empty()) {
            return false;
        }
        if state.strokes.is_empty() || state.received != self.received {
            (self.received, self.since) = (state.received, now);
        }
        let patient = now.saturating_sub(self.since) <= patience;
        if !patient {
            // The pictures were painted, and stay counted.
            state.strokes.clear();
            state.strokes.push_back(Err(Failure::Unread));
            state.left = true;
        }
        patient
    }
}

/// Both ends of a way that begins now, and who watches it.
pub(super) fn way(now: Duration) -> (Sender, Strokes, Watch) {
    let way = Arc::new(Way::default());
    let watch = Watch { way: Arc::clone(&way), received: 0, since: now };
    (Sender(Arc::new(End(Arc::clone(&way)))), Strokes(way), watch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Picture;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn picture(image: usize) -> Result<Stroke, Failure> {
        Ok(Stroke::Done { image, picture: Picture { width: 1, height: 1, rgb: vec![0; 3] } })
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn strokes_come_in_order_and_end_with_the_last_sender() {
        let (sender, mut strokes, _) = way(at(0));
        assert_eq!(strokes.try_next(), None);
        [0, 1].into_iter().for_each(|image| sender.send(picture(image)));
        let other = sender.clone();
        drop(sender);
        assert_eq!(strokes.try_next(), Some(Some(picture(0))));
        assert_eq!((strokes.try_next(), strokes.try_next()), (Some(Some(picture(1))), None));
        drop(other);
        assert_eq!(strokes.try_next(), Some(None));
    }

    #[tokio::test]
    async fn a_reader_is_woken_by_a_stroke_and_by_the_end() {
        let (sender, mut strokes, _) = way(at(0));
        let told = async {
            tokio::task::yield_now().await;
            sender.send(picture(0));
            tokio::task::yield_now().await;
            drop(sender);
        };
        let (found, ()) = tokio::join!(async { (strokes.next().await, strokes.next().await) }, told);
        assert_eq!(found, (Some(picture(0)), None));
    }

    #[test]
    fn whoever_leaves_is_told_what_was_painted() {
        let (sender, mut strokes, mut watch) = way(at(0));
        (0..3).for_each(|image| sender.send(picture(image)));
        strokes.try_next();
        assert_eq!((sender.unreceived(), sender.is_closed()), (2, false));
        assert_eq!((strokes.leave(), sender.is_closed()), (2, true));
        sender.send(picture(3));
        assert_eq!((strokes.leave(), watch.heed(at(1), PATIENCE)), (0, false));
    }

    #[test]
    fn what_nobody_receives_is_taken_away() {
        let (sender, mut strokes, mut watch) = way(at(0));
        assert!(watch.heed(at(100), PATIENCE), "there was nothing to read");
        (0..4).for_each(|image| sender.send(picture(image)));
        assert!(watch.heed(at(150), PATIENCE));
        strokes.try_next();
        assert!(watch.heed(at(200), PATIENCE) && watch.heed(at(260), PATIENCE), "one was received");
        assert!(!watch.heed(at(261), PATIENCE));
        assert!(sender.is_closed());
        drop(sender);
        assert_eq!(strokes.try_next(), Some(Some(Err(Failure::Unread))));
        assert_eq!((strokes.try_next(), strokes.leave()), (Some(None), 3));
    }
}
