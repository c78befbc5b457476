//! Norms of rows, optionally fused with a residual sum.

use crate::Pool;
use crate::buffer::Shards;
use crate::ops::{by_rows, load_up_to, store_up_to};
use crate::simd::{Kernel, LANES, Simd, run};

/// The kind of norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// RMS norm (Zhang and Sennrich 2019, <https://arxiv.org/abs/1910.07467>).
    Rms,
    /// Layer norm (Ba et al. 2016, <https://arxiv.org/abs/1607.06450>).
    Layer,
}

/// `(x or x − mean) / √(mean of squares + epsilon) · weight + bias`
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
        let (width, to) = (self.weight.len(), Shards::new(out));
        by_rows(pool, x.len() / width, width, |first, rows| {
            let x = &x[first * width..][..rows * width];
            // SAFETY: these rows are this task's own.
            let out = unsafe { to.get(first * width, rows * width) };
            run(pool.isa(), Rows { norm: self, x, out });
        });
    }

    /// `x += y; out = norm(x)` in one pass; all `[rows, width]`.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn add_forward(&self, pool: &Pool, x: &mut [f32], y: &[f32], out: &mut [f32]) {
        self.check(x.len(), out.len());
        assert_eq!(x.len(), y.len(), "two inputs of one length");
        let (width, count) = (self.weight.len(), x.len());
        let (sum, to) = (Shards::new(x), Shards::new(out));
        by_rows(pool, count / width, width, |first, rows| {
            let (at, len) = (first * width, rows * width);
            // SAFETY: these rows are this task's own, in both.
            let (x, out) = unsafe { (sum.get(at, len), to.get(at, len)) };
            run(pool.isa(), AddRows { norm: self, x, y: &y[at..at + len], out });
        });
    }

    fn check(&self, x: usize, out: usize) {
        let width = self.weight.len();
        assert!(width > 0 && x == out && x.is_multiple_of(width), "rows of {width} numbers");
        assert!(self.bias.is_none_or(|bias| bias.len() == width), "a bias of {width} numbers");
    }

    /// One row.
    ///
    /// # Safety
    /// As [`Simd`] says; `x`, `out`, weight and bias are of one length.
    #[inline(always)]
    unsafe fn row<S: Simd>(&self, x: &[f32], out: &mut [f32]) {
        let width = x.len();
        // SAFETY: `at` is within the row.
        unsafe {
            let mean = match self.kind {
                NormKind::Rms => 0.0,
                NormKind::Layer => {
                    let mut sum = S::splat(0.0);
                    for at in (0..width).step_by(LANES) {
                        sum = S::add(sum, load_up_to::<S>(x, at));
                    }
                    S::sum(sum) / width as f32
                }
            };
            let (centre, whole) = (S::splat(mean), width / LANES * LANES);
            let mut squares = S::splat(0.0);
            for at in (0..whole).step_by(LANES) {
                let x = S::sub(S::load(x.as_ptr().add(at)), centre);
                squares = S::fma(x, x, squares);
            }
            let squares = x[whole..].iter().fold(S::sum(squares), |sum, x| sum + (x - mean) * (x - mean));
            let scale = S::splat(1.0 / (squares / width as f32 + self.epsilon).sqrt());
            for at in (0..width).step_by(LANES) {
                let x = S::mul(S::sub(load_up_to::<S>(x, at), centre), scale);
                let mut y = S::mul(x, load_up_to::<S>(self.weight, at));
                if let Some(bias) = self.bias {
                    y = S::add(y, load_up_to::<S>(bias, at));
                }
                store_up_to::<S>(out, at, y);
            }
        }
    }
}

struct Rows<'a> {
    norm: &'a Norm<'a>,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Rows<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let width = self.norm.weight.len();
        for (x, out) in self.x.chunks_exact(width).zip(self.out.chunks_exact_mut(width)) {
            // SAFETY: [`Norm::check`] has seen the lengths; features as `Kernel` says.
            unsafe { self.norm.row::<S>(x, out) }
        }
    }
}

struct AddRows<'a> {
    norm: &'a Norm<'a>,
    x: &'a mut [f32],
    y: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for AddRows<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let width = self.norm.weight.len();
        let rows = self.x.chunks_exact_mut(width).zip(self.y.chunks_exact(width));
        for ((x, y), out) in rows.zip(self.out.chunks_exact_mut(width)) {
            // SAFETY: as above; `at` is within both rows.
            unsafe {
                for at in (0..width).step_by(LANES) {
                    store_up_to::<S>(x, at, S::add(load_up_to::<S>(x, at), load_up_to::<S>(y, at)));
                }
                self.norm.row::<S>(x, out);
            }
        }
    }
}
