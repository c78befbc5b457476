//! Tests of the storage with power cuts and disk errors, on a simulated disk.
#![cfg(test)]
#![expect(clippy::disallowed_methods, reason = "a test measures the real duration of refusals")]

use outpost_testing::tiny_model;

#[expect(dead_code, reason = "other tests use the rest")]
#[path = "../common/clock.rs"]
mod clock;
mod damage;
mod faults;
mod history;
mod metering;
mod panics;
mod power_loss;
mod recovery;
mod server;
mod simulated_disk;
mod training;
mod workload;
