//! Speculative decoding: tokens are proposed cheaply and verified by the model in one step.
//!
//! A draft is a sequence of tokens without probabilities, regardless of what proposed it. The engine samples each token
//! as usual and stops at the first difference. The distribution stays the same, and so does the exact response if a
//! seed is set. No probabilistic acceptance rule is needed, so draft models and layers always propose their most likely token.

pub mod draft_model;
pub mod draft_payoff;
pub mod mtp;
pub mod ngram;
mod propose;
mod propose_mtp;
