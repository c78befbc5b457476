//! Activation functions.

use std::f32::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, LOG2_E};

use crate::Pool;
use crate::buffer::SharedSlice;
use crate::rows::{load_up_to, store_up_to};
use crate::simd::{Kernel, LANES, Simd, run};

/// Elements of a task, which takes some microseconds. Exponentials cost more than the additions of [`crate::rows`].
const TASK_ELEMENTS: usize = 4 * 1024;

/// An activation function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x / (1 + e^−x)`
    Silu,
    /// `x · Φ(x)` (Hendrycks and Gimpel 2016, <https://arxiv.org/abs/1606.08415>), with an error of at most 6 · 10⁻⁷ ·
    /// |x|.
    Gelu,
    /// The tanh approximation of GELU.
    GeluTanh,
    /// The sigmoid approximation of GELU, `x / (1 + e^−1.702 x)`.
    QuickGelu,
    /// `max(x, 0)`
    Relu,
    /// `max(x, 0)²` (So et al. 2021, <https://arxiv.org/abs/2109.08668>)
    SquaredRelu,
    /// `1 / (1 + e^−x)`
    Sigmoid,
    /// `min(x, 7) / (1 + e^(−1.702 · min(x, 7)))`, where a factor `y` is `1 + max(−7, min(y, 7))`: the gate of gpt-oss (OpenAI 2025,
    /// <https://arxiv.org/abs/2508.10925>).
    ClampedSwiglu,
}

/// The largest magnitude of the inputs of [`Activation::ClampedSwiglu`].
const SWIGLU_LIMIT: f32 = 7.0;
/// The factor of the exponents of [`Activation::QuickGelu`] and [`Activation::ClampedSwiglu`].
const QUICK_SLOPE: f32 = 1.702;

impl Activation {
    pub const ALL: [Self; 8] = [
        Self::Silu,
        Self::Gelu,
        Self::GeluTanh,
        Self::QuickGelu,
        Self::Relu,
        Self::SquaredRelu,
        Self::Sigmoid,
        Self::ClampedSwiglu,
    ];

    /// Applies the function to each lane.
    ///
    /// # Safety
    /// As [`Simd`] says.
    #[inline(always)]
    pub(crate) unsafe fn apply<S: Simd>(self, x: S::F) -> S::F {
        // SAFETY: as the caller says.
        unsafe {
            match self {
                Self::Silu => silu::<S>(x, x),
                Self::QuickGelu => silu::<S>(x, S::mul(x, S::splat(QUICK_SLOPE))),
                Self::Gelu => gelu::<S>(x),
                Self::GeluTanh => {
                    let cubed = S::mul(S::mul(x, x), x);
                    let inner = S::mul(S::splat(0.797_884_6), S::fma(S::splat(0.044_715), cubed, x));
                    let half = S::mul(S::splat(0.5), x);
                    S::fma(half, S::tanh(inner), half)
                }
                Self::Relu => S::max(S::splat(0.0), x),
                Self::SquaredRelu => S::mul(S::max(S::splat(0.0), x), S::max(S::splat(0.0), x)),
                Self::Sigmoid => silu::<S>(S::splat(1.0), x),
                Self::ClampedSwiglu => {
                    // The order keeps a NaN.
                    let x = S::min(S::splat(SWIGLU_LIMIT), x);
                    silu::<S>(x, S::mul(x, S::splat(QUICK_SLOPE)))
                }
            }
        }
    }

    /// What the result is multiplied by, for a factor of each lane.
    ///
    /// # Safety
    /// As [`Simd`] says.
    #[inline(always)]
    unsafe fn factor<S: Simd>(self, factor: S::F) -> S::F {
        // SAFETY: as the caller says.
        unsafe {
            match self {
                Self::ClampedSwiglu => {
                    let limit = S::splat(SWIGLU_LIMIT);
                    let clamped = S::max(S::splat(-SWIGLU_LIMIT), S::min(limit, factor));
                    S::add(S::splat(1.0), clamped)
                }
                _ => factor,
            }
        }
    }
}

