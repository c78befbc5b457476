//! The tokens of a sequence.

use crate::text::prompt::{BlockKey, Prompt};
use outpost_models::kv::BLOCK;

/// The prompt, which all choices of a request share, and the tokens that were generated after it.
#[derive(Clone, Debug)]
pub struct SequenceTokens {
    prompt: Prompt,
    generated: Vec<u32>,
}

impl SequenceTokens {
    pub fn new(prompt: Prompt) -> Self {
        Self { prompt, generated: Vec::new() }
    }

    pub fn len(&self) -> usize {
        self.prompt.len() + self.generated.len()
    }

    pub fn prompt_len(&self) -> usize {
        self.prompt.len()
    }

    pub fn generated(&self) -> usize {
        self.generated.len()
    }

    pub fn extend(&mut self, tokens: &[u32]) {
        self.generated.extend(tokens);
    }

    pub fn get(&self, index: usize) -> Option<u32> {
        match index.checked_sub(self.prompt.len()) {
            None => self.prompt.ids().get(index).copied(),
            Some(index) => self.generated.get(index).copied(),
        }
    }

    /// The tokens from `start` on.
    pub fn iter_from(&self, start: usize) -> impl Iterator<Item = u32> {
        let prompt = self.prompt.ids().get(start..).unwrap_or_default();
        let generated = self.generated.get(start.saturating_sub(self.prompt.len())..).unwrap_or_default();
        prompt.iter().chain(generated).copied()
    }

    /// The tokens at positions `start..end`.
    pub fn slice(&self, start: usize, end: usize) -> Vec<u32> {
        self.iter_from(start).take(end.saturating_sub(start)).collect()
    }

    /// The `N` tokens before `end`.
    pub fn last_before<const N: usize>(&self, end: usize) -> Option<[u32; N]> {
        let start = end.checked_sub(N)?;
        let mut tokens = [0; N];
        for (index, token) in (start..).zip(&mut tokens) {
            *token = self.get(index)?;
        }
        Some(tokens)
    }

    /// The keys of the full blocks from the one with this index on.
    pub fn blocks_from(&self, index: usize) -> impl Iterator<Item = BlockKey> {
        let key = |block: usize| Some(self.prompt.block_key(block, self.last_before((block + 1) * BLOCK)?));
        (index..self.len() / BLOCK).filter_map(key)
    }
}

#[cfg(test)]
mod tests {
    use super::SequenceTokens;
    use outpost_models::kv::BLOCK;

    #[test]
    fn positions_span_prompt_and_generated_tokens() {
        let mut tokens = SequenceTokens::new((0..20).collect::<Vec<_>>().into());
        tokens.extend(&(20..40).collect::<Vec<_>>());
        assert_eq!((tokens.len(), tokens.prompt_len(), tokens.generated()), (40, 20, 20));
        for (start, end) in [(0, 40), (3, 20), (20, 22), (19, 21), (39, 40), (40, 40), (41, 50)] {
            assert_eq!(tokens.slice(start, end), (start as u32..(end as u32).min(40)).collect::<Vec<_>>());
        }
        assert_eq!(tokens.last_before(21), Some([18, 19, 20]));
        assert_eq!((tokens.last_before::<3>(2), tokens.last_before::<3>(41)), (None, None));
        let blocks: Vec<_> = tokens.blocks_from(1).map(|block| block.tokens).collect();
        assert_eq!(blocks, [std::array::from_fn::<u32, BLOCK, _>(|index| (BLOCK + index) as u32)]);
    }
}
