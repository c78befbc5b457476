//! Tests of the storage and the services through their public API.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use outpost_testing::{postgres, rng};

#[path = "../common/database.rs"]
mod database;
#[path = "../common/store_location.rs"]
#[expect(dead_code, reason = "other tests use more of it")]
mod store_location;

mod auth_throttle;
mod auth_timing;
mod backup;
mod chat_completions;
mod clock_changes;
mod damage;
mod disk_reserve;
mod faults;
mod file_records;
mod fixture;
mod full_copy;
mod group_commit;
mod kill_recovery;
mod pagination;
mod privilege_escalation;
mod rate_limits;
mod resources;
mod response_generations;
mod responses;
mod rotation;
mod seed;
mod shared_limits;
mod store_copy;
mod stored_images;
mod usage;
