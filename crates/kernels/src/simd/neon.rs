//! NEON, with and without the dot product instruction.
//!
//! Instructions whose intrinsics need a newer compiler than the crate's minimum are inline assembly. Such a block
//! declares what it reads and writes, so the compiler schedules it like any other code.
#![expect(unsafe_op_in_unsafe_fn, reason = "every line would be a block; the trait states the contract once")]

use std::arch::aarch64::*;
use std::arch::asm;

use super::vectors::{Kernel, Simd};

/// Four registers of 4 lanes each. `DOT`: with `sdot`, which multiplies and adds four bytes a lane.
#[derive(Clone, Copy)]
pub(crate) struct Neon<const DOT: bool>;

#[target_feature(enable = "neon,dotprod")]
pub(super) unsafe fn run_neon_dot<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Neon<true>>()
}

#[target_feature(enable = "neon")]
pub(super) unsafe fn run_neon<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Neon<false>>()
}

/// Applies an operation to all four registers.
macro_rules! each {
    (|$($name:ident),+| $value:expr) => {{
        [
            { $(let $name = $name[0];)+ $value },
            { $(let $name = $name[1];)+ $value },
            { $(let $name = $name[2];)+ $value },
            { $(let $name = $name[3];)+ $value },
        ]
    }};
}

/// The address of each register's four values.
#[inline(always)]
unsafe fn fours<T>(src: *const T) -> [*const T; 4] {
    [src, src.add(4), src.add(8), src.add(12)]
}

/// The address of each register's sixteen bytes.
#[inline(always)]
unsafe fn sixteens(src: *const u8) -> [*const u8; 4] {
    [src, src.add(16), src.add(32), src.add(48)]
}

/// Four bytes of activations, broadcast to all lanes.
#[inline(always)]
unsafe fn broadcast(x: *const i8) -> int8x16_t {
    vreinterpretq_s8_s32(vdupq_n_s32(x.cast::<i32>().read_unaligned()))
}

/// Adds to each lane the dot product of its four codes with the first four bytes of `x`. `x` has the type of a float
/// because that load needs no extra broadcast.
#[inline(always)]
unsafe fn sdot(mut sum: int32x4_t, codes: uint8x16_t, x: f32) -> int32x4_t {
    asm!(
        "sdot {sum:v}.4s, {codes:v}.16b, {x:v}.4b[0]",
        sum = inout(vreg) sum,
        codes = in(vreg) codes,
        x = in(vreg) x,
        options(pure, nomem, nostack, preserves_flags),
    );
    sum
}

/// [`sdot`] for CPUs without the instruction: through 16-bit products and pairwise sums. Codes may be signed: two products stay within 2
/// · 128 · 127.
///
/// It is one assembly block. With single multiplications, the compiler hoists so many of them that sums are spilled.
#[inline(always)]
unsafe fn multiply(mut sum: int32x4_t, codes: uint8x16_t, x: int8x16_t) -> int32x4_t {
    asm!(
        "smull {low:v}.8h, {codes:v}.8b, {x:v}.8b",
        "smull2 {high:v}.8h, {codes:v}.16b, {x:v}.16b",
        "addp {low:v}.8h, {low:v}.8h, {high:v}.8h",
        "sadalp {sum:v}.4s, {low:v}.8h",
        sum = inout(vreg) sum,
        codes = in(vreg) codes,
        x = in(vreg) x,
        low = out(vreg) _,
        high = out(vreg) _,
        options(pure, nomem, nostack, preserves_flags),
    );
    sum
}

