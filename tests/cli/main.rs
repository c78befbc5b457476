//! Tests of the binary: starts, locks, signals, backup, check, TLS, and misbehaving clients.
#![cfg(test)]
#![expect(clippy::disallowed_methods, reason = "tests wait in real time")]

use outpost_testing::{children, fixtures, postgres, rng, script, tiny_kokoro, tiny_model, tiny_whisper, wait};

#[path = "../common/process.rs"]
mod process;

mod access_log;
mod audio_decoder;
mod audio_formats;
mod audio_usage;
mod audit;
mod background_responses;
mod backup_and_check;
mod batches;
mod client_flood;
mod config;
#[cfg(all(feature = "cuda", target_os = "linux"))]
mod cuda_driver;
mod devices;
mod disk_full;
mod doctor;
mod drain;
mod failed_start;
mod generate;
mod health;
mod http2;
mod idempotency;
mod large_texts;
mod launch;
mod malicious_models;
mod models_list;
mod prefix_cache_disk;
mod reload;
mod sandbox;
mod secrets;
mod sign_in;
mod signals;
mod slow_clients;
mod start;
mod store_copy;
mod systemd;
mod terminal;
mod terminal_escapes;
mod tls;
mod tls_reload;
mod tune;
mod tuned_models;
mod unread_responses;
mod usage;
