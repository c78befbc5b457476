//! Attention over KV blocks.

use std::sync::{OnceLock, PoisonError};

use half::bf16;
use outpost_kernels::{
    self as kernels, AttentionSequence, BLOCK_POSITIONS, KvBlockMut, KvBlocks, KvPair, KvSlices, KvWrite, Linear,
    attend,
};

use super::device::Cpu;
use super::kv_arena::CpuKvArena;
use crate::backend::checks;
use crate::backend::interface::{Backend, Tensor};
use crate::backend::types::{AttentionShape, DType, Pool};
use crate::error::{ModelError, Result};
use crate::kv::{BlockWrite, SequenceSlice, block_writes, blocks_for};

/// Heads of each thread between two pauses of attention with a bias.
const HEADS_PER_THREAD: usize = 4;

/// A batch of sequences, and the cache writes of its tokens.
#[derive(Debug)]
pub struct KvBatch {
    pub(super) sequences: Vec<SequenceSlice>,
    pub(super) writes: Vec<BlockWrite>,
}

impl KvBatch {
    pub fn new(sequences: Vec<SequenceSlice>) -> Result<Self> {
        Ok(Self { writes: block_writes(&sequences)?, sequences })
    }
}

/// Attention of a batch over the blocks of a layer.
pub fn over_kv_arena(
    cpu: &Cpu,
    (arena, layer): (&CpuKvArena, usize),
    batch: &KvBatch,
    (shape, sinks): (&AttentionShape, Option<&[f32]>),
    q: &Tensor<Cpu>,
) -> Result<Tensor<Cpu>> {
    checks::sinks(shape, sinks.map(<[f32]>::len))?;
    let views: Vec<_> = batch
        .sequences
        .iter()
        .map(|sequence| arena.view(layer, sequence.used_blocks(), blocks_for(sequence.start + sequence.count)))
        .collect::<Result<_>>()?;
    let row_len = shape.heads * shape.width;
    let sequences: Vec<AttentionSequence<'_>> = batch
        .sequences
        .iter()
        .zip(&views)
        .map(|(sequence, view)| AttentionSequence {
            queries: &q.data()[sequence.offset * row_len..(sequence.offset + sequence.count) * row_len],
            rows: sequence.count,
            start: sequence.start,
            positions: sequence.visible.unwrap_or(usize::MAX).min(sequence.start + sequence.count),
            blocks: view.as_blocks(),
        })
        .collect();
    let mut out = cpu.alloc(q.shape());
    attend(&cpu.pool, &sequences, shape, sinks, out.data_mut());
    Ok(out)
}

/// Attention of the pixels of `q` over those of `k` and `v`, image by image.
pub fn attention(cpu: &Cpu, [q, k, v]: [&Tensor<Cpu>; 3], heads: usize, causal: bool) -> Result<Tensor<Cpu>> {
    let head_width = checks::attention([q, k, v], heads, causal)?;
    let shape = AttentionShape {
        heads,
        kv_heads: heads,
        width: head_width,
        scale: (head_width as f32).sqrt().recip(),
        causal,
        window: None,
        soft_cap: None,
    };
    let mut out = cpu.alloc(q.shape());
    let row = q.channels;
    // A causal mask requires all rows at once. Only texts are causal, and they are short.
    let rows = if causal { q.pixels() } else { cpu.matmul_rows(2 * k.pixels() * row).min(q.pixels()).max(1) };
    let bf16_attention = cpu.request.as_ref().is_some_and(|request| request.bf16_attention);
    let images = q.per_image().zip(k.per_image().zip(v.per_image())).zip(out.per_image_mut());
    for ((queries, (k, v)), out) in images {
        let image = Image { shape, positions: k.len() / row, rows, queries };
        let blocks_len = 2 * image.positions.next_multiple_of(BLOCK_POSITIONS) * row;
        match bf16_attention && cpu.pool.isa().has_bf16_dot() && head_width.is_multiple_of(2) {
            true => {
                let mut kv = cpu.kv_bf16.lock().unwrap_or_else(PoisonError::into_inner);
                let len = kv.len().max(blocks_len);
                kv.resize(len, bf16::ZERO);
                attend_image(cpu, image, [k, v], &mut kv, out)?;
            }
            false => attend_image(cpu, image, [k, v], cpu.alloc([1, 1, 1, blocks_len]).data_mut(), out)?,
        }
    }
    Ok(out)
}

