//! Inference calls: they connect `service` and `engine`. A call is resolved, admitted and run on the engine.
//!
//! `service` and `engine` do not depend on each other. Code that needs both is here, so that `http` only encodes and
//! decodes.

pub mod background;
pub mod batches;
mod blocking;
pub mod chat;
pub mod completions;
pub mod conversation_context;
mod conversation_truncation;
pub mod custom_tools;
pub mod derived_models;
pub mod dialect;
pub mod embeddings;
mod errors;
pub mod fine_tuning;
pub mod generation;
mod grammars;
pub mod images;
pub mod message_joining;
pub mod messages;
mod model_name;
pub mod model_pulls;
pub mod models;
pub mod moderations;
pub mod output_spec;
mod persist_turn;
mod prompt_length;
mod prompt_logprobs;
mod prompt_preparation;
pub mod rerank;
pub mod responses;
mod running_generation;
pub mod sampling_request;
pub mod speech;
pub mod text_input;
pub mod tokenization;
pub mod training_examples;
pub mod transcriptions;
pub mod turn;
pub mod upstream;
mod upstream_prompt;
