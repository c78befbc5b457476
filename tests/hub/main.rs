//! Downloads and pulls from hubs, against a small server that plays them. No network access.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../common/hub_server.rs"]
mod hub_server;
#[path = "../common/rng.rs"]
mod rng;
#[path = "../common/wait.rs"]
mod wait;

mod download;
mod download_faults;
mod download_policy;
mod support;
