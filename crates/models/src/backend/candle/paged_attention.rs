//! Attention over the KV cache.

use candle_core::Tensor as Array;

use super::device::Candle;
use super::kv_arena::CandleKvArena;
use super::kv_batch::CandleBatch;
use super::{attention, attention_weights};
use crate::backend::interface::Tensor;
use crate::backend::paged_attention::PagedAttention;
use crate::backend::types::AttentionShape;
use crate::error::{ModelError, Result};
use crate::kv::{KvShape, SequenceSlice};

impl PagedAttention for Candle {
    type KvArena = CandleKvArena;
    type Batch = CandleBatch;

    const RELEASES_KV_BLOCKS: bool = false;

    fn new_kv_arena(&self, shape: KvShape) -> CandleKvArena {
        CandleKvArena::new(self.device(), shape)
    }

    fn batch(&self, sequences: Vec<SequenceSlice>) -> Result<CandleBatch> {
        CandleBatch::new(sequences)
    }

    fn write_kv(
        &self,
        arena: &mut CandleKvArena,
        layer: usize,
        batch: &CandleBatch,
        [k, v]: [&Tensor<Self>; 2],
    ) -> Result<()> {
        let row_len = arena.row_len();
        for x in [k, v] {
            if x.channels != row_len || x.rows() != batch.tokens() {
                return Err(ModelError::Compute(format!(
                    "keys of {:?} do not fit {} tokens of {row_len} elements",
                    x.shape(),
                    batch.tokens()
                )));
            }
        }
        arena.check(batch.writes().blocks())?;
        let writes = batch.device_writes(self, row_len)?;
        arena.write(layer, &writes, &k.data, &v.data)
    }

    fn kv_attention(
        &self,
        arena: &CandleKvArena,
        layer: usize,
        batch: &CandleBatch,
        shape: &AttentionShape,
        sinks: Option<&Array>,
        q: &Tensor<Self>,
    ) -> Result<Tensor<Self>> {
        attention::over_kv_arena(self, (arena, layer), batch, (shape, sinks), q)
    }

    fn kv_attention_weights(
        &self,
        arena: &CandleKvArena,
        layer: usize,
        batch: &CandleBatch,
        shape: &AttentionShape,
        q: &Tensor<Self>,
        heads: &[usize],
    ) -> Result<Vec<f32>> {
        attention_weights::over_kv_arena(self, (arena, layer), batch, shape, q, heads)
    }

    fn kv_attention_bytes(&self, shape: &AttentionShape, tokens: usize, positions: usize) -> usize {
        attention::bytes(self.max_elements(), shape, tokens, positions)
    }
}
