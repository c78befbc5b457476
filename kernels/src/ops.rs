//! Small operations between products. Large inputs are split among the pool's threads.

use std::f32::consts::{FRAC_1_SQRT_2, LOG2_E};

use crate::Pool;
use crate::buffer::Shards;
use crate::simd::{Kernel, LANES, Simd, load_part, run, store_part};

/// Elements of a task: some microseconds of additions,
const TASK_ELEMENTS: usize = 16 * 1024;
/// and of exponentials.
const SLOW_TASK_ELEMENTS: usize = 4 * 1024;

/// Calls `work` with ranges of whole rows: the first row, and the number of rows.
pub(crate) fn by_rows(pool: &Pool, rows: usize, width: usize, work: impl Fn(usize, usize) + Sync) {
    let each = (TASK_ELEMENTS / width.max(1)).max(1);
    pool.run(rows.div_ceil(each), |task| {
        let first = task * each;
        work(first, each.min(rows - first));
    });
}

/// # Safety
/// As [`Simd`] says; `at` is within the slice.
#[inline(always)]
pub(crate) unsafe fn load_up_to<S: Simd>(from: &[f32], at: usize) -> S::F {
    let left = from.len() - at;
    // SAFETY: no more than what is left is read.
    unsafe {
        let from = from.as_ptr().add(at);
        if left >= LANES { S::load(from) } else { load_part::<S>(from, left) }
    }
}

/// # Safety
/// As [`Simd`] says; `at` is within the slice.
#[inline(always)]
pub(crate) unsafe fn store_up_to<S: Simd>(to: &mut [f32], at: usize, x: S::F) {
    let left = to.len() - at;
    // SAFETY: no more than what is left is written.
    unsafe {
        let to = to.as_mut_ptr().add(at);
        if left >= LANES { S::store(to, x) } else { store_part::<S>(to, x, left) }
    }
}

/// The activation of a feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x / (1 + e^−x)`
    Silu,
    /// `x · Φ(x)` (Hendrycks and Gimpel 2016, <https://arxiv.org/abs/1606.08415>), with an error of at most 6 · 10⁻⁷ ·
    /// |x|.
    Gelu,
    /// Its tanh approximation.
    GeluTanh,
    /// Its sigmoid approximation, `x / (1 + e^−1.702 x)`.
    QuickGelu,
    /// `max(x, 0)`
    Relu,
}

impl Activation {
    /// # Safety
    /// As [`Simd`] says.
    #[inline(always)]
    pub(crate) unsafe fn of<S: Simd>(self, x: S::F) -> S::F {
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

/// `x / (1 + e^−inner)`
///
/// # Safety
/// As [`Simd`] says.
#[inline(always)]
unsafe fn silu<S: Simd>(x: S::F, inner: S::F) -> S::F {
    // SAFETY: as the caller says.
    unsafe { S::div(x, S::add(S::splat(1.0), S::exp(S::sub(S::splat(0.0), inner)))) }
}

/// `x = activation(x) · factors`; without factors, only the activation. Where one packed projection holds gate and
/// value (Shazeer 2020, <https://arxiv.org/abs/2002.05202>), each half is loaded as a matrix of its own.
///
/// # Panics
/// If lengths differ.
pub fn activate(pool: &Pool, activation: Activation, x: &mut [f32], factors: Option<&[f32]>) {
    assert!(factors.is_none_or(|factors| factors.len() == x.len()), "two inputs of one length");
    let (len, to) = (x.len(), Shards::new(x));
    pool.run(len.div_ceil(SLOW_TASK_ELEMENTS), |task| {
        let (at, count) = (task * SLOW_TASK_ELEMENTS, SLOW_TASK_ELEMENTS.min(len - task * SLOW_TASK_ELEMENTS));
        // SAFETY: these places are this task's own.
        let x = unsafe { to.get(at, count) };
        run(pool.isa(), Activate { activation, x, factors: factors.map(|factors| &factors[at..at + count]) });
    });
}

struct Activate<'a> {
    activation: Activation,
    x: &'a mut [f32],
    factors: Option<&'a [f32]>,
}

impl Kernel for Activate<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for at in (0..self.x.len()).step_by(LANES) {
            // SAFETY: `at` is within both slices; features as `Kernel` says.
            unsafe {
                let x = load_up_to::<S>(self.x, at);
                let mut y = self.activation.of::<S>(x);
                if let Some(factors) = self.factors {
                    y = S::mul(y, load_up_to::<S>(factors, at));
                }
                store_up_to::<S>(self.x, at, y);
            }
        }
    }
}

