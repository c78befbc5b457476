//! A ragged batch of whole texts. All texts pass through a layer before the next one, so the cache holds the keys and
//! values of one layer only.

use std::ops::Range;

use super::backend::PagedAttention;
use super::block_arena::BlockArena;
use super::error::Result;
use super::kv::{BlockId, KvShape, KvType, SequenceSlice, blocks_for};

/// The range of each text in the batch.
#[derive(Debug)]
pub(super) struct TextBatch(Vec<TextSpan>);

#[derive(Debug)]
struct TextSpan {
    /// Index of the first token in the batch.
    first: usize,
    count: usize,
    /// Tokens before the padding; `None`: there is no padding.
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

/// An upper bound of the bytes of [`TextBatch::arena`] for `tokens` tokens in `texts` texts. `heads` is `[kv_heads,
/// head_width]`.
pub(super) fn arena_bytes(heads: [usize; 2], tokens: usize, texts: usize) -> u64 {
    (blocks_for(tokens) + texts) as u64 * shape(heads).block_bytes()
}

impl TextBatch {
    /// A batch of texts with these token counts.
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

    /// Masks padding: the tokens of a text attend to its first `lengths` tokens only, or to one if that is zero.
    pub fn mask_padding(&mut self, lengths: impl Iterator<Item = usize>) {
        self.0.iter_mut().zip(lengths).for_each(|(text, length)| text.visible = Some(length.max(1)));
    }

    /// Total tokens.
    pub fn tokens(&self) -> usize {
        self.0.last().map_or(0, |text| text.range().end)
    }

    /// The range of each text in the batch.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        self.0.iter().map(TextSpan::range)
    }

    /// An arena for the keys and values of one layer; `heads` is `[kv_heads, head_width]`.
    pub fn arena<B: PagedAttention>(&self, backend: &B, heads: [usize; 2]) -> Result<B::KvArena> {
        let mut arena = backend.new_kv_arena(shape(heads));
        self.0.iter().flat_map(|text| &text.blocks).try_for_each(|id| arena.ensure(*id))?;
        Ok(arena)
    }

    /// The texts in this range of the batch; offsets count from the start of the range.
    pub fn slices(&self, range: &Range<usize>) -> Vec<SequenceSlice> {
        let clipped = self.0.iter().map(|text| (text, text.first.max(range.start)..text.range().end.min(range.end)));
        let spans = clipped.filter(|(_, tokens)| !tokens.is_empty()).map(|(text, tokens)| SequenceSlice {
            offset: tokens.start - range.start,
            count: tokens.len(),
            start: tokens.start - text.first,
            visible: text.visible,
            blocks: text.blocks.clone(),
        });
        spans.collect()
    }
}
