//! The weights of attention over KV blocks.

use std::sync::OnceLock;

use half::slice::HalfFloatSliceExt;

use super::attention::KvBatch;
use super::device::Cpu;
use super::kv_arena::{CpuKvArena, KvView};
use crate::backend::checks;
use crate::backend::interface::{Backend, Tensor};
use crate::backend::types::AttentionShape;
use crate::error::Result;
use crate::kv::{BLOCK, blocks_for};

/// The weights with which `heads` attend to all positions of the batch's sequence: `[heads, tokens, positions]`.
pub fn over_kv_arena(
    cpu: &Cpu,
    (arena, layer): (&CpuKvArena, usize),
    batch: &KvBatch,
    shape: &AttentionShape,
    q: &Tensor<Cpu>,
    heads: &[usize],
) -> Result<Vec<f32>> {
    let sequence = checks::attention_weights(&batch.sequences, shape, q, heads)?;
    let end = sequence.start + sequence.count;
    let positions = sequence.visible.unwrap_or(usize::MAX).min(end);
    let view = arena.view(layer, sequence.used_blocks(), blocks_for(end))?;
    let weights: Vec<OnceLock<Vec<f32>>> = heads.iter().map(|_| OnceLock::new()).collect();
    cpu.pool.run(heads.len(), |index| {
        if let (Some(head), Some(slot)) = (heads.get(index), weights.get(index)) {
            let queries =
                q.data().chunks_exact(q.channels).filter_map(|row| row.get(head * shape.width..)?.get(..shape.width));
            slot.get_or_init(|| head_weights(&queries.collect::<Vec<_>>(), &view, *head, positions, shape));
        }
    });
    cpu.pause()?;
    Ok(weights.into_iter().flat_map(|weights| weights.into_inner().unwrap_or_default()).collect())
}

/// The weights of one head: `[tokens, positions]`.
fn head_weights(
    queries: &[&[f32]],
    view: &KvView<'_>,
    head: usize,
    positions: usize,
    shape: &AttentionShape,
) -> Vec<f32> {
    let mut weights = vec![0.; queries.len() * positions];
    let mut keys = vec![0.; shape.width * BLOCK];
    for block in 0..blocks_for(positions) {
        read_keys(view, block, head, &mut keys);
        let first = block * BLOCK;
        let count = BLOCK.min(positions - first);
        for (query, row) in queries.iter().zip(weights.chunks_exact_mut(positions)) {
            let mut scores = [0.; BLOCK];
            for (x, keys) in query.iter().zip(keys.as_chunks::<BLOCK>().0) {
                scores.iter_mut().zip(keys).for_each(|(score, key)| *score += x * key);
            }
            row.iter_mut().skip(first).zip(&scores[..count]).for_each(|(out, score)| *out = score * shape.scale);
        }
    }
    weights.chunks_exact_mut(positions).for_each(softmax);
    weights
}

/// The keys of a head in a block: `[width, BLOCK]`.
fn read_keys(view: &KvView<'_>, block: usize, head: usize, out: &mut [f32]) {
    let range = head * out.len()..(head + 1) * out.len();
    match view {
        KvView::F32([keys, _]) => out.copy_from_slice(&keys[block][range]),
        KvView::F16([keys, _]) => keys[block][range].convert_to_f32_slice(out),
        KvView::Q8([keys, _]) => {
            let (codes, scales) = keys[block];
            let scales = &scales[head * BLOCK..(head + 1) * BLOCK];
            for (index, (out, code)) in out.iter_mut().zip(&codes[range]).enumerate() {
                *out = f32::from(*code) * scales[index % BLOCK];
            }
        }
    }
}

fn softmax(scores: &mut [f32]) {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    scores.iter_mut().for_each(|score| *score = (*score - max).exp());
    let sum: f32 = scores.iter().sum();
    scores.iter_mut().for_each(|score| *score /= sum);
}
