//! RMS norm and layer norm of rows, optionally fused with a residual sum.

use crate::Pool;
use crate::buffer::SharedSlice;
use crate::rows::{by_rows, load_up_to, store_up_to};
use crate::simd::{Kernel, LANES, Simd, run};

/// The kind of norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// RMS norm (Zhang and Sennrich 2019, <https://arxiv.org/abs/1910.07467>).
    Rms,
    /// Layer norm (Ba et al. 2016, <https://arxiv.org/abs/1607.06450>).
    Layer,
}

/// A norm with its weights.
///
/// RMS norm is `x / √(mean(x²) + epsilon) · weight + bias`; layer norm computes the same of `x − mean(x)`.
#[derive(Clone, Copy, Debug)]
pub struct Norm<'a> {
    pub kind: NormKind,
    /// `[width]`
    pub weight: &'a [f32],
    /// `[width]`
    pub bias: Option<&'a [f32]>,
    pub epsilon: f32,
}

impl Norm<'_> {
    /// `out = norm(x)`; both `[rows, width]`.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn forward(&self, pool: &Pool, x: &[f32], out: &mut [f32]) {
        self.check(x.len(), out.len());
        let (width, shared) = (self.weight.len(), SharedSlice::new(out));
        by_rows(pool, x.len() / width, width, |first, rows| {
            let x = &x[first * width..][..rows * width];
            // SAFETY: no other task accesses these rows.
            let out = unsafe { shared.get(first * width, rows * width) };
            run(pool.isa(), NormKernel { norm: self, x, out });
        });
    }

    /// `x += y; out = norm(x)` in one pass; all `[rows, width]`.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn add_forward(&self, pool: &Pool, x: &mut [f32], y: &[f32], out: &mut [f32]) {
        self.check(x.len(), out.len());
        assert_eq!(x.len(), y.len(), "the two inputs have different lengths");
        let (width, count) = (self.weight.len(), x.len());
        let (shared_x, shared_out) = (SharedSlice::new(x), SharedSlice::new(out));
        by_rows(pool, count / width, width, |first, rows| {
            let (start, len) = (first * width, rows * width);
            // SAFETY: no other task accesses these rows of either slice.
            let (x, out) = unsafe { (shared_x.get(start, len), shared_out.get(start, len)) };
            run(pool.isa(), AddNormKernel { norm: self, x, y: &y[start..start + len], out });
        });
    }

    /// The gradient of `x` from that of the result; all `[rows, width]`.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn backward(&self, pool: &Pool, x: &[f32], gradient: &[f32], out: &mut [f32]) {
        self.check(x.len(), out.len());
        assert_eq!(x.len(), gradient.len(), "x and the gradient have different lengths");
        let (width, shared) = (self.weight.len(), SharedSlice::new(out));
        by_rows(pool, x.len() / width, width, |first, rows| {
            let range = first * width..(first + rows) * width;
            // SAFETY: no other task accesses these rows.
            let out = unsafe { shared.get(range.start, range.len()) };
            run(pool.isa(), NormGradient { norm: self, x: &x[range.clone()], gradient: &gradient[range], out });
        });
    }

    fn check(&self, x: usize, out: usize) {
        let width = self.weight.len();
        assert!(width > 0 && x == out && x.is_multiple_of(width), "x and out are [rows, {width}]");
        assert!(self.bias.is_none_or(|bias| bias.len() == width), "the bias is not [{width}]");
    }

    /// Normalizes one row.
    ///
    /// # Safety
    /// As [`Simd`] says; `x`, `out`, weight and bias have the same length.
    #[inline(always)]
    unsafe fn row<S: Simd>(&self, x: &[f32], out: &mut [f32]) {
        let width = x.len();
        // SAFETY: `index` is within the row.
        unsafe {
            let mean = match self.kind {
                NormKind::Rms => 0.0,
                NormKind::Layer => {
                    let mut sum = S::splat(0.0);
                    for index in (0..width).step_by(LANES) {
                        sum = S::add(sum, load_up_to::<S>(x, index));
                    }
                    S::reduce_sum(sum) / width as f32
                }
            };
            let (means, whole) = (S::splat(mean), width / LANES * LANES);
            let mut squares = S::splat(0.0);
            for index in (0..whole).step_by(LANES) {
                let x = S::sub(S::load(x.as_ptr().add(index)), means);
                squares = S::fma(x, x, squares);
            }
            let squares = x[whole..].iter().fold(S::reduce_sum(squares), |sum, x| sum + (x - mean) * (x - mean));
            let scale = S::splat(1.0 / (squares / width as f32 + self.epsilon).sqrt());
            for index in (0..width).step_by(LANES) {
                let x = S::mul(S::sub(load_up_to::<S>(x, index), means), scale);
                let mut y = S::mul(x, load_up_to::<S>(self.weight, index));
                if let Some(bias) = self.bias {
                    y = S::add(y, load_up_to::<S>(bias, index));
                }
                store_up_to::<S>(out, index, y);
            }
        }
    }
}

