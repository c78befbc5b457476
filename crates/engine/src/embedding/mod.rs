//! Embeddings, reranking and classification: computes vectors of texts, scores of pairs of texts, or scores of labels.

mod kind;
mod model;
mod network;
mod queue;
mod scheduler;
mod sentence_transformers;
mod tokenizer;
mod workload;

pub use model::EncoderModel;
pub use queue::EmbeddingQueue;
pub use scheduler::Vectors;
pub use sentence_transformers::{InputType, Matryoshka};
pub use tokenizer::EncoderTokenizer;

/// Max texts of a batch. In a decoder even a short text takes a whole KV block.
const MAX_BATCH_TEXTS: usize = 256;
