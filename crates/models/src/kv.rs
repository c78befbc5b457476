//! The paged KV cache: keys and values in blocks of [`BLOCK`] positions (Kwon et al. 2023,
//! <https://arxiv.org/abs/2309.06180>).
//!
//! The layers of a model form groups ([`StateGroup`](crate::state_layout::StateGroup)): a block has the keys and values of all layers of its group, and each
//! group has an arena and block tables of its own. Layers with a sliding window are not in a group with layers that see all
//! positions, so that blocks which fell out of the window can be given back.
//!
//! Blocks belong to neither a model nor a sequence. The engine's scheduler counts their references and passes each step
//! the block table of every row. Several sequences can therefore share a block. A full block is never written again.
//!
//! Keys and values are never widened in memory and never copied. The scheduler counts blocks and knows nothing about
//! tensors; an arena stores the blocks and knows nothing about sequences. Several choices for one prompt need no fork
//! operation, because the later choices find the prompt in the prefix cache.

use std::any::Any;
use std::fmt;

use super::backend::BLOCK_POSITIONS;
use super::error::{ModelError, Result};

/// Positions in a block.
pub const BLOCK: usize = BLOCK_POSITIONS;

/// A block's number in its [`KvArena`].
pub type BlockId = u32;

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

/// The KV blocks of a group, in the memory of its device.
pub trait KvArena: fmt::Debug + Send + Any {
    fn shape(&self) -> KvShape;

    /// Allocates the block's memory if it has none. The contents are undefined until they are written.
    ///
    /// # Errors
    /// If the device has no memory.
    fn ensure(&mut self, id: BlockId) -> Result<()>;

    /// Frees a block's memory.
    fn release(&mut self, id: BlockId);

    /// The number of blocks that have memory.
    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The KV blocks of one model: an arena for each group.
#[derive(Debug)]
pub struct KvArenas(pub(super) Vec<Box<dyn KvArena>>);

impl KvArenas {
    /// Allocates the memory of a block in a group; see [`KvArena::ensure`].
    pub fn ensure(&mut self, group: usize, id: BlockId) -> Result<()> {
        match self.0.get_mut(group) {
            Some(arena) => arena.ensure(id),
            None => Err(ModelError::Compute(format!("the model has no group {group} of KV blocks"))),
        }
    }

    /// Frees the memory of a block in a group.
    pub fn release(&mut self, group: usize, id: BlockId) {
        if let Some(arena) = self.0.get_mut(group) {
            arena.release(id);
        }
    }

    /// Allocates the memory of a block in every group, for sequences with one block table for all groups.
    pub fn ensure_all(&mut self, id: BlockId) -> Result<()> {
        self.0.iter_mut().try_for_each(|arena| arena.ensure(id))
    }

    /// Frees the memory of a block in every group.
    pub fn release_all(&mut self, id: BlockId) {
        self.0.iter_mut().for_each(|arena| arena.release(id));
    }

    /// Bytes of one block of every group.
    pub fn block_bytes(&self) -> u64 {
        self.0.iter().map(|arena| arena.shape().block_bytes()).sum()
    }

    /// The element type.
    pub fn kv_type(&self) -> KvType {
        self.0.first().map_or_else(KvType::default, |arena| arena.shape().kv_type)
    }
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

/// Arenas with the blocks of a single sequence, for callers without a scheduler. All positions stay.
#[derive(Debug)]
pub struct KvCache {
    pub(super) arenas: KvArenas,
    /// The block table of all groups.
    pub(super) blocks: Vec<BlockId>,
    pub(super) length: usize,
    /// Whether the sequence uses the frequencies for long contexts; see `CausalLm::is_long`.
    pub long: bool,
}

impl KvCache {
    /// A cache in empty arenas.
    pub fn new(arenas: KvArenas) -> Self {
        Self { arenas, blocks: Vec::new(), length: 0, long: false }
    }

    /// Positions that are stored.
    pub fn len(&self) -> usize {
        self.length
    }

    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Adds blocks for `more` positions after the stored ones.
    pub(super) fn reserve(&mut self, more: usize) -> Result<()> {
        for id in self.blocks.len()..blocks_for(self.length + more) {
            self.arenas.ensure_all(id as BlockId)?;
            self.blocks.push(id as BlockId);
        }
        Ok(())
    }
}
