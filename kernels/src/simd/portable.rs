//! Plain code over arrays: the reference, and the fallback for other CPUs.
#![expect(unsafe_op_in_unsafe_fn, reason = "every line would be a block; the trait states the contract once")]

use half::f16;

use super::{LANES, Simd};

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

/// Element-wise over lanes, with four bytes of each lane in a word, which compilers vectorise.
#[inline(always)]
fn words(f: impl Fn(usize) -> u32) -> [u32; LANES] {
    let mut out = [0; LANES];
    for lane in 0..LANES {
        out[lane] = f(lane);
    }
    out
}

#[inline(always)]
unsafe fn four(x: *const i8) -> [i32; 4] {
    x.cast::<[i8; 4]>().read_unaligned().map(i32::from)
}

impl Simd for Portable {
    type F = [f32; LANES];
    type I = [i32; LANES];
    type B = [u32; LANES];

    const ROWS: usize = 2;
    const BIASED: bool = false;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::F {
        from.cast::<Self::F>().read_unaligned()
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, x: Self::F) {
        to.cast::<Self::F>().write_unaligned(x);
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
    unsafe fn keep_above(x: Self::F, test: Self::F, limit: f32) -> Self::F {
        zip(x, test, |x, test| if test <= limit { 0.0 } else { x })
    }
    #[inline(always)]
    unsafe fn sum(x: Self::F) -> f32 {
        x.iter().sum()
    }
    #[inline(always)]
    unsafe fn maximum(x: Self::F) -> f32 {
        x.iter().fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a })
    }
    #[inline(always)]
    unsafe fn scale(x: Self::F, n: Self::F) -> Self::F {
        zip(x, n, |x, n| x * f32::from_bits(((n as i32 + 127) as u32) << 23))
    }
    #[inline(always)]
    unsafe fn nearest(x: Self::F) -> Self::F {
        map(x, f32::round_ties_even)
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self::F {
        map(from.cast::<[u16; LANES]>().read_unaligned(), |bits| f16::from_bits(bits).to_f32())
    }
    #[inline(always)]
    unsafe fn store_f16(to: *mut u16, x: Self::F) {
        to.cast::<[u16; LANES]>().write_unaligned(map(x, |x| f16::from_f32(x).to_bits()));
    }
    #[inline(always)]
    unsafe fn load_pairs(from: *const u8) -> (Self::F, Self::F) {
        let both = Self::load_bytes(from);
        (map(both, |both| f32::from_bits(both << 16)), map(both, |both| f32::from_bits(both & 0xffff_0000)))
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self::F {
        map(from.cast::<[i8; LANES]>().read_unaligned(), f32::from)
    }
    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> Self::F {
        map(from.cast::<[u8; LANES]>().read_unaligned(), f32::from)
    }
    #[inline(always)]
    unsafe fn splat_int(x: i32) -> Self::I {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn float(x: Self::I) -> Self::F {
        map(x, |x| x as f32)
    }
    #[inline(always)]
    unsafe fn int(x: Self::F) -> Self::I {
        map(x, |x| x.round_ties_even() as i32)
    }
    #[inline(always)]
    unsafe fn magnitude(x: Self::F) -> Self::I {
        map(x, |x| x.abs().to_bits() as i32)
    }
    #[inline(always)]
    unsafe fn max_int(a: Self::I, b: Self::I) -> Self::I {
        std::array::from_fn(|lane| a[lane].max(b[lane]))
    }
    #[inline(always)]
    unsafe fn maximum_int(x: Self::I) -> i32 {
        x.iter().fold(i32::MIN, |a, &b| a.max(b))
    }
    #[inline(always)]
    unsafe fn store_codes(to: *mut i8, first: Self::I, second: Self::I) -> (i32, i32) {
        for (lane, code) in first.into_iter().chain(second).enumerate() {
            to.add(lane).write(code as i8);
        }
        (first.into_iter().sum(), second.into_iter().sum())
    }
    #[inline(always)]
    unsafe fn load_bytes(from: *const u8) -> Self::B {
        from.cast::<Self::B>().read_unaligned().map(u32::from_le)
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
    unsafe fn pair(x: Self::B, field: usize) -> Self::B {
        words(|lane| x[lane] >> (2 * field) & 0x0303_0303)
    }
    #[inline(always)]
    unsafe fn look_up(x: Self::B, table: &[i8; 16]) -> Self::B {
        words(|lane| u32::from_le_bytes(x[lane].to_le_bytes().map(|place| table[usize::from(place & 15)] as u8)))
    }
    #[inline(always)]
    unsafe fn add_bit(x: Self::B, bits: *const u8, bit: i8) -> Self::B {
        let bits = u64::from_le_bytes(bits.cast::<[u8; 8]>().read_unaligned());
        words(|lane| {
            let four = (bits >> (4 * lane)) as u32;
            let spread = (four & 1) | (four & 2) << 7 | (four & 4) << 14 | (four & 8) << 21;
            x[lane] | (spread * bit as u32)
        })
    }
    #[inline(always)]
    unsafe fn add_pair(x: Self::B, pairs: Self::B, field: usize) -> Self::B {
        words(|lane| x[lane] | (pairs[lane] >> (2 * field) & 0x0303_0303) << 4)
    }
    #[inline(always)]
    unsafe fn dot(sum: Self::I, codes: Self::B, x: *const i8) -> Self::I {
        let (x, mut out) = (four(x), sum);
        for lane in 0..LANES {
            let code = |byte: u32| (codes[lane] >> (8 * byte) & 255) as i32;
            out[lane] += code(0) * x[0] + code(1) * x[1] + code(2) * x[2] + code(3) * x[3];
        }
        out
    }
    #[inline(always)]
    unsafe fn dot_signed(sum: Self::I, codes: Self::B, x: *const i8) -> Self::I {
        let (x, mut out) = (four(x), sum);
        for lane in 0..LANES {
            let code = |byte: u32| (codes[lane] << (24 - 8 * byte)) as i32 >> 24;
            out[lane] += code(0) * x[0] + code(1) * x[1] + code(2) * x[2] + code(3) * x[3];
        }
        out
    }
}
