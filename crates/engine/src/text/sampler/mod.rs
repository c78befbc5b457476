//! Samples the next token from logits.
//!
//! The order: allowed tokens, bias and bans, penalties, temperature, `top_k`, `min_p`, `typical_p`, `top_p`. Each filter
//! applies to the result of the one before, with probabilities renormalised. The generator is ChaCha8 with the request's
//! seed and one stream per choice: the same logits give the same tokens.
//!
//! A `top_p` of 0 is greedy, as in llama.cpp and Ollama: the smallest set of tokens has one token.

mod bad_words;
pub mod parameters;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::settings::{MAX_ALLOWED_TOKENS, MAX_BAD_WORDS, MAX_STOP_TOKENS};
use bad_words::BadWords;

/// Sampling parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 is greedy: the most likely token, the lowest ID among equals.
    pub temperature: f32,
    /// 0 keeps only the most likely token; 1 is off.
    pub top_p: f32,
    /// 0 is off.
    pub top_k: u32,
    pub min_p: f32,
    /// Locally typical sampling (Meister et al., 2023): 0 keeps only the most typical token; 1 is off.
    pub typical_p: f32,
    /// Subtracted once per occurrence of the token in the generated text.
    pub frequency_penalty: f32,
    /// Subtracted once if the token was generated.
    pub presence_penalty: f32,
    /// Divides positive and multiplies negative logits of tokens in the prompt and the generated text; 1 is off.
    pub repetition_penalty: f32,
    pub seed: u64,
    /// Added to logits; -100 or less bans the token, whatever its logit.
    pub logit_bias: Vec<(u32, f32)>,
    /// The only tokens that may be sampled; empty: all.
    pub allowed_tokens: Arc<[u32]>,
    /// Words that are not generated, each as the tokens that it consists of. A word may be in the list in several forms.
    pub bad_words: Arc<[Vec<u32>]>,
    /// Tokens that end a choice like the end-of-sequence tokens, also with `ignore_eos`.
    pub stop_tokens: Arc<[u32]>,
    /// The tokens that end a choice are banned before this many tokens.
    pub min_tokens: u32,
    /// End-of-sequence tokens are banned, except those in `stop_tokens`.
    pub ignore_eos: bool,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 1.,
            top_p: 1.,
            top_k: 0,
            min_p: 0.,
            typical_p: 1.,
            frequency_penalty: 0.,
            presence_penalty: 0.,
            repetition_penalty: 1.,
            seed: 0,
            logit_bias: Vec::new(),
            allowed_tokens: Arc::default(),
            bad_words: Arc::default(),
            stop_tokens: Arc::default(),
            min_tokens: 0,
            ignore_eos: false,
        }
    }
}

impl Sampling {
    /// Fails with the first parameter that is out of range.
    pub(crate) fn check(&self, vocabulary: usize) -> Result<(), String> {
        let finite = |name: &str, value: f32, good: bool| {
            if value.is_finite() && good { Ok(()) } else { Err(format!("{name} is {value}")) }
        };
        finite("temperature", self.temperature, self.temperature >= 0.)?;
        finite("top_p", self.top_p, (0. ..=1.).contains(&self.top_p))?;
        finite("min_p", self.min_p, (0. ..=1.).contains(&self.min_p))?;
        finite("typical_p", self.typical_p, (0. ..=1.).contains(&self.typical_p))?;
        finite("frequency_penalty", self.frequency_penalty, true)?;
        finite("presence_penalty", self.presence_penalty, true)?;
        finite("repetition_penalty", self.repetition_penalty, self.repetition_penalty > 0.)?;
        for &(id, bias) in &self.logit_bias {
            finite("a logit bias", bias, true)?;
            if id as usize >= vocabulary {
                return Err(format!("logit_bias names token {id}; the vocabulary has {vocabulary} tokens"));
            }
        }
        let known =
            |tokens: &[u32], max: usize| tokens.len() <= max && tokens.iter().all(|id| (*id as usize) < vocabulary);
        if !known(&self.allowed_tokens, MAX_ALLOWED_TOKENS) || !known(&self.stop_tokens, MAX_STOP_TOKENS) {
            return Err(format!(
                "at most {MAX_ALLOWED_TOKENS} allowed tokens and {MAX_STOP_TOKENS} stop tokens are possible, of a vocabulary with {vocabulary} tokens"
            ));
        }
        let is_word = |word: &Vec<u32>| !word.is_empty() && known(word, usize::MAX);
        if self.bad_words.len() > MAX_BAD_WORDS * WORD_FORMS || !self.bad_words.iter().all(is_word) {
            return Err(format!("at most {MAX_BAD_WORDS} bad words are possible, and each must have tokens"));
        }
        Ok(())
    }
}

