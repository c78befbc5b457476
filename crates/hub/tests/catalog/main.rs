//! The catalog, pulls with a fake pip and npm, and model export and import. No network access.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use outpost_testing::{script, tiny_model, wait};

mod catalog_toml;
mod inputs;
mod malicious_archives;
mod path_traversal;
mod pulls;
mod support;
mod transfers;
