//! Group normalisation: every instruction set against plain arithmetic in f64, and parts against the whole.

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

    /// Each output without activation, and how far f32 may be from it.
    fn plain(&self) -> Vec<(f64, f64)> {
        let channels = self.weight.len();
        let (image, width) = (self.x.len() / self.images, channels / self.groups);
        let mut out = vec![(0.0, 0.0); self.x.len()];
        for (index, group) in (0..self.images).flat_map(|image| (0..self.groups).map(move |group| (image, group))) {
            let places = || {
                let pixels = (index * image..(index + 1) * image).step_by(channels);
                pixels.flat_map(move |pixel| pixel + group * width..pixel + (group + 1) * width)
            };
            let shift =
                |at: usize| self.shift.as_ref().map_or(0.0, |all| f64::from(all[index * channels + at % channels]));
            let number = |at: usize| f64::from(self.x[at]) + shift(at);
            let count = places().count() as f64;
            let mean = places().map(number).sum::<f64>() / count;
            let variance = places().map(|at| (number(at) - mean).powi(2)).sum::<f64>() / count;
            let size = places().map(|at| f64::from(self.x[at]).abs()).sum::<f64>() / count;
            let below = (variance + 1e-5).sqrt();
            // A sum of up to 256 values is off by a unit for each; joining adds little.
            let astray = 280.0 * UNIT * size;
            let relative = 150.0 * UNIT + (astray / below) * (1.0 + astray / below);
            for at in places() {
                let (weight, bias) = (f64::from(self.weight[at % channels]), f64::from(self.bias[at % channels]));
                let y = (number(at) - mean) / below * weight;
                let sizes = f64::from(self.x[at]).abs() + (shift(at) - mean).abs();
                let bound = y.abs() * relative + weight.abs() / below * (astray + 3.0 * sizes * UNIT);
                out[at] = (y + bias, bound + 2.0 * (y.abs() + bias.abs()) * UNIT);
            }
        }
        out
    }
}

proptest! {
    #![proptest_config(config(60, SEEDS))]

    #[test]
    fn images_are_normalised_by_groups(
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
        let expected = case.plain();
        for pool in pools(threads) {
            let found = case.forward(&pool, None);
            for (at, (found, (exact, bound))) in found.iter().zip(&expected).enumerate() {
                let near = (f64::from(*found) - exact).abs() <= *bound;
                prop_assert!(near, "{:?}, {at}: {found} and not {exact} ± {bound}", pool.isa());
            }
        }
    }

    #[test]
    fn parts_in_place_on_other_threads_give_the_same_bits(
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
            let each = Moments::pixels_per_chunk(channels);
            let (first, second) = x.split_at_mut(cut.index(pixels / each + 1) * each * channels);
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
fn an_activation_follows() {
    let case = Case::new(3, Distribution::Normal, [2, 100, 4, 10], true);
    for pool in pools(2) {
        let mut expected = case.forward(&pool, None);
        outpost_kernels::activate(&pool, Activation::Silu, &mut expected, None);
        assert_eq!(case.forward(&pool, Some(Activation::Silu)), expected);
    }
}

#[test]
fn a_large_image_far_from_zero_loses_nothing() {
    let (channels, pixels) = (8, 512 * 512);
    let mut rng = Rng(5);
    let x: Vec<f32> = (0..pixels * channels).map(|_| 300.0 + rng.normal()).collect();
    let (weight, bias) = (vec![1.0; channels], vec![0.0; channels]);
    let norm = GroupNorm { groups: 2, weight: &weight, bias: &bias, epsilon: 1e-6, activation: None };
    let mut out = vec![0.0; x.len()];
    norm.forward(&Pool::new(2), &x, 1, None, &mut out);
    for group in 0..2 {
        let of = |all: &[f32]| -> Vec<f64> {
            let pixels = all.chunks_exact(channels);
            pixels.flat_map(|pixel| &pixel[group * 4..group * 4 + 4]).map(|x| f64::from(*x)).collect()
        };
        let (x, out) = (of(&x), of(&out));
        let mean = x.iter().sum::<f64>() / x.len() as f64;
        let deviation = (x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64).sqrt();
        let off = x.iter().zip(&out).map(|(x, out)| (out - (x - mean) / deviation).abs()).fold(0.0, f64::max);
        // A value near 300 has a precision of 1.5 · 10⁻⁵.
        assert!(off < 6e-5, "off by {off}");
    }
}
