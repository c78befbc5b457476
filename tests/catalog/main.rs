//! The catalog, pulling through a made-up pip, and moving models by file. No network.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop with the error")]

#[path = "../common/tiny_model.rs"]
mod tiny_model;
#[path = "../common/wait.rs"]
mod wait;

mod catalog_toml;
mod malicious_archives;
mod path_traversal;
mod pulls;
mod support;
mod transfers;