/// Adds two dot products as [`multiply`] does, for codes below 64: sums of four products fit 16 bits.
#[inline(always)]
unsafe fn multiply_two(mut sum: int32x4_t, a: uint8x16_t, xa: int8x16_t, b: uint8x16_t, xb: int8x16_t) -> int32x4_t {
    asm!(
        "smull {low:v}.8h, {a:v}.8b, {xa:v}.8b",
        "smull2 {high:v}.8h, {a:v}.16b, {xa:v}.16b",
        "smlal {low:v}.8h, {b:v}.8b, {xb:v}.8b",
        "smlal2 {high:v}.8h, {b:v}.16b, {xb:v}.16b",
        "addp {low:v}.8h, {low:v}.8h, {high:v}.8h",
        "sadalp {sum:v}.4s, {low:v}.8h",
        sum = inout(vreg) sum,
        a = in(vreg) a,
        xa = in(vreg) xa,
        b = in(vreg) b,
        xb = in(vreg) xb,
        low = out(vreg) _,
        high = out(vreg) _,
        options(pure, nomem, nostack, preserves_flags),
    );
    sum
}

/// The lower four f16 as floats.
#[inline(always)]
unsafe fn widen_low(x: uint16x8_t) -> float32x4_t {
    let out: float32x4_t;
    asm!(
        "fcvtl {out:v}.4s, {x:v}.4h",
        out = lateout(vreg) out,
        x = in(vreg) x,
        options(pure, nomem, nostack, preserves_flags),
    );
    out
}

/// The upper four f16 as floats.
#[inline(always)]
unsafe fn widen_high(x: uint16x8_t) -> float32x4_t {
    let out: float32x4_t;
    asm!(
        "fcvtl2 {out:v}.4s, {x:v}.8h",
        out = lateout(vreg) out,
        x = in(vreg) x,
        options(pure, nomem, nostack, preserves_flags),
    );
    out
}

/// Converts four floats to f16.
#[inline(always)]
unsafe fn narrow(x: float32x4_t) -> uint16x4_t {
    let out: uint16x4_t;
    asm!(
        "fcvtn {out:v}.4h, {x:v}.4s",
        out = lateout(vreg) out,
        x = in(vreg) x,
        options(pure, nomem, nostack, preserves_flags),
    );
    out
}

/// Converts sixteen integers to bytes.
#[inline(always)]
unsafe fn bytes(x: [int32x4_t; 4]) -> int8x16_t {
    let x = each!(|x| vreinterpretq_s16_s32(x));
    let (low, high) = (vuzp1q_s16(x[0], x[1]), vuzp1q_s16(x[2], x[3]));
    vuzp1q_s8(vreinterpretq_s8_s16(low), vreinterpretq_s8_s16(high))
}

impl<const DOT: bool> Simd for Neon<DOT> {
    type F = [float32x4_t; 4];
    type I = [int32x4_t; 4];
    type B = [uint8x16_t; 4];

    // A row's sums take eight of 32 registers: four of integers, four of floats. Three rows leave eight for codes and
    // activations, and spill a few float sums. Spills are cheap and unpacking codes is not: by LLVM's models of
    // Neoverse and Cortex cores, three rows take slightly less time for each row than two, and about as much as four.
    const TILE_ROWS: usize = 3;
    const DOT_SIGNED_BIASED: bool = false;

