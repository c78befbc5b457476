//! Embeddings and reranking: texts become vectors or scores.

mod model;
mod network;
mod queue;
mod scheduler;
mod sentence;
mod tokens;
mod workload;

pub use model::{EncoderModel, check_gguf, check_hub, gguf_is_cross_encoder, is_cross_encoder};
pub use queue::EmbeddingQueue;
pub use scheduler::Vectors;
pub use sentence::{InputType, Matryoshka, pooling_type};
pub use tokens::TextTokens;
pub use workload::EmbeddingWorkload;

/// Texts of a batch. Even a short one takes a whole block for its keys and values.
const MAX_BATCH_TEXTS: usize = 256;
