//! Speculative decoding: tokens that may come next, proposed cheaply and checked by the model in one step.

pub mod draft_model;
pub mod draft_stats;
pub mod ngram;
mod propose;
