//! Where the two halves meet: a call is resolved, admitted, run on the engine and answered.
//!
//! `service` and `engine` do not know each other. Everything that needs both lives here, so that
//! `http` only encodes and decodes.

pub mod chat;
pub mod demand;
pub mod embeddings;
pub mod fine_tuning;
mod fit;
mod forms;
pub mod images;
mod keep;
pub mod models;
mod preparing;
pub mod recall;
pub mod rerank;
pub mod turns;
