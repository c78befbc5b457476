//! Attention over the KV cache.

use outpost_kernels as kernels;

use super::attention::{self, KvBatch};
use super::attention_weights;
use super::device::Cpu;
use super::kv_arena::CpuKvArena;
use crate::backend::interface::{Backend, Tensor};
use crate::backend::paged_attention::PagedAttention;
use crate::backend::types::AttentionShape;
use crate::error::Result;
use crate::kv::{KvShape, SequenceSlice};

impl PagedAttention for Cpu {
    type KvArena = CpuKvArena;
    type Batch = KvBatch;

    const RELEASES_KV_BLOCKS: bool = true;

    fn new_kv_arena(&self, shape: KvShape) -> CpuKvArena {
        CpuKvArena::new(shape)
    }

    fn batch(&self, sequences: Vec<SequenceSlice>) -> Result<KvBatch> {
        KvBatch::new(sequences)
    }

    fn write_kv(
        &self,
        arena: &mut CpuKvArena,
        layer: usize,
        batch: &KvBatch,
        [k, v]: [&Tensor<Self>; 2],
    ) -> Result<()> {
        arena.write(&self.pool, layer, &batch.writes, k.data(), v.data())
    }

    fn kv_attention(
        &self,
        arena: &CpuKvArena,
        layer: usize,
        batch: &KvBatch,
        shape: &AttentionShape,
        sinks: Option<&Vec<f32>>,
        q: &Tensor<Self>,
    ) -> Result<Tensor<Self>> {
        let out = attention::over_kv_arena(self, (arena, layer), batch, (shape, sinks.map(Vec::as_slice)), q)?;
        self.pause()?;
        Ok(out)
    }

    fn kv_attention_weights(
        &self,
        arena: &CpuKvArena,
        layer: usize,
        batch: &KvBatch,
        shape: &AttentionShape,
        q: &Tensor<Self>,
        heads: &[usize],
    ) -> Result<Vec<f32>> {
        attention_weights::over_kv_arena(self, (arena, layer), batch, shape, q, heads)
    }

    fn kv_attention_bytes(&self, shape: &AttentionShape, tokens: usize, positions: usize) -> usize {
        kernels::attend_bytes(self.pool.threads(), shape, tokens, positions)
    }
}
