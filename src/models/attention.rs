//! Attention of a ragged batch over KV blocks.

use outpost_kernels::{AttentionSequence, AttentionShape, Pool, attend};

use super::decoder_config::DecoderConfig;
use super::error::{ModelError, Result};
use super::kv::{BLOCK, BlockId, BlockWrite, KvArena};

/// What a decoder's attention is like in a layer with such a window.
pub(super) fn decoder_shape(config: &DecoderConfig, window: Option<usize>) -> AttentionShape {
    let DecoderConfig {
        heads, kv_heads, head_width: width, attention_scale: scale, attention_soft_cap: soft_cap, ..
    } = *config;
    AttentionShape { heads, kv_heads, width, scale, causal: true, window, soft_cap }
}

/// One row's place in the batch and in its sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct SequenceSlice<'a> {
    /// Its first token's place in the batch.
    pub offset: usize,
    pub count: usize,
    /// Its first token's position in the sequence.
    pub start: usize,
    /// Positions that are seen of the sequence, where those behind them are padding.
    pub visible: Option<usize>,
    pub blocks: &'a [BlockId],
}

/// Where the tokens' keys and values are written, in every layer.
pub(super) fn block_writes(spans: &[SequenceSlice<'_>]) -> Result<Vec<BlockWrite>> {
    let mut writes = Vec::with_capacity(spans.len());
    for span in spans {
        let (mut position, end) = (span.start, span.start + span.count);
        while position < end {
            let Some(&block) = span.blocks.get(position / BLOCK) else {
                return Err(ModelError::Compute(format!("position {position} has no KV block")));
            };
            let (slot, row) = (position % BLOCK, span.offset + position - span.start);
            let count = (BLOCK - slot).min(end - position);
            writes.push(BlockWrite { block, row, slot, count });
            position += count;
        }
    }
    Ok(writes)
}

/// Attention in one layer: `queries` and `out` are `[tokens, heads * head_width]`. Keys and values of the
/// rows themselves are in their blocks already.
pub(super) fn forward(
    pool: &Pool,
    arena: &KvArena,
    layer: usize,
    shape: &AttentionShape,
    spans: &[SequenceSlice<'_>],
    queries: &[f32],
    out: &mut [f32],
) -> Result<()> {
    let views: Vec<_> = spans
        .iter()
        .map(|span| {
            let needed = (span.start + span.count).div_ceil(BLOCK);
            arena.view(layer, span.blocks.get(..needed).unwrap_or(span.blocks), needed)
        })
        .collect::<Result<_>>()?;
    let row = shape.heads * shape.width;
    let sequences: Vec<AttentionSequence<'_>> = spans
        .iter()
        .zip(&views)
        .map(|(span, view)| AttentionSequence {
            queries: &queries[span.offset * row..(span.offset + span.count) * row],
            rows: span.count,
            start: span.start,
            positions: span.visible.unwrap_or(usize::MAX).min(span.start + span.count),
            blocks: view.as_blocks(),
        })
        .collect();
    attend(pool, &sequences, shape, out);
    Ok(())
}
