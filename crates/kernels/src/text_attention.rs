//! Causal attention of whole texts and its gradient, in f32, for training.
//!
//! A work item is a chunk of queries of the heads that share a key-value head of a text. The items of a round belong to
//! different key-value heads or texts, so that each adds to gradients of keys and values of its own. The gradient
//! computes the scores again (Dao et al. 2022, <https://arxiv.org/abs/2205.14135>), so none are kept.

use std::ops::Range;

use crate::buffer::SharedSlice;
use crate::dense::{Panel, PanelSize, Strided, with_panel};
use crate::rows::{load_up_to, store_up_to};
use crate::simd::{Kernel, LANES, Simd, run};
use crate::{AttentionShape, Pool};

/// Multiply-adds of a product of an item: a fraction of a millisecond.
const ITEM_MACS: usize = 8 << 20;
/// Products of a forward item and of a gradient.
const PRODUCTS: [usize; 2] = [2, 5];
/// Multiply-adds of each thread between two pauses.
const PAUSE_MACS: usize = 64 << 20;

/// Queries, keys and values, or their gradients. Channels are `[heads, width]`.
#[derive(Clone, Copy, Debug)]
pub struct Qkv<T> {
    /// `[tokens, heads · width]`
    pub queries: T,
    /// `[tokens, kv_heads · width]`
    pub keys: T,
    /// `[tokens, kv_heads · width]`
    pub values: T,
}

/// Attention of each token over the tokens of its text up to itself.
#[derive(Clone, Copy, Debug)]
pub struct TextAttention<'a> {
    pub shape: &'a AttentionShape,
    /// Scores that join the sums of the softmaxes, and have no values: `[heads]`. They get no gradient.
    pub sinks: Option<&'a [f32]>,
    /// The tokens of each text, in order and without gaps.
    pub texts: &'a [Range<usize>],
}

/// Some queries of the heads of a key-value head.
#[derive(Clone, Debug)]
struct Item {
    text: Range<usize>,
    kv_head: usize,
    /// Positions of the queries in the text.
    queries: Range<usize>,
    /// Positions that the queries see.
    positions: Range<usize>,
}