/// `max(x, 0)` minus the tail `|x| · Φ(−|x|)`, which Abramowitz and Stegun's 7.1.26 gives as a polynomial in `1 / (1 +
/// p · |x| / √2)` times `e^(−x² / 2)`.
///
/// # Safety
/// As [`Simd`] says.
#[inline(always)]
unsafe fn gelu<S: Simd>(x: S::F) -> S::F {
    // SAFETY: as the caller says.
    unsafe {
        let zero = S::splat(0.0);
        let size = S::max(x, S::sub(zero, x));
        let t = S::div(S::splat(1.0), S::fma(S::splat(0.327_591_1 * FRAC_1_SQRT_2), size, S::splat(1.0)));
        let mut sum = S::splat(1.061_405_4);
        for coefficient in [-1.453_152_1, 1.421_413_8, -0.284_496_72, 0.254_829_6] {
            sum = S::fma(sum, t, S::splat(coefficient));
        }
        let bell = S::exp2(S::mul(S::mul(x, x), S::splat(-0.5 * LOG2_E)));
        let tail = S::mul(S::mul(S::mul(S::splat(0.5), size), S::mul(sum, t)), bell);
        S::sub(S::max(x, zero), tail)
    }
}

/// Which elements of a head rotate together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeLayout {
    /// Neighbours: 0 and 1, 2 and 3.
    Interleaved,
    /// Elements i and i + pairs.
    Halves,
}

/// Rotary position embedding (Su et al. 2021, <https://arxiv.org/abs/2104.09864>) in place: `x` is `[rows, heads,
/// width]`, `cos` and `sin` are `[rows, pairs]`. Elements after the first `2 · pairs` of a head are kept.
///
/// # Panics
/// If lengths do not match.
pub fn rope(pool: &Pool, x: &mut [f32], heads: usize, width: usize, style: RopeLayout, cos: &[f32], sin: &[f32]) {
    let row = heads * width;
    assert!(row > 0 && x.len().is_multiple_of(row) && cos.len() == sin.len(), "[rows, heads, width] and a table");
    let rows = x.len() / row;
    assert!(rows == 0 || cos.len().is_multiple_of(rows) && cos.len() / rows * 2 <= width, "[rows, pairs]");
    let pairs = cos.len() / rows.max(1);
    let to = Shards::new(x);
    by_rows(pool, rows, row, |first, count| {
        // SAFETY: these rows are this task's own.
        let x = unsafe { to.get(first * row, count * row) };
        let table = first * pairs..(first + count) * pairs;
        let (cos, sin) = (&cos[table.clone()], &sin[table]);
        run(pool.isa(), Rope { x, row, width, style, pairs, cos, sin });
    });
}

struct Rope<'a> {
    x: &'a mut [f32],
    row: usize,
    width: usize,
    style: RopeLayout,
    pairs: usize,
    cos: &'a [f32],
    sin: &'a [f32],
}

impl Kernel for Rope<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let pairs = self.pairs;
        if pairs == 0 {
            return;
        }
        let tables = self.cos.chunks_exact(pairs).zip(self.sin.chunks_exact(pairs));
        for (row, (cos, sin)) in self.x.chunks_exact_mut(self.row).zip(tables) {
            for head in row.chunks_exact_mut(self.width) {
                // Plain code that the compiler vectorises.
                match self.style {
                    RopeLayout::Halves => {
                        let (first, second) = head[..2 * pairs].split_at_mut(pairs);
                        for at in 0..pairs {
                            let (a, b) = (first[at], second[at]);
                            first[at] = a * cos[at] - b * sin[at];
                            second[at] = a * sin[at] + b * cos[at];
                        }
                    }
                    RopeLayout::Interleaved => {
                        for (at, pair) in head[..2 * pairs].chunks_exact_mut(2).enumerate() {
                            let (a, b) = (pair[0], pair[1]);
                            pair[0] = a * cos[at] - b * sin[at];
                            pair[1] = a * sin[at] + b * cos[at];
                        }
                    }
                }
            }
        }
    }
}

/// Quantises a row to bytes, for [`crate::KvBlocks::Q8`]; returns the scale, `max |x| / 127`.
///
/// # Panics
/// If lengths differ.
pub fn quantise_q8(x: &[f32], out: &mut [i8]) -> f32 {
    assert_eq!(x.len(), out.len(), "as many numbers out as in");
    quantise_row(x, out)
}

/// [`quantise_q8`] as part of a kernel.
#[inline(always)]
pub(crate) fn quantise_row(x: &[f32], out: &mut [i8]) -> f32 {
    let scale = x.iter().fold(0f32, |most, x| most.max(x.abs())) / 127.0;
    let inverse = if scale > 1e-37 { 1.0 / scale } else { 0.0 };
    for (out, x) in out.iter_mut().zip(x) {
        *out = (x * inverse).round_ties_even() as i8;
    }
    scale
}
