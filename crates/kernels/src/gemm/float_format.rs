//! The float weight formats as the inner loop reads them: spans of four k.

use crate::dtype::DType;
use crate::pack::{FLOATS, Layout};
use crate::simd::{LANES, Simd};

/// A float weight type. Products are added in the order of k, with one accumulator for each output.
pub(crate) trait FloatFormat {
    const DTYPE: DType;
    /// Bytes of an activation.
    const ACTIVATION_BYTES: usize = size_of::<f32>();

    /// Loads the weights of an even k and of the next one.
    ///
    /// # Safety
    /// As [`Simd`] says; `weights` points to the weights of the even k in a group.
    unsafe fn load_two<S: Simd>(weights: *const u8) -> (S::F, S::F);

    /// Adds the products of a span of `G` groups with four activations of each of `R` rows. The strides between groups
    /// and between rows are in bytes.
    ///
    /// # Safety
    /// As [`Simd`] says; `weights` points to a span, and `x` to the activations.
    #[inline(always)]
    unsafe fn multiply<S: Simd, const R: usize, const G: usize>(
        sums: &mut [[S::F; R]; G],
        (weights, group_stride): (*const u8, usize),
        x: *const u8,
        row_stride: usize,
    ) {
        // SAFETY: all loads are within the spans and the activations.
        unsafe {
            for pair in 0..FLOATS / 2 {
                let mut pairs = [(S::splat(0.0), S::splat(0.0)); G];
                for group in 0..G {
                    let weights = weights.add(group * group_stride);
                    pairs[group] = Self::load_two::<S>(weights.add(const { Layout::of(Self::DTYPE).low / 2 } * pair));
                }
                for row in 0..R {
                    let x = x.add(row * row_stride).cast::<f32>().add(2 * pair);
                    let (first, second) = (S::splat(*x), S::splat(*x.add(1)));
                    for group in 0..G {
                        sums[group][row] = S::fma(pairs[group].0, first, sums[group][row]);
                    }
                    for group in 0..G {
                        sums[group][row] = S::fma(pairs[group].1, second, sums[group][row]);
                    }
                }
            }
        }
    }

    /// Does the same for the last `count` elements, fewer than four.
    ///
    /// # Safety
    /// As [`FloatFormat::multiply`] says.
    #[inline(always)]
    unsafe fn multiply_remainder<S: Simd, const R: usize, const G: usize>(
        sums: &mut [[S::F; R]; G],
        (weights, group_stride): (*const u8, usize),
        x: *const u8,
        row_stride: usize,
        count: usize,
    ) {
        // SAFETY: all loads are within the spans and the activations.
        unsafe {
            for group in 0..G {
                for k in 0..count {
                    let pair = weights.add(group * group_stride + const { Layout::of(Self::DTYPE).low / 2 } * (k / 2));
                    let pair = Self::load_two::<S>(pair);
                    let weights = if k % 2 == 0 { pair.0 } else { pair.1 };
                    for row in 0..R {
                        let x = x.add(row * row_stride).cast::<f32>().add(k);
                        sums[group][row] = S::fma(weights, S::splat(*x), sums[group][row]);
                    }
                }
            }
        }
    }
}

pub(crate) struct F32;
pub(crate) struct F16;
pub(crate) struct BF16;
/// BF16 weights times activations rounded to bf16, two k at a time.
pub(super) struct Bf16Pairs;

impl FloatFormat for F32 {
    const DTYPE: DType = DType::F32;

    #[inline(always)]
    unsafe fn load_two<S: Simd>(weights: *const u8) -> (S::F, S::F) {
        // SAFETY: there are two times 16 weights.
        unsafe { (S::load(weights.cast()), S::load(weights.cast::<f32>().add(LANES))) }
    }
}

impl FloatFormat for F16 {
    const DTYPE: DType = DType::F16;

    #[inline(always)]
    unsafe fn load_two<S: Simd>(weights: *const u8) -> (S::F, S::F) {
        // SAFETY: there are two times 16 weights.
        unsafe { (S::load_f16(weights.cast()), S::load_f16(weights.cast::<u16>().add(LANES))) }
    }
}

impl FloatFormat for BF16 {
    const DTYPE: DType = DType::BF16;

    #[inline(always)]
    unsafe fn load_two<S: Simd>(weights: *const u8) -> (S::F, S::F) {
        // SAFETY: there are 16 pairs.
        unsafe { S::load_bf16_pairs(weights) }
    }
}

impl FloatFormat for Bf16Pairs {
    const DTYPE: DType = DType::BF16;
    const ACTIVATION_BYTES: usize = size_of::<u16>();

    #[inline(always)]
    unsafe fn load_two<S: Simd>(weights: *const u8) -> (S::F, S::F) {
        // SAFETY: as the caller says.
        unsafe { BF16::load_two::<S>(weights) }
    }

    #[inline(always)]
    unsafe fn multiply<S: Simd, const R: usize, const G: usize>(
        sums: &mut [[S::F; R]; G],
        weights: (*const u8, usize),
        x: *const u8,
        row_stride: usize,
    ) {
        // SAFETY: all loads are within the span and the pairs.
        unsafe { multiply_pairs::<S, R, G>(sums, weights, x, row_stride, FLOATS / 2) }
    }

    #[inline(always)]
    unsafe fn multiply_remainder<S: Simd, const R: usize, const G: usize>(
        sums: &mut [[S::F; R]; G],
        weights: (*const u8, usize),
        x: *const u8,
        row_stride: usize,
        count: usize,
    ) {
        // SAFETY: all loads are within the span and the pairs, which are padded with a zero.
        unsafe { multiply_pairs::<S, R, G>(sums, weights, x, row_stride, count.div_ceil(2)) }
    }
}

/// Adds the products of `count` bf16 pairs.
///
/// # Safety
/// As [`FloatFormat::multiply`] says.
#[inline(always)]
unsafe fn multiply_pairs<S: Simd, const R: usize, const G: usize>(
    sums: &mut [[S::F; R]; G],
    (weights, group_stride): (*const u8, usize),
    x: *const u8,
    row_stride: usize,
    count: usize,
) {
    // SAFETY: as the caller says.
    unsafe {
        for pair in 0..count {
            for row in 0..R {
                let x = x.add(row * row_stride).cast::<u32>().add(pair).read_unaligned();
                for group in 0..G {
                    let weights = weights.add(group * group_stride + pair * 4 * LANES);
                    sums[group][row] = S::dot_bf16_pairs(sums[group][row], weights, x);
                }
            }
        }
    }
}
