//! Outpost: a self-hosted AI platform in one binary.
//!
//! `main → cli → app → http → calls → service → storage` and `calls → engine → models`. docs/architecture.md lists what
//! each module may import, and `tests/layers` enforces it.

pub mod app;
pub mod audio;
pub mod calls;
pub mod catalog;
pub mod cli;
pub mod clock_rng;
pub mod config;
pub mod control_socket;
pub mod device_choice;
pub mod disk_space;
pub mod display;
pub mod download;
pub mod engine;
pub mod error;
pub mod file_lock;
pub mod http;
pub mod hub;
pub mod ids;
pub mod ip_network;
mod json_input;
mod json_lines;
pub mod logging;
pub mod models;
mod new_folder;
pub mod origin;
pub mod process_limits;
pub mod progress;
pub mod service;
mod spelling;
pub mod storage;
pub mod system_memory;
pub mod systemd;
mod tls_roots;
mod toml_text;
pub mod upstream;
