//! Inference calls: they connect `service` and `engine`. A call is resolved, admitted and run on the engine.
//!
//! `service` and `engine` do not depend on each other. Code that needs both is here, so that `http` only encodes and
//! decodes.

pub mod background;
pub mod batches;
mod blocking;
pub mod conversations;
pub mod embeddings;
mod errors;
pub mod fine_tuning;
pub mod images;
pub mod model_pulls;
pub mod models;
pub mod moderations;
pub mod output_format;
pub mod prompt;
pub mod rerank;
pub mod responses;
pub mod speech;
pub mod text;
pub mod transcriptions;
pub mod turn;
pub mod upstream;
