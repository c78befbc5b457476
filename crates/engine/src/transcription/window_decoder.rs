//! Decodes one window: a state machine that says which tokens the network computes next, and samples from its logits.
//!
//! A window is decoded greedily first. If its text is repetitive or improbable, it is decoded again with higher
//! temperatures, as in Whisper's reference implementation.

use std::sync::Arc;

use super::log_probabilities::{log_sum_exp, maximum};
use super::repetition::compression_ratio;
use super::token_rules::TokenRules;
use super::vocabulary::WhisperVocabulary;
use crate::text::request::Sampling;
use crate::text::sampler::Sampler;
use outpost_models::whisper::DecodeInput;

/// Texts with a higher ratio repeat themselves, and are decoded again.
const MAX_COMPRESSION_RATIO: f32 = 2.4;
/// Texts with a lower mean log-probability are decoded again.
const MIN_AVG_LOGPROB: f32 = -1.;
/// Above this probability of no speech, an improbable text is dropped.
const MAX_NO_SPEECH: f32 = 0.6;
/// The difference between the temperatures of two attempts.
const TEMPERATURE_STEP: f32 = 0.2;

/// How the windows of a request are decoded.
#[derive(Debug)]
pub struct DecodingOptions {
    pub vocabulary: Arc<WhisperVocabulary>,
    pub rules: Arc<TokenRules>,
    /// The tokens of the prompt, without special tokens.
    pub prompt: Vec<u32>,
    pub translate: bool,
    pub temperature: f32,
    pub seed: u64,
    /// Positions of the decoder, for the prompt, the start of the transcript and the text. The text of a window takes at most
    /// half of them.
    pub positions: usize,
}

/// The next computation of the network for a window.
#[derive(Debug, PartialEq, Eq)]
pub struct NextTokens<'a> {
    /// The position of the first token.
    pub position: usize,
    pub tokens: &'a [u32],
    /// The tokens whose logits are needed, by index, in ascending order.
    pub logits_of: Vec<usize>,
}

impl NextTokens<'_> {
    /// The input of the network for a window in this slot.
    pub fn input(&self, slot: usize) -> DecodeInput<'_> {
        DecodeInput { slot, position: self.position, tokens: self.tokens, logits: &self.logits_of }
    }
}

/// The result of a step.
#[derive(Debug, PartialEq)]
pub enum Progress {
    Continue,
    /// The token of the language that was detected.
    Language(u32),
    Done(DecodedWindow),
}

/// The decoded tokens of a window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DecodedWindow {
    /// The special tokens before the text, from the start of the transcript on.
    pub start_tokens: Vec<u32>,
    /// Text and timestamps, without the end of the text.
    pub tokens: Vec<u32>,
    /// The log-probability of each.
    pub logprobs: Vec<f32>,
    pub temperature: f32,
    pub avg_logprob: f32,
    pub compression_ratio: f32,
    pub no_speech_prob: f32,
    /// The window has no speech.
    pub is_silent: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Phase {
    DetectLanguage,
    Prefill,
    Decode,
}

/// The state of a window.
#[derive(Debug)]
pub struct WindowDecoder {
    options: Arc<DecodingOptions>,
    phase: Phase,
    /// The token of the language; `None` before it is detected, and of models that know only English.
    language: Option<u32>,
    /// The tokens to compute next.
    input: Vec<u32>,
    position: usize,
    /// The number of tokens of the prompt before the start of the transcript.
    previous: usize,
    temperature: f32,
    /// Differs by window and attempt.
    seed: u64,
    sampler: Option<Sampler>,
    tokens: Vec<u32>,
    logprobs: Vec<f32>,
    /// The sum of the log-probabilities, with that of the end of the text.
    logprob_sum: f32,
    no_speech_prob: f32,
}

impl WindowDecoder {
    /// `language`: its token, if it is known; `window`: the number of the window, for the random numbers.
    pub fn new(options: Arc<DecodingOptions>, language: Option<u32>, window: u64) -> Self {
        let detect = language.is_none() && options.vocabulary.multilingual.is_some();
        let seed = options.seed.wrapping_add(window.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let mut decoder = Self {
            phase: if detect { Phase::DetectLanguage } else { Phase::Prefill },
            language,
            input: vec![options.vocabulary.start_of_transcript],
            position: 0,
            previous: 0,
            temperature: options.temperature,
            seed,
            sampler: None,
            tokens: Vec::new(),
            logprobs: Vec::new(),
            logprob_sum: 0.,
            no_speech_prob: 0.,
            options,
        };
        if !detect {
            decoder.start_attempt();
        }
        decoder
    }

    /// Starts to decode at the current temperature.
    fn start_attempt(&mut self) {
        let DecodingOptions { vocabulary, prompt, translate, .. } = &*self.options;
        self.input.clear();
        if !prompt.is_empty() {
            self.input.push(vocabulary.start_of_previous);
            self.input.extend(prompt);
        }
        self.previous = self.input.len();
        self.input.extend(vocabulary.start_tokens(self.language, *translate));
        self.sampler = (self.temperature > 0.).then(|| {
            let sampling = Sampling { temperature: self.temperature, seed: self.seed, ..Sampling::default() };
            Sampler::new(sampling, &[], 0)
        });
        self.seed = self.seed.wrapping_add(1);
        (self.phase, self.position, self.logprob_sum) = (Phase::Prefill, 0, 0.);
        self.tokens.clear();
        self.logprobs.clear();
    }

    /// The tokens that the network computes next.
    pub fn next_tokens(&self) -> NextTokens<'_> {
        let last = self.input.len().saturating_sub(1);
        let logits_of = match self.phase {
            Phase::Prefill if self.previous != last => vec![self.previous, last],
            _ => vec![last],
        };
        NextTokens { position: self.position, tokens: &self.input, logits_of }
    }

