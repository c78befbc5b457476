//! Causal attention of a ragged batch over KV blocks, on the CPU.
//!
//! Softmax is taken online, block by block (Milakov and Gimelshein 2018,
//! <https://arxiv.org/abs/1805.02867>): no buffer grows with the square of the length.

use candle_core::Result;
use rayon::prelude::*;

use super::kv::{BLOCK, BlockId, KvArena};

/// What all rows of a step have in common in one layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attention {
    pub layer: usize,
    pub heads: usize,
    /// Factor of the scores before softmax.
    pub scale: f32,
    /// Positions that a query looks back on, its own included; `None` is all.
    pub window: Option<usize>,
    /// Scores are squeezed below this by `cap · tanh(score / cap)`.
    pub softcap: Option<f32>,
}

/// One row's place in the batch and in its sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span<'a> {
    /// Its first token's place in the batch.
    pub offset: usize,
    pub count: usize,
    /// Its first token's position in the sequence.
    pub start: usize,
    pub blocks: &'a [BlockId],
}

/// Writes the keys and values (`[tokens, kv_heads * head_width]`) of a layer to their blocks.
pub(super) fn keep(arena: &mut KvArena, layer: usize, spans: &[Span<'_>], keys: &[f32], values: &[f32]) -> Result<()> {
    let width = arena.shape().kv_heads * arena.shape().head_width;
    for span in spans {
        for index in 0..span.count {
            let (position, row) = (span.start + index, (span.offset + index) * width);
            let Some(&block) = span.blocks.get(position / BLOCK) else {
                candle_core::bail!("position {position} has no KV block");
            };
            let part = |all: &[f32]| all.get(row..row + width).unwrap_or_default().to_vec();
            arena.write(layer, block, position % BLOCK, &part(keys), &part(values))?;
        }
    }
    Ok(())
}

impl Attention {
    /// `queries` and the result: `[tokens, heads * head_width]`. Keys and values of the rows
    /// themselves are in their blocks already.
    pub fn over(&self, arena: &KvArena, spans: &[Span<'_>], queries: &[f32]) -> Result<Vec<f32>> {
        let (kv_heads, width) = (arena.shape().kv_heads, arena.shape().head_width);
        let group = self.heads / kv_heads;
        let tasks: Vec<(usize, usize)> =
            (0..spans.len()).flat_map(|span| (0..kv_heads).map(move |head| (span, head))).collect();
        let done: Vec<Vec<f32>> = tasks
            .par_iter()
            .map(|&(span, head)| match spans.get(span) {
                Some(span) => self.head(arena, span, head, queries),
                None => Ok(Vec::new()),
            })
            .collect::<Result<_>>()?;
        let mut out = vec![0.; queries.len()];
        for ((span, head), mixed) in tasks.iter().zip(&done) {
            let offset = spans.get(*span).map_or(0, |span| span.offset);
            for (index, row) in mixed.chunks_exact(group * width).enumerate() {
                let start = (offset + index) * self.heads * width + head * group * width;
                if let Some(to) = out.get_mut(start..start + row.len()) {
                    to.copy_from_slice(row);
                }
            }
        }
        Ok(out)
    }

    /// All queries of one row that share a key-value head: `[count, group * head_width]`.
    fn head(&self, arena: &KvArena, span: &Span<'_>, head: usize, queries: &[f32]) -> Result<Vec<f32>> {
        let width = arena.shape().head_width;
        let group = self.heads / arena.shape().kv_heads;
        let mut states = vec![State::default(); span.count * group];
        let mut out = vec![0.; span.count * group * width];
        let (mut keys, mut values) = (vec![0.; BLOCK * width], vec![0.; BLOCK * width]);
        let end = span.start + span.count;
        let first = self.window.map_or(0, |window| (span.start + 1).saturating_sub(window) / BLOCK);
        for index in first..end.div_ceil(BLOCK) {
            let Some(&block) = span.blocks.get(index) else { candle_core::bail!("a row has too few KV blocks") };
            let begin = index * BLOCK;
            let filled = BLOCK.min(end - begin);
            arena.read(self.layer, block, head, filled, &mut keys, &mut values)?;
            let pairs = states.iter_mut().zip(out.chunks_exact_mut(width));
            for (number, (state, out)) in pairs.enumerate() {
                let (token, member) = (number / group, number % group);
                let position = span.start + token;
                let from = self.window.map_or(0, |window| (position + 1).saturating_sub(window)).max(begin);
                let until = (position + 1).min(begin + filled);
                if from >= until {
                    continue;
                }
                let start = ((span.offset + token) * self.heads + head * group + member) * width;
                let query = queries.get(start..start + width).unwrap_or_default();
                let part = (from - begin) * width..(until - begin) * width;
                let (keys, values) = (keys.get(part.clone()).unwrap_or_default(), values.get(part).unwrap_or_default());
                state.take(query, keys, values, out, |score| self.shape(score));
            }
        }
        for (state, out) in states.iter().zip(out.chunks_exact_mut(width)) {
            let share = if state.sum > 0. { state.sum.recip() } else { 0. };
            out.iter_mut().for_each(|number| *number *= share);
        }
        Ok(out)
    }

    fn shape(&self, score: f32) -> f32 {
        let score = score * self.scale;
        self.softcap.map_or(score, |cap| cap * (score / cap).tanh())
    }
}

/// A softmax that has seen part of its scores.
#[derive(Clone, Copy, Debug)]
struct State {
    best: f32,
    sum: f32,
}

impl Default for State {
    fn default() -> Self {
        Self { best: f32::NEG_INFINITY, sum: 0. }
    }
}

impl State {
    /// Adds keys and values (`[n, head_width]`, n ≤ BLOCK) to the weighted sum in `out`.
    fn take(&mut self, query: &[f32], keys: &[f32], values: &[f32], out: &mut [f32], shape: impl Fn(f32) -> f32) {
        let width = query.len();
        let mut scores = [0f32; BLOCK];
        let mut best = self.best;
        for (score, key) in scores.iter_mut().zip(keys.chunks_exact(width)) {
            *score = shape(dot(query, key));
            best = best.max(*score);
        }
        if best > self.best {
            let shrink = (self.best - best).exp();
            self.sum *= shrink;
            out.iter_mut().for_each(|number| *number *= shrink);
            self.best = best;
        }
        for (score, value) in scores.iter().zip(values.chunks_exact(width)) {
            let weight = (score - best).exp();
            self.sum += weight;
            out.iter_mut().zip(value).for_each(|(out, value)| *out += weight * value);
        }
    }
}

/// Eight sums side by side, so that the compiler may use vectors.
fn dot(one: &[f32], other: &[f32]) -> f32 {
    let mut sums = [0f32; 8];
    let (ones, others) = (one.chunks_exact(8), other.chunks_exact(8));
    let rest: f32 = ones.remainder().iter().zip(others.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in ones.zip(others) {
        sums.iter_mut().zip(a.iter().zip(b)).for_each(|(sum, (a, b))| *sum += a * b);
    }
    sums.iter().sum::<f32>() + rest
}
