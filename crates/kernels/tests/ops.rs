//! Norms, activation functions, RoPE and quantisation on every instruction set, compared with f64 arithmetic and with the
//! portable instruction set.

#[path = "common/cases.rs"]
mod cases;
#[path = "common/rng.rs"]
mod rng;

use cases::{Distribution, config, distribution, pools, random_values};
use outpost_kernels::{Activation, Isa, Norm, NormKind, Pool, RopeLayout, activate, quantise_q8, rope};
use proptest::prelude::*;
use rng::Rng;

const SEEDS: &str = "proptest-regressions/ops.txt";
/// Half a unit in the last place of an f32, relative to the value.
const UNIT: f64 = f32::EPSILON as f64 / 2.0;
const MAX_ELEMENTS: usize = if cfg!(miri) { 100 } else { 20_000 };

/// Checks that the outputs of `work` on every instruction set match `expected` within its bounds, and the portable
/// outputs equally closely.
fn check(threads: usize, expected: &[(f64, f64)], work: impl Fn(&Pool) -> Vec<f32>) -> Result<(), TestCaseError> {
    let portable = work(&Pool::with_isa(1, Isa::Portable));
    for pool in pools(threads) {
        let found = work(&pool);
        prop_assert_eq!((found.len(), portable.len()), (expected.len(), expected.len()));
        for (index, ((a, b), (exact, bound))) in found.iter().zip(&portable).zip(expected).enumerate() {
            let (a, b, isa) = (f64::from(*a), f64::from(*b), pool.isa());
            prop_assert!((a - exact).abs() <= *bound, "{isa:?}, {index}: {a}, expected {exact} ± {bound}");
            prop_assert!((a - b).abs() <= *bound, "{isa:?}, {index}: {a}, portable {b} ± {bound}");
        }
    }
    Ok(())
}

/// The results of `reference` for pairs of values, with their error bounds.
fn map_pairs(x: &[f32], y: &[f32], reference: impl Fn(f64, f64) -> (f64, f64)) -> Vec<(f64, f64)> {
    x.iter().zip(y).map(|(x, y)| reference(f64::from(*x), f64::from(*y))).collect()
}

/// Values of any distribution; the first are hard cases for exponentials.
fn values_with_edge_cases(rng: &mut Rng, distribution: Distribution, count: usize) -> Vec<f32> {
    let mut x = random_values(rng, distribution, count);
    x.iter_mut().zip([0.0, 100.0, -100.0, 1e15, -1e15, 1e-30, 88.1, -87.1]).for_each(|(x, edge)| *x = edge);
    x
}

