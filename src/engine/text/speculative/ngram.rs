//! Guesses what comes next from what was said before.
//!
//! Prompt lookup (Saxena 2023, <https://github.com/apoorvumang/prompt-lookup-decoding>; Leviathan et
//! al. 2023, <https://arxiv.org/abs/2211.17192>, for the check): where the last tokens stood earlier
//! in the text, what followed them there is the propose. A propose is checked in the same step that would
//! have computed one token, and each token is still drawn from the model's own distribution after
//! those before it, so answers do not change; only steps are saved.

use std::collections::HashMap;

use crate::engine::settings::MAX_DRAFT_TOKENS;

/// Tokens that must have stood together before.
const NGRAM: usize = 3;
/// How much the proposal check counts.
const NEWEST_WEIGHT: f32 = 0.25;
/// What an unproven guesser is trusted with.
const INITIAL_ACCEPTANCE: f32 = 0.5;
/// How fast acceptance comes back while nothing is proposed.
const RECOVERY: f32 = 0.01;

/// The guesser of one answer.
#[derive(Debug)]
pub struct NgramProposer {
    tokens: Vec<u32>,
    /// Where the text went on after each run of [`NGRAM`] tokens, the last time.
    positions: HashMap<[u32; NGRAM], usize>,
    /// Ends of runs up to here are in `positions`.
    indexed: usize,
    /// Of the tokens proposed lately, the part that came true.
    acceptance: f32,
    /// The proposal propose.
    proposal: Vec<u32>,
}

impl NgramProposer {
    pub fn new(prompt: &[u32]) -> Self {
        Self {
            tokens: prompt.to_vec(),
            positions: HashMap::new(),
            indexed: 0,
            acceptance: INITIAL_ACCEPTANCE,
            proposal: Vec::new(),
        }
    }

    /// The text goes on.
    pub fn push(&mut self, tokens: &[u32]) {
        self.tokens.extend(tokens);
    }

    /// How much of a propose is likely to come true.
    pub fn acceptance(&self) -> f32 {
        self.acceptance
    }

    /// What may follow the proposal token; empty where nothing like it was said, or where guesses came
    /// true too rarely: less often than `min_acceptance`, the part at which checking costs what it saves.
    pub fn propose(&mut self, min_acceptance: f32) -> Vec<u32> {
        self.proposal = self.lookup(min_acceptance);
        self.proposal.clone()
    }

    fn lookup(&mut self, min_acceptance: f32) -> Vec<u32> {
        if self.acceptance < min_acceptance {
            self.acceptance += (INITIAL_ACCEPTANCE - self.acceptance) * RECOVERY;
            return Vec::new();
        }
        self.index();
        let Some(last) = self.tokens.last_chunk::<NGRAM>() else { return Vec::new() };
        let Some(&start) = self.positions.get(last) else { return Vec::new() };
        let most = 1 + (self.acceptance * MAX_DRAFT_TOKENS as f32) as usize;
        self.tokens.iter().skip(start).take(most.min(MAX_DRAFT_TOKENS)).copied().collect()
    }

    /// Of `proposed` tokens so many came true.
    pub fn record(&mut self, proposed: usize, accepted: usize) {
        if proposed > 0 {
            self.acceptance += (accepted as f32 / proposed as f32 - self.acceptance) * NEWEST_WEIGHT;
        }
    }

    /// The proposal propose was not checked, and `new` came: says how accepted it would have been.
    pub fn record_unchecked(&mut self, new: &[u32]) {
        let accepted = self.proposal.iter().zip(new).take_while(|(propose, token)| propose == token).count();
        self.record(self.proposal.len().min(new.len()), accepted);
    }

    /// Notes every run that something follows.
    fn index(&mut self) {
        for end in self.indexed.max(NGRAM)..self.tokens.len() {
            if let Some(run) = self.tokens.get(..end).and_then(<[u32]>::last_chunk::<NGRAM>) {
                self.positions.insert(*run, end);
            }
        }
        self.indexed = self.tokens.len();
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_DRAFT_TOKENS, NgramProposer};

    #[test]
    fn what_followed_before_is_guessed() {
        let mut lookup = NgramProposer::new(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2]);
        assert!(lookup.propose(0.1).is_empty(), "two tokens are no run");
        lookup.push(&[3]);
        assert_eq!(lookup.propose(0.1), [4, 5, 6, 7, 8]);
        lookup.push(&[9, 1, 2, 3]);
        assert_eq!(lookup.propose(0.1), [9, 1, 2, 3], "the last time counts, up to the end");
        assert!(NgramProposer::new(&[1, 2]).propose(0.1).is_empty());
    }

    #[test]
    fn guesses_that_fail_end_and_those_that_hold_grow() {
        let text: Vec<u32> = (0..40).chain(0..3).collect();
        let mut lookup = NgramProposer::new(&text);
        (0..20).for_each(|_| lookup.record(5, 5));
        assert_eq!(lookup.propose(0.2).len(), MAX_DRAFT_TOKENS);
        (0..20).for_each(|_| lookup.record(5, 0));
        assert!(lookup.propose(0.2).is_empty());
        (0..100).for_each(|_| drop(lookup.propose(0.2)));
        assert!(!lookup.propose(0.2).is_empty(), "after a while it is tried again");
    }
}
