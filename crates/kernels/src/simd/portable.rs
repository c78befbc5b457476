//! Portable code over arrays: the reference for tests, and the fallback for other CPUs.
#![expect(unsafe_op_in_unsafe_fn, reason = "every line would be a block; the trait states the contract once")]

use half::f16;

use super::vectors::{LANES, Simd};

#[derive(Clone, Copy)]
pub(crate) struct Portable;

#[inline(always)]
fn map<A: Copy, B: Copy>(a: [A; LANES], f: impl Fn(A) -> B) -> [B; LANES] {
    a.map(f)
}

#[inline(always)]
fn zip(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    let mut out = [0.0; LANES];
    for lane in 0..LANES {
        out[lane] = f(a[lane], b[lane]);
    }
    out
}

/// Computes a word (four bytes) for each lane. Compilers vectorise this form.
#[inline(always)]
fn words(f: impl Fn(usize) -> u32) -> [u32; LANES] {
    let mut out = [0; LANES];
    for lane in 0..LANES {
        out[lane] = f(lane);
    }
    out
}

#[inline(always)]
unsafe fn load_four(x: *const i8) -> [i32; 4] {
    x.cast::<[i8; 4]>().read_unaligned().map(i32::from)
}

impl Simd for Portable {
    type F = [f32; LANES];
    type I = [i32; LANES];
    type B = [u32; LANES];

    const TILE_ROWS: usize = 2;
    const DOT_SIGNED_BIASED: bool = false;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load(src: *const f32) -> Self::F {
        src.cast::<Self::F>().read_unaligned()
    }
    #[inline(always)]
    unsafe fn store(dst: *mut f32, x: Self::F) {
        dst.cast::<Self::F>().write_unaligned(x);
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        let mut out = c;
        for lane in 0..LANES {
            out[lane] += a[lane] * b[lane];
        }
        out
    }
    #[inline(always)]
    unsafe fn zero_where_le(x: Self::F, test: Self::F, limit: f32) -> Self::F {
        zip(x, test, |x, test| if test <= limit { 0.0 } else { x })
    }
    #[inline(always)]
    unsafe fn reduce_sum(x: Self::F) -> f32 {
        x.iter().sum()
    }
    #[inline(always)]
    unsafe fn reduce_max(x: Self::F) -> f32 {
        x.iter().fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a })
    }
    #[inline(always)]
    unsafe fn ldexp(x: Self::F, n: Self::F) -> Self::F {
        zip(x, n, |x, n| x * f32::from_bits(((n as i32 + 127) as u32) << 23))
    }
    #[inline(always)]
    unsafe fn round_even(x: Self::F) -> Self::F {
        map(x, f32::round_ties_even)
    }
    #[inline(always)]
    unsafe fn load_f16(src: *const u16) -> Self::F {
        map(src.cast::<[u16; LANES]>().read_unaligned(), |bits| f16::from_bits(bits).to_f32())
    }
    #[inline(always)]
    unsafe fn store_f16(dst: *mut u16, x: Self::F) {
        dst.cast::<[u16; LANES]>().write_unaligned(map(x, |x| f16::from_f32(x).to_bits()));
    }
    #[inline(always)]
    unsafe fn load_bf16_pairs(src: *const u8) -> (Self::F, Self::F) {
        let pairs = Self::load_bytes(src);
        (map(pairs, |pair| f32::from_bits(pair << 16)), map(pairs, |pair| f32::from_bits(pair & 0xffff_0000)))
    }
    #[inline(always)]
    unsafe fn load_i8(src: *const i8) -> Self::F {
        map(src.cast::<[i8; LANES]>().read_unaligned(), f32::from)
    }
    #[inline(always)]
    unsafe fn load_u8(src: *const u8) -> Self::F {
        map(src.cast::<[u8; LANES]>().read_unaligned(), f32::from)
    }
    #[inline(always)]
    unsafe fn splat_int(x: i32) -> Self::I {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn to_float(x: Self::I) -> Self::F {
        map(x, |x| x as f32)
    }
    #[inline(always)]
    unsafe fn to_int(x: Self::F) -> Self::I {
        map(x, |x| x.round_ties_even() as i32)
    }
    #[inline(always)]
    unsafe fn abs_bits(x: Self::F) -> Self::I {
        map(x, |x| x.abs().to_bits() as i32)
    }
    #[inline(always)]
    unsafe fn max_int(a: Self::I, b: Self::I) -> Self::I {
        std::array::from_fn(|lane| a[lane].max(b[lane]))
    }
    #[inline(always)]
    unsafe fn reduce_max_int(x: Self::I) -> i32 {
        x.iter().fold(i32::MIN, |a, &b| a.max(b))
    }
    #[inline(always)]
    unsafe fn store_codes(dst: *mut i8, first: Self::I, second: Self::I) -> (i32, i32) {
        for (lane, code) in first.into_iter().chain(second).enumerate() {
            dst.add(lane).write(code as i8);
        }
        (first.into_iter().sum(), second.into_iter().sum())
    }
    #[inline(always)]
    unsafe fn load_bytes(src: *const u8) -> Self::B {
        src.cast::<Self::B>().read_unaligned().map(u32::from_le)
    }
    #[inline(always)]
    unsafe fn low_nibbles(x: Self::B) -> Self::B {
        words(|lane| x[lane] & 0x0f0f_0f0f)
    }
    #[inline(always)]
    unsafe fn high_nibbles(x: Self::B) -> Self::B {
        words(|lane| x[lane] >> 4 & 0x0f0f_0f0f)
    }
    #[inline(always)]
    unsafe fn two_bits(x: Self::B, field: usize) -> Self::B {
        words(|lane| x[lane] >> (2 * field) & 0x0303_0303)
    }
    #[inline(always)]
    unsafe fn lookup(x: Self::B, table: &[i8; 16]) -> Self::B {
        words(|lane| u32::from_le_bytes(x[lane].to_le_bytes().map(|index| table[usize::from(index & 15)] as u8)))
    }
    #[inline(always)]
    unsafe fn add_bit(x: Self::B, bits: *const u8, bit: i8) -> Self::B {
        let bits = u64::from_le_bytes(bits.cast::<[u8; 8]>().read_unaligned());
        words(|lane| {
            let nibble = (bits >> (4 * lane)) as u32;
            let mask = (nibble & 1) | (nibble & 2) << 7 | (nibble & 4) << 14 | (nibble & 8) << 21;
            x[lane] | (mask * bit as u32)
        })
    }
    #[inline(always)]
    unsafe fn add_two_bits(x: Self::B, fields: Self::B, field: usize) -> Self::B {
        words(|lane| x[lane] | (fields[lane] >> (2 * field) & 0x0303_0303) << 4)
    }
    #[inline(always)]
    unsafe fn dot(sum: Self::I, codes: Self::B, x: *const i8) -> Self::I {
        let (x, mut out) = (load_four(x), sum);
        for lane in 0..LANES {
            let code = |byte: u32| (codes[lane] >> (8 * byte) & 255) as i32;
            out[lane] += code(0) * x[0] + code(1) * x[1] + code(2) * x[2] + code(3) * x[3];
        }
        out
    }
    #[inline(always)]
    unsafe fn dot_signed(sum: Self::I, codes: Self::B, x: *const i8) -> Self::I {
        let (x, mut out) = (load_four(x), sum);
        for lane in 0..LANES {
            let code = |byte: u32| (codes[lane] << (24 - 8 * byte)) as i32 >> 24;
            out[lane] += code(0) * x[0] + code(1) * x[1] + code(2) * x[2] + code(3) * x[3];
        }
        out
    }
}