impl TextAttention<'_> {
    /// Computes `out`, `[tokens, heads · width]`. Calls `pause` every few milliseconds.
    ///
    /// # Errors
    /// Those of `pause`.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn forward<E>(
        &self,
        pool: &Pool,
        x: Qkv<&[f32]>,
        out: &mut [f32],
        pause: &mut dyn FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        self.check([x.queries.len(), x.keys.len(), x.values.len(), out.len()]);
        let out = SharedSlice::new(out);
        self.run(pool, PRODUCTS[0], pause, &|item| {
            let mut scores = Vec::new();
            for head in self.heads(item) {
                // SAFETY: only this item writes these queries of this head.
                unsafe {
                    self.weights(pool, item, head, x, &mut scores);
                    self.mix(pool, item, &scores, x.values, item.kv_head, self.queries(item, head, &out));
                }
            }
        })
    }

    /// Computes the gradients of queries, keys and values from that of the output; those of keys and values must be zero.
    ///
    /// # Errors
    /// Those of `pause`.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn backward<E>(
        &self,
        pool: &Pool,
        x: Qkv<&[f32]>,
        gradient: &[f32],
        out: Qkv<&mut [f32]>,
        pause: &mut dyn FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        self.check([x.queries.len(), x.keys.len(), x.values.len(), gradient.len()]);
        self.check([out.queries.len(), out.keys.len(), out.values.len(), gradient.len()]);
        let (queries, keys, values) =
            (SharedSlice::new(out.queries), SharedSlice::new(out.keys), SharedSlice::new(out.values));
        let AttentionShape { width, scale, .. } = *self.shape;
        self.run(pool, PRODUCTS[1], pause, &|item| {
            let (mut weights, mut of_weights, mut transposed) = (Vec::new(), Vec::new(), Vec::new());
            let (count, positions) = (item.queries.len(), item.positions.len());
            for head in self.heads(item) {
                // SAFETY: in a round, only this item has this key-value head of this text, or these queries.
                unsafe {
                    let slopes = self.weights(pool, item, head, x, &mut weights);
                    self.score(pool, item, head, gradient, x.values, &mut of_weights);
                    // The gradient of values: weightsᵀ · gradient.
                    transpose(&weights, positions, &mut transposed);
                    let of_values = self.shared_positions(item, &values);
                    accumulate(
                        pool,
                        &transposed,
                        count,
                        self.rows(item, gradient, head),
                        (positions, width),
                        of_values,
                    );
                    run(
                        pool.isa(),
                        ScoreGradient {
                            weights: &weights,
                            of_weights: &mut of_weights,
                            slopes: slopes.as_deref(),
                            positions,
                            scale,
                        },
                    );
                    // The gradients of queries, scores · keys, and of keys, scoresᵀ · queries.
                    self.mix(pool, item, &of_weights, x.keys, item.kv_head, self.queries(item, head, &queries));
                    transpose(&of_weights, positions, &mut transposed);
                    let of_keys = self.shared_positions(item, &keys);
                    accumulate(pool, &transposed, count, self.rows(item, x.queries, head), (positions, width), of_keys);
                }
            }
        })
    }

    fn check(&self, lens: [usize; 4]) {
        let AttentionShape { heads, kv_heads, width, .. } = *self.shape;
        assert!(self.sinks.is_none_or(|sinks| sinks.len() == heads), "each head has a sink");
        assert!(kv_heads > 0 && heads.is_multiple_of(kv_heads), "heads share key-value heads");
        let mut tokens = 0;
        for text in self.texts {
            assert!(text.start == tokens && text.end >= tokens, "texts are in order");
            tokens = text.end;
        }
        let expected = [heads, kv_heads, kv_heads, heads].map(|heads| tokens * heads * width);
        assert_eq!(lens, expected, "queries, keys and values are [tokens, heads, width]");
    }

    /// Runs all items, some at a time.
    fn run<E>(
        &self,
        pool: &Pool,
        products: usize,
        pause: &mut dyn FnMut() -> Result<(), E>,
        work: &(dyn Fn(&Item) + Sync),
    ) -> Result<(), E> {
        let AttentionShape { heads, kv_heads, width, window, .. } = *self.shape;
        let shared = heads / kv_heads;
        let longest = self.texts.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
        let visible = window.unwrap_or(longest).min(longest);
        let chunk = (ITEM_MACS / (visible * width * shared).max(1)).clamp(16, 128);
        for first in (0..longest).step_by(chunk) {
            let mut items = Vec::new();
            let mut macs = 0;
            for text in self.texts.iter().filter(|text| text.len() > first) {
                let queries = first..text.len().min(first + chunk);
                let start = window.map_or(0, |window| (first + 1).saturating_sub(window));
                let positions = start..queries.end;
                for kv_head in 0..kv_heads {
                    macs += products * queries.len() * positions.len() * width * shared;
                    let (text, queries, positions) = (text.clone(), queries.clone(), positions.clone());
                    items.push(Item { text, kv_head, queries, positions });
                    if macs >= PAUSE_MACS * pool.threads() {
                        pool.run(items.len(), |item| work(&items[item]));
                        items.clear();
                        macs = 0;
                        pause()?;
                    }
                }
            }
            pool.run(items.len(), |item| work(&items[item]));
            pause()?;
        }
        Ok(())
    }

    /// The heads of an item.
    fn heads(&self, item: &Item) -> Range<usize> {
        let shared = self.shape.heads / self.shape.kv_heads;
        item.kv_head * shared..(item.kv_head + 1) * shared
    }

    /// The query of a head at a position of the text.
    fn row<'x>(&self, item: &Item, x: &'x [f32], position: usize, head: usize) -> &'x [f32] {
        let AttentionShape { heads, width, .. } = *self.shape;
        &x[((item.text.start + position) * heads + head) * width..][..width]
    }

    /// The queries of an item.
    fn rows<'x>(&self, item: &Item, x: &'x [f32], head: usize) -> impl Iterator<Item = &'x [f32]> {
        let AttentionShape { heads, width, .. } = *self.shape;
        let first = item.text.start;
        (item.queries.clone()).map(move |query| &x[((first + query) * heads + head) * width..][..width])
    }

    /// The queries of an item, to write.
    fn queries(&self, item: &Item, head: usize, x: &SharedSlice<f32>) -> Strided<*mut f32> {
        let AttentionShape { heads, width, .. } = *self.shape;
        let first = ((item.text.start + item.queries.start) * heads + head) * width;
        Strided { start: x.at(first, (item.queries.len() - 1) * heads * width + width), stride: heads * width }
    }

    /// The keys or values of an item, to write.
    fn shared_positions(&self, item: &Item, x: &SharedSlice<f32>) -> Strided<*mut f32> {
        let AttentionShape { kv_heads, width, .. } = *self.shape;
        let first = ((item.text.start + item.positions.start) * kv_heads + item.kv_head) * width;
        let len = (item.positions.len() - 1) * kv_heads * width + width;
        Strided { start: x.at(first, len), stride: kv_heads * width }
    }

    /// The keys or values of an item.
    fn positions<'x>(&self, item: &Item, x: &'x [f32], kv_head: usize) -> impl ExactSizeIterator<Item = &'x [f32]> {
        let AttentionShape { kv_heads, width, .. } = *self.shape;
        let first = item.text.start;
        (item.positions.clone()).map(move |at| &x[((first + at) * kv_heads + kv_head) * width..][..width])
    }

    /// `x · keysᵀ` for queries, or for their gradients and values: `[queries, positions]`.
    fn score(&self, pool: &Pool, item: &Item, head: usize, x: &[f32], keys: &[f32], out: &mut Vec<f32>) {
        let AttentionShape { heads, width, .. } = *self.shape;
        let size = PanelSize { inner: width, outputs: item.positions.len() };
        out.resize(item.queries.len() * item.positions.len(), 0.);
        // Each query exists.
        let first = self.row(item, x, item.queries.start, head).as_ptr();
        assert!(self.row(item, x, item.queries.end - 1, head).len() == width, "the last query exists");
        let rows = Strided { start: first, stride: heads * width };
        let out = Strided { start: out.as_mut_ptr(), stride: item.positions.len() };
        with_panel(|panel| {
            panel.pack_rows(width, self.positions(item, keys, item.kv_head));
            // SAFETY: rows and outputs have these sizes.
            unsafe { panel.multiply(pool.isa(), size, (rows, item.queries.len()), out, false) };
        });
    }

    /// The softmax of scores, `[queries, positions]`. With a soft cap, also returns the slopes of the capped scores.
    fn weights(&self, pool: &Pool, item: &Item, head: usize, x: Qkv<&[f32]>, out: &mut Vec<f32>) -> Option<Vec<f32>> {
        self.score(pool, item, head, x.queries, x.keys, out);
        let AttentionShape { scale, soft_cap, window, .. } = *self.shape;
        let sink = self.sinks.map(|sinks| sinks[head]);
        let mut slopes = soft_cap.map(|_| vec![0.; out.len()]);
        let visible = |query: usize| {
            let position = item.queries.start + query;
            let first = window.map_or(0, |window| (position + 1).saturating_sub(window));
            first.max(item.positions.start) - item.positions.start..position + 1 - item.positions.start
        };
        let width = item.positions.len();
        for (query, row) in out.chunks_exact_mut(width).enumerate() {
            let visible = visible(query);
            let slopes = slopes.as_mut().map(|slopes| &mut slopes[query * width..][visible.clone()]);
            row[..visible.start].fill(0.);
            row[visible.end..].fill(0.);
            run(pool.isa(), Softmax { row: &mut row[visible], scale, soft_cap, sink, slopes });
        }
        slopes
    }

    /// `weights · values` of an item: `[queries, width]`.
    ///
    /// # Safety
    /// `out` has these rows, which nothing else accesses.
    unsafe fn mix(
        &self,
        pool: &Pool,
        item: &Item,
        weights: &[f32],
        values: &[f32],
        kv_head: usize,
        out: Strided<*mut f32>,
    ) {
        let (count, positions) = (item.queries.len(), item.positions.len());
        let size = PanelSize { inner: positions, outputs: self.shape.width };
        let rows = Strided { start: weights.as_ptr(), stride: positions };
        assert!(weights.len() == count * positions, "weights are [queries, positions]");
        with_panel(|panel| {
            for (k, row) in self.positions(item, values, kv_head).enumerate() {
                panel.put(k, positions, row);
            }
            // SAFETY: rows have these sizes, and outputs as the caller says.
            unsafe { panel.multiply(pool.isa(), size, (rows, count), out, false) };
        });
    }
}

