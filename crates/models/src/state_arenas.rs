//! The memory of what one model keeps of its sequences.

use std::any::Any;

use super::block_arena::{BlockArena, BlockId};
use super::error::{ModelError, Result};
use super::kv::KvType;

/// The blocks of one model, by [`StateGroup`](crate::state_layout::StateGroup).
#[derive(Debug)]
pub struct StateArenas {
    /// The element type of keys and values.
    kv_type: KvType,
    /// The arenas of each group of attention: one for each size of keys and values. A block has the same number in all of them.
    attention: Vec<Vec<Box<dyn BlockArena>>>,
    /// The states of recurrent layers, whose group comes after those of attention.
    recurrent: Option<Box<dyn BlockArena>>,
}

impl StateArenas {
    /// `recurrent`: an arena for the states of recurrent layers, if there are any.
    pub fn new(
        kv_type: KvType,
        attention: Vec<Vec<Box<dyn BlockArena>>>,
        recurrent: Option<Box<dyn BlockArena>>,
    ) -> Self {
        Self { kv_type, attention, recurrent }
    }

    /// Allocates the memory of a block in a group; see [`BlockArena::ensure`].
    pub fn ensure(&mut self, group: usize, id: BlockId) -> Result<()> {
        self.group(group)?.iter_mut().try_for_each(|arena| arena.ensure(id))
    }

    /// Frees the memory of a block in a group.
    pub fn release(&mut self, group: usize, id: BlockId) {
        if let Ok(arenas) = self.group(group) {
            arenas.iter_mut().for_each(|arena| arena.release(id));
        }
    }

    /// Appends the contents of a block in a group to `bytes`; see [`BlockArena::save`]. Those of each arena but the last follow their length,
    /// as eight bytes in little-endian order.
    pub fn save(&self, group: usize, id: BlockId, bytes: &mut Vec<u8>) -> Result<()> {
        let own = self.attention.get(group).map(Vec::as_slice);
        let recurrent = self.recurrent.as_ref().filter(|_| group == self.attention.len()).map(std::slice::from_ref);
        let arenas = own.or(recurrent).ok_or_else(|| no_group(group))?;
        let Some((last, others)) = arenas.split_last() else { return Ok(()) };
        for arena in others {
            let start = bytes.len();
            bytes.extend_from_slice(&[0; LENGTH_BYTES]);
            arena.save(id, bytes)?;
            let length = (bytes.len() - start - LENGTH_BYTES) as u64;
            bytes[start..start + LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
        }
        last.save(id, bytes)
    }

    /// Sets the contents of a block in a group; see [`BlockArena::load`].
    pub fn load(&mut self, group: usize, id: BlockId, mut bytes: &[u8]) -> Result<()> {
        let Some((last, others)) = self.group(group)?.split_last_mut() else { return Ok(()) };
        for arena in others {
            let own = bytes
                .split_first_chunk::<LENGTH_BYTES>()
                .and_then(|(length, rest)| rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?));
            let Some((own, rest)) = own else {
                return Err(ModelError::Compute(format!("the saved contents of block {id} are incomplete")));
            };
            arena.load(id, own)?;
            bytes = rest;
        }
        last.load(id, bytes)
    }

    /// The arenas of a group.
    fn group(&mut self, group: usize) -> Result<&mut [Box<dyn BlockArena>]> {
        let recurrent = self.recurrent.as_mut().filter(|_| group == self.attention.len());
        let own = self.attention.get_mut(group).map(Vec::as_mut_slice);
        own.or(recurrent.map(std::slice::from_mut)).ok_or_else(|| no_group(group))
    }

    /// Allocates the memory of a block in every group of attention, for sequences with one block table for all of them.
    pub fn ensure_positions(&mut self, id: BlockId) -> Result<()> {
        self.attention.iter_mut().flatten().try_for_each(|arena| arena.ensure(id))
    }

    /// Frees the memory of a block in every group of attention.
    pub fn release_positions(&mut self, id: BlockId) {
        self.attention.iter_mut().flatten().for_each(|arena| arena.release(id));
    }

    /// Allocates the memory of a block for recurrent states, if there are recurrent layers.
    pub fn ensure_state(&mut self, id: BlockId) -> Result<()> {
        self.recurrent.as_mut().map_or(Ok(()), |arena| arena.ensure(id))
    }

    /// Bytes of one block of every group of attention.
    pub fn position_block_bytes(&self) -> u64 {
        self.attention.iter().flatten().map(|arena| arena.block_bytes()).sum()
    }

    /// The element type of keys and values.
    pub fn kv_type(&self) -> KvType {
        self.kv_type
    }

    /// The arenas as those of a device: those of attention, group by group, and that of recurrent layers.
    ///
    /// # Errors
    /// If they are of another device.
    pub(super) fn of_device<A: BlockArena, S: BlockArena>(&mut self) -> Result<(Vec<&mut A>, Option<&mut S>)> {
        fn own<T: BlockArena>(arena: &mut dyn BlockArena) -> Result<&mut T> {
            let arena: &mut dyn Any = arena;
            arena.downcast_mut().ok_or_else(|| ModelError::Compute("an arena is of another device".to_owned()))
        }
        let attention = self.attention.iter_mut().flatten().map(|arena| own(arena.as_mut()));
        let recurrent = self.recurrent.as_mut().map(|arena| own(arena.as_mut()));
        Ok((attention.collect::<Result<_>>()?, recurrent.transpose()?))
    }
}

/// Bytes of a length.
const LENGTH_BYTES: usize = 8;

fn no_group(group: usize) -> ModelError {
    ModelError::Compute(format!("the model has no group {group} of blocks"))
}