    /// Takes the logits of the tokens that [`Self::next_tokens`] asked for, `[tokens, vocabulary]`; they are modified.
    ///
    /// # Errors
    /// If they are not finite numbers.
    pub fn advance(&mut self, logits: &mut [&mut [f32]]) -> Result<Progress, NotFinite> {
        if logits.iter().any(|row| !maximum(row).is_finite()) {
            return Err(NotFinite);
        }
        let Some((last, before)) = logits.split_last_mut() else { return Err(NotFinite) };
        match self.phase {
            Phase::DetectLanguage => Ok(self.detect_language(last)),
            Phase::Prefill => {
                let start = before.first().map_or(&**last, |row| &**row);
                self.no_speech_prob = self.no_speech_probability(start);
                self.position = self.input.len();
                self.phase = Phase::Decode;
                Ok(self.sample(last))
            }
            Phase::Decode => {
                self.position += 1;
                Ok(self.sample(last))
            }
        }
    }

    fn detect_language(&mut self, logits: &[f32]) -> Progress {
        let logit = |id: u32| logits.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY);
        let languages = self.options.vocabulary.multilingual.iter().flat_map(|tokens| &tokens.languages);
        let likely = languages.map(|(_, id)| *id).max_by(|one, other| logit(*one).total_cmp(&logit(*other)));
        self.language = likely;
        self.start_attempt();
        likely.map_or(Progress::Continue, Progress::Language)
    }

    /// `logits`: those after the start of the transcript.
    fn no_speech_probability(&self, logits: &[f32]) -> f32 {
        let logit = self.options.vocabulary.no_speech.and_then(|id| logits.get(id as usize));
        logit.map_or(0., |logit| (logit - log_sum_exp(logits)).exp())
    }

    fn sample(&mut self, logits: &mut [f32]) -> Progress {
        let DecodingOptions { vocabulary, rules, positions, .. } = &*self.options;
        rules.apply(vocabulary, &self.tokens, logits);
        let log_sum = log_sum_exp(logits);
        let id = match &mut self.sampler {
            None => most_likely(logits),
            Some(sampler) => sampler.next(&mut logits.to_vec(), &Default::default()),
        };
        let id = id.unwrap_or(vocabulary.end_of_text);
        let logprob = logits.get(id as usize).map_or(f32::NEG_INFINITY, |logit| logit - log_sum);
        if logprob.is_finite() {
            self.logprob_sum += logprob;
        }
        if id == vocabulary.end_of_text {
            return self.finish();
        }
        self.tokens.push(id);
        self.logprobs.push(logprob);
        if self.tokens.len() >= positions / 2 || self.position >= *positions {
            return self.finish();
        }
        self.input.clear();
        self.input.push(id);
        Progress::Continue
    }

    /// Accepts the attempt, or starts the next one.
    fn finish(&mut self) -> Progress {
        let DecodingOptions { vocabulary, translate, temperature, .. } = &*self.options;
        let avg_logprob = self.logprob_sum / (self.tokens.len() + 1) as f32;
        let compression_ratio = compression_ratio(vocabulary.text(&self.tokens).trim());
        let improbable = avg_logprob < MIN_AVG_LOGPROB;
        let is_silent = self.no_speech_prob > MAX_NO_SPEECH && improbable;
        let failed = (improbable || compression_ratio > MAX_COMPRESSION_RATIO) && !is_silent;
        // A temperature that the client has set is kept.
        if failed && *temperature == 0. && self.temperature + TEMPERATURE_STEP < 1. + f32::EPSILON {
            self.temperature += TEMPERATURE_STEP;
            self.start_attempt();
            return Progress::Continue;
        }
        Progress::Done(DecodedWindow {
            start_tokens: vocabulary.start_tokens(self.language, *translate),
            tokens: std::mem::take(&mut self.tokens),
            logprobs: std::mem::take(&mut self.logprobs),
            temperature: self.temperature,
            avg_logprob,
            compression_ratio,
            no_speech_prob: self.no_speech_prob,
            is_silent,
        })
    }
}

/// The network's values are not finite numbers.
#[derive(Debug, PartialEq, Eq)]
pub struct NotFinite;

/// The token with the highest logit, the lowest ID among equals; `None` if all are suppressed.
fn most_likely(logits: &[f32]) -> Option<u32> {
    let largest = maximum(logits);
    let id = logits.iter().position(|logit| *logit == largest).filter(|_| largest > f32::NEG_INFINITY)?;
    u32::try_from(id).ok()
}