const BAN: f32 = -100.;
/// A bad word is banned with a space before it and without.
const WORD_FORMS: usize = 2;

/// The sampler of one choice.
#[derive(Debug)]
pub struct Sampler {
    settings: Sampling,
    random: ChaCha8Rng,
    prompt: HashSet<u32>,
    generated: HashMap<u32, u32>,
    bad_words: BadWords,
    count: u32,
}

/// A token that may be sampled, with its logit and later its weight.
type Candidate = (u32, f32);

impl Sampler {
    pub fn new(settings: Sampling, prompt: &[u32], choice: u32) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(settings.seed);
        random.set_stream(u64::from(choice));
        let remember = settings.repetition_penalty != 1.;
        let prompt = if remember { prompt.iter().copied().collect() } else { HashSet::new() };
        let bad_words = BadWords::new(Arc::clone(&settings.bad_words));
        Self { settings, random, prompt, generated: HashMap::new(), bad_words, count: 0 }
    }

    /// Samples the next token. `None` if no token can be sampled: all are banned or NaN. `logits` (`[vocabulary]`)
    /// are modified.
    pub fn next(&mut self, logits: &mut [f32], eos_tokens: &HashSet<u32>) -> Option<u32> {
        self.adjust(logits, eos_tokens);
        let id = if self.settings.temperature == 0. { greedy(logits)? } else { self.draw(logits)? };
        *self.generated.entry(id).or_default() += 1;
        self.bad_words.push(id);
        self.count += 1;
        Some(id)
    }

    /// True if the token ends the choice.
    pub fn ends_with(&self, id: u32, eos_tokens: &HashSet<u32>) -> bool {
        eos_tokens.contains(&id) || self.settings.stop_tokens.contains(&id)
    }

    fn adjust(&self, logits: &mut [f32], eos_tokens: &HashSet<u32>) {
        let settings = &self.settings;
        if !settings.allowed_tokens.is_empty() {
            keep_only(logits, &settings.allowed_tokens);
        }
        let mut change = |id: u32, change: &dyn Fn(f32) -> f32| {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit = change(*logit);
            }
        };
        for &(id, bias) in &settings.logit_bias {
            change(id, &|logit| if bias <= BAN { f32::NEG_INFINITY } else { logit + bias });
        }
        let mut ban = |id: u32| change(id, &|_| f32::NEG_INFINITY);
        self.bad_words.banned().for_each(&mut ban);
        if self.count < settings.min_tokens {
            eos_tokens.iter().chain(&*settings.stop_tokens).for_each(|&id| ban(id));
        } else if settings.ignore_eos {
            eos_tokens.iter().filter(|id| !settings.stop_tokens.contains(id)).for_each(|&id| ban(id));
        }
        let penalty = settings.repetition_penalty;
        if penalty != 1. {
            let again = self.generated.keys().filter(|id| !self.prompt.contains(id)).chain(&self.prompt);
            again.for_each(|&id| change(id, &|logit| if logit > 0. { logit / penalty } else { logit * penalty }));
        }
        for (&id, &times) in &self.generated {
            change(id, &|logit| logit - settings.frequency_penalty * times as f32 - settings.presence_penalty);
        }
    }

    fn draw(&mut self, logits: &[f32]) -> Option<u32> {
        let mut candidates = self.weigh(logits)?;
        if self.settings.typical_p < 1. {
            keep_typical(&mut candidates, self.settings.typical_p);
        }
        if self.settings.top_p < 1. {
            keep_top_p(&mut candidates, self.settings.top_p);
        }
        let total: f64 = candidates.iter().map(|candidate| f64::from(candidate.1)).sum();
        // 53 random bits make a uniform number in [0, 1).
        let mut left = (self.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64 * total;
        for &(id, weight) in &candidates {
            left -= f64::from(weight);
            if left < 0. {
                return Some(id);
            }
        }
        candidates.iter().rev().find(|candidate| candidate.1 > 0.).map(|candidate| candidate.0)
    }

    /// Candidates after temperature, `top_k` and `min_p`. The most likely one has weight 1.
    fn weigh(&self, logits: &[f32]) -> Option<Vec<Candidate>> {
        let best = logits.iter().copied().filter(|logit| !logit.is_nan()).max_by(f32::total_cmp)?;
        if !best.is_finite() {
            return None;
        }
        let k = self.settings.top_k as usize;
        let mut candidates = if k > 0 { top_k(logits, k) } else { finite(logits).collect() };
        for candidate in &mut candidates {
            candidate.1 = ((candidate.1 - best) / self.settings.temperature).exp();
        }
        candidates.retain(|candidate| candidate.1 >= self.settings.min_p);
        Some(candidates)
    }
}

