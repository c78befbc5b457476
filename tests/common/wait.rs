//! Waiting for a condition instead of a fixed time.

use std::fmt::Display;
use std::time::Duration;

const POLL: Duration = Duration::from_millis(5);
/// A minute: longer than any condition takes on a busy test machine.
const POLLS: u32 = 12_000;

/// Polls until the condition `holds`. Panics with `what` is missing after a minute.
pub fn until<W: Display>(what: impl FnOnce() -> W, mut holds: impl FnMut() -> bool) {
    for _ in 0..POLLS {
        if holds() {
            return;
        }
        std::thread::sleep(POLL);
    }
    assert!(holds(), "not within a minute: {}", what());
}
