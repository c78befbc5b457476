//! The catalog, pulling through a made-up pip, and moving models by file. No network.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop with the error")]

#[path = "../common/tiny_model.rs"]
mod tiny_model;

mod bench;
mod escapes;
mod index;
mod pulls;
mod tars;
mod transfers;
