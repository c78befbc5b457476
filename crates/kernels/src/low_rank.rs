//! Low-rank updates: `out += scale · up(down(x))` (LoRA, Hu et al. 2021, <https://arxiv.org/abs/2106.09685>), for
//! different rows with different matrices.
//!
//! A decode step with eight adapters has thousands of these products, each of about a microsecond. One parallel section
//! therefore computes all updates of all outputs that have the same input. The order of operations of an output depends
//! on its row alone, so a row gives the same bits in any batch.

use std::ops::Range;

use smallvec::SmallVec;

use crate::buffer::{CACHE_LINE, SharedSlice};
use crate::dtype::DType;
use crate::gemm::float_format::{BF16, F16, F32, FloatFormat};
use crate::pack::{FLOATS, Layout};
use crate::simd::{Kernel, LANES, Simd, load_partial, run, store_partial};
use crate::{Linear, Pool};

/// Maximum rows of a task.
const TASK_ROWS: usize = 16;
/// Rows that are multiplied together by each weight.
const BLOCK_ROWS: usize = 4;
/// Distance at which weights are prefetched, in bytes. A matrix is a few pages, and the CPU's own prefetcher stops at
/// the end of each.
const PREFETCH_BYTES: usize = 2048;

/// An update of some rows of an output. Both matrices are floats.
#[derive(Clone, Debug)]
pub struct LowRankUpdate<'a> {
    /// The index of the output.
    pub output: usize,
    /// The rows of the input and of the output.
    pub rows: Range<usize>,
    /// `[rank, k]`, packed by [`Linear::pack_low_rank`] or [`Linear::pack`].
    pub down: &'a Linear,
    /// `[n, rank]`, where `n` is the width of the output.
    pub up: &'a Linear,
    pub scale: f32,
}

impl LowRankUpdate<'_> {
    /// The rank, padded to whole groups.
    fn padded_rank(&self) -> usize {
        self.down.n().next_multiple_of(LANES)
    }

    /// Elements of scratch memory that [`add_low_rank`] needs for this update.
    pub fn scratch_len(&self) -> usize {
        self.rows.len() * self.padded_rank()
    }
}

/// Some rows of an update.
struct Task {
    update: usize,
    rows: Range<usize>,
    /// The start of the task's scratch memory.
    scratch: usize,
}

/// Adds updates to outputs, `[rows, n]` each. `x` is `[rows, k]`. `scratch` has the elements that the updates need.
///
/// # Panics
/// If lengths do not match, a matrix is quantised, or the updates of an output are not in the order of their rows, or have
/// a row in common.
pub fn add_low_rank(
    pool: &Pool,
    x: &[f32],
    k: usize,
    updates: &[LowRankUpdate<'_>],
    outs: &mut [&mut [f32]],
    scratch: &mut [f32],
) {
    let mut ends: SmallVec<[usize; 4]> = SmallVec::from_elem(0, outs.len());
    let mut tasks: SmallVec<[Task; 32]> = SmallVec::new();
    let mut scratch_end = 0;
    for (index, update) in updates.iter().enumerate() {
        let LowRankUpdate { output, rows: Range { start, end }, down, up, .. } = update;
        assert!(ends[*output] <= *start && start <= end, "the updates of output {output} are not in order");
        ends[*output] = *end;
        assert!(down.k() == k && end * k <= x.len(), "{down:?} does not fit rows of {k} inputs");
        let is_quantised = down.dtype().is_quantised() || up.dtype().is_quantised();
        assert!(!is_quantised, "{down:?} or {up:?} is quantised");
        let fits = up.k() == down.n() && end * up.n() <= outs[*output].len();
        assert!(fits, "{up:?} does not fit {down:?} and output {output}");
        for first in (*start..*end).step_by(TASK_ROWS) {
            let rows = first..(*end).min(first + TASK_ROWS);
            let len = rows.len() * update.padded_rank();
            tasks.push(Task { update: index, rows, scratch: scratch_end });
            scratch_end += len;
        }
    }
    assert!(scratch_end <= scratch.len(), "{} elements of scratch memory are too few", scratch.len());
    let shared_outs: SmallVec<[SharedSlice<f32>; 4]> = outs.iter_mut().map(|out| SharedSlice::new(out)).collect();
    let shared_scratch = SharedSlice::new(scratch);
    pool.run(tasks.len(), |task| {
        let Task { update, rows, scratch } = &tasks[task];
        let LowRankUpdate { output, down, up, scale, .. } = updates[*update].clone();
        let (count, n) = (rows.len(), up.n());
        // SAFETY: no other task has these rows of this output, or this part of the scratch memory.
        let (low, out) = unsafe {
            let low = shared_scratch.get(*scratch, count * updates[*update].padded_rank());
            (low, shared_outs[output].get(rows.start * n, count * n))
        };
        let x = &x[rows.start * k..rows.end * k];
        // Another thread may run that task, but it then finds the weights in the shared cache.
        let next = tasks.get(task + pool.threads()).map_or(&[][..], |next| updates[next.update].down.packed().bytes);
        let next = &next[..next.len().min(PREFETCH_BYTES)];
        let (weights, up_weights) = (down.packed(), up.packed());
        let after = up_weights.bytes;
        match down.is_paired() {
            true => multiply(down, pool, DownKernel::<true> { weights, next: after, x, k, low: &mut *low, scale }),
            false => multiply(down, pool, DownKernel::<false> { weights, next: after, x, k, low: &mut *low, scale }),
        }
        multiply(up, pool, UpKernel { weights: up_weights, next, low, rank: up.k(), out, n });
    });
}

/// A kernel for any float format.
trait FormatKernel: Sized {
    /// Rows of the result.
    fn rows(&self) -> usize;

    /// Multiplies `R` rows from `first` on.
    ///
    /// # Safety
    /// As [`Kernel`] says.
    unsafe fn multiply_rows<S: Simd, F: FloatFormat, const R: usize>(&mut self, first: usize);

    /// Multiplies all rows, several at a time if there are registers for them.
    ///
    /// # Safety
    /// As [`Kernel`] says.
    #[inline(always)]
    unsafe fn run<S: Simd, F: FloatFormat>(mut self) {
        let (rows, mut first) = (self.rows(), 0);
        // SAFETY: features as the caller says.
        unsafe {
            while S::TILE_ROWS > BLOCK_ROWS && first + BLOCK_ROWS <= rows {
                self.multiply_rows::<S, F, BLOCK_ROWS>(first);
                first += BLOCK_ROWS;
            }
            while first < rows {
                self.multiply_rows::<S, F, 1>(first);
                first += 1;
            }
        }
    }
}

struct WithFormat<K, F>(K, std::marker::PhantomData<F>);

impl<K: FormatKernel, F: FloatFormat> Kernel for WithFormat<K, F> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: as the caller says.
        unsafe { self.0.run::<S, F>() }
    }
}

