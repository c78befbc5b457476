//! Attention against a plain softmax in f64.

#[path = "common/rng.rs"]
mod rng;

use half::f16;
use outpost_kernels::{Blocks, POSITIONS, Pair, Path, Pool, Sequence, Shape, attend, to_q8};
use rng::Rng;

/// Keys or values of one sequence, `[positions, kv_heads, width]`, and the same in blocks of all three
/// forms, whose places without a position hold what must not be looked at.
struct Cache {
    turned: bool,
    floats: Vec<Vec<f32>>,
    halves: Vec<Vec<f16>>,
    bytes: Vec<(Vec<i8>, Vec<f32>)>,
}

impl Cache {
    fn new(rng: &mut Rng, positions: usize, shape: &Shape, turned: bool) -> Self {
        let (blocks, size) = (positions.div_ceil(POSITIONS), shape.kv_heads * POSITIONS * shape.width);
        let mut cache = Self {
            turned,
            floats: vec![vec![f32::NAN; size]; blocks],
            halves: vec![vec![f16::NAN; size]; blocks],
            bytes: vec![(vec![99; size], vec![f32::INFINITY; size / shape.width]); blocks],
        };
        for (position, head) in (0..positions).flat_map(|at| (0..shape.kv_heads).map(move |head| (at, head))) {
            let row: Vec<f32> = (0..shape.width).map(|_| rng.normal()).collect();
            let mut codes = vec![0; shape.width];
            let (block, scale) = (position / POSITIONS, to_q8(&row, &mut codes));
            cache.bytes[block].1[head * POSITIONS + position % POSITIONS] = scale;
            for (at, (number, code)) in row.into_iter().zip(codes).enumerate() {
                let index = cache.index(shape, position, head, at);
                cache.floats[block][index] = number;
                cache.halves[block][index] = f16::from_f32(number);
                cache.bytes[block].0[index] = code;
            }
        }
        cache
    }

    /// Where number `at` of a position and head is in its block.
    fn index(&self, shape: &Shape, position: usize, head: usize, at: usize) -> usize {
        let (start, slot) = (head * POSITIONS * shape.width, position % POSITIONS);
        start + if self.turned { at * POSITIONS + slot } else { slot * shape.width + at }
    }

    /// Number `at` of the row of a position and head, as the form keeps it.
    fn at(&self, form: usize, shape: &Shape, position: usize, head: usize, at: usize) -> f64 {
        let (block, index) = (position / POSITIONS, self.index(shape, position, head, at));
        let (codes, scales) = &self.bytes[block];
        match form {
            0 => f64::from(self.floats[block][index]),
            1 => self.halves[block][index].to_f64(),
            _ => f64::from(codes[index]) * f64::from(scales[head * POSITIONS + position % POSITIONS]),
        }
    }
}

