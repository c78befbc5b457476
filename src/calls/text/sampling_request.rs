//! The sampling parameters of a request, and the defaults for those that it leaves open.
//!
//! The defaults are those of llama.cpp: temperature 0.8, `top_k` 40, `top_p` 0.95, `min_p` 0.05. With OpenAI's
//! (temperature 1 over the whole vocabulary), a small model drifts into nonsense and generates until its context is
//! full. They do not depend on the API: Ollama's differ slightly, but a user who changes the client expects the same
//! text.

use std::sync::Arc;

use crate::engine::{GenerationDefaults, Sampling, SamplingParameters, TextOptions};

/// Sampling parameters; `http` has validated each field on its own. What is `None` was not sent: a model of this server
/// takes its default, an upstream model that of its server, unless the settings of the model have another one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SamplingRequest {
    pub parameters: SamplingParameters,
    pub logit_bias: Vec<(u32, f32)>,
    /// The only tokens that may be generated; empty: all.
    pub allowed_token_ids: Vec<u32>,
    /// Words that may not be generated.
    pub bad_words: Vec<String>,
    /// Tokens that end the text.
    pub stop_token_ids: Vec<u32>,
    pub text: TextOptions,
    pub min_tokens: Option<u32>,
    pub ignore_eos: Option<bool>,
}

impl SamplingRequest {
    /// Sets the parameters that the request does not set.
    pub fn fill_in(&mut self, defaults: &GenerationDefaults) {
        self.parameters = std::mem::take(&mut self.parameters).or(&defaults.sampling);
    }

    /// The parameters for a model of this server, without the bad words: only the model's tokenizer knows their tokens.
    pub fn resolve(self, seed: u64) -> Sampling {
        let mut sampling = Sampling {
            seed,
            logit_bias: self.logit_bias,
            allowed_tokens: self.allowed_token_ids.into(),
            bad_words: Arc::default(),
            stop_tokens: self.stop_token_ids.into(),
            min_tokens: self.min_tokens.unwrap_or(0),
            ignore_eos: self.ignore_eos.unwrap_or(false),
            ..Sampling::default()
        };
        self.parameters.apply(&mut sampling);
        sampling
    }
}
