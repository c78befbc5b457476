//! Words that are not generated: the last token of each is banned where the others have just been generated.
//!
//! Every token passes the sampler, also one that a draft has proposed, so the ban holds with speculation, grammars and
//! several choices. vLLM bans the form with a leading space only if it has as many tokens as the form without. Here
//! both forms are banned, because otherwise a word that is one token after a space would get through.

use std::sync::Arc;

/// The bad words of one choice, as sequences of tokens.
#[derive(Debug)]
pub struct BadWords {
    words: Arc<[Vec<u32>]>,
    /// The newest tokens, as many as the longest word has before its last one.
    recent: Vec<u32>,
    max_recent: usize,
}

impl BadWords {
    pub fn new(words: Arc<[Vec<u32>]>) -> Self {
        let max_recent = words.iter().map(|word| word.len().saturating_sub(1)).max().unwrap_or(0);
        Self { words, recent: Vec::new(), max_recent }
    }

    /// The tokens that would complete a word.
    pub fn banned(&self) -> impl Iterator<Item = u32> {
        self.words.iter().filter_map(|word| {
            let (last, before) = word.split_last()?;
            self.recent.ends_with(before).then_some(*last)
        })
    }

    /// Takes a generated token.
    pub fn push(&mut self, token: u32) {
        if self.max_recent == 0 {
            return;
        }
        if self.recent.len() == self.max_recent {
            self.recent.remove(0);
        }
        self.recent.push(token);
    }
}