impl Activation {
    /// The derivative for each lane.
    ///
    /// # Safety
    /// As [`Simd`] says.
    #[inline(always)]
    unsafe fn derivative<S: Simd>(self, x: S::F) -> S::F {
        // SAFETY: as the caller says.
        unsafe {
            let (zero, half, one) = (S::splat(0.0), S::splat(0.5), S::splat(1.0));
            let is_positive = S::zero_where_le(one, x, 0.0);
            match self {
                Self::Silu => silu_derivative::<S>(x),
                Self::QuickGelu => silu_derivative::<S>(S::mul(x, S::splat(QUICK_SLOPE))),
                Self::Gelu => {
                    let (tail, gaussian) = normal_tail::<S>(S::max(x, S::sub(zero, x)));
                    let tail = S::mul(S::mul(half, tail), gaussian);
                    let cumulative = S::fma(S::sub(one, S::add(is_positive, is_positive)), tail, is_positive);
                    S::fma(S::mul(x, S::splat(FRAC_1_SQRT_2 * FRAC_2_SQRT_PI * 0.5)), gaussian, cumulative)
                }
                Self::GeluTanh => {
                    let squared = S::mul(x, x);
                    let inner = S::mul(S::splat(0.797_884_6), S::fma(S::mul(S::splat(0.044_715), squared), x, x));
                    let inner_slope = S::fma(S::splat(0.797_884_6 * 3.0 * 0.044_715), squared, S::splat(0.797_884_6));
                    let tanh = S::tanh(inner);
                    let slope = S::mul(S::sub(one, S::mul(tanh, tanh)), inner_slope);
                    S::mul(half, S::fma(x, slope, S::add(one, tanh)))
                }
                Self::Relu => is_positive,
                Self::SquaredRelu => S::max(zero, S::add(x, x)),
                Self::Sigmoid => {
                    let sigmoid = silu::<S>(one, x);
                    S::mul(sigmoid, S::sub(one, sigmoid))
                }
                Self::ClampedSwiglu => {
                    let slope = silu_derivative::<S>(S::mul(x, S::splat(QUICK_SLOPE)));
                    S::zero_where_le(slope, S::sub(zero, x), -SWIGLU_LIMIT)
                }
            }
        }
    }

    /// The derivative of [`Self::factor`], times `x`.
    ///
    /// # Safety
    /// As [`Simd`] says.
    #[inline(always)]
    unsafe fn times_factor_slope<S: Simd>(self, factor: S::F, x: S::F) -> S::F {
        // SAFETY: as the caller says.
        unsafe {
            match self {
                Self::ClampedSwiglu => {
                    let x = S::zero_where_le(x, factor, -SWIGLU_LIMIT);
                    S::zero_where_le(x, S::sub(S::splat(0.0), factor), -SWIGLU_LIMIT)
                }
                _ => x,
            }
        }
    }
}

/// `x / (1 + e^−inner)`: SiLU where `inner` is `x`.
///
/// # Safety
/// As [`Simd`] says.
#[inline(always)]
unsafe fn silu<S: Simd>(x: S::F, inner: S::F) -> S::F {
    // SAFETY: as the caller says.
    unsafe { S::div(x, S::add(S::splat(1.0), S::exp(S::sub(S::splat(0.0), inner)))) }
}

/// The derivative of [`silu`] by `x`, where `inner` is proportional to `x`.
///
/// # Safety
/// As [`Simd`] says.
#[inline(always)]
unsafe fn silu_derivative<S: Simd>(inner: S::F) -> S::F {
    // SAFETY: as the caller says.
    unsafe {
        let one = S::splat(1.0);
        let sigmoid = S::div(one, S::add(one, S::exp(S::sub(S::splat(0.0), inner))));
        S::mul(sigmoid, S::fma(inner, S::sub(one, sigmoid), one))
    }
}

/// Computes `x = activation(x) · factors` in place, or `x = activation(x)` without factors. With factors, it is the gate
/// of a GLU (Shazeer 2020, <https://arxiv.org/abs/2002.05202>).
///
/// # Panics
/// If lengths differ.
pub fn activate(pool: &Pool, activation: Activation, x: &mut [f32], factors: Option<&[f32]>) {
    assert!(factors.is_none_or(|factors| factors.len() == x.len()), "the two inputs have different lengths");
    let (len, shared) = (x.len(), SharedSlice::new(x));
    pool.run(len.div_ceil(TASK_ELEMENTS), |task| {
        let first = task * TASK_ELEMENTS;
        let count = TASK_ELEMENTS.min(len - first);
        // SAFETY: no other task accesses these elements.
        let x = unsafe { shared.get(first, count) };
        run(
            pool.isa(),
            ActivateKernel { activation, x, factors: factors.map(|factors| &factors[first..first + count]) },
        );
    });
}

struct ActivateKernel<'a> {
    activation: Activation,
    x: &'a mut [f32],
    factors: Option<&'a [f32]>,
}

impl Kernel for ActivateKernel<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for index in (0..self.x.len()).step_by(LANES) {
            // SAFETY: `index` is within both slices; features as `Kernel` says.
            unsafe {
                let x = load_up_to::<S>(self.x, index);
                let mut y = self.activation.apply::<S>(x);
                if let Some(factors) = self.factors {
                    y = S::mul(y, self.activation.factor::<S>(load_up_to::<S>(factors, index)));
                }
                store_up_to::<S>(self.x, index, y);
            }
        }
    }
}