/// `out += x · rows` for `x`, `[m, inner]`.
///
/// # Safety
/// `out` has `m` rows, which nothing else accesses.
unsafe fn accumulate<'r>(
    pool: &Pool,
    x: &[f32],
    inner: usize,
    rows: impl Iterator<Item = &'r [f32]>,
    (m, width): (usize, usize),
    out: Strided<*mut f32>,
) {
    assert!(x.len() == m * inner, "x is [m, inner]");
    with_panel(|panel: &mut Panel| {
        for (k, row) in rows.take(inner).enumerate() {
            panel.put(k, inner, row);
        }
        let size = PanelSize { inner, outputs: width };
        let x = Strided { start: x.as_ptr(), stride: inner };
        // SAFETY: as the caller says.
        unsafe { panel.multiply(pool.isa(), size, (x, m), out, true) };
    });
}

/// `out = xᵀ` for `x` with rows of `width` elements.
fn transpose(x: &[f32], width: usize, out: &mut Vec<f32>) {
    let rows = x.len() / width.max(1);
    out.resize(x.len(), 0.);
    for first in (0..rows).step_by(LANES) {
        for column in 0..width {
            let out = &mut out[column * rows + first..][..LANES.min(rows - first)];
            for (row, out) in (first..).zip(out) {
                *out = x[row * width + column];
            }
        }
    }
}