/// Φ of the normal distribution, by its series; beyond eight standard deviations it is 0 or 1.
fn normal_cdf(x: f64) -> f64 {
    if x.abs() > 8.0 {
        return if x > 0.0 { 1.0 } else { 0.0 };
    }
    let (mut term, mut sum, mut n) = (x, x, 1.0);
    while term.abs() > 1e-20 * sum.abs() {
        n += 2.0;
        term *= x * x / n;
        sum += term;
    }
    0.5 + sum * (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt()
}

/// The norm of a row, each value with its error bound.
fn norm_reference(norm: &Norm<'_>, x: &[f64]) -> Vec<(f64, f64)> {
    let width = x.len() as f64;
    let is_centered = norm.kind == NormKind::Layer;
    let mean = if is_centered { x.iter().sum::<f64>() / width } else { 0.0 };
    // The mean is off by a unit of the magnitudes for each addition; vectors need only a few.
    let additions = width / 16.0 + 20.0;
    let mean_error = if is_centered { additions * UNIT * x.iter().map(|x| x.abs()).sum::<f64>() / width } else { 0.0 };
    let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width;
    let deviation = (variance + f64::from(norm.epsilon)).sqrt();
    // The sum of squares is off by a unit for each value, which the root halves, and by the mean's error; five more
    // operations follow.
    let relative = (width / 2.0 + 6.0) * UNIT + (mean_error / deviation) * (1.0 + mean_error / deviation);
    let element = |index: usize| {
        let (weight, bias) = (f64::from(norm.weight[index]), norm.bias.map_or(0.0, |bias| f64::from(bias[index])));
        let scaled = (x[index] - mean) / deviation * weight;
        let bound =
            scaled.abs() * relative + weight.abs() / deviation * (mean_error + (x[index].abs() + mean.abs()) * UNIT);
        (scaled + bias, bound + 2.0 * (scaled.abs() + bias.abs()) * UNIT)
    };
    (0..x.len()).map(element).collect()
}

proptest! {
    #![proptest_config(config(100, SEEDS))]

    #[test]
    fn norms_match_f64(
        width in 1..=2000usize,
        total in 0..=MAX_ELEMENTS,
        distribution in distribution(),
        seed: u64,
        threads in 1..=3usize,
        centred: bool,
        biased: bool,
    ) {
        let (mut rng, rows) = (Rng(seed), total / width);
        let [x, y] = [(); 2].map(|()| random_values(&mut rng, distribution, rows * width));
        let [weight, bias] = [(); 2].map(|()| random_values(&mut rng, Distribution::Normal, width));
        let kind = if centred { NormKind::Layer } else { NormKind::Rms };
        let norm = Norm { kind, weight: &weight, bias: biased.then_some(&bias), epsilon: 1e-5 };
        let expected = |x: &[f32]| -> Vec<(f64, f64)> {
            let row = |row: &[f32]| norm_reference(&norm, &row.iter().map(|x| f64::from(*x)).collect::<Vec<_>>());
            x.chunks(width).flat_map(row).collect()
        };
        check(threads, &expected(&x), |pool| {
            let mut out = vec![f32::NAN; x.len()];
            norm.forward(pool, &x, &mut out);
            out
        })?;
        let sums: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
        check(threads, &expected(&sums), |pool| {
            let (mut sum, mut out) = (x.clone(), vec![f32::NAN; x.len()]);
            norm.add_forward(pool, &mut sum, &y, &mut out);
            assert_eq!(sum, sums);
            out
        })?;
    }

    #[test]
    fn activations_match_f64(count in 0..=MAX_ELEMENTS, distribution in distribution(), seed: u64, threads in 1..=3usize, gated: bool) {
        let mut rng = Rng(seed);
        let (x, factors) = (values_with_edge_cases(&mut rng, distribution, count), random_values(&mut rng, distribution, count));
        let ones = vec![1.0; count];
        let (factors, gate_factors) = if gated { (&factors, Some(&factors[..])) } else { (&ones, None) };
        for activation in Activation::ALL {
            let expected = map_pairs(&x, factors, |x, y| {
                // An exponential is accurate to a few units; below −87 it is zero, or infinite for gates.
                let relative = |exact: f64| (exact, exact.abs() * 10.0 * UNIT + (x * y).abs() * 1e-37);
                match activation {
                    Activation::Silu => relative(x / (1.0 + (-x).exp()) * y),
                    Activation::QuickGelu => {
                        // The exponent is off by a unit of its own magnitude.
                        let (exact, bound) = relative(x / (1.0 + (-1.702 * x).exp()) * y);
                        (exact, bound + exact.abs() * (2.0 * x).abs().min(200.0) * UNIT)
                    }
                    Activation::Gelu => (x * normal_cdf(x) * y, (x * y).abs() * 6e-7),
                    // Where tanh is near −1, 1 + tanh has lost precision.
                    Activation::GeluTanh => {
                        let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
                        (0.5 * x * (1.0 + inner.tanh()) * y, (x * y).abs() * 10.0 * UNIT)
                    }
                    Activation::Relu => relative(x.max(0.0) * y),
                    Activation::SquaredRelu => {
                        // Squares of tiny numbers vanish.
                        let (exact, bound) = relative(x.max(0.0).powi(2) * y);
                        (exact, bound + y.abs() * 1e-37)
                    }
                    Activation::Sigmoid => relative(y / (1.0 + (-x).exp())),
                    Activation::ClampedSwiglu => {
                        let (x, y) = (x.min(7.0), if gated { 1.0 + y.clamp(-7.0, 7.0) } else { 1.0 });
                        let exact = x / (1.0 + (-1.702 * x).exp()) * y;
                        let bound = exact.abs() * (10.0 + (2.0 * x).abs().min(200.0)) * UNIT;
                        (exact, bound + (x * y).abs() * 1e-37)
                    }
                }
            });
            check(threads, &expected, |pool| {
                let mut out = x.clone();
                activate(pool, activation, &mut out, gate_factors);
                out
            })?;
        }
    }

    #[test]
    fn rope_matches_f64(
        heads in 1..=12usize,
        (width, pairs) in (1..=130usize).prop_flat_map(|width| (Just(width), 0..=width / 2)),
        total in 0..=MAX_ELEMENTS,
        halves: bool,
        distribution in distribution(),
        seed: u64,
        threads in 1..=3usize,
    ) {
        let (mut rng, rows) = (Rng(seed), total / (heads * width));
        let layout = if halves { RopeLayout::Halves } else { RopeLayout::Interleaved };
        let x = random_values(&mut rng, distribution, rows * heads * width);
        let angles = random_values(&mut rng, Distribution::Normal, rows * pairs);
        let (cos, sin): (Vec<_>, Vec<_>) = angles.iter().map(|angle| (angle.cos(), angle.sin())).unzip();
        let mut expected: Vec<_> = x.iter().map(|x| (f64::from(*x), 0.0)).collect();
        for (index, head) in expected.chunks_mut(width).enumerate() {
            for pair in 0..pairs {
                let (a, b) = if halves { (pair, pair + pairs) } else { (2 * pair, 2 * pair + 1) };
                let angle = index / heads * pairs + pair;
                let (cos, sin) = (f64::from(cos[angle]), f64::from(sin[angle]));
                let ((x, _), (y, _)) = (head[a], head[b]);
                // Two products and their sum.
                let bound = |a: f64, b: f64| 2.0 * UNIT * (a.abs() + b.abs());
                head[a] = (x * cos - y * sin, bound(x * cos, y * sin));
                head[b] = (x * sin + y * cos, bound(x * sin, y * cos));
            }
        }
        check(threads, &expected, |pool| {
            let mut out = x.clone();
            rope(pool, &mut out, heads, width, layout, &cos, &sin);
            out
        })?;
    }

    #[test]
    fn q8_codes_are_rounded_to_the_nearest(count in 0..=300usize, distribution in distribution(), seed: u64) {
        let x = random_values(&mut Rng(seed), distribution, count);
        let mut codes = vec![99; count];
        let scale = f64::from(quantise_q8(&x, &mut codes));
        for (x, code) in x.iter().zip(&codes) {
            let error = (f64::from(*x) - f64::from(*code) * scale).abs();
            prop_assert!(*code != -128 && error <= scale * (0.5 + 127.0 * 4.0 * UNIT), "{x} became {code} with scale {scale}");
        }
        let max = x.iter().fold(0f32, |max, x| max.max(x.abs()));
        prop_assert!(max == 0.0 || codes.iter().any(|code| code.abs() == 127), "the largest magnitude has the largest code");
    }
}

#[test]
fn nan_stays_nan() {
    for pool in pools(2) {
        for activation in Activation::ALL {
            let mut x = [1.0, f32::NAN, 2.0];
            activate(&pool, activation, &mut x, None);
            assert_eq!(x.map(f32::is_nan), [false, true, false]);
        }
    }
}