/// Runs a kernel in the format of `linear`.
fn multiply<K: FormatKernel>(linear: &Linear, pool: &Pool, kernel: K) {
    fn with<K: FormatKernel, F: FloatFormat>(pool: &Pool, kernel: K) {
        run(pool.isa(), WithFormat::<K, F>(kernel, std::marker::PhantomData));
    }
    match linear.dtype() {
        DType::F32 => with::<K, F32>(pool, kernel),
        DType::F16 => with::<K, F16>(pool, kernel),
        DType::BF16 => with::<K, BF16>(pool, kernel),
        // [`add_low_rank`] has refused other types.
        _ => {}
    }
}

/// The packed groups of 16 rows of a matrix.
#[derive(Clone, Copy)]
pub(crate) struct PackedGroups<'a> {
    pub bytes: &'a [u8],
    /// Bytes of a group.
    pub group: usize,
}

/// Prefetches weights that are needed soon, evenly over the steps of a loop.
struct Prefetch {
    address: *const u8,
    lines_per_step: usize,
    lines: usize,
}

impl Prefetch {
    fn new(bytes: &[u8], steps: usize) -> Self {
        let lines = bytes.len().div_ceil(CACHE_LINE);
        Self { address: bytes.as_ptr(), lines_per_step: lines.div_ceil(steps.max(1)), lines }
    }

    /// # Safety
    /// As [`Kernel`] says.
    #[inline(always)]
    unsafe fn step<S: Simd>(&mut self) {
        for _ in 0..self.lines_per_step.min(self.lines) {
            // SAFETY: as the caller says. A prefetch reads nothing.
            unsafe { S::prefetch(self.address) };
            self.address = self.address.wrapping_add(CACHE_LINE);
            self.lines -= 1;
        }
    }
}

/// `low = scale · down(x)`. `x` is `[rows, k]`, and `low` is `[rows, padded rank]`. `PAIRED`: whether each row of the weights is
/// in two rows of the group.
struct DownKernel<'a, const PAIRED: bool> {
    weights: PackedGroups<'a>,
    /// The weights that are used next.
    next: &'a [u8],
    x: &'a [f32],
    k: usize,
    low: &'a mut [f32],
    scale: f32,
}

