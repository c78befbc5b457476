//! Parallel loops over rows, and vector loads and stores that stop at the end of a row.

use crate::Pool;
use crate::simd::{LANES, Simd, load_partial, store_partial};

/// Elements of a task of additions, which takes some microseconds.
const TASK_ELEMENTS: usize = 16 * 1024;

/// Splits `rows` rows of `width` elements among the pool's threads. `work` gets the first row and the number of rows.
pub(crate) fn by_rows(pool: &Pool, rows: usize, width: usize, work: impl Fn(usize, usize) + Sync) {
    let task_rows = (TASK_ELEMENTS / width.max(1)).max(1);
    pool.run(rows.div_ceil(task_rows), |task| {
        let first = task * task_rows;
        work(first, task_rows.min(rows - first));
    });
}

/// Loads up to sixteen elements of `src` from `index` on; missing lanes are zero.
///
/// # Safety
/// As [`Simd`] says; `index` is within the slice.
#[inline(always)]
pub(crate) unsafe fn load_up_to<S: Simd>(src: &[f32], index: usize) -> S::F {
    let remaining = src.len() - index;
    // SAFETY: at most the remaining elements are read.
    unsafe {
        let src = src.as_ptr().add(index);
        if remaining >= LANES { S::load(src) } else { load_partial::<S>(src, remaining) }
    }
}

/// Stores up to sixteen lanes to `dst` from `index` on.
///
/// # Safety
/// As [`Simd`] says; `index` is within the slice.
#[inline(always)]
pub(crate) unsafe fn store_up_to<S: Simd>(dst: &mut [f32], index: usize, x: S::F) {
    let remaining = dst.len() - index;
    // SAFETY: at most the remaining elements are written.
    unsafe {
        let dst = dst.as_mut_ptr().add(index);
        if remaining >= LANES { S::store(dst, x) } else { store_partial::<S>(dst, x, remaining) }
    }
}
