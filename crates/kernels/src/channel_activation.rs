//! Activations of channels after a norm: `activation(x · scale + offset)`, channels last.

use crate::Pool;
use crate::buffer::SharedSlice;
use crate::group_norm::{OutputElement, ScaleShift};
use crate::rows::{by_rows, load_up_to, store_up_to};
use crate::simd::{Isa, Kernel, LANES, Simd, load_partial, run};

/// An activation function, possibly with parameters of each channel.
#[derive(Clone, Copy, Debug)]
pub enum ChannelActivation<'a> {
    /// `x` if it is positive, else `x` times this slope, which is at most one.
    LeakyRelu(f32),
    /// `x + sin²(αx) / α` (Ziyin et al. 2020, <https://arxiv.org/abs/2006.08195>).
    Snake {
        /// α of each channel: `[channels]`.
        alphas: &'a [f32],
        /// 1/α: `[channels]`.
        inverses: &'a [f32],
    },
}

/// The scales and offsets of a norm, and the activation that follows it.
#[derive(Clone, Copy, Debug)]
pub struct ScaledActivation<'a> {
    factors: &'a ScaleShift,
    activation: ChannelActivation<'a>,
}

impl<'a> ScaledActivation<'a> {
    /// # Panics
    /// If the activation has parameters of another number of channels.
    pub fn new(factors: &'a ScaleShift, activation: ChannelActivation<'a>) -> Self {
        if let ChannelActivation::Snake { alphas, inverses } = activation {
            let channels = factors.channels();
            assert!(alphas.len() == channels && inverses.len() == channels, "parameters are not [{channels}]");
        }
        Self { factors, activation }
    }

    pub fn channels(&self) -> usize {
        self.factors.channels()
    }

    /// `out = activation(x · scale + offset)`; both `[pixels, channels]`.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn apply(&self, pool: &Pool, x: &[f32], out: &mut [f32]) {
        let channels = self.channels();
        assert!(x.len() == out.len() && x.len().is_multiple_of(channels), "x and out are [pixels, {channels}]");
        let shared = SharedSlice::new(out);
        by_rows(pool, x.len() / channels, channels, |first, pixels| {
            let start = first * channels;
            // SAFETY: no other task accesses these pixels.
            let out = unsafe { shared.get(start, pixels * channels) };
            self.apply_pixels(pool.isa(), &x[start..start + pixels * channels], out);
        });
    }

    /// Applies it to pixels on the calling thread; `x` and `out` are `[pixels, channels]`.
    pub(crate) fn apply_pixels<T: OutputElement>(&self, isa: Isa, x: &[f32], out: &mut [T]) {
        let channels = self.channels();
        assert!(x.len() == out.len() && x.len().is_multiple_of(channels), "x and out are [pixels, {channels}]");
        T::run(isa, ActivationKernel { scaled: *self, x, out });
    }
}

struct ActivationKernel<'a, T> {
    scaled: ScaledActivation<'a>,
    /// `[pixels, channels]`
    x: &'a [f32],
    out: &'a mut [T],
}

impl<T: OutputElement> Kernel for ActivationKernel<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let channels = self.scaled.channels();
        let whole = channels / LANES * LANES;
        for (x, out) in self.x.chunks_exact(channels).zip(self.out.chunks_exact_mut(channels)) {
            let (x, out) = (x.as_ptr(), out.as_mut_ptr());
            // SAFETY: a pixel, the factors and the parameters have `channels` elements; features as `Kernel` says.
            unsafe {
                for channel in (0..whole).step_by(LANES) {
                    let y = self.scaled.scale_and_activate::<S>(S::load(x.add(channel)), channel);
                    T::store::<S>(out.add(channel), y);
                }
                if whole < channels {
                    let count = channels - whole;
                    let y = self.scaled.scale_and_activate::<S>(load_partial::<S>(x.add(whole), count), whole);
                    T::store_partial::<S>(out.add(whole), y, count);
                }
            }
        }
    }
}

impl ScaledActivation<'_> {
    /// Scales and activates up to sixteen channels from `channel` on.
    ///
    /// # Safety
    /// As [`Simd`] says; `channel` exists.
    #[inline(always)]
    unsafe fn scale_and_activate<S: Simd>(&self, x: S::F, channel: usize) -> S::F {
        let (scales, offsets) = self.factors.scales_and_offsets();
        // SAFETY: as the caller says.
        unsafe {
            let y = S::fma(x, load_up_to::<S>(scales, channel), load_up_to::<S>(offsets, channel));
            activate::<S>(self.activation, y, channel)
        }
    }
}

/// Activates up to sixteen channels from `channel` on.
///
/// # Safety
/// As [`Simd`] says; `channel` exists.
#[inline(always)]
unsafe fn activate<S: Simd>(activation: ChannelActivation<'_>, x: S::F, channel: usize) -> S::F {
    // SAFETY: as the caller says.
    unsafe {
        match activation {
            ChannelActivation::LeakyRelu(slope) => S::max(S::mul(x, S::splat(slope)), x),
            ChannelActivation::Snake { alphas, inverses } => {
                let sine = sine_magnitude::<S>(S::mul(x, load_up_to::<S>(alphas, channel)));
                S::fma(S::mul(sine, sine), load_up_to::<S>(inverses, channel), x)
            }
        }
    }
}

/// `sin x` up to its sign, with an absolute error of about 10⁻⁷ for |x| up to some thousands.
///
/// # Safety
/// As [`Simd`] says.
#[inline(always)]
unsafe fn sine_magnitude<S: Simd>(x: S::F) -> S::F {
    // x = nπ + r with |r| ≤ π/2, where π is a sum of three parts of few bits (Cody and Waite 1980), and the Taylor
    // polynomial of sin r.
    // SAFETY: as the caller says.
    unsafe {
        let n = S::round_even(S::mul(x, S::splat(std::f32::consts::FRAC_1_PI)));
        let mut r = x;
        for part in [-3.140_625, -9.675_026e-4, -1.509_958e-7] {
            r = S::fma(n, S::splat(part), r);
        }
        let squared = S::mul(r, r);
        let mut p = S::splat(-1. / 39_916_800.);
        for coefficient in [1. / 362_880., -1. / 5040., 1. / 120., -1. / 6.] {
            p = S::fma(p, squared, S::splat(coefficient));
        }
        S::fma(S::mul(p, squared), r, r)
    }
}

/// `x = max(x, slope · x)`, for a slope of at most one.
pub fn leaky_relu(pool: &Pool, slope: f32, x: &mut [f32]) {
    let (len, shared) = (x.len(), SharedSlice::new(x));
    by_rows(pool, len.div_ceil(LANES), LANES, |first, rows| {
        let start = first * LANES;
        // SAFETY: no other task accesses these elements.
        let x = unsafe { shared.get(start, (rows * LANES).min(len - start)) };
        run(pool.isa(), LeakyReluKernel { slope, x });
    });
}

struct LeakyReluKernel<'a> {
    slope: f32,
    x: &'a mut [f32],
}

impl Kernel for LeakyReluKernel<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for index in (0..self.x.len()).step_by(LANES) {
            // SAFETY: `index` is within the slice; features as `Kernel` says.
            unsafe {
                let x = load_up_to::<S>(self.x, index);
                store_up_to::<S>(self.x, index, S::max(S::mul(x, S::splat(self.slope)), x));
            }
        }
    }
}
