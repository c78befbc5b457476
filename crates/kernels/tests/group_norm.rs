//! Group normalisation on every instruction set, compared with f64 arithmetic, and of image parts compared with whole
//! images.

#[path = "common/cases.rs"]
mod cases;
#[path = "common/rng.rs"]
mod rng;

use cases::{Distribution, config, distribution, pools, random_values};
use outpost_kernels::{Activation, GroupNorm, Isa, Moments, Pool};
use proptest::prelude::*;
use rng::Rng;

const SEEDS: &str = "proptest-regressions/group.txt";
const UNIT: f64 = f32::EPSILON as f64 / 2.0;

/// The input of a group norm.
#[derive(Debug)]
struct Case {
    groups: usize,
    images: usize,
    /// `[images, pixels, channels]`
    x: Vec<f32>,
    weight: Vec<f32>,
    bias: Vec<f32>,
    shift: Option<Vec<f32>>,
}

impl Case {
    fn new(seed: u64, distribution: Distribution, [images, pixels, groups, width]: [usize; 4], shifted: bool) -> Self {
        let (mut rng, channels) = (Rng(seed), groups * width);
        let mut normal = |count: usize| random_values(&mut rng, Distribution::Normal, count);
        let (weight, bias) = (normal(channels), normal(channels));
        let shift = shifted.then(|| normal(images * channels));
        Self {
            groups,
            images,
            x: random_values(&mut rng, distribution, images * pixels * channels),
            weight,
            bias,
            shift,
        }
    }

    fn norm(&self, activation: Option<Activation>) -> GroupNorm<'_> {
        GroupNorm { groups: self.groups, weight: &self.weight, bias: &self.bias, epsilon: 1e-5, activation }
    }

    fn forward(&self, pool: &Pool, activation: Option<Activation>) -> Vec<f32> {
        let mut out = vec![f32::NAN; self.x.len()];
        self.norm(activation).forward(pool, &self.x, self.images, self.shift.as_deref(), &mut out);
        out
    }

    /// Each output without activation, and the error bound of f32.
    fn reference(&self) -> Vec<(f64, f64)> {
        let channels = self.weight.len();
        let (image, width) = (self.x.len() / self.images, channels / self.groups);
        let mut out = vec![(0.0, 0.0); self.x.len()];
        for (index, group) in (0..self.images).flat_map(|image| (0..self.groups).map(move |group| (image, group))) {
            let indices = || {
                let pixels = (index * image..(index + 1) * image).step_by(channels);
                pixels.flat_map(move |pixel| pixel + group * width..pixel + (group + 1) * width)
            };
            let shift =
                |at: usize| self.shift.as_ref().map_or(0.0, |all| f64::from(all[index * channels + at % channels]));
            let shifted = |at: usize| f64::from(self.x[at]) + shift(at);
            let count = indices().count() as f64;
            let mean = indices().map(shifted).sum::<f64>() / count;
            let variance = indices().map(|at| (shifted(at) - mean).powi(2)).sum::<f64>() / count;
            let size = indices().map(|at| f64::from(self.x[at]).abs()).sum::<f64>() / count;
            let deviation = (variance + 1e-5).sqrt();
            // The error of a sum of up to 256 values is one unit per value; merging adds little.
            let mean_error = 280.0 * UNIT * size;
            let relative = 150.0 * UNIT + (mean_error / deviation) * (1.0 + mean_error / deviation);
            for at in indices() {
                let (weight, bias) = (f64::from(self.weight[at % channels]), f64::from(self.bias[at % channels]));
                let y = (shifted(at) - mean) / deviation * weight;
                let sizes = f64::from(self.x[at]).abs() + (shift(at) - mean).abs();
                let bound = y.abs() * relative + weight.abs() / deviation * (mean_error + 3.0 * sizes * UNIT);
                out[at] = (y + bias, bound + 2.0 * (y.abs() + bias.abs()) * UNIT);
            }
        }
        out
    }
}