/// Bans all tokens but the allowed ones.
fn keep_only(logits: &mut [f32], allowed: &[u32]) {
    let kept: Vec<Candidate> = allowed.iter().filter_map(|&id| Some((id, *logits.get(id as usize)?))).collect();
    logits.fill(f32::NEG_INFINITY);
    for (id, logit) in kept {
        if let Some(slot) = logits.get_mut(id as usize) {
            *slot = logit;
        }
    }
}

/// Descending by weight, ascending by ID among equals.
fn by_weight_descending(one: &Candidate, other: &Candidate) -> std::cmp::Ordering {
    other.1.total_cmp(&one.1).then(one.0.cmp(&other.0))
}

fn finite(logits: &[f32]) -> impl Iterator<Item = Candidate> {
    logits.iter().enumerate().filter(|(_, logit)| logit.is_finite()).map(|(id, &logit)| (id as u32, logit))
}

/// Calls `take` with each finite logit above the threshold, in order of ID; `take` returns the new threshold. Of equal
/// logits only the first can be above it.
fn for_each_above(logits: &[f32], mut take: impl FnMut(Candidate) -> f32) {
    /// Compared without branches, so that it vectorises.
    const RUN: usize = 32;
    let mut threshold = f32::NEG_INFINITY;
    for (first, run) in (0..).step_by(RUN).zip(logits.chunks(RUN)) {
        if run.iter().fold(false, |any, logit| any | (*logit > threshold)) {
            for (id, &logit) in (first..).zip(run) {
                if logit > threshold && logit.is_finite() {
                    threshold = take((id, logit));
                }
            }
        }
    }
}

fn greedy(logits: &[f32]) -> Option<u32> {
    let mut best = None;
    for_each_above(logits, |(id, logit)| {
        best = Some(id);
        logit
    });
    best
}

/// The `k` most likely candidates, by ID. One pass: few logits are above the rising threshold.
fn top_k(logits: &[f32], k: usize) -> Vec<Candidate> {
    let capacity = k.saturating_mul(2).clamp(64, logits.len().max(64));
    let mut best: Vec<Candidate> = Vec::with_capacity(capacity);
    let mut threshold = f32::NEG_INFINITY;
    let shrink = |best: &mut Vec<Candidate>| {
        if k < best.len() {
            best.select_nth_unstable_by(k - 1, by_weight_descending);
            best.truncate(k);
        }
    };
    for_each_above(logits, |candidate| {
        best.push(candidate);
        if best.len() >= capacity && k < best.len() {
            shrink(&mut best);
            threshold = best.iter().map(|candidate| candidate.1).fold(f32::INFINITY, f32::min);
        }
        threshold
    });
    shrink(&mut best);
    // The order after the selection depends on its algorithm; the order of IDs does not.
    best.sort_unstable_by_key(|candidate| candidate.0);
    best
}

/// Keeps the smallest set of most likely candidates whose weights reach `share` of the total. A few candidates nearly
/// always hold most of the mass, so growing prefixes are sorted instead of everything.
fn keep_top_p(candidates: &mut Vec<Candidate>, share: f32) {
    let goal = candidates.iter().map(|candidate| f64::from(candidate.1)).sum::<f64>() * f64::from(share);
    let mut front = 64;
    loop {
        if front < candidates.len() {
            candidates.select_nth_unstable_by(front - 1, by_weight_descending);
        }
        let end = front.min(candidates.len());
        let head = &mut candidates[..end];
        head.sort_unstable_by(by_weight_descending);
        let mut mass = 0.;
        let reached = head.iter().position(|candidate| {
            mass += f64::from(candidate.1);
            mass >= goal
        });
        match reached {
            Some(last) => return candidates.truncate(last + 1),
            None if end == candidates.len() => return,
            None => front *= 8,
        }
    }
}

/// Keeps the smallest set of candidates whose weights reach `share` of the total, taking those first whose information is
/// closest to the entropy.
fn keep_typical(candidates: &mut Vec<Candidate>, share: f32) {
    let total: f64 = candidates.iter().map(|candidate| f64::from(candidate.1)).sum();
    let information = |candidate: &Candidate| -(f64::from(candidate.1) / total).ln();
    let possible = candidates.iter().filter(|candidate| candidate.1 > 0.);
    let entropy: f64 = possible.map(|candidate| f64::from(candidate.1) / total * information(candidate)).sum();
    let distance = |candidate: &Candidate| (information(candidate) - entropy).abs();
    candidates.sort_unstable_by(|one, other| distance(one).total_cmp(&distance(other)).then(one.0.cmp(&other.0)));
    let mut mass = 0.;
    let reached = candidates.iter().position(|candidate| {
        mass += f64::from(candidate.1);
        mass >= total * f64::from(share)
    });
    if let Some(last) = reached {
        candidates.truncate(last + 1);
    }
}

#[cfg(test)]
mod tests;
