//! Outpost: a self-hosted AI platform in one binary.
//!
//! `main → cli → app → http → calls → service → storage` and `calls → engine → models`; the leaf modules `error`,
//! `ids`, `clock_rng`, `file_lock`, `ip_network` and `display` import no other module of the crate. `tests/layers.rs`
//! enforces this.

pub mod app;
pub mod calls;
pub mod catalog;
pub mod cli;
pub mod clock_rng;
pub mod config;
pub mod control_socket;
pub mod display;
pub mod engine;
pub mod error;
pub mod file_lock;
pub mod http;
pub mod ids;
pub mod ip_network;
pub mod logging;
pub mod models;
pub mod service;
pub mod storage;
