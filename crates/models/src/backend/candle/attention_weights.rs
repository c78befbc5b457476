//! The weights of attention over the KV cache.

use candle_core::{DType as ArrayType, Tensor as Array};

use super::attention::softmax;
use super::device::Candle;
use super::kv_arena::CandleKvArena;
use super::kv_batch::CandleBatch;
use crate::backend::checks;
use crate::backend::interface::{Backend, Tensor};
use crate::backend::types::AttentionShape;
use crate::error::Result;
use crate::kv::BLOCK;

/// The weights with which `heads` attend to all positions of the batch's sequence: `[heads, tokens, positions]`.
pub fn over_kv_arena(
    candle: &Candle,
    (arena, layer): (&CandleKvArena, usize),
    batch: &CandleBatch,
    shape: &AttentionShape,
    q: &Tensor<Candle>,
    heads: &[usize],
) -> Result<Vec<f32>> {
    let sequence = checks::attention_weights(batch.sequences(), shape, q, heads)?;
    arena.check(batch.blocks())?;
    let [keys, _] = arena.layer(layer, batch.block_end())?;
    let positions = sequence.visible.unwrap_or(usize::MAX).min(sequence.start + sequence.count);
    let slot = |position: usize| {
        let block = sequence.blocks.get(position / BLOCK).copied().unwrap_or_default();
        block * BLOCK as u32 + (position % BLOCK) as u32
    };
    let slots = candle.indices((0..positions).map(slot).collect())?;
    let heads = candle.indices(heads.iter().map(|head| *head as u32).collect())?;
    let by_head = |x: Array, rows: usize| {
        let x = x.to_dtype(ArrayType::F32)?.reshape((rows, shape.heads, shape.width))?;
        x.index_select(&heads, 1)?.transpose(0, 1)?.contiguous()
    };
    let queries = (by_head(q.data.detach(), q.rows())? * f64::from(shape.scale))?;
    let keys = by_head(keys.index_select(&slots, 0)?, positions)?;
    let weights = softmax(&queries.matmul(&keys.t()?)?, None)?;
    candle.pause()?;
    Ok(weights.flatten_all()?.to_vec1()?)
}