struct NormKernel<'a> {
    norm: &'a Norm<'a>,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for NormKernel<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let width = self.norm.weight.len();
        for (x, out) in self.x.chunks_exact(width).zip(self.out.chunks_exact_mut(width)) {
            // SAFETY: [`Norm::check`] has checked the lengths; features as `Kernel` says.
            unsafe { self.norm.row::<S>(x, out) }
        }
    }
}

struct AddNormKernel<'a> {
    norm: &'a Norm<'a>,
    x: &'a mut [f32],
    y: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for AddNormKernel<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let width = self.norm.weight.len();
        let rows = self.x.chunks_exact_mut(width).zip(self.y.chunks_exact(width));
        for ((x, y), out) in rows.zip(self.out.chunks_exact_mut(width)) {
            // SAFETY: as above; `index` is within both rows.
            unsafe {
                for index in (0..width).step_by(LANES) {
                    let sum = S::add(load_up_to::<S>(x, index), load_up_to::<S>(y, index));
                    store_up_to::<S>(x, index, sum);
                }
                self.norm.row::<S>(x, out);
            }
        }
    }
}

struct NormGradient<'a> {
    norm: &'a Norm<'a>,
    x: &'a [f32],
    gradient: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for NormGradient<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Norm { kind, weight, epsilon, .. } = *self.norm;
        let width = weight.len();
        let rows = self.x.chunks_exact(width).zip(self.gradient.chunks_exact(width));
        for ((x, gradient), out) in rows.zip(self.out.chunks_exact_mut(width)) {
            // SAFETY: `index` is within the rows; features as `Kernel` says. Missing lanes are zero.
            unsafe {
                let (mut mean, mut shift) = (0.0, 0.0);
                if kind == NormKind::Layer {
                    let (mut x_sums, mut gradient_sums) = (S::splat(0.0), S::splat(0.0));
                    for index in (0..width).step_by(LANES) {
                        x_sums = S::add(x_sums, load_up_to::<S>(x, index));
                        let weight = load_up_to::<S>(weight, index);
                        gradient_sums = S::fma(load_up_to::<S>(gradient, index), weight, gradient_sums);
                    }
                    mean = S::reduce_sum(x_sums) / width as f32;
                    shift = S::reduce_sum(gradient_sums) / width as f32;
                }
                let (mut squares, mut products) = (S::splat(0.0), S::splat(0.0));
                for index in (0..width).step_by(LANES) {
                    let x = S::sub(load_up_to::<S>(x, index), S::splat(mean));
                    squares = S::fma(x, x, squares);
                    let gradient = S::mul(load_up_to::<S>(gradient, index), load_up_to::<S>(weight, index));
                    products = S::fma(gradient, x, products);
                }
                let missing = (width.next_multiple_of(LANES) - width) as f32;
                let variance = (S::reduce_sum(squares) - mean * mean * missing) / width as f32;
                let scale = 1.0 / (variance + epsilon).sqrt();
                let slope = S::splat(S::reduce_sum(products) / width as f32 * scale * scale);
                for index in (0..width).step_by(LANES) {
                    let x = S::sub(load_up_to::<S>(x, index), S::splat(mean));
                    let gradient = S::mul(load_up_to::<S>(gradient, index), load_up_to::<S>(weight, index));
                    let y = S::sub(S::sub(gradient, S::splat(shift)), S::mul(x, slope));
                    store_up_to::<S>(out, index, S::mul(y, S::splat(scale)));
                }
            }
        }
    }
}
