//! The quantised weight formats as the inner loop reads them: scales, minima, and codes of a tile.
//!
//! [`crate::pack`] describes the bytes of a tile.

use crate::dtype::{DType, E2M1_DOUBLED, IQ4_VALUES};
use crate::pack::Layout;
use crate::simd::{LANES, Simd};

/// A quantised weight type.
pub(super) trait QuantFormat {
    const DTYPE: DType;
    const LAYOUT: Layout = Layout::of(Self::DTYPE);
    /// log2 of the offset that is subtracted from each code; 0 for none.
    const OFFSET: u32 = 0;
    /// The format has a minimum term.
    const MINIMUM: bool = false;
    /// Each half of a tile has a scale of its own.
    const HALVES: bool = false;
    /// Codes are signed bytes.
    const SIGNED: bool = false;
    /// A table that nibbles index.
    const TABLE: Option<&'static [i8; 16]> = None;

    /// The scales and minima of a span's rows. Types without minima get the scales twice.
    ///
    /// # Safety
    /// As [`Simd`] says; `head` points to the head of a span.
    #[inline(always)]
    unsafe fn head<S: Simd>(head: *const u8) -> (S::F, S::F) {
        // SAFETY: the head has the size that the layout says.
        unsafe {
            let d = match const { Self::LAYOUT.head } {
                16 => half_e8m0::<S>(head),
                _ => S::load_f16(head.cast()),
            };
            (d, if const { Self::LAYOUT.head } == 64 { S::load_f16(head.add(32).cast()) } else { d })
        }
    }

    /// The scales and minima of a tile's two halves. Without `HALVES`, only the first is used.
    ///
    /// # Safety
    /// As [`Simd`] says; `head` and `tile` point into a group.
    #[inline(always)]
    unsafe fn scales<S: Simd>(head: (S::F, S::F), _tile: *const u8) -> ([S::F; 2], [S::F; 2]) {
        ([head.0; 2], [head.1; 2])
    }
}

macro_rules! quant_format {
    ($name:ident $(, $constant:ident: $type:ty = $value:expr)*) => {
        pub(super) struct $name;
        impl QuantFormat for $name {
            const DTYPE: DType = DType::$name;
            $(const $constant: $type = $value;)*
        }
    };
}

