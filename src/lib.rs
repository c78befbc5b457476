//! Outpost: a self-hosted AI platform in one binary.
//!
//! `main → cli → app → http → calls → service → storage` and `calls → engine → models`; the
//! leaves `error`, `ids`, `clock_rng`, `lock`, `network` and `readable` know nobody above them. `tests/layers.rs` holds these arrows.

pub mod app;
pub mod calls;
pub mod catalog;
pub mod cli;
pub mod clock_rng;
pub mod config;
pub mod control;
pub mod engine;
pub mod error;
pub mod http;
pub mod ids;
pub mod lock;
pub mod models;
pub mod network;
pub mod readable;
pub mod service;
pub mod storage;
pub mod telemetry;