    #[inline(always)]
    unsafe fn prefetch(address: *const u8) {
        asm!("prfm pldl1keep, [{address}]", address = in(reg) address.addr(), options(nomem, nostack, preserves_flags));
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        [vdupq_n_f32(x); 4]
    }
    #[inline(always)]
    unsafe fn load(src: *const f32) -> Self::F {
        let src = fours(src);
        each!(|src| vld1q_f32(src))
    }
    #[inline(always)]
    unsafe fn store(dst: *mut f32, x: Self::F) {
        vst1q_f32(dst, x[0]);
        vst1q_f32(dst.add(4), x[1]);
        vst1q_f32(dst.add(8), x[2]);
        vst1q_f32(dst.add(12), x[3]);
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        each!(|a, b| vaddq_f32(a, b))
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        each!(|a, b| vsubq_f32(a, b))
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        each!(|a, b| vmulq_f32(a, b))
    }
    #[inline(always)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        each!(|a, b| vdivq_f32(a, b))
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        // The instructions of this name return NaN, or the other operand, whichever side it is on.
        each!(|a, b| vbslq_f32(vcgtq_f32(a, b), a, b))
    }
    #[inline(always)]
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        each!(|a, b| vbslq_f32(vcltq_f32(a, b), a, b))
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        each!(|a, b, c| vfmaq_f32(c, a, b))
    }
    #[inline(always)]
    unsafe fn zero_where_le(x: Self::F, test: Self::F, limit: f32) -> Self::F {
        each!(|x, test| {
            let below = vcleq_f32(test, vdupq_n_f32(limit));
            vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(x), below))
        })
    }
    #[inline(always)]
    unsafe fn reduce_sum(x: Self::F) -> f32 {
        // Pairwise, because the intrinsic for a full sum has an unspecified order.
        let x = vaddq_f32(vaddq_f32(x[0], x[1]), vaddq_f32(x[2], x[3]));
        vpadds_f32(vget_low_f32(vpaddq_f32(x, x)))
    }
    #[inline(always)]
    unsafe fn reduce_max(x: Self::F) -> f32 {
        vmaxnmvq_f32(vmaxnmq_f32(vmaxnmq_f32(x[0], x[1]), vmaxnmq_f32(x[2], x[3])))
    }
    #[inline(always)]
    unsafe fn ldexp(x: Self::F, n: Self::F) -> Self::F {
        each!(|x, n| {
            let exponent = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));
            vmulq_f32(x, vreinterpretq_f32_s32(vshlq_n_s32::<23>(exponent)))
        })
    }
    #[inline(always)]
    unsafe fn round_even(x: Self::F) -> Self::F {
        each!(|x| vrndnq_f32(x))
    }
    #[inline(always)]
    unsafe fn load_f16(src: *const u16) -> Self::F {
        let (low, high) = (vld1q_u16(src), vld1q_u16(src.add(8)));
        [widen_low(low), widen_high(low), widen_low(high), widen_high(high)]
    }
    #[inline(always)]
    unsafe fn store_f16(dst: *mut u16, x: Self::F) {
        let x = each!(|x| narrow(x));
        vst1q_u16(dst, vcombine_u16(x[0], x[1]));
        vst1q_u16(dst.add(8), vcombine_u16(x[2], x[3]));
    }
    #[inline(always)]
    unsafe fn load_bf16_pairs(src: *const u8) -> (Self::F, Self::F) {
        let pairs = Self::load_bytes(src);
        let words = each!(|pairs| vreinterpretq_u32_u8(pairs));
        let first = each!(|words| vreinterpretq_f32_u32(vshlq_n_u32::<16>(words)));
        (first, each!(|words| vreinterpretq_f32_u32(vandq_u32(words, vdupq_n_u32(0xffff_0000)))))
    }
    #[inline(always)]
    unsafe fn load_i8(src: *const i8) -> Self::F {
        let x = vld1q_s8(src);
        let (low, high) = (vmovl_s8(vget_low_s8(x)), vmovl_high_s8(x));
        let x =
            [vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high)];
        each!(|x| vcvtq_f32_s32(x))
    }
    #[inline(always)]
    unsafe fn load_u8(src: *const u8) -> Self::F {
        let x = vld1q_u8(src);
        let (low, high) = (vmovl_u8(vget_low_u8(x)), vmovl_high_u8(x));
        let x =
            [vmovl_u16(vget_low_u16(low)), vmovl_high_u16(low), vmovl_u16(vget_low_u16(high)), vmovl_high_u16(high)];
        each!(|x| vcvtq_f32_u32(x))
    }
    #[inline(always)]
    unsafe fn splat_int(x: i32) -> Self::I {
        [vdupq_n_s32(x); 4]
    }
    #[inline(always)]
    unsafe fn to_float(x: Self::I) -> Self::F {
        each!(|x| vcvtq_f32_s32(x))
    }
    #[inline(always)]
    unsafe fn to_int(x: Self::F) -> Self::I {
        each!(|x| vcvtnq_s32_f32(x))
    }
    #[inline(always)]
    unsafe fn abs_bits(x: Self::F) -> Self::I {
        each!(|x| vreinterpretq_s32_f32(vabsq_f32(x)))
    }
    #[inline(always)]
    unsafe fn max_int(a: Self::I, b: Self::I) -> Self::I {
        each!(|a, b| vmaxq_s32(a, b))
    }
    #[inline(always)]
    unsafe fn reduce_max_int(x: Self::I) -> i32 {
        vmaxvq_s32(vmaxq_s32(vmaxq_s32(x[0], x[1]), vmaxq_s32(x[2], x[3])))
    }
    #[inline(always)]
    unsafe fn store_codes(dst: *mut i8, first: Self::I, second: Self::I) -> (i32, i32) {
        let (first, second) = (bytes(first), bytes(second));
        vst1q_s8(dst, first);
        vst1q_s8(dst.add(16), second);
        (i32::from(vaddlvq_s8(first)), i32::from(vaddlvq_s8(second)))
    }
    #[inline(always)]
    unsafe fn load_bytes(src: *const u8) -> Self::B {
        let src = sixteens(src);
        each!(|src| vld1q_u8(src))
    }
    #[inline(always)]
    unsafe fn low_nibbles(x: Self::B) -> Self::B {
        each!(|x| vandq_u8(x, vdupq_n_u8(15)))
    }
    #[inline(always)]
    unsafe fn high_nibbles(x: Self::B) -> Self::B {
        each!(|x| vshrq_n_u8::<4>(x))
    }
    #[inline(always)]
    unsafe fn two_bits(x: Self::B, field: usize) -> Self::B {
        each!(|x| {
            let shifted = match field {
                0 => x,
                1 => vshrq_n_u8::<2>(x),
                2 => vshrq_n_u8::<4>(x),
                _ => vshrq_n_u8::<6>(x),
            };
            vandq_u8(shifted, vdupq_n_u8(3))
        })
    }
    #[inline(always)]
    unsafe fn lookup(x: Self::B, table: &[i8; 16]) -> Self::B {
        let table = vreinterpretq_u8_s8(vld1q_s8(table.as_ptr()));
        each!(|x| vqtbl1q_u8(table, x))
    }
    #[inline(always)]
    unsafe fn add_bit(x: Self::B, bits: *const u8, bit: i8) -> Self::B {
        let bits = [bits, bits.add(2), bits.add(4), bits.add(6)];
        // Byte i of a register tests bit i % 8 of byte i / 8.
        let byte_index = vcombine_u8(vdup_n_u8(0), vdup_n_u8(1));
        let bit_mask = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
        each!(|x, bits| {
            let bytes = vreinterpretq_u8_u16(vdupq_n_u16(bits.cast::<u16>().read_unaligned()));
            let set = vtstq_u8(vqtbl1q_u8(bytes, byte_index), bit_mask);
            vorrq_u8(x, vandq_u8(set, vdupq_n_u8(bit as u8)))
        })
    }
    #[inline(always)]
    unsafe fn add_two_bits(x: Self::B, fields: Self::B, field: usize) -> Self::B {
        each!(|x, fields| {
            let shifted = match field {
                0 => vshlq_n_u8::<4>(fields),
                1 => vshlq_n_u8::<2>(fields),
                2 => fields,
                _ => vshrq_n_u8::<2>(fields),
            };
            vbslq_u8(vdupq_n_u8(0x30), shifted, x)
        })
    }
    #[inline(always)]
    unsafe fn dot(sum: Self::I, codes: Self::B, x: *const i8) -> Self::I {
        if DOT {
            let x = x.cast::<f32>().read_unaligned();
            return each!(|sum, codes| sdot(sum, codes, x));
        }
        let x = broadcast(x);
        each!(|sum, codes| multiply(sum, codes, x))
    }
    #[inline(always)]
    unsafe fn dot_two(sum: Self::I, a: Self::B, xa: *const i8, b: Self::B, xb: *const i8) -> Self::I {
        if DOT {
            return Self::dot(Self::dot(sum, a, xa), b, xb);
        }
        let (xa, xb) = (broadcast(xa), broadcast(xb));
        each!(|sum, a, b| multiply_two(sum, a, xa, b, xb))
    }
    #[inline(always)]
    unsafe fn dot_signed(sum: Self::I, codes: Self::B, x: *const i8) -> Self::I {
        Self::dot(sum, codes, x)
    }
}
