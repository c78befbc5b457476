//! Products of every type on every instruction set of this CPU.

#[path = "common/cases.rs"]
mod cases;
#[path = "common/dequantise.rs"]
mod dequantise;
#[path = "common/rng.rs"]
mod rng;
#[path = "common/weights.rs"]
mod weights;

use cases::{Distribution, config, distribution, pools, random_values};
use dequantise::{dequantise, magnitudes};
use half::bf16;
use outpost_kernels::{Activations, DType, Error, Isa, Linear, Pool, matmul_all, matmul_parts};
use proptest::prelude::*;
use rng::Rng;
use weights::{random_weights, weights_of};

const SEEDS: &str = "proptest-regressions/linear.txt";
const UNIT: f64 = f32::EPSILON as f64 / 2.0;

/// Activations and several matrices.
#[derive(Clone, Debug)]
struct Case {
    m: usize,
    k: usize,
    /// Their types and outputs.
    matrices: Vec<(DType, usize)>,
    /// The byte of all codes, if they are not random: extremes take sums of products to their limits.
    code: Option<u8>,
    distribution: Distribution,
    seed: u64,
}

fn case(rows: impl Strategy<Value = usize>) -> impl Strategy<Value = Case> {
    let (inputs, outputs) = if cfg!(miri) { (40usize, 20usize) } else { (800, 70) };
    let matrices = prop::collection::vec((prop::sample::select(&DType::ALL[..]), 1..=outputs), 1..=3);
    let code = prop_oneof![3 => Just(None), 1 => prop::sample::select(vec![0xff, 0x80, 0x7f]).prop_map(Some)];
    // Rows shorter than a vector step are a special case.
    let inputs = prop_oneof![1 => 1..=5usize, 6 => 1..=inputs];
    (rows, inputs, matrices, code, distribution(), any::<u64>()).prop_map(
        |(m, k, matrices, code, distribution, seed)| {
            let unit = matrices.iter().map(|(dtype, _)| dtype.block()).max().unwrap_or(1);
            Case { m, k: k.next_multiple_of(unit), matrices, code, distribution, seed }
        },
    )
}

/// From few rows, which are one tile, to many.
fn rows() -> impl Strategy<Value = usize> {
    if cfg!(miri) { (1..=3usize).boxed() } else { prop_oneof![3 => 0..=26usize, 1 => 27..=150usize].boxed() }
}

struct Matrix {
    linear: Linear,
    bytes: Vec<u8>,
}

impl Case {
    fn make(&self) -> Result<(Vec<Matrix>, Vec<f32>), Error> {
        let mut rng = Rng(self.seed);
        let mut matrices = Vec::new();
        for &(dtype, n) in &self.matrices {
            let byte = |rng: &mut Rng| self.code.unwrap_or_else(|| rng.next() as u8);
            let bytes = weights_of(&mut rng, dtype, n * self.k, byte);
            matrices.push(Matrix { linear: Linear::from_gguf(dtype, n, self.k, &bytes)?, bytes });
        }
        Ok((matrices, random_values(&mut rng, self.distribution, self.m * self.k)))
    }
}

/// The outputs of all matrices, concatenated.
fn together(pool: &Pool, matrices: &[Matrix], x: &[f32], m: usize, k: usize) -> Vec<Vec<f32>> {
    let mut out: Vec<_> = matrices.iter().map(|matrix| vec![f32::NAN; m * matrix.linear.n()]).collect();
    let pairs = matrices.iter().zip(&mut out);
    let mut products: Vec<_> = pairs.map(|(matrix, out)| (&matrix.linear, out.as_mut_slice())).collect();
    matmul_all(&Activations::new(pool, x, m, k), &mut products);
    out
}

/// Whether an instruction set rounds activations to bf16 for this type; the portable one does not.
fn rounds(dtype: DType, isa: Isa) -> bool {
    dtype == DType::BF16 && isa == Isa::Avx512Bf16
}

/// A row as the kernels see it.
fn seen(dtype: DType, isa: Isa, x: &[f32]) -> Vec<f64> {
    if dtype.is_quantised() {
        return rounded(x);
    }
    x.iter().map(|x| if rounds(dtype, isa) { f64::from(bf16::from_f32(*x)) } else { f64::from(*x) }).collect()
}

/// Quantises blocks of 32 to integers of at most 127.
fn rounded(x: &[f32]) -> Vec<f64> {
    let block = |x: &[f32]| {
        let scale = x.iter().fold(0f32, |most, x| most.max(x.abs())) / 127.0;
        let inverse = if scale > 1e-37 { 1.0 / scale } else { 0.0 };
        x.iter().map(|x| f64::from((x * inverse).round_ties_even()) * f64::from(scale)).collect::<Vec<_>>()
    };
    x.chunks(32).flat_map(block).collect()
}