impl<const PAIRED: bool> FormatKernel for DownKernel<'_, PAIRED> {
    fn rows(&self) -> usize {
        self.x.len() / self.k
    }

    /// Each output has four sums, because one sum would wait for each addition.
    #[inline(always)]
    unsafe fn multiply_rows<S: Simd, F: FloatFormat, const R: usize>(&mut self, first: usize) {
        let Self { weights: PackedGroups { bytes, group }, next, x, k, low, scale } = self;
        let mut prefetch =
            Prefetch::new(if first == 0 { next } else { &[] }, bytes.len() / const { Layout::of(F::DTYPE).low });
        let (k, span_bytes) = (*k, const { Layout::of(F::DTYPE).low });
        // Inputs that belong to one row of the group, and columns of the group.
        let step = const { if PAIRED { 2 } else { 1 } };
        let columns = k / step;
        let (x, padded) = (&x[first * k..][..R * k], bytes.len() / *group * LANES);
        let low = &mut low[first * padded..][..R * padded];
        for (index, weights) in bytes.chunks_exact(*group).enumerate() {
            let (mut weights, mut x) = (weights.as_ptr(), x.as_ptr());
            // SAFETY: a group has a span for each four elements of a row, and for the remainder.
            unsafe {
                let mut sums = [[S::splat(0.0); FLOATS]; R];
                for _ in 0..columns / FLOATS {
                    prefetch.step::<S>();
                    for line in (0..span_bytes).step_by(CACHE_LINE) {
                        S::prefetch(weights.wrapping_add(PREFETCH_BYTES + line));
                    }
                    let (a, b) = F::load_two::<S>(weights);
                    let (c, d) = F::load_two::<S>(weights.add(span_bytes / 2));
                    for row in 0..R {
                        for (at, weight) in [a, b, c, d].into_iter().enumerate() {
                            let x = inputs::<S, PAIRED>(x.add(row * k + at * step));
                            sums[row][at] = S::fma(weight, x, sums[row][at]);
                        }
                    }
                    weights = weights.add(span_bytes);
                    x = x.add(FLOATS * step);
                }
                for at in 0..columns % FLOATS {
                    let pair = F::load_two::<S>(weights.add(at / 2 * (span_bytes / 2)));
                    let weight = if at % 2 == 0 { pair.0 } else { pair.1 };
                    for row in 0..R {
                        let x = inputs::<S, PAIRED>(x.add(row * k + at * step));
                        sums[row][at] = S::fma(weight, x, sums[row][at]);
                    }
                }
                for (row, [a, b, c, d]) in sums.into_iter().enumerate() {
                    let sum = S::mul(S::add(S::add(a, b), S::add(c, d)), S::splat(*scale));
                    let low = &mut low[row * padded + index * LANES..][..LANES];
                    S::store(low.as_mut_ptr(), sum);
                    if PAIRED {
                        for at in 0..LANES / 2 {
                            low[at] = low[2 * at] + low[2 * at + 1];
                        }
                        low[LANES / 2..].fill(0.0);
                    }
                }
            }
        }
    }
}

/// The input of each row of a group: the element at `x`, or with `PAIRED` the two from there on, alternately.
///
/// # Safety
/// As [`Kernel`] says. The elements must exist.
#[inline(always)]
unsafe fn inputs<S: Simd, const PAIRED: bool>(x: *const f32) -> S::F {
    // SAFETY: as the caller says.
    unsafe { if PAIRED { S::splat_pair(x) } else { S::splat(*x) } }
}

/// `out += up(low)`. `low` is `[rows, padded rank]`, and `out` is `[rows, n]`.
struct UpKernel<'a> {
    weights: PackedGroups<'a>,
    /// The weights that are used next.
    next: &'a [u8],
    low: &'a [f32],
    rank: usize,
    out: &'a mut [f32],
    n: usize,
}

impl FormatKernel for UpKernel<'_> {
    fn rows(&self) -> usize {
        self.out.len() / self.n
    }

    #[inline(always)]
    unsafe fn multiply_rows<S: Simd, F: FloatFormat, const R: usize>(&mut self, first: usize) {
        let Self { weights: PackedGroups { bytes, group }, next, low, rank, out, n } = self;
        let mut prefetch = Prefetch::new(if first == 0 { next } else { &[] }, n.div_ceil(LANES));
        let (n, padded) = (*n, rank.next_multiple_of(LANES));
        let (low, out) = (&low[first * padded..][..R * padded], &mut out[first * n..][..R * n]);
        for (index, weights) in bytes.chunks_exact(*group).take(n.div_ceil(LANES)).enumerate() {
            let columns = (n - index * LANES).min(LANES);
            // SAFETY: features as the caller says.
            unsafe { prefetch.step::<S>() };
            // SAFETY: a group has a pair for each two elements of a row; the last one may be padded. Each row of the output
            // has `columns` elements from there on.
            unsafe {
                let out = out.as_mut_ptr().add(index * LANES);
                let mut sums = [S::splat(0.0); R];
                for row in 0..R {
                    let out = out.add(row * n);
                    sums[row] = if columns == LANES { S::load(out) } else { load_partial::<S>(out, columns) };
                }
                for pair in 0..rank.div_ceil(2) {
                    let half_span = const { Layout::of(F::DTYPE).low / 2 };
                    let (a, b) = F::load_two::<S>(weights.as_ptr().add(pair * half_span));
                    for row in 0..R {
                        let low = low.as_ptr().add(row * padded + 2 * pair);
                        sums[row] = S::fma(a, S::splat(*low), sums[row]);
                        sums[row] = S::fma(b, S::splat(*low.add(1)), sums[row]);
                    }
                }
                for (row, sum) in sums.into_iter().enumerate() {
                    let out = out.add(row * n);
                    if columns == LANES { S::store(out, sum) } else { store_partial::<S>(out, sum, columns) }
                }
            }
        }
    }
}
