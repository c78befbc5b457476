//! Proposes draft tokens from the n-grams of the text so far.
//!
//! Prompt lookup decoding (Saxena 2023, <https://github.com/apoorvumang/prompt-lookup-decoding>; verification as in
//! Leviathan et al. 2023, <https://arxiv.org/abs/2211.17192>): if the last tokens occurred earlier in the text, the
//! tokens that followed them there are proposed. They are verified in the step that would have computed one token.
//! Each token is still sampled from the model's own distribution, so the output does not change.

use std::collections::HashMap;

use crate::settings::MAX_DRAFT_TOKENS;
use crate::text::prompt::Prompt;
use crate::text::scheduler::SequenceTokens;

/// Length of the n-grams, in tokens.
const NGRAM: usize = 3;
/// Weight of the newest verification in the average.
const NEWEST_WEIGHT: f32 = 0.25;
/// The acceptance rate assumed at first.
const INITIAL_ACCEPTANCE: f32 = 0.5;
/// Speed at which the rate returns to its initial value while nothing is proposed.
const RECOVERY: f32 = 0.01;

/// The n-gram proposer of one sequence.
#[derive(Debug)]
pub struct NgramProposer {
    tokens: SequenceTokens,
    /// The position after the last occurrence of each n-gram.
    positions: HashMap<[u32; NGRAM], usize>,
    /// N-grams that end before this position are in `positions`.
    indexed: usize,
    /// Moving average of the acceptance rate of proposed tokens.
    acceptance: f32,
    /// The last proposal.
    proposal: Vec<u32>,
}

impl NgramProposer {
    pub fn new(prompt: Prompt) -> Self {
        Self {
            tokens: SequenceTokens::new(prompt),
            positions: HashMap::new(),
            indexed: 0,
            acceptance: INITIAL_ACCEPTANCE,
            proposal: Vec::new(),
        }
    }

    /// Appends tokens to the text.
    pub fn push(&mut self, tokens: &[u32]) {
        self.tokens.extend(tokens);
    }

    /// The expected acceptance rate of a proposal.
    pub fn acceptance(&self) -> f32 {
        self.acceptance
    }

    /// Tokens that may follow the last one. Empty if its n-gram is new or the acceptance rate is below
    /// `min_acceptance`, at which verification costs as much as it saves.
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
        let Some(last) = self.tokens.last_before(self.tokens.len()) else { return Vec::new() };
        let Some(&start) = self.positions.get(&last) else { return Vec::new() };
        let max_tokens = 1 + (self.acceptance * MAX_DRAFT_TOKENS as f32) as usize;
        self.tokens.slice(start, start + max_tokens.min(MAX_DRAFT_TOKENS))
    }

    /// Records that `accepted` of `proposed` tokens were accepted.
    pub fn record(&mut self, proposed: usize, accepted: usize) {
        if proposed > 0 {
            self.acceptance += (accepted as f32 / proposed as f32 - self.acceptance) * NEWEST_WEIGHT;
        }
    }

    /// Records how much of the last proposal would have been accepted, if `new` was generated without verifying it.
    pub fn record_unchecked(&mut self, new: &[u32]) {
        let accepted = self.proposal.iter().zip(new).take_while(|(proposed, token)| proposed == token).count();
        self.record(self.proposal.len().min(new.len()), accepted);
    }

    /// Indexes every n-gram that is followed by a token.
    fn index(&mut self) {
        for end in self.indexed.max(NGRAM)..self.tokens.len() {
            if let Some(run) = self.tokens.last_before(end) {
                self.positions.insert(run, end);
            }
        }
        self.indexed = self.tokens.len();
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_DRAFT_TOKENS, NgramProposer};

    #[test]
    fn tokens_that_followed_before_are_proposed() {
        let mut ngrams = NgramProposer::new(vec![1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2].into());
        assert!(ngrams.propose(0.1).is_empty(), "two tokens are no n-gram");
        ngrams.push(&[3]);
        assert_eq!(ngrams.propose(0.1), [4, 5, 6, 7, 8]);
        ngrams.push(&[9, 1, 2, 3]);
        assert_eq!(ngrams.propose(0.1), [9, 1, 2, 3], "the last occurrence counts, up to the end");
        assert!(NgramProposer::new(vec![1, 2].into()).propose(0.1).is_empty());
    }

    #[test]
    fn proposals_stop_when_rejected_and_grow_when_accepted() {
        let text: Vec<u32> = (0..40).chain(0..3).collect();
        let mut ngrams = NgramProposer::new(text.into());
        (0..20).for_each(|_| ngrams.record(5, 5));
        assert_eq!(ngrams.propose(0.2).len(), MAX_DRAFT_TOKENS);
        (0..20).for_each(|_| ngrams.record(5, 0));
        assert!(ngrams.propose(0.2).is_empty());
        (0..100).for_each(|_| drop(ngrams.propose(0.2)));
        assert!(!ngrams.propose(0.2).is_empty(), "after a while it is tried again");
    }
}