/// `max(x, 0)` minus the tail `|x| · Φ(−|x|)`. The tail is a polynomial in `1 / (1 + p · |x| / √2)` times `e^(−x² / 2)`
/// (Abramowitz and Stegun, formula 7.1.26).
///
/// # Safety
/// As [`Simd`] says.
#[inline(always)]
unsafe fn gelu<S: Simd>(x: S::F) -> S::F {
    // SAFETY: as the caller says.
    unsafe {
        let zero = S::splat(0.0);
        let magnitude = S::max(x, S::sub(zero, x));
        let (polynomial, gaussian) = normal_tail::<S>(magnitude);
        let tail = S::mul(S::mul(S::mul(S::splat(0.5), magnitude), polynomial), gaussian);
        S::sub(S::max(x, zero), tail)
    }
}

/// The factors of `2 · Φ(−|x|)`: the polynomial and `e^(−x² / 2)`.
///
/// # Safety
/// As [`Simd`] says.
#[inline(always)]
unsafe fn normal_tail<S: Simd>(magnitude: S::F) -> (S::F, S::F) {
    // SAFETY: as the caller says.
    unsafe {
        let t = S::div(S::splat(1.0), S::fma(S::splat(0.327_591_1 * FRAC_1_SQRT_2), magnitude, S::splat(1.0)));
        let mut sum = S::splat(1.061_405_4);
        for coefficient in [-1.453_152_1, 1.421_413_8, -0.284_496_72, 0.254_829_6] {
            sum = S::fma(sum, t, S::splat(coefficient));
        }
        let gaussian = S::exp2(S::mul(S::mul(magnitude, magnitude), S::splat(-0.5 * LOG2_E)));
        (S::mul(sum, t), gaussian)
    }
}

/// The gradients of [`activate`]: `of_x` and, with factors, `of_factors`, from that of the result.
///
/// # Panics
/// If lengths differ.
pub fn activate_backward(
    pool: &Pool,
    activation: Activation,
    (x, factors): (&[f32], Option<&[f32]>),
    gradient: &[f32],
    of_x: &mut [f32],
    of_factors: Option<&mut [f32]>,
) {
    let len = x.len();
    let lens = [factors.map_or(len, <[f32]>::len), gradient.len(), of_x.len()];
    let of_factors_len = of_factors.as_ref().map_or(len, |of_factors| of_factors.len());
    assert!(lens == [len; 3] && of_factors_len == len, "inputs and gradients have different lengths");
    assert_eq!(factors.is_some(), of_factors.is_some(), "factors have a gradient");
    let (of_x, of_factors) = (SharedSlice::new(of_x), of_factors.map(SharedSlice::new));
    pool.run(len.div_ceil(TASK_ELEMENTS), |task| {
        let range = task * TASK_ELEMENTS..len.min((task + 1) * TASK_ELEMENTS);
        // SAFETY: no other task accesses these elements.
        let part = |x: &SharedSlice<f32>| unsafe { x.get(range.start, range.len()) };
        let (x, gradient) = (&x[range.clone()], &gradient[range.clone()]);
        let factors = factors.map(|factors| &factors[range.clone()]);
        let (of_x, of_factors) = (part(&of_x), of_factors.as_ref().map(part));
        run(pool.isa(), ActivateGradient { activation, x, factors, gradient, of_x, of_factors });
    });
}

struct ActivateGradient<'a> {
    activation: Activation,
    x: &'a [f32],
    factors: Option<&'a [f32]>,
    gradient: &'a [f32],
    of_x: &'a mut [f32],
    of_factors: Option<&'a mut [f32]>,
}

impl Kernel for ActivateGradient<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        for index in (0..self.x.len()).step_by(LANES) {
            // SAFETY: `index` is within all slices; features as `Kernel` says.
            unsafe {
                let (x, gradient) = (load_up_to::<S>(self.x, index), load_up_to::<S>(self.gradient, index));
                let mut of_x = S::mul(gradient, self.activation.derivative::<S>(x));
                if let (Some(factors), Some(of_factors)) = (self.factors, &mut self.of_factors) {
                    let factor = load_up_to::<S>(factors, index);
                    of_x = S::mul(of_x, self.activation.factor::<S>(factor));
                    let of_factor = S::mul(gradient, self.activation.apply::<S>(x));
                    store_up_to::<S>(of_factors, index, self.activation.times_factor_slope::<S>(factor, of_factor));
                }
                store_up_to::<S>(self.of_x, index, of_x);
            }
        }
    }
}
