//! Memory in blocks of equal size.
//!
//! Blocks belong to neither a model nor a sequence. The engine's scheduler counts their references and passes each step
//! the blocks of every row. The scheduler knows nothing about tensors; an arena stores blocks and knows nothing about
//! sequences.

use std::any::Any;
use std::fmt;

use half::f16;

use super::error::{ModelError, Result};

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

    /// Appends the contents of a block to `bytes`, for [`Self::load`] of an arena of the same shape on the same kind of device.
    ///
    /// # Errors
    /// If the block has no memory, or the device fails.
    fn save(&self, id: BlockId, bytes: &mut Vec<u8>) -> Result<()>;

    /// Sets the contents of a block, which has memory, to what [`Self::save`] appended.
    ///
    /// # Errors
    /// If these are not the bytes of one block, the block has no memory, or the device fails. The contents are undefined then.
    fn load(&mut self, id: BlockId, bytes: &[u8]) -> Result<()>;

    /// The number of blocks that have memory.
    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The error of [`BlockArena::save`] and [`BlockArena::load`] for a block without memory.
pub(super) fn missing_block(id: BlockId) -> ModelError {
    ModelError::Compute(format!("block {id} has no memory"))
}

/// A number of a saved block.
pub(super) trait SavedNumber: Copy {
    fn append(numbers: &[Self], bytes: &mut Vec<u8>);

    /// Fills `numbers` from the beginning of `bytes`. Returns the rest; `None`: there are too few.
    fn fill<'a>(numbers: &mut [Self], bytes: &'a [u8]) -> Option<&'a [u8]>;
}

macro_rules! saved_number {
    ($($number:ty: $size:literal),*) => {$(
        impl SavedNumber for $number {
            fn append(numbers: &[Self], bytes: &mut Vec<u8>) {
                let start = bytes.len();
                bytes.resize(start + numbers.len() * $size, 0);
                let (chunks, _) = bytes[start..].as_chunks_mut::<$size>();
                chunks.iter_mut().zip(numbers).for_each(|(chunk, number)| *chunk = number.to_le_bytes());
            }

            fn fill<'a>(numbers: &mut [Self], bytes: &'a [u8]) -> Option<&'a [u8]> {
                let (own, rest) = bytes.split_at_checked(numbers.len() * $size)?;
                let (chunks, _) = own.as_chunks::<$size>();
                numbers.iter_mut().zip(chunks).for_each(|(number, chunk)| *number = <$number>::from_le_bytes(*chunk));
                Some(rest)
            }
        }
    )*};
}

saved_number!(f32: 4, f16: 2, i8: 1);

/// The result of [`SavedNumber::fill`] for the last numbers of a block: nothing may be left.
pub(super) fn filled(id: BlockId, rest: Option<&[u8]>) -> Result<()> {
    match rest {
        Some([]) => Ok(()),
        _ => Err(ModelError::Compute(format!("the saved contents of block {id} have another size"))),
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