proptest! {
    #![proptest_config(config(60, SEEDS))]

    #[test]
    fn group_norms_match_f64(
        images in 1..=3usize,
        pixels in 1..=700usize,
        groups in 1..=8usize,
        width in 1..=40usize,
        distribution in distribution(),
        shifted: bool,
        seed: u64,
        threads in 1..=3usize,
    ) {
        let pixels = if cfg!(miri) { pixels.min(9) } else { pixels };
        let case = Case::new(seed, distribution, [images, pixels, groups, width], shifted);
        let expected = case.reference();
        for pool in pools(threads) {
            let found = case.forward(&pool, None);
            for (at, (found, (exact, bound))) in found.iter().zip(&expected).enumerate() {
                let is_near = (f64::from(*found) - exact).abs() <= *bound;
                prop_assert!(is_near, "{:?}, {at}: {found}, expected {exact} ± {bound}", pool.isa());
            }
        }
    }

    #[test]
    fn image_parts_in_place_on_several_threads_give_the_same_bits(
        pixels in 1..=3000usize,
        width in 1..=20usize,
        shifted: bool,
        seed: u64,
        threads in 2..=4usize,
        cut in any::<prop::sample::Index>(),
    ) {
        let pixels = if cfg!(miri) { pixels.min(9) } else { pixels };
        let case = Case::new(seed, Distribution::Normal, [1, pixels, 4, width], shifted);
        let channels = case.weight.len();
        for isa in Isa::available() {
            let (one, several) = (Pool::with_isa(1, isa), Pool::with_isa(threads, isa));
            let whole = case.forward(&one, Some(Activation::Silu));
            let norm = case.norm(Some(Activation::Silu));
            let (mut x, mut moments) = (case.x.clone(), Moments::new(channels));
            let chunk_pixels = Moments::pixels_per_chunk(channels);
            let (first, second) = x.split_at_mut(cut.index(pixels / chunk_pixels + 1) * chunk_pixels * channels);
            moments.add(&several, first);
            moments.add(&several, second);
            let factors = norm.factors(&moments, case.shift.as_deref());
            norm.apply_in_place(&several, &factors, first);
            norm.apply_in_place(&several, &factors, second);
            prop_assert!(x.iter().zip(&whole).all(|(a, b)| a.to_bits() == b.to_bits()), "{isa:?}");
        }
    }
}

#[test]
fn the_activation_is_applied_after_the_norm() {
    let case = Case::new(3, Distribution::Normal, [2, 100, 4, 10], true);
    for pool in pools(2) {
        let mut expected = case.forward(&pool, None);
        outpost_kernels::activate(&pool, Activation::Silu, &mut expected, None);
        assert_eq!(case.forward(&pool, Some(Activation::Silu)), expected);
    }
}

#[test]
fn a_large_image_with_a_large_mean_keeps_its_precision() {
    let (channels, pixels) = (8, 512 * 512);
    let mut rng = Rng(5);
    let x: Vec<f32> = (0..pixels * channels).map(|_| 300.0 + rng.normal()).collect();
    let (weight, bias) = (vec![1.0; channels], vec![0.0; channels]);
    let norm = GroupNorm { groups: 2, weight: &weight, bias: &bias, epsilon: 1e-6, activation: None };
    let mut out = vec![0.0; x.len()];
    norm.forward(&Pool::new(2), &x, 1, None, &mut out);
    for group in 0..2 {
        let group_values = |image: &[f32]| -> Vec<f64> {
            let pixels = image.chunks_exact(channels);
            pixels.flat_map(|pixel| &pixel[group * 4..group * 4 + 4]).map(|x| f64::from(*x)).collect()
        };
        let (x, out) = (group_values(&x), group_values(&out));
        let mean = x.iter().sum::<f64>() / x.len() as f64;
        let deviation = (x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64).sqrt();
        let max_error = x.iter().zip(&out).map(|(x, out)| (out - (x - mean) / deviation).abs()).fold(0.0, f64::max);
        // A value near 300 has a precision of 1.5 · 10⁻⁵.
        assert!(max_error < 6e-5, "an error of {max_error}");
    }
}
