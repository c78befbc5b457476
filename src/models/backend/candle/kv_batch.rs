//! A batch of sequences, and what all its layers share.

use std::sync::{Arc, Mutex, PoisonError};

use super::device::Candle;
use super::kv_groups;
use super::kv_plan::{self, Plan};
use super::kv_writes::{DeviceWrites, Writes};
use crate::models::backend::cpu::types::AttentionShape;
use crate::models::error::{ModelError, Result};
use crate::models::kv::{BLOCK, BlockId, SequenceSlice};

/// A batch of sequences whose keys and values are in an arena.
#[derive(Debug)]
pub struct CandleBatch<'a> {
    sequences: Vec<SequenceSlice<'a>>,
    /// Tokens of all sequences.
    tokens: usize,
    /// One more than the largest block.
    block_end: usize,
    writes: Writes,
    prepared: Arc<Prepared>,
}

/// Indices and masks on the device, which are computed when the first layer needs them.
#[derive(Debug, Default)]
pub struct Prepared {
    /// The indices of writes, for rows of this length.
    writes: Mutex<Option<(usize, Arc<DeviceWrites>)>>,
    plans: Mutex<Vec<(PlanKey, Arc<Plan>)>>,
}

/// What a plan depends on, besides the sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PlanKey {
    causal: bool,
    window: Option<usize>,
    heads: usize,
    kv_heads: usize,
    width: usize,
}

/// A copy of a batch's sequences, to recognise the same batch again.
#[derive(Debug)]
pub struct BatchKey(Vec<(usize, usize, Option<usize>, Vec<BlockId>)>);

impl<'a> CandleBatch<'a> {
    pub fn new(sequences: Vec<SequenceSlice<'a>>) -> Result<Self> {
        let mut tokens = 0;
        for sequence in &sequences {
            if sequence.offset != tokens {
                return Err(ModelError::Compute("the sequences of a batch are not in order".to_owned()));
            }
            tokens += sequence.count;
            let positions = sequence.start + sequence.count;
            if sequence.count == 0 || sequence.visible == Some(0) || sequence.blocks.len() * BLOCK < positions {
                return Err(ModelError::Compute(format!(
                    "{} KV blocks do not hold {positions} positions, or none is visible",
                    sequence.blocks.len()
                )));
            }
        }
        let writes = Writes::new(&sequences)?;
        let block_end = sequences.iter().flat_map(used_blocks).max().map_or(0, |block| block as usize + 1);
        Ok(Self { sequences, tokens, block_end, writes, prepared: Arc::default() })
    }

    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// The blocks of all positions.
    pub fn blocks(&self) -> impl Iterator<Item = BlockId> {
        self.sequences.iter().flat_map(used_blocks)
    }

    pub fn block_end(&self) -> usize {
        self.block_end
    }

    pub fn writes(&self) -> &Writes {
        &self.writes
    }

    pub fn prepared(&self) -> &Arc<Prepared> {
        &self.prepared
    }

    pub fn key(&self) -> BatchKey {
        let copy =
            |sequence: &SequenceSlice<'_>| (sequence.count, sequence.start, sequence.visible, sequence.blocks.to_vec());
        BatchKey(self.sequences.iter().map(copy).collect())
    }

    /// Whether this is the batch of `key`.
    pub fn is(&self, BatchKey(key): &BatchKey) -> bool {
        let is_same = |sequence: &SequenceSlice<'_>, (count, start, visible, blocks): &(_, _, _, Vec<BlockId>)| {
            (sequence.count, sequence.start, sequence.visible) == (*count, *start, *visible)
                && sequence.blocks == blocks
        };
        key.len() == self.sequences.len()
            && self.sequences.iter().zip(key).all(|(sequence, key)| is_same(sequence, key))
    }
}

fn used_blocks<'a>(sequence: &SequenceSlice<'a>) -> impl Iterator<Item = BlockId> + use<'a> {
    let count = (sequence.start + sequence.count).div_ceil(BLOCK);
    sequence.blocks.iter().take(count).copied()
}

impl Prepared {
    /// The indices of the writes of `batch` for rows of `row_len` elements.
    pub fn writes(&self, candle: &Candle, batch: &CandleBatch<'_>, row_len: usize) -> Result<Arc<DeviceWrites>> {
        let mut writes = self.writes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, writes)) = writes.as_ref().filter(|(len, _)| *len == row_len) {
            return Ok(Arc::clone(writes));
        }
        let uploaded = Arc::new(batch.writes.upload(candle, batch.tokens, row_len)?);
        *writes = Some((row_len, Arc::clone(&uploaded)));
        Ok(uploaded)
    }

    /// The plan of `batch` for layers of this shape.
    pub fn plan(&self, candle: &Candle, batch: &CandleBatch<'_>, shape: &AttentionShape) -> Result<Arc<Plan>> {
        let AttentionShape { causal, window, heads, kv_heads, width, .. } = *shape;
        let key = PlanKey { causal, window, heads, kv_heads, width };
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, plan)) = plans.iter().find(|(other, _)| *other == key) {
            return Ok(Arc::clone(plan));
        }
        let groups = kv_groups::groups(&batch.sequences, shape, candle.max_elements());
        let plan = Arc::new(kv_plan::upload(candle, &groups, kv_heads)?);
        plans.push((key, Arc::clone(&plan)));
        Ok(plan)
    }
}
