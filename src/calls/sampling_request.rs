//! The sampling parameters of a request, and the defaults for those that it leaves open.
//!
//! The defaults are those of llama.cpp: temperature 0.8, `top_k` 40, `top_p` 0.95, `min_p` 0.05. With OpenAI's
//! (temperature 1 over the whole vocabulary), a small model drifts into nonsense and generates until its context is
//! full. They do not depend on the API: Ollama's differ slightly, but a user who changes the client expects the same
//! text.

use std::sync::Arc;

use crate::engine::{GenerationDefaults, Sampling, TextOptions};

/// Defaults, those of llama.cpp. Small models produce nonsense if every token of the vocabulary can be sampled.
const TEMPERATURE: f32 = 0.8;
const TOP_P: f32 = 0.95;
const TOP_K: u32 = 40;
const MIN_P: f32 = 0.05;

/// Sampling parameters; `http` has validated each field on its own. What is `None` was not sent: a model of this server
/// takes its default, an upstream model that of its server, unless the settings of the model have another one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SamplingRequest {
    pub temperature: Option<f32>,
    pub top_p: Option<f32>,
    pub top_k: Option<u32>,
    pub min_p: Option<f32>,
    pub typical_p: Option<f32>,
    pub frequency_penalty: Option<f32>,
    pub presence_penalty: Option<f32>,
    pub repetition_penalty: Option<f32>,
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
        self.temperature = self.temperature.or(defaults.temperature);
        self.top_p = self.top_p.or(defaults.top_p);
        self.top_k = self.top_k.or(defaults.top_k);
        self.min_p = self.min_p.or(defaults.min_p);
        self.typical_p = self.typical_p.or(defaults.typical_p);
        self.frequency_penalty = self.frequency_penalty.or(defaults.frequency_penalty);
        self.presence_penalty = self.presence_penalty.or(defaults.presence_penalty);
        self.repetition_penalty = self.repetition_penalty.or(defaults.repetition_penalty);
    }

    /// The parameters for a model of this server, without the bad words: only the model's tokenizer knows their tokens.
    pub fn resolve(self, seed: u64) -> Sampling {
        Sampling {
            temperature: self.temperature.unwrap_or(TEMPERATURE),
            top_p: self.top_p.unwrap_or(TOP_P),
            top_k: self.top_k.unwrap_or(TOP_K),
            min_p: self.min_p.unwrap_or(MIN_P),
            typical_p: self.typical_p.unwrap_or(1.0),
            frequency_penalty: self.frequency_penalty.unwrap_or(0.0),
            presence_penalty: self.presence_penalty.unwrap_or(0.0),
            repetition_penalty: self.repetition_penalty.unwrap_or(1.0),
            seed,
            logit_bias: self.logit_bias,
            allowed_tokens: self.allowed_token_ids.into(),
            bad_words: Arc::default(),
            stop_tokens: self.stop_token_ids.into(),
            min_tokens: self.min_tokens.unwrap_or(0),
            ignore_eos: self.ignore_eos.unwrap_or(false),
        }
    }
}
