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

/// The blocks of an arena in memory of their own, by their numbers.
#[derive(Debug)]
pub(super) struct Blocks<T>(Vec<Option<T>>);

impl<T> Default for Blocks<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Blocks<T> {
    /// Adds a block if it has no memory.
    pub fn ensure(&mut self, id: BlockId, new: impl FnOnce() -> Result<T>) -> Result<()> {
        let index = id as usize;
        if index >= self.0.len() {
            self.0.resize_with(index + 1, || None);
        }
        if let Some(slot @ None) = self.0.get_mut(index) {
            *slot = Some(new()?);
        }
        Ok(())
    }

    /// Takes a block out.
    pub fn take(&mut self, id: BlockId) -> Option<T> {
        self.0.get_mut(id as usize).and_then(Option::take)
    }

    /// Puts a block back.
    pub fn put(&mut self, id: BlockId, block: T) {
        if let Some(slot) = self.0.get_mut(id as usize) {
            *slot = Some(block);
        }
    }

    pub fn get(&self, id: BlockId) -> Option<&T> {
        self.0.get(id as usize).and_then(Option::as_ref)
    }

    pub fn get_mut(&mut self, id: BlockId) -> Option<&mut T> {
        self.0.get_mut(id as usize).and_then(Option::as_mut)
    }

    /// One block to read, and another one to write; `None` for those without memory, and for both if they are the same.
    pub fn get_pair(&mut self, read: BlockId, write: BlockId) -> (Option<&T>, Option<&mut T>) {
        match self.0.get_disjoint_mut([read as usize, write as usize]) {
            Ok([read, write]) => (read.as_ref(), write.as_mut()),
            Err(_) => (None, None),
        }
    }

    /// The number of blocks that have memory.
    pub fn len(&self) -> usize {
        self.0.iter().flatten().count()
    }
}
