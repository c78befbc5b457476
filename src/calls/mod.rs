//! Inference calls: where `service` and `engine` meet. A call is resolved, admitted, run on the engine and answered.
//!
//! `service` and `engine` do not depend on each other. Code that needs both is here, so that `http` only encodes and
//! decodes.

mod blocking;
pub mod chat;
pub mod context;
pub mod embeddings;
mod errors;
pub mod fine_tuning;
mod grammars;
pub mod images;
pub mod messages;
pub mod models;
pub mod output_spec;
mod persist_turn;
mod prompt_preparation;
pub mod rerank;
mod truncation;
