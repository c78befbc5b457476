//! Element-wise operations on images, channels last.

use crate::Pool;
use crate::buffer::Shards;
use crate::ops::by_rows;

/// Elements of a task of [`add`], which is bound by memory.
const TASK_ELEMENTS: usize = 64 * 1024;

/// `x += y`
///
/// # Panics
/// If lengths differ.
pub fn add(pool: &Pool, x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "two inputs of one length");
    let to = Shards::new(x);
    pool.run(y.len().div_ceil(TASK_ELEMENTS), |task| {
        let (at, y) = (task * TASK_ELEMENTS, y.chunks(TASK_ELEMENTS).nth(task).unwrap_or_default());
        // SAFETY: these places are this task's own.
        let x = unsafe { to.get(at, y.len()) };
        x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
    });
}

/// `x += y · factors`, row by row; `x` and `y`: `[rows, width]`, `factors`: `[width]`.
///
/// # Panics
/// If lengths do not match.
pub fn add_scaled(pool: &Pool, x: &mut [f32], y: &[f32], factors: &[f32]) {
    let width = factors.len();
    assert!(width > 0 && x.len() == y.len() && x.len().is_multiple_of(width), "two inputs of rows of {width} numbers");
    let to = Shards::new(x);
    by_rows(pool, y.len() / width, width, |first, rows| {
        // SAFETY: these rows are this task's own.
        let x = unsafe { to.get(first * width, rows * width) };
        for (x, y) in x.chunks_exact_mut(width).zip(y[first * width..].chunks_exact(width)) {
            x.iter_mut().zip(y.iter().zip(factors)).for_each(|(x, (y, factor))| *x += y * factor);
        }
    });
}

/// Concatenates each row of `x` with the same row of `y`; `left` and `right` are their widths.
///
/// # Panics
/// If lengths do not match.
pub fn concat_channels(pool: &Pool, [x, y]: [&[f32]; 2], [left, right]: [usize; 2], out: &mut [f32]) {
    assert!(left > 0 && right > 0, "rows are not empty");
    let (rows, width) = (x.len() / left, left + right);
    assert!(x.len() == rows * left && y.len() == rows * right && out.len() == rows * width, "as many rows of each");
    let to = Shards::new(out);
    by_rows(pool, rows, width, |first, count| {
        // SAFETY: these rows are this task's own.
        let out = unsafe { to.get(first * width, count * width) };
        let both = x[first * left..].chunks_exact(left).zip(y[first * right..].chunks_exact(right));
        for (out, (x, y)) in out.chunks_exact_mut(width).zip(both) {
            out[..left].copy_from_slice(x);
            out[left..].copy_from_slice(y);
        }
    });
}

/// Resizes images with nearest-neighbour interpolation: output `i` of `n` takes input `floor(i · old / n)`. `x`:
/// `[images, from[0], from[1], channels]`.
///
/// # Panics
/// If lengths do not match.
pub fn resize_nearest(pool: &Pool, x: &[f32], from: [usize; 2], to: [usize; 2], channels: usize, out: &mut [f32]) {
    let (image, line) = (from[0] * from[1] * channels, to[1] * channels);
    assert!(image > 0 && x.len().is_multiple_of(image), "images are [.., height, width, channels]");
    assert_eq!(out.len(), x.len() / image * to[0] * line, "as many images of the new size");
    let all = Shards::new(out);
    by_rows(pool, x.len() / image * to[0], line, |first, count| {
        // SAFETY: these lines are this task's own.
        let out = unsafe { all.get(first * line, count * line) };
        for (index, out) in (first..).zip(out.chunks_exact_mut(line)) {
            let (which, at) = (index / to[0], index % to[0] * from[0] / to[0]);
            let x = &x[which * image + at * from[1] * channels..][..from[1] * channels];
            for (at, out) in out.chunks_exact_mut(channels).enumerate() {
                out.copy_from_slice(&x[at * from[1] / to[1] * channels..][..channels]);
            }
        }
    });
}
