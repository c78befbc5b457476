//! Products of every kind on every path that this CPU has, against plain arithmetic in f64.

#[path = "common/dequantise.rs"]
mod dequantise;
#[path = "common/rng.rs"]
mod rng;
#[path = "common/weights.rs"]
mod weights;

use dequantise::dequantise;
use half::bf16;
use outpost_kernels::{Activations, Error, Kind, Linear, Path, Pool, apply_all};
use rng::Rng;
use weights::random_weights;

fn pools() -> Vec<Pool> {
    Path::available().into_iter().map(|path| Pool::with_path(2, path)).collect()
}

fn below(rng: &mut Rng, limit: usize) -> usize {
    (rng.next() % limit as u64) as usize
}

/// What the kernels see of a row.
fn seen(kind: Kind, path: Path, x: &[f32]) -> Vec<f32> {
    match kind {
        Kind::BF16 if path == Path::Avx512Bf16 => x.iter().map(|x| bf16::from_f32(*x).to_f32()).collect(),
        kind if kind.is_quantised() => rounded(x),
        _ => x.to_vec(),
    }
}

/// Blocks of 32 rounded to integers of at most 127.
fn rounded(x: &[f32]) -> Vec<f32> {
    let block = |x: &[f32]| {
        let scale = x.iter().fold(0f32, |most, x| most.max(x.abs())) / 127.0;
        let inverse = if scale > 1e-37 { 1.0 / scale } else { 0.0 };
        x.iter().map(|x| (x * inverse).round_ties_even() * scale).collect::<Vec<_>>()
    };
    x.chunks(32).flat_map(block).collect()
}

/// The product, and the sum of the magnitudes of its terms.
fn dot(weights: &[f32], x: &[f32]) -> (f64, f64) {
    let terms = weights.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x));
    terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()))
}

