//! Embeddings, reranking and classification: computes vectors of texts, scores of pairs of texts, or scores of labels.

mod decoder_ranking;
mod kind;
mod model;
mod network;
mod pair_prompt;
mod queue;
mod scheduler;
mod sentence_transformers;
mod tokenizer;
mod workload;

pub use model::{EncoderModel, PairOptions};
pub use queue::EmbeddingQueue;
pub use scheduler::Vectors;
pub use sentence_transformers::{InputType, Matryoshka};
pub use tokenizer::{EncoderTokenizer, EncoderTokenizerSpec};

/// Max texts of a batch. In a decoder even a short text takes a whole KV block.
const MAX_BATCH_TEXTS: usize = 256;