/// The plain product of a row and an output, and the sum of its terms' magnitudes.
fn plain(matrix: &Matrix, isa: Isa, x: &[f32]) -> Vec<(f64, f64)> {
    let (dtype, k) = (matrix.linear.dtype(), matrix.linear.k());
    let (weights, sizes) = (dequantise(dtype, &matrix.bytes), magnitudes(dtype, &matrix.bytes));
    let product = |(w, size): (&[f32], &[f32]), x: &[f64]| {
        let exact = w.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum();
        (exact, size.iter().zip(x).map(|(size, x)| f64::from(*size) * x.abs()).sum())
    };
    let row = |x: &[f32]| {
        let x = seen(dtype, isa, x);
        weights.chunks(k).zip(sizes.chunks(k)).map(|both| product(both, &x)).collect::<Vec<_>>()
    };
    x.chunks(k).flat_map(row).collect()
}

/// The error bound of a sum of `terms` terms, and of the difference between two such sums, in units of the last place
/// of the sum of magnitudes (Higham 2002, section 4.2). A sum adds one value for each float, or for each block a
/// product and at most one more. Before that, a term is rounded four times here (two scales, the block's sum, the
/// product unless fused) and three times by `dequantise`. Two instruction sets differ in the product and in the
/// additions.
fn bounds(linear: &Linear) -> [f64; 2] {
    let terms = match linear.dtype() {
        // With two scales and two minima for each block.
        DType::Q2K => linear.k() / 8,
        dtype if dtype.is_quantised() => linear.k() / 16,
        _ => linear.k(),
    } as f64;
    [(terms + 7.0) * UNIT, (2.0 * terms + 1.0) * UNIT]
}

/// Values below this lose precision; that many of them are negligible.
const TINY: f64 = 1e-34;

