//! Tests of several servers that share a PostgreSQL database, which the tests start themselves.
#![cfg(test)]
#![expect(clippy::disallowed_methods, reason = "tests wait in real time")]

#[path = "../common/children.rs"]
mod children;
#[path = "../common/clock.rs"]
#[expect(dead_code, reason = "other tests use more of it")]
mod clock;
#[path = "../common/database.rs"]
mod database;
#[path = "../common/database_servers.rs"]
mod database_servers;
#[path = "../common/fixtures.rs"]
mod fixtures;
#[path = "../common/postgres.rs"]
#[expect(dead_code, reason = "other tests use more of it")]
mod postgres;
#[path = "../common/process.rs"]
#[expect(dead_code, reason = "other tests use more of it")]
mod process;
#[path = "../common/server.rs"]
#[expect(dead_code, reason = "other tests use more of it")]
mod server;
#[path = "../common/store_location.rs"]
#[expect(dead_code, reason = "other tests use more of it")]
mod store_location;
#[path = "../common/tiny_model.rs"]
mod tiny_model;
#[path = "../common/wait.rs"]
mod wait;

mod access;
mod background_responses;
mod batches;
mod fine_tuning;
mod maintenance;
mod nodes;
mod uploads;
mod work_leases;
