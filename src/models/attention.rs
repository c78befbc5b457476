//! Attention of a ragged batch over KV blocks.

use outpost_kernels::{AttentionSequence, AttentionShape, Pool, attend};

use super::decoder_config::DecoderConfig;
use super::error::{ModelError, Result};
use super::kv::{BLOCK, BlockId, BlockWrite, KvArena};

/// The attention parameters of a decoder layer with this window.
pub(super) fn decoder_shape(config: &DecoderConfig, window: Option<usize>) -> AttentionShape {
    let DecoderConfig {
        heads, kv_heads, head_width: width, attention_scale: scale, attention_soft_cap: soft_cap, ..
    } = *config;
    AttentionShape { heads, kv_heads, width, scale, causal: true, window, soft_cap }
}

/// Tokens of one sequence: their range in the batch and in the sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct SequenceSlice<'a> {
    /// Index of the first token in the batch.
    pub offset: usize,
    pub count: usize,
    /// Position of the first token in the sequence.
    pub start: usize,
    /// Positions of the sequence before its padding; `None`: there is no padding.
    pub visible: Option<usize>,
    pub blocks: &'a [BlockId],
}

/// The cache writes of the tokens' keys and values; they are the same in every layer.
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

/// Computes attention in one layer. `queries` and `out` are `[tokens, heads * head_width]`. The blocks must already hold
/// the keys and values of the tokens themselves.
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
            let count = (span.start + span.count).div_ceil(BLOCK);
            arena.view(layer, span.blocks.get(..count).unwrap_or(span.blocks), count)
        })
        .collect::<Result<_>>()?;
    let row_len = shape.heads * shape.width;
    let sequences: Vec<AttentionSequence<'_>> = spans
        .iter()
        .zip(&views)
        .map(|(span, view)| AttentionSequence {
            queries: &queries[span.offset * row_len..(span.offset + span.count) * row_len],
            rows: span.count,
            start: span.start,
            positions: span.visible.unwrap_or(usize::MAX).min(span.start + span.count),
            blocks: view.as_blocks(),
        })
        .collect();
    attend(pool, &sequences, shape, out);
    Ok(())
}
