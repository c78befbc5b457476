//! The keys and values of windows that are being transcribed.

use super::config::WhisperConfig;
use crate::backend::PagedAttention;
use crate::block_arena::BlockArena;
use crate::error::{ModelError, Result};
use crate::kv::{BlockId, KvShape, KvType, SequenceSlice, blocks_for};

/// Memory for several windows at once, each in a slot: keys and values of the decoder's tokens, and of the window's hidden
/// states. A slot can be encoded again at any time, which replaces its contents.
#[derive(Debug)]
pub struct WhisperCache<B: PagedAttention> {
    /// `slots` times the blocks of a whole context.
    pub(super) tokens: B::KvArena,
    /// `slots` times the blocks of a window.
    pub(super) audio: B::KvArena,
    slots: Vec<Slot>,
    context: usize,
    audio_positions: usize,
}

/// The content of a slot.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    encoded: bool,
    /// Tokens whose keys and values are stored.
    tokens: usize,
}

/// The shape of both arenas: decoder layers have the same heads in self-attention and in cross-attention.
fn shape(config: &WhisperConfig, kv_type: KvType) -> KvShape {
    let WhisperConfig { decoder_layers: layers, decoder_heads: heads, width, .. } = *config;
    KvShape { layers, kv_heads: heads, head_width: width / heads, kv_type }
}

/// Bytes of a cache of `slots` slots.
pub(super) fn cache_bytes(config: &WhisperConfig, slots: usize, kv_type: KvType) -> u64 {
    let blocks = slots * (blocks_for(config.context) + blocks_for(config.audio_positions));
    blocks as u64 * shape(config, kv_type).block_bytes()
}

impl<B: PagedAttention> WhisperCache<B> {
    pub(super) fn new(config: &WhisperConfig, backend: &B, slots: usize, kv_type: KvType) -> Result<Self> {
        let arena = |positions: usize| {
            let mut arena = backend.new_kv_arena(shape(config, kv_type));
            (0..slots).flat_map(|slot| blocks(slot, positions)).try_for_each(|id| arena.ensure(id))?;
            Ok::<_, ModelError>(arena)
        };
        Ok(Self {
            tokens: arena(config.context)?,
            audio: arena(config.audio_positions)?,
            slots: vec![Slot::default(); slots],
            context: config.context,
            audio_positions: config.audio_positions,
        })
    }

    /// The number of slots.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Tokens of a slot whose keys and values are stored.
    pub fn tokens(&self, slot: usize) -> usize {
        self.slots.get(slot).map_or(0, |slot| slot.tokens)
    }

    fn slot_mut(&mut self, slot: usize) -> Result<&mut Slot> {
        let count = self.slots.len();
        self.slots.get_mut(slot).ok_or_else(|| ModelError::Compute(format!("there are {count} slots, no slot {slot}")))
    }

    /// Notes that a slot is being encoded, or has been.
    pub(super) fn set_encoded(&mut self, slot: usize, encoded: bool) -> Result<()> {
        *self.slot_mut(slot)? = Slot { encoded, tokens: 0 };
        Ok(())
    }

    /// Notes that `count` tokens from `position` on will be stored. Later tokens are forgotten.
    ///
    /// # Errors
    /// If the slot holds no window, or the tokens do not follow stored ones or exceed the context.
    pub(super) fn extend(&mut self, slot: usize, position: usize, count: usize) -> Result<()> {
        let context = self.context;
        let state = self.slot_mut(slot)?;
        let end = position.saturating_add(count);
        if !state.encoded || position > state.tokens || count == 0 || end > context {
            return Err(ModelError::Compute(format!(
                "slot {slot} with {} tokens cannot take {count} from position {position} on, in a context of {context}",
                state.tokens
            )));
        }
        state.tokens = end;
        Ok(())
    }

    /// The token blocks of a slot, for tokens from `position` on.
    pub(super) fn token_slice(&self, slot: usize, offset: usize, position: usize, count: usize) -> SequenceSlice {
        let blocks = blocks(slot, self.context).collect();
        SequenceSlice { offset, count, start: position, visible: None, blocks }
    }

    /// The blocks of a slot's window, for queries that see the whole of it. Queries are numbered from its end backwards.
    pub(super) fn audio_slice(&self, slot: usize, offset: usize, count: usize) -> SequenceSlice {
        let (start, blocks) =
            (self.audio_positions.saturating_sub(count), blocks(slot, self.audio_positions).collect());
        SequenceSlice { offset, count, start, visible: None, blocks }
    }
}

/// The blocks of a slot, if each has `positions` positions.
fn blocks(slot: usize, positions: usize) -> impl Iterator<Item = BlockId> {
    let count = blocks_for(positions);
    (slot * count..(slot + 1) * count).map(|id| id as BlockId)
}