quant_format!(Q8_0, SIGNED: bool = true);
quant_format!(Q4_0, OFFSET: u32 = 3);
quant_format!(Q4_1, MINIMUM: bool = true);
quant_format!(Q5_0, OFFSET: u32 = 4);
quant_format!(Q5_1, MINIMUM: bool = true);
quant_format!(IQ4NL, SIGNED: bool = true, TABLE: Option<&'static [i8; 16]> = Some(&IQ4_VALUES));

/// [`E2M1_DOUBLED`] with an offset of 16: unsigned codes are multiplied faster.
const E2M1_CODES: [i8; 16] = {
    let mut codes = E2M1_DOUBLED;
    let mut index = 0;
    while index < codes.len() {
        codes[index] += 16;
        index += 1;
    }
    codes
};
quant_format!(MXFP4, OFFSET: u32 = 4, TABLE: Option<&'static [i8; 16]> = Some(&E2M1_CODES));

/// 2^(e - 128) for the exponent of each row, and at least 2^-126: weights below that do not change any sum.
///
/// # Safety
/// As [`QuantFormat::head`] says.
#[inline(always)]
unsafe fn half_e8m0<S: Simd>(exponents: *const u8) -> S::F {
    // SAFETY: the head has 16 bytes of exponents.
    unsafe {
        let exponent = S::sub(S::load_u8(exponents), S::splat(128.0));
        S::ldexp(S::splat(1.0), S::max(exponent, S::splat(-126.0)))
    }
}

/// A type whose tiles have quantised scales.
macro_rules! k_quant_format {
    ($name:ident, $scales:ident $(, $constant:ident: $type:ty = $value:expr)*) => {
        pub(super) struct $name;
        impl QuantFormat for $name {
            const DTYPE: DType = DType::$name;
            $(const $constant: $type = $value;)*

            #[inline(always)]
            unsafe fn scales<S: Simd>(head: (S::F, S::F), tile: *const u8) -> ([S::F; 2], [S::F; 2]) {
                // SAFETY: a tile begins with its scales; features as `Simd` says.
                unsafe { $scales::<S>(head, tile) }
            }
        }
    };
}

k_quant_format!(Q2K, nibble_scales, MINIMUM: bool = true, HALVES: bool = true);
k_quant_format!(Q3K, half_scales, OFFSET: u32 = 2, HALVES: bool = true);
k_quant_format!(Q4K, scale_and_minimum, MINIMUM: bool = true);
k_quant_format!(Q5K, scale_and_minimum, MINIMUM: bool = true);
k_quant_format!(Q6K, half_scales, OFFSET: u32 = 5, HALVES: bool = true);
k_quant_format!(IQ4XS, byte_scale, SIGNED: bool = true, TABLE: Option<&'static [i8; 16]> = Some(&IQ4_VALUES));

/// One signed byte per row: the factor of the scale `d`.
///
/// # Safety
/// As [`QuantFormat::scales`] says; the same holds for the functions below.
#[inline(always)]
unsafe fn byte_scale<S: Simd>(head: (S::F, S::F), tile: *const u8) -> ([S::F; 2], [S::F; 2]) {
    // SAFETY: the tile begins with 16 bytes of scales.
    unsafe { ([S::mul(head.0, S::load_i8(tile.cast())); 2], [head.1; 2]) }
}

/// One signed byte per row for each half.
#[inline(always)]
unsafe fn half_scales<S: Simd>(head: (S::F, S::F), tile: *const u8) -> ([S::F; 2], [S::F; 2]) {
    // SAFETY: the tile begins with 32 bytes of scales.
    unsafe {
        let (first, second) = (S::load_i8(tile.cast()), S::load_i8(tile.add(LANES).cast()));
        ([S::mul(head.0, first), S::mul(head.0, second)], [head.1; 2])
    }
}

/// One byte per row for the scale and one for the minimum, which is subtracted.
#[inline(always)]
unsafe fn scale_and_minimum<S: Simd>(head: (S::F, S::F), tile: *const u8) -> ([S::F; 2], [S::F; 2]) {
    // SAFETY: the tile begins with 32 bytes of scales and minima.
    unsafe {
        let minimum = S::mul(head.1, S::load_u8(tile.add(LANES)));
        ([S::mul(head.0, S::load_u8(tile)); 2], [S::sub(S::splat(0.0), minimum); 2])
    }
}

/// One byte per row for each half: the scale in the low four bits, the minimum in the high four.
#[inline(always)]
unsafe fn nibble_scales<S: Simd>(head: (S::F, S::F), tile: *const u8) -> ([S::F; 2], [S::F; 2]) {
    // SAFETY: the tile begins with 32 such bytes.
    unsafe {
        let bytes = [S::load_u8(tile), S::load_u8(tile.add(LANES))];
        let [mut scales, mut minima] = [bytes; 2];
        for half in 0..2 {
            // The high nibble: (byte - 7.5) / 16 is never half-way between two integers.
            let high = S::round_even(S::mul(S::sub(bytes[half], S::splat(7.5)), S::splat(0.0625)));
            scales[half] = S::mul(head.0, S::fma(high, S::splat(-16.0), bytes[half]));
            minima[half] = S::mul(head.1, S::sub(S::splat(0.0), high));
        }
        (scales, minima)
    }
}

/// Loads units `j` and `j + 4` of a tile: the codes `4j .. 4j + 4` and `16 + 4j .. 20 + 4j` of each row as bytes.
///
/// # Safety
/// As [`Simd`] says; `tile` points to a tile of the format.
#[inline(always)]
unsafe fn load_units<S: Simd, F: QuantFormat>(tile: *const u8, j: usize) -> (S::B, S::B) {
    let layout = const { F::LAYOUT };
    // SAFETY: all loads are within the tile, by its layout.
    unsafe {
        let high = tile.add(layout.scales);
        let low = high.add(layout.high);
        let (a, b, next_bit) = match layout.low {
            512 => (S::load_bytes(low.add(j * 64)), S::load_bytes(low.add((j + 4) * 64)), 0),
            256 => {
                let nibbles = S::load_bytes(low.add(j * 64));
                (S::low_nibbles(nibbles), S::high_nibbles(nibbles), 16)
            }
            _ => {
                let fields = S::load_bytes(low.add(j % 2 * 64));
                (S::two_bits(fields, j / 2), S::two_bits(fields, 2 + j / 2), 4)
            }
        };
        if let Some(table) = F::TABLE {
            return (S::lookup(a, table), S::lookup(b, table));
        }
        match layout.high {
            64 => (S::add_bit(a, high.add(j * 8), next_bit), S::add_bit(b, high.add((j + 4) * 8), next_bit)),
            128 => {
                let fields = S::load_bytes(high.add(j % 2 * 64));
                (S::add_two_bits(a, fields, j / 2), S::add_two_bits(b, fields, 2 + j / 2))
            }
            _ => (a, b),
        }
    }
}

/// Adds the products of units `j` and `j + 4` of a tile with `R` rows of activations.
///
/// This is a function, because a closure is not compiled with the features of the function around it.
///
/// # Safety
/// As [`load_units`] says; `x` points to 32 codes for each of `R` rows.
#[inline(always)]
pub(super) unsafe fn add_units<S: Simd, F: QuantFormat, const R: usize>(
    sums: &mut [[S::I; R]; 2],
    tile: *const u8,
    x: *const i8,
    j: usize,
) {
    // SAFETY: all loads are within the tile and the codes.
    unsafe {
        let (a, b) = load_units::<S, F>(tile, j);
        let [first, second] = sums;
        for row in 0..R {
            let xa = x.add(row * 32 + j * 4);
            let xb = xa.add(16);
            if F::HALVES {
                first[row] = S::dot(first[row], a, xa);
                second[row] = S::dot(second[row], b, xb);
            } else if F::SIGNED {
                first[row] = S::dot_signed(S::dot_signed(first[row], a, xa), b, xb);
            } else {
                first[row] = S::dot_two(first[row], a, xa, b, xb);
            }
        }
    }
}