#[test]
fn products_agree_with_plain_arithmetic() {
    let mut rng = Rng(1);
    for kind in Kind::ALL {
        let widest = if kind.block() == 256 { 3 } else { 7 };
        for m in (1..=9).chain([12, 17, 31, 40, 64, 129]) {
            let unit = kind.block().max(if kind.is_quantised() { 32 } else { 1 });
            let k =
                unit * (1 + below(&mut rng, widest)) + if kind.is_quantised() { 0 } else { 20 * below(&mut rng, 5) };
            let n = 1 + below(&mut rng, 70);
            let bytes = random_weights(&mut rng, kind, n * k);
            let linear = Linear::from_gguf(kind, n, k, &bytes).unwrap();
            let weights = dequantise(kind, &bytes);
            let x: Vec<f32> = (0..m * k).map(|_| rng.normal()).collect();
            for pool in pools() {
                let mut out = vec![f32::NAN; m * n];
                linear.forward(&pool, &x, m, &mut out);
                for (row, x) in x.chunks(k).enumerate() {
                    let seen = seen(kind, pool.path(), x);
                    for (column, w) in weights.chunks(k).enumerate() {
                        let found = f64::from(out[row * n + column]);
                        let (exact, size) = dot(w, &seen);
                        // The minimum and the code's part of a weight may cancel, hence more than size.
                        let largest = w.iter().fold(0f32, |a, w| a.max(w.abs()));
                        let bound = 4e-6 * (size + f64::from(largest) * k as f64) + 1e-12;
                        let what =
                            || format!("{kind:?} {} [{m}, {k}] x [{n}, {k}] at {row}, {column}", pool.path().name());
                        assert!((found - exact).abs() <= bound, "{}: {found} and not {exact}", what());
                        let (true_value, size) = dot(w, x);
                        let loose = 0.02 * size + 1e-6;
                        assert!((found - true_value).abs() <= loose, "{}: {found} for {true_value}", what());
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_gives_the_same_bits_in_any_batch_and_on_any_number_of_threads() {
    let mut rng = Rng(2);
    for kind in Kind::ALL {
        let (n, k) = (83, 512);
        let linear = Linear::from_gguf(kind, n, k, &random_weights(&mut rng, kind, n * k)).unwrap();
        let x: Vec<f32> = (0..70 * k).map(|_| rng.normal()).collect();
        for path in Path::available() {
            let alone = Pool::with_path(1, path);
            let mut expected = vec![0f32; 70 * n];
            for (x, out) in x.chunks(k).zip(expected.chunks_mut(n)) {
                linear.forward(&alone, x, 1, out);
            }
            for threads in [1, 2, 3, 5] {
                let pool = Pool::with_path(threads, path);
                for m in (1..=20).chain([31, 70]) {
                    let mut out = vec![0f32; m * n];
                    linear.forward(&pool, &x[..m * k], m, &mut out);
                    let same = out.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "{kind:?} on {path:?}, {threads} threads, {m} rows");
                }
            }
        }
    }
}

#[test]
fn large_batches_are_cut_into_pieces_that_agree() {
    let mut rng = Rng(3);
    let (m, n, k) = (700, 40, 1536);
    for kind in [Kind::Q4_1, Kind::F32] {
        let linear = Linear::from_gguf(kind, n, k, &random_weights(&mut rng, kind, n * k)).unwrap();
        let x: Vec<f32> = (0..m * k).map(|_| rng.normal()).collect();
        for pool in pools() {
            let mut out = vec![0f32; m * n];
            linear.forward(&pool, &x, m, &mut out);
            let mut last = vec![0f32; n];
            linear.forward(&pool, &x[(m - 1) * k..], 1, &mut last);
            assert_eq!(last, out[(m - 1) * n..]);
        }
    }
}

#[test]
fn rows_are_dequantised_exactly() {
    let mut rng = Rng(4);
    for kind in Kind::ALL {
        let (n, k) = (37, 768);
        let bytes = random_weights(&mut rng, kind, n * k);
        let linear = Linear::from_gguf(kind, n, k, &bytes).unwrap();
        let mut row = vec![0f32; k];
        for (index, expected) in dequantise(kind, &bytes).chunks(k).enumerate() {
            linear.row(index, &mut row);
            assert_eq!(row, expected, "{kind:?} row {index}");
        }
    }
}

#[test]
fn matrices_share_activations() {
    let mut rng = Rng(5);
    let (m, k) = (5, 256);
    let make = |rng: &mut Rng, kind, n| Linear::from_gguf(kind, n, k, &random_weights(rng, kind, n * k)).unwrap();
    let matrices = [make(&mut rng, Kind::Q4K, 100), make(&mut rng, Kind::Q6K, 33), make(&mut rng, Kind::F16, 7)];
    let x: Vec<f32> = (0..m * k).map(|_| rng.normal()).collect();
    for pool in pools() {
        let [mut a, mut b, mut c] = matrices.each_ref().map(|matrix| vec![0f32; m * matrix.n()]);
        let activations = Activations::new(&pool, &x, m, k);
        let [first, second, third] = &matrices;
        apply_all(&activations, &mut [(first, &mut a), (second, &mut b), (third, &mut c)]);
        for (matrix, out) in matrices.iter().zip([a, b, c]) {
            let mut alone = vec![0f32; out.len()];
            matrix.forward(&pool, &x, m, &mut alone);
            assert_eq!(alone, out);
        }
    }
}

#[test]
fn numbers_that_are_not_finite_show_in_their_row_and_in_no_other() {
    let mut rng = Rng(6);
    for kind in Kind::ALL {
        let (m, n, k) = (3, 20, 256);
        let linear = Linear::from_gguf(kind, n, k, &random_weights(&mut rng, kind, n * k)).unwrap();
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x: Vec<f32> = (0..m * k).map(|_| rng.normal()).collect();
            x[k + 77] = bad;
            for pool in pools() {
                let mut out = vec![0f32; m * n];
                linear.forward(&pool, &x, m, &mut out);
                assert!(out[..n].iter().chain(&out[2 * n..]).all(|x| x.is_finite()));
                assert!(out[n..2 * n].iter().all(|x| !x.is_finite()), "{kind:?} {:?} {bad}", pool.path());
            }
        }
    }
}

#[test]
fn tiny_and_zero_rows_give_zero() {
    let mut rng = Rng(7);
    for kind in Kind::ALL {
        let (n, k) = (20, 256);
        let linear = Linear::from_gguf(kind, n, k, &random_weights(&mut rng, kind, n * k)).unwrap();
        for pool in pools() {
            for value in [0.0, 1e-42] {
                let mut out = vec![1f32; n];
                linear.forward(&pool, &vec![value; k], 1, &mut out);
                assert!(out.iter().all(|x| x.abs() < 1e-30), "{kind:?} {:?}", pool.path());
            }
        }
    }
}

#[test]
fn memory_is_about_the_files_size() {
    let mut rng = Rng(8);
    for kind in Kind::ALL {
        let (n, k) = (64, 512);
        let bytes = random_weights(&mut rng, kind, n * k);
        let linear = Linear::from_gguf(kind, n, k, &bytes).unwrap();
        assert!(linear.bytes() <= bytes.len() * 104 / 100, "{kind:?}: {} for {}", linear.bytes(), bytes.len());
    }
}

#[test]
fn impossible_matrices_are_refused() {
    for (n, k) in [(0, 32), (4, 0), (4, 33), (usize::MAX, 32), (4, usize::MAX - 31)] {
        assert!(matches!(Linear::from_gguf(Kind::Q4_1, n, k, &[]), Err(Error::Shape { .. } | Error::Length { .. })));
    }
    let error = Linear::from_gguf(Kind::Q4_1, 2, 32, &[0; 39]).unwrap_err();
    assert_eq!(error, Error::Length { expected: 40, found: 39 });
}
