//! Tests of the HTTP API against a real server, on both mounts.
#![cfg(test)]
#![expect(clippy::disallowed_methods, reason = "tests wait in real time")]

use outpost_testing::{fixtures, hub_server, postgres, scripted_model, tiny_kokoro, tiny_model, tiny_whisper, wait};

#[path = "../common/clock.rs"]
mod clock;
#[path = "../common/database.rs"]
mod database;
#[path = "../common/database_servers.rs"]
mod database_servers;
#[path = "../common/server.rs"]
mod server;
#[path = "../common/store_location.rs"]
mod store_location;

mod access;
mod agents;
mod anthropic_messages;
mod api_keys;
mod audio;
mod audit;
mod auth_throttle;
mod background_responses;
mod bad_input;
mod batches;
mod browsers;
mod chat;
mod chat_context;
mod client_disconnects;
mod cohere;
mod completions;
mod contract;
mod conversation_items;
mod conversations;
mod custom_tools;
mod delivered_usage;
mod derived_models;
mod embeddings;
mod equal_apis;
mod error_messages;
mod files;
mod fine_tuning;
mod harmony;
mod http1;
mod idempotency;
mod image_generation;
mod image_sizes;
mod images;
mod isolation;
mod keyless;
mod limits;
mod llama_cpp;
mod model_pulls;
mod model_settings;
mod models;
mod moderations;
mod nodes;
mod ollama;
mod overload;
mod projects;
mod prompt_logprobs;
mod reasoning;
mod response_conversations;
mod response_formats;
mod responses;
mod routes;
mod schemas;
mod score;
mod shared_limits;
mod shared_responses;
mod sign_in;
mod speech;
mod stored_completions;
mod stored_responses;
mod structured_output;
mod token_options;
mod tokenization;
mod transcriptions;
mod unknown_fields;
mod upload;
mod usage;

/// A slow model whose context is so long that no response ends by itself during a test.
fn slow_model() -> tiny_model::TinyModel {
    tiny_model::TinyModel { context: 8192, blocks: 4, width: 256, ..tiny_model::TinyModel::default() }
}