/// The attention input of one image.
struct Image<'a> {
    shape: AttentionShape,
    /// Positions of keys and values.
    positions: usize,
    /// Query rows between two pauses.
    rows: usize,
    /// `[pixels, heads, head_width]`
    queries: &'a [f32],
}

/// Attention of one image. Copies keys and values, `[positions, heads, head_width]`, into the KV blocks `kv` first.
fn attend_image<T: KvElement>(
    cpu: &Cpu,
    Image { shape, positions, rows, queries }: Image<'_>,
    [k, v]: [&[f32]; 2],
    kv: &mut [T],
    out: &mut [f32],
) -> Result<()> {
    let row = shape.heads * shape.width;
    let block = BLOCK_POSITIONS * row;
    let padded_len = positions.next_multiple_of(BLOCK_POSITIONS) * row;
    let (keys, rest) = kv.split_at_mut(padded_len);
    let (values, _) = rest.split_at_mut(padded_len);
    let mut writes = Vec::with_capacity(padded_len / block);
    for (index, (keys, values)) in keys.chunks_exact_mut(block).zip(values.chunks_exact_mut(block)).enumerate() {
        let first = index * BLOCK_POSITIONS;
        let count = BLOCK_POSITIONS.min(positions - first);
        writes.push(KvWrite { block: T::cells(KvPair { keys, values }), row: first, slot: 0, count });
    }
    kernels::kv_write(&cpu.pool, [shape.heads, shape.width], k, v, &mut writes);
    drop(writes);
    let [keys, values] = [&*keys, &*values].map(|elements| elements.chunks_exact(block).collect::<Vec<_>>());
    for (queries, out) in queries.chunks(rows * row).zip(out.chunks_mut(rows * row)) {
        let blocks = T::blocks(KvSlices { keys: &keys, values: &values });
        let sequence = AttentionSequence { queries, rows: queries.len() / row, start: 0, positions, blocks };
        attend(&cpu.pool, &[sequence], &shape, None, out);
        cpu.pause()?;
    }
    Ok(())
}

/// The type in which keys and values are stored.
trait KvElement: Copy + Default {
    fn cells(pair: KvPair<&mut [Self]>) -> KvBlockMut<'_>;
    fn blocks<'a>(pair: KvSlices<'a, &'a [Self]>) -> KvBlocks<'a>;
}

impl KvElement for f32 {
    fn cells(pair: KvPair<&mut [f32]>) -> KvBlockMut<'_> {
        KvBlockMut::F32(pair)
    }

    fn blocks<'a>(pair: KvSlices<'a, &'a [f32]>) -> KvBlocks<'a> {
        KvBlocks::F32(pair)
    }
}

impl KvElement for bf16 {
    fn cells(pair: KvPair<&mut [bf16]>) -> KvBlockMut<'_> {
        KvBlockMut::Bf16(pair)
    }

    fn blocks<'a>(pair: KvSlices<'a, &'a [bf16]>) -> KvBlocks<'a> {
        KvBlocks::Bf16(pair)
    }
}

