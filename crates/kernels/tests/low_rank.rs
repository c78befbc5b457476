//! Low-rank updates of several outputs, compared with sums in double precision.
#![cfg(test)]

#[path = "common/rng.rs"]
mod rng;
#[path = "common/weights.rs"]
mod weights;

use std::ops::Range;

use outpost_kernels::{DType, Error, Isa, Linear, LowRankUpdate, Pool, add_low_rank};
use rng::Rng;
use weights::random_weights;

struct Matrix {
    linear: Linear,
    values: Vec<f64>,
}

fn matrix(rng: &mut Rng, dtype: DType, n: usize, k: usize) -> Matrix {
    of(Linear::from_gguf(dtype, n, k, &random_weights(rng, dtype, n * k)).unwrap())
}

/// The first matrix of an update.
fn down_matrix(rng: &mut Rng, dtype: DType, n: usize, k: usize) -> Matrix {
    let weights = random_weights(rng, dtype, n * k);
    let row_bytes = weights.len() / n;
    let read = |first: usize, out: &mut [u8]| -> Result<(), Error> {
        out.copy_from_slice(&weights[first * row_bytes..][..out.len()]);
        Ok(())
    };
    let linear = Linear::pack_low_rank(&Pool::new(1), dtype, n, k, read).unwrap();
    assert_eq!(linear.is_paired(), n <= 8 && k.is_multiple_of(2));
    assert_eq!(linear.bytes(), Linear::packed_low_rank_bytes(dtype, n, k));
    let (found, plain) = (of(linear), of(Linear::from_gguf(dtype, n, k, &weights).unwrap()));
    assert_eq!(found.values, plain.values);
    found
}

fn of(linear: Linear) -> Matrix {
    let (n, k) = (linear.n(), linear.k());
    let mut values = vec![0.; n * k];
    values.chunks_exact_mut(k).enumerate().for_each(|(row, out)| linear.row(row, out));
    Matrix { linear, values: values.into_iter().map(f64::from).collect() }
}

/// An update of an output: the rows, and the indices of both matrices.
struct Update {
    output: usize,
    rows: Range<usize>,
    down: Matrix,
    up: Matrix,
    scale: f32,
}

impl Update {
    /// Adds the update to the sums of one row.
    fn add(&self, x: &[f32], out: &mut [f64]) {
        let low = self.down.values.chunks_exact(x.len());
        let low: Vec<f64> = low.map(|w| w.iter().zip(x).map(|(w, x)| w * f64::from(*x)).sum()).collect();
        for (out, w) in out.iter_mut().zip(self.up.values.chunks_exact(low.len())) {
            *out += f64::from(self.scale) * w.iter().zip(&low).map(|(w, low)| w * low).sum::<f64>();
        }
    }
}

/// Applies the updates to copies of `outs`; the rows `rows` of the input alone.
fn apply(pool: &Pool, x: &[f32], k: usize, updates: &[Update], outs: &[Vec<f32>], rows: Range<usize>) -> Vec<Vec<f32>> {
    let total = x.len() / k;
    let mut outs: Vec<Vec<f32>> =
        outs.iter().map(|out| out[rows.start * (out.len() / total)..rows.end * (out.len() / total)].to_vec()).collect();
    let clip = |at: usize| at.clamp(rows.start, rows.end) - rows.start;
    let updates: Vec<_> = updates
        .iter()
        .map(|update| LowRankUpdate {
            output: update.output,
            rows: clip(update.rows.start)..clip(update.rows.end),
            down: &update.down.linear,
            up: &update.up.linear,
            scale: update.scale,
        })
        .collect();
    let mut scratch = vec![f32::NAN; updates.iter().map(LowRankUpdate::scratch_len).sum()];
    let mut slices: Vec<&mut [f32]> = outs.iter_mut().map(Vec::as_mut_slice).collect();
    add_low_rank(pool, &x[rows.start * k..rows.end * k], k, &updates, &mut slices, &mut scratch);
    outs
}

#[test]
fn updates_match_sums_in_double_precision_and_rows_do_not_depend_on_others() {
    let mut rng = Rng(5);
    // Rows of the groups, inputs, and widths of the outputs.
    for (groups, k, widths) in
        [(&[1, 1, 1][..], 64, [48, 20]), (&[3, 40, 2], 37, [16, 1]), (&[5], 3, [7, 33]), (&[0, 70], 130, [50, 64])]
    {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let rows: usize = groups.iter().sum();
            let x: Vec<f32> = (0..rows * k).map(|_| rng.normal()).collect();
            let outs = widths.map(|width| (0..rows * width).map(|_| rng.normal()).collect::<Vec<f32>>());
            let (mut updates, mut start) = (Vec::new(), 0);
            for (index, count) in groups.iter().enumerate() {
                for output in 0..2 {
                    let rank = [1, 8, 17, 5][(index + 3 * output) % 4];
                    let down = down_matrix(&mut rng, dtype, rank, k);
                    let up = matrix(&mut rng, dtype, widths[output], rank);
                    let scale = 0.5 + rng.unit();
                    updates.push(Update { output, rows: start..start + count, down, up, scale });
                }
                start += count;
            }
            // Not all rows of the second output are updated.
            updates.pop();
            for isa in Isa::available() {
                for threads in [1, 3] {
                    let pool = Pool::with_isa(threads, isa);
                    let found = apply(&pool, &x, k, &updates, &outs, 0..rows);
                    for (output, (found, before)) in found.iter().zip(&outs).enumerate() {
                        let width = widths[output];
                        let mut exact: Vec<f64> = before.iter().map(|value| f64::from(*value)).collect();
                        for update in updates.iter().filter(|update| update.output == output) {
                            for row in update.rows.clone() {
                                update.add(&x[row * k..][..k], &mut exact[row * width..][..width]);
                            }
                        }
                        for (at, (found, exact)) in found.iter().zip(&exact).enumerate() {
                            let difference = (f64::from(*found) - exact).abs();
                            assert!(difference < 1e-5, "{dtype:?} {isa:?}, output {output}, {at}: {difference}");
                        }
                    }
                    for row in 0..rows {
                        let alone = apply(&pool, &x, k, &updates, &outs, row..row + 1);
                        for (output, alone) in alone.iter().enumerate() {
                            let width = widths[output];
                            assert_eq!(*alone, found[output][row * width..][..width], "{dtype:?} {isa:?}, row {row}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "not in order")]
fn overlapping_updates_of_an_output_are_refused() {
    let mut rng = Rng(1);
    let (down, up) = (matrix(&mut rng, DType::F32, 2, 4), matrix(&mut rng, DType::F32, 3, 2));
    let update = |rows: Range<usize>| LowRankUpdate { output: 0, rows, down: &down.linear, up: &up.linear, scale: 1. };
    let (x, mut out, mut scratch) = ([0.; 12], [0.; 9], [0.; 64]);
    add_low_rank(&Pool::new(1), &x, 4, &[update(0..2), update(1..3)], &mut [&mut out], &mut scratch);
}
