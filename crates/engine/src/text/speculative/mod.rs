//! Speculative decoding: tokens are proposed cheaply and verified by the model in one step.

pub mod draft_model;
pub mod draft_payoff;
pub mod ngram;
mod propose;
