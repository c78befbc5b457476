//! Memory in blocks of equal size.
//!
//! Blocks belong to neither a model nor a sequence. The engine's scheduler counts their references and passes each step
//! the blocks of every row. The scheduler knows nothing about tensors; an arena stores blocks and knows nothing about
//! sequences.

use std::any::Any;
use std::fmt;

use super::error::Result;

/// A block's number in its [`BlockArena`].
pub type BlockId = u32;

/// The blocks of a group of layers, in the memory of their device.
pub trait BlockArena: fmt::Debug + Send + Any {
    /// Bytes of a block.
    fn block_bytes(&self) -> u64;

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
