//! Outpost: a self-hosted AI platform in one binary.
//!
//! `main → cli → app → http → calls → service → storage` and `calls → engine → models`. docs/architecture.md lists what
//! each module may import, and `tests/layers` enforces it.

pub mod app;
pub mod calls;
pub mod cli;
pub mod config;
pub mod control_socket;
pub mod http;
mod json_input;
mod json_lines;
pub mod logging;
pub mod origin;
pub mod service;
pub mod system_memory;
pub mod systemd;

pub use outpost_audio as audio;
pub use outpost_common::{
    clock_rng, device_choice, disk_space, display, file_lock, ip_network, new_folder, process_limits, progress,
    spelling, tls_roots, toml_text,
};
pub use outpost_content as content;
pub use outpost_engine as engine;
pub use outpost_hub::{catalog, download, hub};
pub use outpost_models as models;
pub use outpost_storage::{self as storage, error, ids};
pub use outpost_upstream as upstream;