/// Slices of keys and of values.
struct Views<'a> {
    floats: [Vec<&'a [f32]>; 2],
    halves: [Vec<&'a [f16]>; 2],
    bytes: [Vec<(&'a [i8], &'a [f32])>; 2],
}

impl<'a> Views<'a> {
    fn of(case: &'a Case) -> Self {
        let both = [&case.keys, &case.values];
        Self {
            floats: both.map(|cache| cache.floats.iter().map(Vec::as_slice).collect()),
            halves: both.map(|cache| cache.halves.iter().map(Vec::as_slice).collect()),
            bytes: both.map(|cache| cache.bytes.iter().map(|(codes, scales)| (&codes[..], &scales[..])).collect()),
        }
    }

    fn blocks(&'a self, form: usize) -> Blocks<'a> {
        fn pair<T>([keys, values]: &[Vec<T>; 2]) -> Pair<'_, T> {
            Pair { keys, values }
        }
        match form {
            0 => Blocks::F32(pair(&self.floats)),
            1 => Blocks::F16(pair(&self.halves)),
            _ => Blocks::Q8(pair(&self.bytes)),
        }
    }
}

struct Case {
    queries: Vec<f32>,
    keys: Cache,
    values: Cache,
    rows: usize,
    start: usize,
}

impl Case {
    fn new(rng: &mut Rng, shape: &Shape, rows: usize, start: usize) -> Self {
        let queries = (0..rows * shape.heads * shape.width).map(|_| rng.normal()).collect();
        let total = rows + start;
        let (keys, values) = (Cache::new(rng, total, shape, true), Cache::new(rng, total, shape, false));
        Self { queries, keys, values, rows, start }
    }

    fn plain(&self, shape: &Shape, form: usize) -> Vec<f64> {
        let mut out = Vec::new();
        for row in 0..self.rows {
            let position = self.start + row;
            let end = if shape.causal { position + 1 } else { self.start + self.rows };
            let begin = shape.window.map_or(0, |window| (position + 1).saturating_sub(window));
            for head in 0..shape.heads {
                let kv_head = head / (shape.heads / shape.kv_heads);
                let query = &self.queries[(row * shape.heads + head) * shape.width..][..shape.width];
                let score = |key: usize| {
                    let terms = query.iter().enumerate();
                    let sum: f64 =
                        terms.map(|(at, q)| f64::from(*q) * self.keys.at(form, shape, key, kv_head, at)).sum();
                    let score = sum * f64::from(shape.scale);
                    shape.soft_cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
                };
                let scores: Vec<f64> = (begin..end).map(score).collect();
                let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
                let total: f64 = weights.iter().sum();
                for at in 0..shape.width {
                    let terms = weights.iter().zip(begin..end);
                    let sum: f64 = terms.map(|(w, key)| w * self.values.at(form, shape, key, kv_head, at)).sum();
                    out.push(sum / total);
                }
            }
        }
        out
    }
}

fn shape(heads: usize, kv_heads: usize, width: usize) -> Shape {
    let scale = 1.0 / (width as f32).sqrt();
    Shape { heads, kv_heads, width, scale, causal: true, window: None, soft_cap: None }
}

fn attend_all(pool: &Pool, shape: &Shape, cases: &[Case], form: usize) -> Vec<f32> {
    let views: Vec<_> = cases.iter().map(Views::of).collect();
    let rows: usize = cases.iter().map(|case| case.rows).sum();
    let mut out = vec![f32::NAN; rows * shape.heads * shape.width];
    let mut sequences = Vec::new();
    for (case, views) in cases.iter().zip(&views) {
        let (rows, start, queries) = (case.rows, case.start, case.queries.as_slice());
        sequences.push(Sequence { queries, rows, start, blocks: views.blocks(form) });
    }
    attend(pool, &sequences, shape, &mut out);
    out
}

fn check(shape: &Shape, cases: &[Case], what: &str) {
    for form in 0..3 {
        let expected: Vec<f64> = cases.iter().flat_map(|case| case.plain(shape, form)).collect();
        for path in Path::available() {
            for threads in [1, 2] {
                let pool = Pool::with_path(threads, path);
                let found = attend_all(&pool, shape, cases, form);
                for (index, (a, b)) in found.iter().zip(&expected).enumerate() {
                    let near = (f64::from(*a) - b).abs() < 2e-5;
                    assert!(near, "{what}, form {form}, {path:?}, {threads} threads, {index}: {a} and not {b}");
                }
            }
        }
    }
}

#[test]
fn ragged_batches_agree_with_a_plain_softmax() {
    let mut rng = Rng(1);
    for (heads, kv_heads, width) in [(9, 3, 64), (4, 4, 80), (8, 1, 128), (9, 1, 32), (2, 1, 24), (5, 1, 16)] {
        let shape = shape(heads, kv_heads, width);
        let sizes = [(1, 0), (1, 31), (1, 32), (5, 0), (40, 7), (1, 700), (3, 530)];
        let cases: Vec<_> = sizes.iter().map(|(rows, start)| Case::new(&mut rng, &shape, *rows, *start)).collect();
        check(&shape, &cases, &format!("{shape:?}"));
    }
}

#[test]
fn windows_caps_and_both_directions() {
    let mut rng = Rng(2);
    let plain = shape(4, 2, 32);
    let shapes = [
        Shape { window: Some(1), ..plain },
        Shape { window: Some(50), ..plain },
        Shape { window: Some(300), soft_cap: Some(2.0), ..plain },
        Shape { soft_cap: Some(0.5), ..plain },
        Shape { causal: false, ..plain },
    ];
    for shape in shapes {
        let cases = [(1, 600), (70, 500), (20, 0)].map(|(rows, start)| Case::new(&mut rng, &shape, rows, start));
        check(&shape, &cases, &format!("{shape:?}"));
    }
}

#[test]
fn a_row_gives_the_same_bits_in_any_batch_and_on_any_number_of_threads() {
    let mut rng = Rng(3);
    for window in [None, Some(333)] {
        let shape = Shape { window, ..shape(6, 2, 64) };
        let whole = Case::new(&mut rng, &shape, 90, 600);
        let row = shape.heads * shape.width;
        for path in Path::available() {
            let expected = attend_all(&Pool::with_path(1, path), &shape, std::slice::from_ref(&whole), 1);
            for threads in [1, 2, 4] {
                let pool = Pool::with_path(threads, path);
                for (first, rows) in [(0, 90), (0, 1), (89, 1), (17, 5), (20, 70)] {
                    let (queries, views) = (&whole.queries[first * row..(first + rows) * row], Views::of(&whole));
                    let sequence = Sequence { queries, rows, start: 600 + first, blocks: views.blocks(1) };
                    let mut out = vec![0f32; rows * row];
                    attend(&pool, &[sequence], &shape, &mut out);
                    let same = out.iter().zip(&expected[first * row..]).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "{path:?}, {threads} threads, rows {first} and {rows} more");
                }
            }
        }
    }
}

#[test]
fn nothing_to_do_is_done() {
    let pool = Pool::new(2);
    attend(&pool, &[], &shape(2, 1, 16), &mut []);
}

#[test]
#[should_panic(expected = "positions of blocks")]
fn missing_blocks_are_noticed() {
    let shape = shape(1, 1, 16);
    let case = Case::new(&mut Rng(4), &shape, 1, 16);
    let views = Views::of(&case);
    let [keys, values] = &views.halves;
    let blocks = Blocks::F16(Pair { keys: &keys[..1], values });
    let sequence = Sequence { queries: &case.queries, rows: 1, start: 16, blocks };
    attend(&Pool::new(1), &[sequence], &shape, &mut [0.0; 16]);
}
