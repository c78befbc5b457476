//! Waits for a condition instead of a fixed time.

use std::fmt::Display;
use std::time::Duration;

const POLL: Duration = Duration::from_millis(5);
/// The polls in a minute. No condition takes longer, even on a busy machine.
const POLLS: u32 = 12_000;

/// Polls until the condition `holds`. Panics after a minute with a message that names `what`.
pub fn until<W: Display>(what: impl FnOnce() -> W, mut holds: impl FnMut() -> bool) {
    for _ in 0..POLLS {
        if holds() {
            return;
        }
        std::thread::sleep(POLL);
    }
    assert!(holds(), "not within a minute: {}", what());
}
