//! The memory of what one model keeps of its sequences.

use std::any::Any;

use super::block_arena::{BlockArena, BlockId};
use super::error::{ModelError, Result};
use super::kv::KvType;

/// The blocks of one model: an arena for each [`StateGroup`](crate::state_layout::StateGroup).
#[derive(Debug)]
pub struct StateArenas {
    /// The element type of keys and values.
    kv_type: KvType,
    attention: Vec<Box<dyn BlockArena>>,
    /// The states of recurrent layers, whose group comes after those of attention.
    recurrent: Option<Box<dyn BlockArena>>,
}

impl StateArenas {
    /// `recurrent`: an arena for the states of recurrent layers, if there are any.
    pub fn new(kv_type: KvType, attention: Vec<Box<dyn BlockArena>>, recurrent: Option<Box<dyn BlockArena>>) -> Self {
        Self { kv_type, attention, recurrent }
    }

    /// Allocates the memory of a block in a group; see [`BlockArena::ensure`].
    pub fn ensure(&mut self, group: usize, id: BlockId) -> Result<()> {
        match self.group(group) {
            Some(arena) => arena.ensure(id),
            None => Err(no_group(group)),
        }
    }

    /// Frees the memory of a block in a group.
    pub fn release(&mut self, group: usize, id: BlockId) {
        if let Some(arena) = self.group(group) {
            arena.release(id);
        }
    }

    /// Appends the contents of a block in a group to `bytes`; see [`BlockArena::save`].
    pub fn save(&self, group: usize, id: BlockId, bytes: &mut Vec<u8>) -> Result<()> {
        let arena = self.attention.iter().chain(&self.recurrent).nth(group);
        arena.map_or_else(|| Err(no_group(group)), |arena| arena.save(id, bytes))
    }

    /// Sets the contents of a block in a group; see [`BlockArena::load`].
    pub fn load(&mut self, group: usize, id: BlockId, bytes: &[u8]) -> Result<()> {
        self.group(group).map_or_else(|| Err(no_group(group)), |arena| arena.load(id, bytes))
    }

    fn group(&mut self, group: usize) -> Option<&mut dyn BlockArena> {
        let mut arenas = self.attention.iter_mut().chain(&mut self.recurrent);
        arenas.nth(group).map(|arena| arena.as_mut() as _)
    }

    /// Allocates the memory of a block in every group of attention, for sequences with one block table for all of them.
    pub fn ensure_positions(&mut self, id: BlockId) -> Result<()> {
        self.attention.iter_mut().try_for_each(|arena| arena.ensure(id))
    }

    /// Frees the memory of a block in every group of attention.
    pub fn release_positions(&mut self, id: BlockId) {
        self.attention.iter_mut().for_each(|arena| arena.release(id));
    }

    /// Allocates the memory of a block for recurrent states, if there are recurrent layers.
    pub fn ensure_state(&mut self, id: BlockId) -> Result<()> {
        self.recurrent.as_mut().map_or(Ok(()), |arena| arena.ensure(id))
    }

    /// Bytes of one block of every group of attention.
    pub fn position_block_bytes(&self) -> u64 {
        self.attention.iter().map(|arena| arena.block_bytes()).sum()
    }

    /// The element type of keys and values.
    pub fn kv_type(&self) -> KvType {
        self.kv_type
    }

    /// The arenas as those of a device: of attention, and of recurrent layers.
    ///
    /// # Errors
    /// If they are of another device.
    pub(super) fn of_device<A: BlockArena, S: BlockArena>(&mut self) -> Result<(Vec<&mut A>, Option<&mut S>)> {
        fn own<T: BlockArena>(arena: &mut dyn BlockArena) -> Result<&mut T> {
            let arena: &mut dyn Any = arena;
            arena.downcast_mut().ok_or_else(|| ModelError::Compute("an arena is of another device".to_owned()))
        }
        let attention = self.attention.iter_mut().map(|arena| own(arena.as_mut()));
        let recurrent = self.recurrent.as_mut().map(|arena| own(arena.as_mut()));
        Ok((attention.collect::<Result<_>>()?, recurrent.transpose()?))
    }
}

fn no_group(group: usize) -> ModelError {
    ModelError::Compute(format!("the model has no group {group} of blocks"))
}
