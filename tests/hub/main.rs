//! Downloads and pulls from hubs, against a small server that plays them. No network access.

#![cfg(test)]

use outpost_testing::{children, hub_server, rng, tiny_model, wait};

#[expect(dead_code, clippy::disallowed_methods, reason = "other tests use more of it; it waits in real time")]
#[path = "../common/process.rs"]
mod process;

mod download;
mod download_faults;
mod download_policy;
mod folder_pulls;
mod no_other_connection;
mod proxy_tunnel;
mod pull_options;
mod pull_refusals;
mod pulls;
mod registry;
mod registry_archives;
mod registry_pulls;
mod registry_refusals;
mod removal;
mod repository;
mod split_pulls;
mod support;
mod throughput;
mod url_pulls;
mod versions;
