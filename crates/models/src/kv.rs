//! The paged KV cache: keys and values in blocks of [`BLOCK`] positions (Kwon et al. 2023,
//! <https://arxiv.org/abs/2309.06180>).
//!
//! The layers of a model form groups ([`StateGroup`](crate::state_layout::StateGroup)): a block has the keys and values of all layers of its group, and each
//! group has an arena and block tables of its own. Layers with a sliding window are not in a group with layers that see all
//! positions, so that blocks which fell out of the window can be given back.
//!
//! Several sequences can share a block. A full block is never written again.
//!
//! Keys and values are never widened in memory and never copied. Several choices for one prompt need no fork operation,
//! because the later choices find the prompt in the prefix cache.

use super::backend::BLOCK_POSITIONS;
use super::block_arena::BlockArena;
pub use super::block_arena::BlockId;
use super::error::{ModelError, Result};

/// Positions in a block.
pub const BLOCK: usize = BLOCK_POSITIONS;

/// The element type of the KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvType {
    F32,
    /// Half the memory of `F32`. The rounding errors are smaller than those of quantised weights.
    #[default]
    F16,
    /// 8 bits per element, and one scale for each position of a head: about half the memory of `F16`.
    Q8,
}

/// The sizes of a model's keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    pub layers: usize,
    pub kv_heads: usize,
    pub head_width: usize,
    pub kv_type: KvType,
}

impl KvShape {
    /// Bytes of one block: keys and values of all layers.
    pub fn block_bytes(&self) -> u64 {
        let rows = (2 * self.layers * self.kv_heads * BLOCK) as u64;
        let width = self.head_width as u64;
        rows * match self.kv_type {
            KvType::F32 => 4 * width,
            KvType::F16 => 2 * width,
            KvType::Q8 => width + 4,
        }
    }

    /// Elements of a layer's keys, or of its values, in a block.
    pub fn layer_len(&self) -> usize {
        self.kv_heads * BLOCK * self.head_width
    }
}

/// The number of blocks that `positions` positions occupy.
pub fn blocks_for(positions: usize) -> usize {
    positions.div_ceil(BLOCK)
}

/// The KV blocks of a group.
pub trait KvArena: BlockArena {
    fn shape(&self) -> KvShape;
}

/// Tokens of one sequence: their range in the batch and in the sequence.
#[derive(Clone, Debug)]
pub struct SequenceSlice {
    /// Index of the first token in the batch.
    pub offset: usize,
    pub count: usize,
    /// Position of the first token in the sequence.
    pub start: usize,
    /// Positions of the sequence before its padding; `None`: there is no padding.
    pub visible: Option<usize>,
    /// The block table: blocks of all positions up to the last token.
    pub blocks: Vec<BlockId>,
}

/// A write of consecutive tokens of a batch to one block.
#[derive(Clone, Copy, Debug)]
pub struct BlockWrite {
    pub block: BlockId,
    /// Index of the first token in the batch.
    pub row: usize,
    /// Slot of the first token in the block.
    pub slot: usize,
    /// Number of tokens.
    pub count: usize,
}

impl SequenceSlice {
    /// The blocks of all positions up to the last token.
    pub fn used_blocks(&self) -> &[BlockId] {
        let count = blocks_for(self.start + self.count).min(self.blocks.len());
        &self.blocks[..count]
    }
}

/// The cache writes of the keys and values of a batch, which are the same in every layer.
///
/// # Errors
/// If a token has no block.
pub fn block_writes(sequences: &[SequenceSlice]) -> Result<Vec<BlockWrite>> {
    let mut writes = Vec::with_capacity(sequences.len());
    for sequence in sequences {
        let (mut position, end) = (sequence.start, sequence.start + sequence.count);
        while position < end {
            let Some(&block) = sequence.blocks.get(position / BLOCK) else {
                return Err(ModelError::Compute(format!("position {position} has no KV block")));
            };
            let (slot, row) = (position % BLOCK, sequence.offset + position - sequence.start);
            let count = (BLOCK - slot).min(end - position);
            writes.push(BlockWrite { block, row, slot, count });
            position += count;
        }
    }
    Ok(writes)
}
