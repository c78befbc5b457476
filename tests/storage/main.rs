//! Tests of the storage and the services through their public API.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../common/rng.rs"]
mod rng;

mod auth_throttle;
mod auth_timing;
mod backup;
mod clock_changes;
mod damage;
mod faults;
mod file_records;
mod fixture;
mod group_commit;
mod kill_recovery;
mod pagination;
mod privilege_escalation;
mod rate_limits;
mod resources;
mod responses;
mod rotation;
mod stored_images;
mod usage;
