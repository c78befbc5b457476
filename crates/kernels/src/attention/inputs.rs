//! What attention reads: the shape of a layer, the blocks of keys and values, and the rows of queries.

use half::{bf16, f16};

use crate::simd::LANES;

/// Positions in a KV block: one for each lane.
pub const BLOCK_POSITIONS: usize = LANES;
/// Maximum queries that are processed together.
pub(super) const MAX_QUERY_TILE: usize = 8;
/// Positions that share a softmax, and the unit of work for long contexts.
pub(super) const CHUNK: usize = 256;
/// Floats between two queries' scores: a chunk plus a cache line, so that they do not map to the same cache sets.
pub(super) const SCORE_STRIDE: usize = CHUNK + LANES;

/// Parameters of an attention layer.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    pub heads: usize,
    /// Must divide `heads`; head h reads key-value head `h / (heads / kv_heads)`.
    pub kv_heads: usize,
    /// Width of a head.
    pub width: usize,
    /// Scale of scores, usually `1 / sqrt(width)`.
    pub scale: f32,
    /// Causal mask: a row sees only itself and earlier positions.
    pub causal: bool,
    /// Sliding window: a row sees positions whose distance is less than this.
    pub window: Option<usize>,
    /// Scores become `cap · tanh(score / cap)`.
    pub soft_cap: Option<f32>,
}

/// A sequence's keys and values, in blocks of [`BLOCK_POSITIONS`] positions, in order. Data after the last position is
/// ignored.
#[derive(Clone, Copy, Debug)]
pub enum KvBlocks<'a> {
    F32(KvSlices<'a, &'a [f32]>),
    F16(KvSlices<'a, &'a [f16]>),
    /// 8-bit codes with a scale for each position and head: `[kv_heads, 16]`.
    Q8(KvSlices<'a, (&'a [i8], &'a [f32])>),
    /// Stored in pairs, for CPUs with bf16 dot products: keys `[kv_heads, width / 2, 16, 2]`, values `[kv_heads, 8, width,
    /// 2]`. Queries and weights are rounded to bf16, too. The width must be even. Data after the last position must be
    /// finite.
    Bf16(KvSlices<'a, &'a [bf16]>),
}

/// Blocks of keys, each `[kv_heads, width, 16]`, and of values, each `[kv_heads, 16, width]`.
#[derive(Clone, Copy, Debug)]
pub struct KvSlices<'a, T> {
    pub keys: &'a [T],
    pub values: &'a [T],
}

/// Rows of queries, and the positions that they attend to. In a decoder, these are the rows themselves and earlier
/// positions. Without a causal mask, rows may be any range of the sequence. Without a window either, they may be
/// unrelated to the positions (cross-attention).
#[derive(Clone, Copy, Debug)]
pub struct AttentionSequence<'a> {
    /// `[rows, heads, width]`, with position embeddings, not scaled.
    pub queries: &'a [f32],
    pub rows: usize,
    /// Position of the first row; used with a causal mask or a window.
    pub start: usize,
    /// Positions in the blocks.
    pub positions: usize,
    pub blocks: KvBlocks<'a>,
}

impl<T> KvSlices<'_, T> {
    fn has_blocks(&self, count: usize, is_valid: impl Fn(&T) -> bool) -> bool {
        [self.keys, self.values].iter().all(|blocks| blocks.get(..count).is_some_and(|used| used.iter().all(&is_valid)))
    }
}

impl KvBlocks<'_> {
    /// True if the blocks hold these positions.
    pub(super) fn has_blocks(&self, positions: usize, shape: &AttentionShape) -> bool {
        let (blocks, scale_count) = (positions.div_ceil(BLOCK_POSITIONS), shape.kv_heads * BLOCK_POSITIONS);
        let size = scale_count * shape.width;
        match self {
            Self::F32(slices) => slices.has_blocks(blocks, |block| block.len() == size),
            Self::F16(slices) => slices.has_blocks(blocks, |block| block.len() == size),
            Self::Bf16(slices) => {
                shape.width.is_multiple_of(2) && slices.has_blocks(blocks, |block| block.len() == size)
            }
            Self::Q8(slices) => {
                slices.has_blocks(blocks, |(codes, scales)| codes.len() == size && scales.len() == scale_count)
            }
        }
    }
}

impl AttentionShape {
    /// Query heads that share a key-value head.
    pub(super) fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// The width padded to whole vectors: floats of a state's sum of values.
    pub(super) fn padded_width(&self) -> usize {
        self.width.next_multiple_of(LANES)
    }

    /// Floats of a query's state: the weighted sum of values, `[padded_width]`; the sum of weights by lane, `[16]`; and the
    /// maximum score times log₂ e, repeated 16 times.
    pub(super) fn state_size(&self) -> usize {
        self.padded_width() + 2 * LANES
    }

    /// The range of positions that the row at `position` sees; without mask and window, all of `total`.
    pub(super) fn visible(&self, position: usize, total: usize) -> (usize, usize) {
        let window = self.window.unwrap_or(usize::MAX);
        let end = if self.causal { position + 1 } else { position.saturating_add(window).min(total) };
        ((position + 1).saturating_sub(window), end)
    }
}
