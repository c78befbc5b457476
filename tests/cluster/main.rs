//! Tests of several servers that share a PostgreSQL database, which the tests start themselves.
#![cfg(test)]
#![expect(clippy::disallowed_methods, reason = "tests wait in real time")]

use outpost_testing::{children, fixtures, postgres, tiny_model, wait};

#[path = "../common/clock.rs"]
#[expect(dead_code, reason = "other tests use more of it")]
mod clock;
#[path = "../common/database.rs"]
mod database;
#[path = "../common/database_servers.rs"]
mod database_servers;
#[path = "../common/process.rs"]
#[expect(dead_code, reason = "other tests use more of it")]
mod process;
#[path = "../common/server.rs"]
#[expect(dead_code, reason = "other tests use more of it")]
mod server;
#[path = "../common/store_location.rs"]
#[expect(dead_code, reason = "other tests use more of it")]
mod store_location;

mod access;
mod background_responses;
mod batches;
mod fine_tuning;
mod maintenance;
mod nodes;
mod uploads;
mod work_leases;
