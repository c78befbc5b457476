//! The cache slots of a batch's tokens, and the operations that write them.
//!
//! candle's scatter runs through its rows in order, one thread for each column. Whole blocks are therefore written as
//! rows of their own, which are [`BLOCK`] times wider.

use candle_core::{Result as ArrayResult, Tensor as Array};

use super::device::Candle;
use crate::error::{ModelError, Result};
use crate::kv::{BLOCK, BlockId, BlockWrite};

/// The tokens of a batch, in whole blocks and in single slots.
#[derive(Debug, Default)]
pub struct Writes {
    /// Each block that is written completely, and the token in its first slot.
    whole_blocks: Vec<(BlockId, usize)>,
    /// The slot of each other token.
    tokens: Vec<(u32, usize)>,
    /// All blocks that are written.
    blocks: Vec<BlockId>,
}

impl Writes {
    pub fn new(block_writes: Vec<BlockWrite>) -> Self {
        let mut writes = Self::default();
        for BlockWrite { block, row, slot, count } in block_writes {
            match count == BLOCK {
                true => writes.whole_blocks.push((block, row)),
                false => {
                    writes.tokens.extend((0..count).map(|i| (block * BLOCK as u32 + (slot + i) as u32, row + i)));
                }
            }
            writes.blocks.push(block);
        }
        writes
    }

    pub fn blocks(&self) -> impl Iterator<Item = BlockId> {
        self.blocks.iter().copied()
    }

    /// Uploads the indices for rows of `row_len` elements. `token_count`: tokens of the batch.
    pub fn upload(&self, candle: &Candle, token_count: usize, row_len: usize) -> Result<DeviceWrites> {
        let part = |destinations: Vec<u32>, tokens: Vec<usize>, rows: usize| {
            if destinations.is_empty() {
                return Ok(None);
            }
            let in_order =
                tokens.len() == token_count && tokens.iter().enumerate().all(|(index, token)| index == *token);
            let tokens = (!in_order).then(|| candle.row_indices(tokens.into_iter())).transpose()?;
            let (count, width) = (destinations.len(), rows * row_len);
            let destinations = candle.indices(destinations)?.reshape((count, 1))?.broadcast_as((count, width))?;
            Ok::<_, ModelError>(Some(Scatter { tokens, rows, destinations: destinations.contiguous()? }))
        };
        let block_tokens = self.whole_blocks.iter().flat_map(|(_, token)| *token..token + BLOCK);
        let whole_blocks =
            part(self.whole_blocks.iter().map(|(block, _)| *block).collect(), block_tokens.collect(), BLOCK)?;
        let (slots, tokens) = self.tokens.iter().copied().unzip();
        Ok(DeviceWrites([whole_blocks, part(slots, tokens, 1)?]))
    }
}

/// The indices of [`Writes`] on the device, for one width of rows.
#[derive(Debug)]
pub struct DeviceWrites([Option<Scatter>; 2]);

#[derive(Debug)]
struct Scatter {
    /// The tokens that are written; `None`: all in order.
    tokens: Option<Array>,
    /// Consecutive slots that are written together.
    rows: usize,
    /// Where elements are written: `[tokens / rows, rows · row_len]`.
    destinations: Array,
}

impl DeviceWrites {
    /// Writes rows of the batch, `[tokens, row_len]`, to `storage`, `[slots, row_len]`.
    pub fn apply(&self, storage: &Array, rows: &Array) -> ArrayResult<()> {
        let (slots, row_len) = storage.dims2()?;
        for scatter in self.0.iter().flatten() {
            let rows = match &scatter.tokens {
                Some(tokens) => rows.index_select(tokens, 0)?,
                None => rows.clone(),
            };
            let rows = rows.reshape(scatter.destinations.shape())?;
            let storage = storage.reshape((slots / scatter.rows, scatter.rows * row_len))?;
            storage.scatter_set(&scatter.destinations, &rows, 0)?;
        }
        Ok(())
    }
}