/// `row = softmax(cap(scale · row))`; the score of a sink joins the sum. The slope of a capped score is `1 − (capped / cap)²`.
struct Softmax<'a> {
    row: &'a mut [f32],
    scale: f32,
    soft_cap: Option<f32>,
    sink: Option<f32>,
    slopes: Option<&'a mut [f32]>,
}

impl Kernel for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { row, scale, soft_cap, sink, mut slopes } = self;
        let (len, whole) = (row.len(), row.len() / LANES * LANES);
        // SAFETY: `index` is within the row; features as `Kernel` says.
        unsafe {
            let mut max = sink.unwrap_or(f32::NEG_INFINITY);
            for index in (0..len).step_by(LANES) {
                let mut x = S::mul(load_up_to::<S>(row, index), S::splat(scale));
                if let Some(cap) = soft_cap {
                    let tanh = S::tanh(S::mul(x, S::splat(1. / cap)));
                    if let Some(slopes) = &mut slopes {
                        let slope = S::sub(S::splat(1.), S::mul(tanh, tanh));
                        store_up_to::<S>(slopes, index, slope);
                    }
                    x = S::mul(tanh, S::splat(cap));
                }
                store_up_to::<S>(row, index, x);
                if index < whole {
                    max = max.max(S::reduce_max(x));
                }
            }
            max = row[whole..].iter().copied().fold(max, f32::max);
            let mut sums = S::splat(0.);
            for index in (0..whole).step_by(LANES) {
                let x = S::exp(S::sub(S::load(row.as_ptr().add(index)), S::splat(max)));
                S::store(row.as_mut_ptr().add(index), x);
                sums = S::add(sums, x);
            }
            let mut sum = S::reduce_sum(sums) + sink.map_or(0., |sink| (sink - max).exp());
            for x in &mut row[whole..] {
                *x = (*x - max).exp();
                sum += *x;
            }
            let factor = S::splat(1. / sum);
            for index in (0..len).step_by(LANES) {
                store_up_to::<S>(row, index, S::mul(load_up_to::<S>(row, index), factor));
            }
        }
    }
}

/// The gradient of scores from that of their softmax, with or without a sink, times `scale` and the slopes.
struct ScoreGradient<'a> {
    weights: &'a [f32],
    of_weights: &'a mut [f32],
    slopes: Option<&'a [f32]>,
    positions: usize,
    scale: f32,
}

impl Kernel for ScoreGradient<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { weights, of_weights, slopes, positions, scale } = self;
        let rows = weights.chunks_exact(positions).zip(of_weights.chunks_exact_mut(positions));
        for (row, (weights, of_weights)) in rows.enumerate() {
            // SAFETY: `index` is within the rows; features as `Kernel` says.
            unsafe {
                let mut sums = S::splat(0.);
                for index in (0..positions).step_by(LANES) {
                    sums = S::fma(load_up_to::<S>(weights, index), load_up_to::<S>(of_weights, index), sums);
                }
                let mean = S::splat(S::reduce_sum(sums));
                for index in (0..positions).step_by(LANES) {
                    let centred = S::sub(load_up_to::<S>(of_weights, index), mean);
                    let mut x = S::mul(S::mul(centred, load_up_to::<S>(weights, index)), S::splat(scale));
                    if let Some(slopes) = slopes {
                        x = S::mul(x, load_up_to::<S>(&slopes[row * positions..][..positions], index));
                    }
                    store_up_to::<S>(of_weights, index, x);
                }
            }
        }
    }
}
