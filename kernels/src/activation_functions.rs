//! Activation functions.

use std::f32::consts::{FRAC_1_SQRT_2, LOG2_E};

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
}

impl Activation {
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
                Self::QuickGelu => silu::<S>(x, S::mul(x, S::splat(1.702))),
                Self::Gelu => gelu::<S>(x),
                Self::GeluTanh => {
                    let cubed = S::mul(S::mul(x, x), x);
                    let inner = S::mul(S::splat(0.797_884_6), S::fma(S::splat(0.044_715), cubed, x));
                    let half = S::mul(S::splat(0.5), x);
                    S::fma(half, S::tanh(inner), half)
                }
                Self::Relu => S::max(S::splat(0.0), x),
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
                    y = S::mul(y, load_up_to::<S>(factors, index));
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
        let t = S::div(S::splat(1.0), S::fma(S::splat(0.327_591_1 * FRAC_1_SQRT_2), magnitude, S::splat(1.0)));
        let mut sum = S::splat(1.061_405_4);
        for coefficient in [-1.453_152_1, 1.421_413_8, -0.284_496_72, 0.254_829_6] {
            sum = S::fma(sum, t, S::splat(coefficient));
        }
        let gaussian = S::exp2(S::mul(S::mul(x, x), S::splat(-0.5 * LOG2_E)));
        let tail = S::mul(S::mul(S::mul(S::splat(0.5), magnitude), S::mul(sum, t)), gaussian);
        S::sub(S::max(x, zero), tail)
    }
}
