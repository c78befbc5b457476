//! Outpost: a self-hosted AI platform in one binary.
//!
//! `main → cli → app → http → calls → service → storage` and `calls → engine → models`; the
//! leaves `error`, `ids` and `ambient` know nobody. `tests/layers.rs` holds these arrows.

pub mod ambient;
pub mod engine;
pub mod error;
pub mod ids;
pub mod models;
