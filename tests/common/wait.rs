//! Waiting for a condition instead of a fixed time.

use std::fmt::Display;
use std::time::{Duration, Instant};

/// Longer than any condition takes on a busy test machine.
const LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(5);

/// Polls until the condition `holds`. Panics with `what` is missing after a minute.
pub fn until<W: Display>(what: impl FnOnce() -> W, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        if begun.elapsed() > LIMIT {
            panic!("not within {LIMIT:?}: {}", what());
        }
        std::thread::sleep(POLL);
    }
}
