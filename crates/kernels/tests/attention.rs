//! Attention, compared with a softmax in f64.

#[path = "common/cases.rs"]
mod cases;
#[path = "common/rng.rs"]
mod rng;

use cases::{Distribution, config, distribution, pools, random_values};
use half::{bf16, f16};
use outpost_kernels::{
    AttentionSequence, AttentionShape, BLOCK_POSITIONS, Isa, KvBlocks, KvSlices, Pool, attend, quantise_q8,
};
use proptest::prelude::*;
use rng::Rng;

const SEEDS: &str = "proptest-regressions/attention.txt";

/// Keys or values of one sequence in blocks of all four types. Unused slots hold values that must not be read.
struct Cache {
    /// Whether elements of a block are `[kv_heads, width, 16]`, as for keys.
    transposed: bool,
    floats: Vec<Vec<f32>>,
    halves: Vec<Vec<f16>>,
    bytes: Vec<(Vec<i8>, Vec<f32>)>,
    pairs: Vec<Vec<bf16>>,
}

impl Cache {
    fn new(
        rng: &mut Rng,
        distribution: Distribution,
        positions: usize,
        shape: &AttentionShape,
        transposed: bool,
    ) -> Self {
        let (blocks, size) = (positions.div_ceil(BLOCK_POSITIONS), shape.kv_heads * BLOCK_POSITIONS * shape.width);
        let mut cache = Self {
            transposed,
            floats: vec![vec![f32::NAN; size]; blocks],
            halves: vec![vec![f16::NAN; size]; blocks],
            bytes: vec![(vec![99; size], vec![f32::INFINITY; size / shape.width]); blocks],
            pairs: vec![vec![bf16::MAX; size]; blocks],
        };
        for (position, head) in (0..positions).flat_map(|at| (0..shape.kv_heads).map(move |head| (at, head))) {
            let row = random_values(rng, distribution, shape.width);
            let mut codes = vec![0; shape.width];
            let (block, scale) = (position / BLOCK_POSITIONS, quantise_q8(&row, &mut codes));
            cache.bytes[block].1[head * BLOCK_POSITIONS + position % BLOCK_POSITIONS] = scale;
            for (element, (value, code)) in row.into_iter().zip(codes).enumerate() {
                let index = cache.index(shape, position, head, element);
                cache.floats[block][index] = value;
                cache.halves[block][index] = f16::from_f32(value);
                cache.bytes[block].0[index] = code;
                let index = cache.pair_index(shape, position, head, element);
                cache.pairs[block][index] = bf16::from_f32(value);
            }
        }
        cache
    }

    /// The index in its block of an element of a position and head.
    fn index(&self, shape: &AttentionShape, position: usize, head: usize, element: usize) -> usize {
        let (start, slot) = (head * BLOCK_POSITIONS * shape.width, position % BLOCK_POSITIONS);
        start + if self.transposed { element * BLOCK_POSITIONS + slot } else { slot * shape.width + element }
    }

    /// The index in a block of bf16 pairs. For odd widths, which pairs do not support, it is any valid index.
    fn pair_index(&self, shape: &AttentionShape, position: usize, head: usize, element: usize) -> usize {
        let (start, slot) = (head * BLOCK_POSITIONS * shape.width, position % BLOCK_POSITIONS);
        let [across, along] = if self.transposed { [element, slot] } else { [slot, element] };
        let line = if self.transposed { BLOCK_POSITIONS } else { shape.width };
        start + (across / 2 * 2 * line + 2 * along + across % 2) % (BLOCK_POSITIONS * shape.width)
    }

    /// An element of a position and head, as the type `kv_type` stores it.
    fn value(&self, kv_type: usize, shape: &AttentionShape, position: usize, head: usize, element: usize) -> f64 {
        let (block, index) = (position / BLOCK_POSITIONS, self.index(shape, position, head, element));
        let (codes, scales) = &self.bytes[block];
        match kv_type {
            0 => f64::from(self.floats[block][index]),
            1 => self.halves[block][index].to_f64(),
            3 => self.pairs[block][self.pair_index(shape, position, head, element)].to_f64(),
            _ => f64::from(codes[index]) * f64::from(scales[head * BLOCK_POSITIONS + position % BLOCK_POSITIONS]),
        }
    }
}

