//! Test support for several crates: tiny models, fixtures, a clock, and servers that stand in for others.
#![expect(clippy::disallowed_methods, reason = "tests wait in real time")]

pub mod children;
pub mod decoder_cases;
pub mod fixtures;
pub mod harmony;
pub mod hub_server;
pub mod huggingface_folder;
pub mod mxfp4;
pub mod postgres;
pub mod rng;
pub mod script;
pub mod scripted_model;
pub mod split_gguf;
pub mod test_clock;
pub mod tiny_kokoro;
pub mod tiny_model;
pub mod tiny_whisper;
pub mod wait;