proptest! {
    #![proptest_config(config(150, SEEDS))]

    #[test]
    fn products_agree_with_plain_arithmetic_and_with_the_portable_isa(case in case(rows())) {
        let (matrices, x) = case.make()?;
        let portable = together(&Pool::with_isa(2, Isa::Portable), &matrices, &x, case.m, case.k);
        for pool in pools(2) {
            let found = together(&pool, &matrices, &x, case.m, case.k);
            for ((matrix, found), portable) in matrices.iter().zip(&found).zip(&portable) {
                let plain = plain(matrix, pool.isa(), &x);
                let alike = !rounds(matrix.linear.dtype(), pool.isa());
                prop_assert_eq!(found.len(), plain.len());
                let [bound, apart] = bounds(&matrix.linear);
                for (index, ((a, b), (exact, size))) in found.iter().zip(portable).zip(&plain).enumerate() {
                    let (a, b, at) = (f64::from(*a), f64::from(*b), || format!("{:?} on {:?}, {index}", matrix.linear, pool.isa()));
                    prop_assert!((a - exact).abs() <= bound * size + TINY, "{}: {a} and not {exact}", at());
                    prop_assert!(!alike || (a - b).abs() <= apart * size + TINY, "{}: {a}, portable {b}", at());
                }
            }
        }
    }

    #[test]
    fn a_row_gives_the_same_bits_alone_and_in_any_batch(case in case(rows()), threads in 1..=5usize) {
        let (matrices, x) = case.make()?;
        for isa in Isa::available() {
            let (one, several) = (Pool::with_isa(1, isa), Pool::with_isa(threads, isa));
            let found = together(&several, &matrices, &x, case.m, case.k);
            for (Matrix { linear, .. }, found) in matrices.iter().zip(&found) {
                let mut alone = vec![f32::NAN; linear.n()];
                for (row, (x, found)) in x.chunks(case.k).zip(found.chunks(linear.n())).enumerate() {
                    linear.forward(&one, x, 1, &mut alone);
                    let same = alone.iter().zip(found).all(|(a, b)| a.to_bits() == b.to_bits());
                    prop_assert!(same, "{linear:?} on {isa:?}, row {row}: {alone:?} alone, {found:?} in company");
                }
            }
        }
    }

    #[test]
    fn rows_in_parts_give_the_same_bits_as_alone(
        case in case(Just(1)),
        sizes in prop::collection::vec(prop_oneof![1 => Just(0), 4 => 0..=30usize], 1..=if cfg!(miri) { 2 } else { 6 }),
        threads in 1..=5usize,
    ) {
        let mut rng = Rng(case.seed ^ 1);
        let rows = sizes.iter().sum();
        let x = random_values(&mut rng, case.distribution, 9 * case.k);
        let indices: Vec<usize> = (0..rows).map(|_| rng.next() as usize % 9).collect();
        let gathered: Vec<f32> = indices.iter().flat_map(|index| &x[index * case.k..][..case.k]).copied().collect();
        // One matrix of each product for each part.
        let parts = sizes.iter().map(|_| Case { seed: rng.next(), ..case.clone() }.make()).collect::<Result<Vec<_>, _>>()?;
        let linears = |product: usize| parts.iter().map(|(matrices, _)| &matrices[product].linear).collect::<Vec<_>>();
        let linears: Vec<Vec<&Linear>> = (0..case.matrices.len()).map(linears).collect();
        for isa in Isa::available() {
            let (one, several) = (Pool::with_isa(1, isa), Pool::with_isa(threads, isa));
            let activations = [
                Activations::gathered(&several, &x, case.k, &indices, &sizes),
                Activations::in_parts(&several, &gathered, case.k, &sizes),
            ];
            for activations in activations {
                let mut outs: Vec<Vec<f32>> = linears.iter().map(|linears| vec![f32::NAN; rows * linears[0].n()]).collect();
                let pairs = linears.iter().zip(&mut outs);
                let mut products: Vec<_> = pairs.map(|(linears, out)| (linears.as_slice(), out.as_mut_slice())).collect();
                matmul_parts(&activations, &mut products);
                for (linears, out) in linears.iter().zip(&outs) {
                    let n = linears[0].n();
                    let part_of = sizes.iter().enumerate().flat_map(|(part, size)| std::iter::repeat_n(part, *size));
                    for ((part, x), found) in part_of.zip(gathered.chunks(case.k)).zip(out.chunks(n)) {
                        let mut alone = vec![f32::NAN; n];
                        linears[part].forward(&one, x, 1, &mut alone);
                        let same = alone.iter().zip(found).all(|(a, b)| a.to_bits() == b.to_bits());
                        prop_assert!(same, "{:?} on {isa:?}: {alone:?} alone, {found:?} in parts", linears[part]);
                    }
                }
            }
        }
    }

    #[test]
    fn rows_are_dequantised_exactly(case in case(Just(0))) {
        for Matrix { linear, bytes } in case.make()?.0 {
            let mut row = vec![f32::NAN; case.k];
            for (index, expected) in dequantise(linear.dtype(), &bytes).chunks(case.k).enumerate() {
                linear.row(index, &mut row);
                prop_assert_eq!(&row, expected, "{:?} row {}", linear, index);
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "forty million products")]
fn large_batches_are_cut_into_pieces_that_agree() {
    let mut rng = Rng(3);
    let (m, n, k) = (700, 40, 1536);
    for dtype in [DType::Q4_1, DType::F32] {
        let linear = Linear::from_gguf(dtype, n, k, &random_weights(&mut rng, dtype, n * k)).unwrap();
        let x: Vec<f32> = (0..m * k).map(|_| rng.normal()).collect();
        for pool in pools(2) {
            let mut out = vec![0f32; m * n];
            linear.forward(&pool, &x, m, &mut out);
            let mut last = vec![0f32; n];
            linear.forward(&pool, &x[(m - 1) * k..], 1, &mut last);
            assert_eq!(last, out[(m - 1) * n..]);
        }
    }
}

#[test]
fn numbers_that_are_not_finite_show_in_their_row_and_in_no_other() {
    let mut rng = Rng(6);
    for dtype in DType::ALL {
        let (m, n, k) = (3, 20, 256);
        let linear = Linear::from_gguf(dtype, n, k, &random_weights(&mut rng, dtype, n * k)).unwrap();
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x: Vec<f32> = (0..m * k).map(|_| rng.normal()).collect();
            x[k + 77] = bad;
            for pool in pools(2) {
                let mut out = vec![0f32; m * n];
                linear.forward(&pool, &x, m, &mut out);
                assert!(out[..n].iter().chain(&out[2 * n..]).all(|x| x.is_finite()));
                assert!(out[n..2 * n].iter().all(|x| !x.is_finite()), "{dtype:?} {:?} {bad}", pool.isa());
            }
        }
    }
}

#[test]
fn tiny_and_zero_rows_give_zero() {
    let mut rng = Rng(7);
    for dtype in DType::ALL {
        let (n, k) = (20, 256);
        let linear = Linear::from_gguf(dtype, n, k, &random_weights(&mut rng, dtype, n * k)).unwrap();
        for pool in pools(2) {
            for value in [0.0, 1e-42] {
                let mut out = vec![1f32; n];
                linear.forward(&pool, &vec![value; k], 1, &mut out);
                assert!(out.iter().all(|x| x.abs() < 1e-30), "{dtype:?} {:?}", pool.isa());
            }
        }
    }
}

#[test]
fn memory_is_about_the_files_size() {
    let mut rng = Rng(8);
    for dtype in DType::ALL {
        let (n, k) = (64, 512);
        let bytes = random_weights(&mut rng, dtype, n * k);
        let linear = Linear::from_gguf(dtype, n, k, &bytes).unwrap();
        assert!(linear.bytes() <= bytes.len() * 104 / 100, "{dtype:?}: {} for {}", linear.bytes(), bytes.len());
    }
}

#[test]
fn invalid_matrices_are_rejected() {
    for (n, k) in [(0, 32), (4, 0), (4, 33), (usize::MAX, 32), (4, usize::MAX - 31)] {
        assert!(matches!(Linear::from_gguf(DType::Q4_1, n, k, &[]), Err(Error::Shape { .. } | Error::Length { .. })));
    }
    let error = Linear::from_gguf(DType::Q4_1, 2, 32, &[0; 39]).unwrap_err();
    assert_eq!(error, Error::Length { expected: 40, found: 39 });
}