/// Slices of keys and values.
struct Views<'a> {
    floats: [Vec<&'a [f32]>; 2],
    halves: [Vec<&'a [f16]>; 2],
    bytes: [Vec<(&'a [i8], &'a [f32])>; 2],
    pairs: [Vec<&'a [bf16]>; 2],
}

impl<'a> Views<'a> {
    fn of(case: &'a Case) -> Self {
        let caches = [&case.keys, &case.values];
        Self {
            floats: caches.map(|cache| cache.floats.iter().map(Vec::as_slice).collect()),
            halves: caches.map(|cache| cache.halves.iter().map(Vec::as_slice).collect()),
            bytes: caches.map(|cache| cache.bytes.iter().map(|(codes, scales)| (&codes[..], &scales[..])).collect()),
            pairs: caches.map(|cache| cache.pairs.iter().map(Vec::as_slice).collect()),
        }
    }

    fn blocks(&'a self, kv_type: usize) -> KvBlocks<'a> {
        fn pair<T>([keys, values]: &[Vec<T>; 2]) -> KvSlices<'_, T> {
            KvSlices { keys, values }
        }
        match kv_type {
            0 => KvBlocks::F32(pair(&self.floats)),
            1 => KvBlocks::F16(pair(&self.halves)),
            3 => KvBlocks::Bf16(pair(&self.pairs)),
            _ => KvBlocks::Q8(pair(&self.bytes)),
        }
    }
}

struct Case {
    queries: Vec<f32>,
    keys: Cache,
    values: Cache,
    size: Size,
}

/// The size of a sequence.
#[derive(Clone, Copy, Debug)]
struct Size {
    rows: usize,
    start: usize,
    /// Positions after the rows; if rows have no positions, all positions.
    more: usize,
}

impl Size {
    fn positions(&self, shape: &AttentionShape) -> usize {
        if shape.causal || shape.window.is_some() { self.start + self.rows + self.more } else { self.more.max(1) }
    }
}

impl Case {
    fn new(rng: &mut Rng, distribution: Distribution, shape: &AttentionShape, size: Size) -> Self {
        let queries = random_values(rng, distribution, size.rows * shape.heads * shape.width);
        let mut cache = |transposed| Cache::new(rng, distribution, size.positions(shape), shape, transposed);
        let (keys, values) = (cache(true), cache(false));
        Self { queries, keys, values, size }
    }

    /// For each output, the exact result and the error bound of f32.
    fn reference(&self, shape: &AttentionShape, sinks: Option<&[f32]>, kv_type: usize) -> Vec<(f64, f64)> {
        let mut out = Vec::new();
        for (row, head) in (0..self.size.rows).flat_map(|row| (0..shape.heads).map(move |head| (row, head))) {
            let position = self.size.start + row;
            let total = self.size.positions(shape);
            let window_end = shape.window.map_or(total, |window| total.min(position + window));
            let end = if shape.causal { position + 1 } else { window_end };
            let begin = shape.window.map_or(0, |window| (position + 1).saturating_sub(window));
            let kv_head = head / (shape.heads / shape.kv_heads);
            let query = &self.queries[(row * shape.heads + head) * shape.width..][..shape.width];
            let mut max_magnitude = 0f64;
            let score = |key: usize| {
                let (mut sum, mut magnitude) = (0.0, 0.0);
                for (at, q) in query.iter().enumerate() {
                    let q = if kv_type == 3 { bf16::from_f32(*q).to_f64() } else { f64::from(*q) };
                    let term = q * self.keys.value(kv_type, shape, key, kv_head, at);
                    (sum, magnitude) = (sum + term, magnitude + term.abs());
                }
                max_magnitude = max_magnitude.max(magnitude * f64::from(shape.scale));
                let score = sum * f64::from(shape.scale);
                shape.soft_cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
            };
            let scores: Vec<f64> = (begin..end).map(score).collect();
            let sink = sinks.map_or(f64::NEG_INFINITY, |sinks| f64::from(sinks[head]));
            let max_score = scores.iter().copied().fold(sink, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - max_score).exp()).collect();
            let total: f64 = weights.iter().sum::<f64>() + (sink - max_score).exp();
            // A bf16 weight is off by half a unit of its eighth binary place; a product of pairs loses values below
            // 2⁻¹²⁶.
            let bf16_error = if kv_type == 3 { 1.0 / 256.0 } else { 0.0 };
            // The weight of a sink is another term.
            let max_magnitude = if sinks.is_some() { max_magnitude.max(sink.abs()) } else { max_magnitude };
            let relative = error_bound(shape, max_magnitude, end - begin + 1) + bf16_error;
            for at in 0..shape.width {
                let (mut sum, mut magnitude) = (0.0, 0.0);
                for (weight, key) in weights.iter().zip(begin..end) {
                    let term = weight / total * self.values.value(kv_type, shape, key, kv_head, at);
                    (sum, magnitude) = (sum + term, magnitude + term.abs());
                }
                out.push((sum, relative * magnitude + 1e-30));
            }
        }
        out
    }
}

/// The error bound of an output, as a fraction of the weighted magnitudes of values. A sum of n products is off by at
/// most n + 2 units of the last place of its terms' magnitudes (Higham 2002, section 3.1). So is a score, and the
/// maximum score. Scaling adds two units, a soft cap ten of the cap, an exponential five. All weights have this error,
/// in the numerator and in the denominator; so do the sums, of 256 positions and then of chunks.
fn error_bound(shape: &AttentionShape, max_magnitude: f64, positions: usize) -> f64 {
    let cap = shape.soft_cap.map_or(0.0, |cap| 10.0 * f64::from(cap));
    let score = (shape.width as f64 + 5.0) * max_magnitude + cap;
    let sums = (positions.min(256) + 8 * positions.div_ceil(256)) as f64;
    let unit = f64::from(f32::EPSILON) / 2.0;
    2.0 * ((unit * (2.0 * score + 5.0)).exp_m1() + unit * (sums + 8.0))
}

/// One call of [`attend`].
#[derive(Clone, Debug)]
struct Call {
    shape: AttentionShape,
    sizes: Vec<Size>,
    has_sinks: bool,
    kv_type: usize,
    distribution: Distribution,
    seed: u64,
}

impl Call {
    fn cases(&self) -> Vec<Case> {
        let mut rng = Rng(self.seed);
        self.sizes.iter().map(|size| Case::new(&mut rng, self.distribution, &self.shape, *size)).collect()
    }

    /// Scores below and above those of most positions.
    fn sinks(&self) -> Option<Vec<f32>> {
        let mut rng = Rng(!self.seed);
        let sinks = random_values(&mut rng, Distribution::Normal, self.shape.heads);
        self.has_sinks.then(|| sinks.into_iter().map(|sink| 5.0 * sink).collect())
    }
}

fn shape() -> impl Strategy<Value = AttentionShape> {
    let (kv_heads, group, widest) = if cfg!(miri) { (2usize, 2usize, 20usize) } else { (3, 6, 100) };
    let width = prop_oneof![
        6 => 1..=widest,
        5 => prop::sample::select(vec![16, 32, 64, 80, 128]),
        1 => prop::sample::select(vec![256, 512])
    ];
    let window = prop::option::weighted(0.3, prop_oneof![1usize..40, 40usize..900]);
    let soft_cap = prop::option::weighted(0.3, 0.5f32..30.0);
    (1..=kv_heads, 1..=group, width, prop::bool::weighted(0.8), window, soft_cap).prop_map(
        |(kv_heads, group, width, causal, window, soft_cap)| {
            let scale = 1.0 / (width as f32).sqrt();
            AttentionShape { heads: kv_heads * group, kv_heads, width, scale, causal, window, soft_cap }
        },
    )
}

/// Calls with sequences of up to `rows` rows after up to `start` positions; sequences with few rows may start later.
fn call(rows: usize, start: usize) -> impl Strategy<Value = Call> {
    let size = prop_oneof![2 => (Just(1), 0..=2 * start), 1 => (0..=9usize, 0..=start), 1 => (0..=rows, 0..=start)];
    let more = prop_oneof![2 => Just(0), 1 => 0..=start];
    let size = (size, more).prop_map(|((rows, start), more)| Size { rows, start, more });
    (shape(), prop::collection::vec(size, 1..=4), any::<bool>(), 0..4usize, distribution(), any::<u64>()).prop_map(
        |(shape, sizes, has_sinks, kv_type, distribution, seed)| {
            let kv_type = if shape.width % 2 == 1 { kv_type % 3 } else { kv_type };
            Call { shape, sizes, has_sinks, kv_type, distribution, seed }
        },
    )
}

fn short() -> impl Strategy<Value = Call> {
    if cfg!(miri) { call(3, 20) } else { call(80, 500) }
}

fn attend_all(pool: &Pool, call: &Call, cases: &[Case]) -> Vec<f32> {
    let views: Vec<_> = cases.iter().map(Views::of).collect();
    let rows: usize = cases.iter().map(|case| case.size.rows).sum();
    let mut out = vec![f32::NAN; rows * call.shape.heads * call.shape.width];
    let mut sequences = Vec::new();
    for (case, views) in cases.iter().zip(&views) {
        let (Size { rows, start, .. }, positions) = (case.size, case.size.positions(&call.shape));
        sequences.push(AttentionSequence {
            queries: &case.queries,
            rows,
            start,
            positions,
            blocks: views.blocks(call.kv_type),
        });
    }
    attend(pool, &sequences, &call.shape, call.sinks().as_deref(), &mut out);
    out
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

proptest! {
    #![proptest_config(config(80, SEEDS))]

    #[test]
    fn every_isa_matches_a_softmax_in_f64(call in short(), threads in 1..=3usize) {
        let cases = call.cases();
        let sinks = call.sinks();
        let reference = |case: &Case| case.reference(&call.shape, sinks.as_deref(), call.kv_type);
        let expected: Vec<_> = cases.iter().flat_map(reference).collect();
        for pool in pools(threads) {
            let found = attend_all(&pool, &call, &cases);
            for (index, (found, (exact, bound))) in found.iter().zip(&expected).enumerate() {
                let is_near = (f64::from(*found) - exact).abs() <= *bound;
                prop_assert!(is_near, "{:?}, {index}: {found}, expected {exact} ± {bound}", pool.isa());
            }
        }
    }

    /// Larger sizes, for which the reference would be slow.
    #[test]
    fn every_isa_matches_the_portable_one(mut call in if cfg!(miri) { call(3, 20) } else { call(300, 1500) }) {
        // Normally distributed values; in all runs so far, outputs were five times closer than this.
        call.distribution = Distribution::Normal;
        let cases = call.cases();
        let expected = attend_all(&Pool::with_isa(2, Isa::Portable), &call, &cases);
        for pool in pools(2) {
            let found = attend_all(&pool, &call, &cases);
            // A weight that rounds to another bf16 makes a larger difference.
            let tolerance = if call.kv_type == 3 { 1e-2 } else { 1e-5 };
            let mismatch = found.iter().zip(&expected).position(|(a, b)| (a - b).abs().is_nan() || (a - b).abs() > tolerance);
            prop_assert_eq!(mismatch, None, "{:?}", pool.isa());
        }
    }

    #[test]
    fn a_row_gives_the_same_bits_in_any_batch_and_on_any_number_of_threads(
        call in short(),
        threads in 1..=5usize,
        first in any::<prop::sample::Index>(),
        count in any::<prop::sample::Index>(),
    ) {
        let (cases, row) = (call.cases(), call.shape.heads * call.shape.width);
        for isa in Isa::available() {
            let (one, several) = (Pool::with_isa(1, isa), Pool::with_isa(threads, isa));
            let mut alone = Vec::new();
            for case in &cases {
                let whole = attend_all(&one, &call, std::slice::from_ref(case));
                alone.extend_from_slice(&whole);
                if case.size.rows == 0 {
                    continue;
                }
                // A range of rows, as in another split of the prompt.
                let first = first.index(case.size.rows);
                let rows = 1 + count.index(case.size.rows - first);
                let range = first * row..(first + rows) * row;
                let (views, queries) = (Views::of(case), &case.queries[range.clone()]);
                let start = case.size.start + first;
                let positions = if call.shape.causal { start + rows } else { case.size.positions(&call.shape) };
                let sequence = AttentionSequence { queries, rows, start, positions, blocks: views.blocks(call.kv_type) };
                let mut out = vec![f32::NAN; range.len()];
                attend(&several, &[sequence], &call.shape, call.sinks().as_deref(), &mut out);
                prop_assert!(same_bits(&out, &whole[range]), "{isa:?}, rows {first} and {rows} more");
            }
            prop_assert!(same_bits(&attend_all(&several, &call, &cases), &alone), "{isa:?}, all sequences");
        }
    }
}

fn small_shape(heads: usize) -> AttentionShape {
    AttentionShape { heads, kv_heads: 1, width: 16, scale: 0.25, causal: true, window: None, soft_cap: None }
}

#[test]
fn no_sequences_are_allowed() {
    let pool = Pool::new(2);
    attend(&pool, &[], &small_shape(2), None, &mut []);
}

#[test]
#[should_panic(expected = "the blocks hold fewer than 17 positions")]
fn missing_blocks_cause_a_panic() {
    let shape = small_shape(1);
    let case = Case::new(&mut Rng(4), Distribution::Normal, &shape, Size { rows: 1, start: 16, more: 0 });
    let views = Views::of(&case);
    let [keys, values] = &views.halves;
    let blocks = KvBlocks::F16(KvSlices { keys: &keys[..1], values });
    let sequence = AttentionSequence { queries: &case.queries, rows: 1, start: 16, positions: 17, blocks };
    attend(&Pool::new(1), &[sequence], &shape, None, &mut [0.0; 16]);
}
