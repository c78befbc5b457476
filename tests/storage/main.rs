//! What the storage and the rules above it promise, through their public API.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../common/dice.rs"]
mod dice;

mod backup;
mod clocks;
mod damage;
mod escalation;
mod faults;
mod group;
mod guesses;
mod kill;
mod limiter;
mod paging;
mod pictures;
mod resources;
mod rotation;
mod timing;
mod uploads;
mod usage;
mod world;