/// Attention with a bias by relative position. Texts have a few hundred tokens, so the score matrix of a head fits in
/// memory.
pub fn biased_attention(
    cpu: &Cpu,
    [q, k, v]: [&Tensor<Cpu>; 3],
    heads: usize,
    bias: &Tensor<Cpu>,
) -> Result<Tensor<Cpu>> {
    let head_width = checks::biased_attention([q, k, v], heads, bias)?;
    let (row, distances) = (q.channels, bias.channels);
    let mut out = cpu.alloc(q.shape());
    let biases: Vec<&[f32]> = bias.data().chunks_exact(distances).collect();
    let chunk_heads = HEADS_PER_THREAD * cpu.pool.threads();
    for ((q, (k, v)), out) in q.per_image().zip(k.per_image().zip(v.per_image())).zip(out.per_image_mut()) {
        for (chunk, biases) in biases.chunks(chunk_heads).enumerate() {
            let first_head = chunk * chunk_heads;
            let outputs: Vec<OnceLock<HeadOutput>> = biases.iter().map(|_| OnceLock::new()).collect();
            cpu.pool.run(biases.len(), |index| {
                if let (Some(slot), Some(bias)) = (outputs.get(index), biases.get(index)) {
                    let qkv = [q, k, v].map(|x| columns(x, row, (first_head + index) * head_width, head_width));
                    slot.get_or_init(|| attend_head(&cpu.pool, qkv, head_width, bias));
                }
            });
            for (index, output) in outputs.into_iter().enumerate() {
                let output = output.into_inner().unwrap_or_else(|| Ok(Vec::new()));
                let output = output.map_err(|error| ModelError::Compute(error.to_string()))?;
                for (dst, src) in out.chunks_exact_mut(row).zip(output.chunks_exact(head_width)) {
                    dst.iter_mut().skip((first_head + index) * head_width).zip(src).for_each(|(dst, src)| *dst = *src);
                }
            }
            cpu.pause()?;
        }
    }
    Ok(out)
}

/// The output of one head: `[tokens, head_width]`.
type HeadOutput = std::result::Result<Vec<f32>, kernels::Error>;

/// `count` elements of each row, starting at `first`.
fn columns(x: &[f32], row: usize, first: usize, count: usize) -> Vec<f32> {
    x.chunks_exact(row).flat_map(|row| row.iter().skip(first).take(count).copied()).collect()
}

/// Attention of one head. Queries, keys, values and the result are `[tokens, head_width]`.
fn attend_head(pool: &Pool, [q, k, v]: [Vec<f32>; 3], head_width: usize, bias: &[f32]) -> HeadOutput {
    let tokens = q.len() / head_width;
    let mut scores = vec![0.; tokens * tokens];
    pack_matrix(pool, tokens, head_width, &k)?.forward(pool, &q, tokens, &mut scores);
    for (row, scores) in scores.chunks_exact_mut(tokens).enumerate() {
        biased_softmax(scores, bias.iter().skip(tokens - 1 - row));
    }
    let transposed_v: Vec<f32> =
        (0..head_width).flat_map(|column| v.iter().skip(column).step_by(head_width).copied()).collect();
    let mut output = vec![0.; tokens * head_width];
    pack_matrix(pool, head_width, tokens, &transposed_v)?.forward(pool, &scores, tokens, &mut output);
    Ok(output)
}

/// The softmax of scores plus bias, in place.
fn biased_softmax<'a>(scores: &mut [f32], bias: impl Iterator<Item = &'a f32>) {
    scores.iter_mut().zip(bias).for_each(|(score, bias)| *score += bias);
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    scores.iter_mut().for_each(|score| *score = (*score - max).exp());
    let sum: f32 = scores.iter().sum();
    scores.iter_mut().for_each(|score| *score /= sum);
}

/// Packs a matrix, `[rows, columns]`.
fn pack_matrix(
    pool: &Pool,
    rows: usize,
    columns: usize,
    elements: &[f32],
) -> std::result::Result<Linear, kernels::Error> {
    Linear::pack(pool, DType::F32, rows, columns, |first, bytes| {
        let dst = bytes.chunks_exact_mut(size_of::<f32>());
        for (dst, src) in dst.zip(elements.iter().skip(first * columns)) {
            dst.copy_from_slice(&src.to_le_bytes());
        }
        Ok(())
    })
}
