//! Element-wise operations on images, channels last.

use crate::Pool;
use crate::buffer::SharedSlice;
use crate::rows::by_rows;

/// Elements of a task of [`add`] or [`multiply`], which are limited by memory bandwidth.
const TASK_ELEMENTS: usize = 64 * 1024;

/// `x += y`
///
/// # Panics
/// If lengths differ.
pub fn add(pool: &Pool, x: &mut [f32], y: &[f32]) {
    by_elements(pool, x, y, |x, y| *x += y);
}

/// `x *= y`
///
/// # Panics
/// If lengths differ.
pub fn multiply(pool: &Pool, x: &mut [f32], y: &[f32]) {
    by_elements(pool, x, y, |x, y| *x *= y);
}

/// Changes each element of `x` by that of `y`.
fn by_elements(pool: &Pool, x: &mut [f32], y: &[f32], change: impl Fn(&mut f32, &f32) + Sync) {
    assert_eq!(x.len(), y.len(), "the two inputs have different lengths");
    let shared = SharedSlice::new(x);
    pool.run(y.len().div_ceil(TASK_ELEMENTS), |task| {
        let (first, y) = (task * TASK_ELEMENTS, y.chunks(TASK_ELEMENTS).nth(task).unwrap_or_default());
        // SAFETY: no other task accesses these elements.
        let x = unsafe { shared.get(first, y.len()) };
        x.iter_mut().zip(y).for_each(|(x, y)| change(x, y));
    });
}

/// `x += y · factors`, row by row; `x` and `y`: `[rows, width]`, `factors`: `[width]`.
///
/// # Panics
/// If lengths do not match.
pub fn add_scaled(pool: &Pool, x: &mut [f32], y: &[f32], factors: &[f32]) {
    let width = factors.len();
    assert!(width > 0 && x.len() == y.len() && x.len().is_multiple_of(width), "x and y are [rows, {width}]");
    let shared = SharedSlice::new(x);
    by_rows(pool, y.len() / width, width, |first, rows| {
        // SAFETY: no other task accesses these rows.
        let x = unsafe { shared.get(first * width, rows * width) };
        for (x, y) in x.chunks_exact_mut(width).zip(y[first * width..].chunks_exact(width)) {
            x.iter_mut().zip(y.iter().zip(factors)).for_each(|(x, (y, factor))| *x += y * factor);
        }
    });
}

/// A row of a matrix, and the factor by which it is multiplied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowShare {
    pub row: usize,
    pub factor: f32,
}

/// Adds to each row of `x`, `[rows, width]`, rows of `y`, `[_, width]`, multiplied by factors, one after another. `shares`: those of all
/// rows of `x`; `ends`: for each row of `x` the end of its own.
///
/// # Panics
/// If lengths do not match, or `y` has no such row.
pub fn add_shares(pool: &Pool, x: &mut [f32], y: &[f32], width: usize, shares: &[RowShare], ends: &[usize]) {
    assert!(width > 0 && x.len() == ends.len() * width, "x is [{}, {width}]", ends.len());
    let shared = SharedSlice::new(x);
    let average = shares.len() / ends.len().max(1) + 1;
    by_rows(pool, ends.len(), width * average, |first, rows| {
        // SAFETY: no other task accesses these rows.
        let x = unsafe { shared.get(first * width, rows * width) };
        for (row, x) in (first..).zip(x.chunks_exact_mut(width)) {
            let start = if row == 0 { 0 } else { ends[row - 1] };
            for RowShare { row, factor } in &shares[start..ends[row]] {
                x.iter_mut().zip(&y[row * width..][..width]).for_each(|(x, y)| *x += y * factor);
            }
        }
    });
}

/// Concatenates rows: `out` is `[rows, x_width + y_width]` for `x`, `[rows, x_width]`, and `y`, `[rows, y_width]`.
///
/// # Panics
/// If lengths do not match.
pub fn concat_channels(pool: &Pool, [x, y]: [&[f32]; 2], [x_width, y_width]: [usize; 2], out: &mut [f32]) {
    assert!(x_width > 0 && y_width > 0, "a width is zero");
    let (rows, width) = (x.len() / x_width, x_width + y_width);
    let expected = [rows * x_width, rows * y_width, rows * width];
    assert_eq!([x.len(), y.len(), out.len()], expected, "x, y and out have the same number of rows");
    let shared = SharedSlice::new(out);
    by_rows(pool, rows, width, |first, count| {
        // SAFETY: no other task accesses these rows.
        let out = unsafe { shared.get(first * width, count * width) };
        let pairs = x[first * x_width..].chunks_exact(x_width).zip(y[first * y_width..].chunks_exact(y_width));
        for (out, (x, y)) in out.chunks_exact_mut(width).zip(pairs) {
            out[..x_width].copy_from_slice(x);
            out[x_width..].copy_from_slice(y);
        }
    });
}

/// Resizes images with nearest-neighbour interpolation: output `i` of `n` is input `floor(i · old / n)`. `x` is `[images,
/// old_height, old_width, channels]`, and `out` is `[images, new_height, new_width, channels]`.
///
/// # Panics
/// If lengths do not match.
pub fn resize_nearest(
    pool: &Pool,
    x: &[f32],
    [old_height, old_width]: [usize; 2],
    [new_height, new_width]: [usize; 2],
    channels: usize,
    out: &mut [f32],
) {
    let (image_len, line_len) = (old_height * old_width * channels, new_width * channels);
    assert!(image_len > 0 && x.len().is_multiple_of(image_len), "images are [.., height, width, channels]");
    let lines = x.len() / image_len * new_height;
    assert_eq!(out.len(), lines * line_len, "outputs are [images, new_height, new_width, channels]");
    let shared = SharedSlice::new(out);
    by_rows(pool, lines, line_len, |first, count| {
        // SAFETY: no other task accesses these lines.
        let out = unsafe { shared.get(first * line_len, count * line_len) };
        for (index, out) in (first..).zip(out.chunks_exact_mut(line_len)) {
            let (image, old_line) = (index / new_height, index % new_height * old_height / new_height);
            let x = &x[image * image_len + old_line * old_width * channels..][..old_width * channels];
            for (column, out) in out.chunks_exact_mut(channels).enumerate() {
                out.copy_from_slice(&x[column * old_width / new_width * channels..][..channels]);
            }
        }
    });
}
