//! A batch of sequences, and what all its layers share.

use std::sync::{Arc, Mutex, PoisonError};

use super::device::Candle;
use super::kv_groups;
use super::kv_plan::{self, Plan};
use super::kv_writes::{DeviceWrites, Writes};
use crate::backend::types::AttentionShape;
use crate::error::{ModelError, Result};
use crate::kv::{BLOCK, BlockId, SequenceSlice, block_writes};

/// A batch of sequences whose keys and values are in an arena. Indices and masks on the device are computed when the first
/// layer needs them.
#[derive(Debug)]
pub struct CandleBatch {
    sequences: Vec<SequenceSlice>,
    /// Tokens of all sequences.
    tokens: usize,
    /// One more than the largest block.
    block_end: usize,
    writes: Writes,
    /// The indices of `writes`, for rows of this length.
    device_writes: Mutex<Option<(usize, Arc<DeviceWrites>)>>,
    plans: Mutex<Vec<(PlanKey, Arc<Plan>)>>,
}

/// The parameters of a plan, besides the sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PlanKey {
    causal: bool,
    window: Option<usize>,
    heads: usize,
    kv_heads: usize,
    width: usize,
}

impl CandleBatch {
    pub fn new(sequences: Vec<SequenceSlice>) -> Result<Self> {
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
        let writes = Writes::new(block_writes(&sequences)?);
        let used = sequences.iter().flat_map(SequenceSlice::used_blocks);
        let block_end = used.max().map_or(0, |block| *block as usize + 1);
        Ok(Self { sequences, tokens, block_end, writes, device_writes: Mutex::default(), plans: Mutex::default() })
    }

    pub fn tokens(&self) -> usize {
        self.tokens
    }

    pub fn sequences(&self) -> &[SequenceSlice] {
        &self.sequences
    }

    /// The blocks of all positions.
    pub fn blocks(&self) -> impl Iterator<Item = BlockId> {
        self.sequences.iter().flat_map(SequenceSlice::used_blocks).copied()
    }

    pub fn block_end(&self) -> usize {
        self.block_end
    }

    pub fn writes(&self) -> &Writes {
        &self.writes
    }

    /// The indices of the writes for rows of `row_len` elements.
    pub fn device_writes(&self, candle: &Candle, row_len: usize) -> Result<Arc<DeviceWrites>> {
        let mut writes = self.device_writes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, writes)) = writes.as_ref().filter(|(len, _)| *len == row_len) {
            return Ok(Arc::clone(writes));
        }
        let uploaded = Arc::new(self.writes.upload(candle, self.tokens, row_len)?);
        *writes = Some((row_len, Arc::clone(&uploaded)));
        Ok(uploaded)
    }

    /// The plan for layers of this shape.
    pub fn plan(&self, candle: &Candle, shape: &AttentionShape) -> Result<Arc<Plan>> {
        let AttentionShape { causal, window, heads, kv_heads, width, .. } = *shape;
        let key = PlanKey { causal, window, heads, kv_heads, width };
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, plan)) = plans.iter().find(|(other, _)| *other == key) {
            return Ok(Arc::clone(plan));
        }
        let groups = kv_groups::groups(&self.sequences, shape, candle.max_elements());
        let plan = Arc::new(kv_plan::upload(candle, &groups, kv_heads)?);
        plans.push((key, Arc::clone(&plan)));
        Ok(plan)
    }
}
