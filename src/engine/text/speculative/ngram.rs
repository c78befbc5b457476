//! Guesses what comes next from what was said before.
//!
//! Prompt lookup (Saxena 2023, <https://github.com/apoorvumang/prompt-lookup-decoding>; Leviathan et
//! al. 2023, <https://arxiv.org/abs/2211.17192>, for the check): where the last tokens stood earlier
//! in the text, what followed them there is the guess. A guess is checked in the same step that would
//! have computed one token, and each token is still drawn from the model's own distribution after
//! those before it, so answers do not change; only steps are saved.

use std::collections::HashMap;

use crate::engine::settings::MAX_DRAFT_TOKENS;

/// Tokens that must have stood together before.
const GRAM: usize = 3;
/// How much the newest check counts.
const NEWEST: f32 = 0.25;
/// What an unproven guesser is trusted with.
const FIRST: f32 = 0.5;
/// How fast trust comes back while nothing is guessed.
const RECOVERY: f32 = 0.01;

/// The guesser of one answer.
#[derive(Debug)]
pub struct NgramProposer {
    tokens: Vec<u32>,
    /// Where the text went on after each run of [`GRAM`] tokens, the last time.
    seen: HashMap<[u32; GRAM], usize>,
    /// Ends of runs up to here are in `seen`.
    read: usize,
    /// Of the tokens guessed lately, the part that came true.
    trust: f32,
    /// The newest guess.
    newest: Vec<u32>,
}

impl NgramProposer {
    pub fn new(prompt: &[u32]) -> Self {
        Self { tokens: prompt.to_vec(), seen: HashMap::new(), read: 0, trust: FIRST, newest: Vec::new() }
    }

    /// The text goes on.
    pub fn push(&mut self, tokens: &[u32]) {
        self.tokens.extend(tokens);
    }

    /// How much of a guess is likely to come true.
    pub fn trust(&self) -> f32 {
        self.trust
    }

    /// What may follow the newest token; empty where nothing like it was said, or where guesses came
    /// true too rarely: less often than `worth`, the part at which checking costs what it saves.
    pub fn guess(&mut self, worth: f32) -> Vec<u32> {
        self.newest = self.find(worth);
        self.newest.clone()
    }

    fn find(&mut self, worth: f32) -> Vec<u32> {
        if self.trust < worth {
            self.trust += (FIRST - self.trust) * RECOVERY;
            return Vec::new();
        }
        self.read();
        let Some(last) = self.tokens.last_chunk::<GRAM>() else { return Vec::new() };
        let Some(&start) = self.seen.get(last) else { return Vec::new() };
        let most = 1 + (self.trust * MAX_DRAFT_TOKENS as f32) as usize;
        self.tokens.iter().skip(start).take(most.min(MAX_DRAFT_TOKENS)).copied().collect()
    }

    /// Of `guessed` tokens so many came true.
    pub fn learn(&mut self, guessed: usize, right: usize) {
        if guessed > 0 {
            self.trust += (right as f32 / guessed as f32 - self.trust) * NEWEST;
        }
    }

    /// The newest guess was not checked, and `new` came: says how right it would have been.
    pub fn watch(&mut self, new: &[u32]) {
        let right = self.newest.iter().zip(new).take_while(|(guess, token)| guess == token).count();
        self.learn(self.newest.len().min(new.len()), right);
    }

    /// Notes every run that something follows.
    fn read(&mut self) {
        for end in self.read.max(GRAM)..self.tokens.len() {
            if let Some(run) = self.tokens.get(..end).and_then(<[u32]>::last_chunk::<GRAM>) {
                self.seen.insert(*run, end);
            }
        }
        self.read = self.tokens.len();
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_DRAFT_TOKENS, NgramProposer};

    #[test]
    fn what_followed_before_is_guessed() {
        let mut lookup = NgramProposer::new(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2]);
        assert!(lookup.guess(0.1).is_empty(), "two tokens are no run");
        lookup.push(&[3]);
        assert_eq!(lookup.guess(0.1), [4, 5, 6, 7, 8]);
        lookup.push(&[9, 1, 2, 3]);
        assert_eq!(lookup.guess(0.1), [9, 1, 2, 3], "the last time counts, up to the end");
        assert!(NgramProposer::new(&[1, 2]).guess(0.1).is_empty());
    }

    #[test]
    fn guesses_that_fail_end_and_those_that_hold_grow() {
        let text: Vec<u32> = (0..40).chain(0..3).collect();
        let mut lookup = NgramProposer::new(&text);
        (0..20).for_each(|_| lookup.learn(5, 5));
        assert_eq!(lookup.guess(0.2).len(), MAX_DRAFT_TOKENS);
        (0..20).for_each(|_| lookup.learn(5, 0));
        assert!(lookup.guess(0.2).is_empty());
        (0..100).for_each(|_| drop(lookup.guess(0.2)));
        assert!(!lookup.guess(0.2).is_empty(), "after a while it is tried again");
    }
}
