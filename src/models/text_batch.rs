//! Whole texts side by side in a batch that goes through one layer after the other: so keys and values of a single
//! layer are kept.

use std::ops::Range;

use super::attention::SequenceSlice;
use super::kv::{BlockId, KvArena, KvShape, KvType, blocks_for};

/// Where each text is, in the order of the batch.
#[derive(Debug)]
pub(super) struct TextBatch(Vec<TextSpan>);

#[derive(Debug)]
struct TextSpan {
    /// Its first token's place in the batch.
    first: usize,
    count: usize,
    /// Tokens that are seen; those behind them are padding.
    visible: Option<usize>,
    blocks: Vec<BlockId>,
}

impl TextSpan {
    fn range(&self) -> Range<usize> {
        self.first..self.first + self.count
    }
}

fn shape([kv_heads, head_width]: [usize; 2]) -> KvShape {
    KvShape { layers: 1, kv_heads, head_width, kv_type: KvType::F32 }
}

/// An upper bound of the bytes of [`TextBatch::arena`] for so many tokens in so many texts; `heads` as there.
pub(super) fn arena_bytes(heads: [usize; 2], tokens: usize, texts: usize) -> u64 {
    (blocks_for(tokens) + texts) as u64 * shape(heads).block_bytes()
}

impl TextBatch {
    /// Of so many tokens each.
    pub fn new(counts: impl Iterator<Item = usize>) -> Self {
        let (mut first, mut block) = (0, 0);
        let text = |count: usize| {
            let next = block + blocks_for(count) as BlockId;
            let text = TextSpan { first, count, visible: None, blocks: (block..next).collect() };
            (first, block) = (first + count, next);
            text
        };
        Self(counts.map(text).collect())
    }

    /// Of each text only the first so many tokens, of one at least, are seen, by all its tokens.
    pub fn mask_padding(&mut self, seen: impl Iterator<Item = usize>) {
        self.0.iter_mut().zip(seen).for_each(|(text, seen)| text.visible = Some(seen.max(1)));
    }

    /// Tokens of all.
    pub fn tokens(&self) -> usize {
        self.0.last().map_or(0, |text| text.range().end)
    }

    /// Their places in the batch.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        self.0.iter().map(TextSpan::range)
    }

    /// Keys and values of a layer, whose heads are so many and of this width.
    pub fn arena(&self, heads: [usize; 2]) -> KvArena {
        let mut arena = KvArena::new(shape(heads));
        self.0.iter().flat_map(|text| &text.blocks).for_each(|id| arena.ensure(*id));
        arena
    }

    /// What falls into these tokens of the batch, counted from the first of them.
    pub fn slices(&self, part: &Range<usize>) -> Vec<SequenceSlice<'_>> {
        let inside = self.0.iter().map(|text| (text, text.first.max(part.start)..text.range().end.min(part.end)));
        let spans = inside.filter(|(_, own)| !own.is_empty()).map(|(text, own)| SequenceSlice {
            offset: own.start - part.start,
            count: own.len(),
            start: own.start - text.first,
            visible: text.visible,
            blocks: &text.blocks,
        });
        spans.collect()
    }
}
