//! AVX-512 and AVX2.
#![expect(unsafe_op_in_unsafe_fn, reason = "every line would be a block; the trait states the contract once")]

use std::arch::x86_64::*;

use super::vectors::{Kernel, Simd, dot_widened};

/// One register. `BF16`: with bf16 dot products.
#[derive(Clone, Copy)]
pub(crate) struct Avx512Impl<const BF16: bool>;

pub(crate) type Avx512 = Avx512Impl<false>;

/// Two registers of 8 lanes each. `VNNI`: with the 256-bit dot product instruction.
#[derive(Clone, Copy)]
pub(crate) struct Avx2Impl<const VNNI: bool>;

pub(crate) type Avx2 = Avx2Impl<false>;

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(super) unsafe fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx512>()
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16")]
pub(super) unsafe fn run_avx512_bf16<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx512Impl<true>>()
}

#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
pub(super) unsafe fn run_avx2_vnni<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx2Impl<true>>()
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx2Impl<false>>()
}

#[inline(always)]
unsafe fn load_four(x: *const i8) -> i32 {
    x.cast::<i32>().read_unaligned()
}

/// The sums of the first sixteen and of the last sixteen signed bytes.
#[inline(always)]
unsafe fn sum_halves(codes: __m256i) -> (i32, i32) {
    // The instruction sums unsigned bytes in groups of eight.
    let shifted = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
    let sums_of_8 = _mm256_sad_epu8(shifted, _mm256_setzero_si256());
    let sums_of_16 = _mm256_add_epi32(sums_of_8, _mm256_shuffle_epi32::<0x4e>(sums_of_8));
    let second = _mm_cvtsi128_si32(_mm256_extracti128_si256::<1>(sums_of_16));
    (_mm_cvtsi128_si32(_mm256_castsi256_si128(sums_of_16)) - 16 * 128, second - 16 * 128)
}

impl<const BF16: bool> Simd for Avx512Impl<BF16> {
    type F = __m512;
    type I = __m512i;
    type B = __m512i;

    const TILE_ROWS: usize = 12;
    const DOT_SIGNED_BIASED: bool = true;

    #[inline(always)]
    unsafe fn prefetch(address: *const u8) {
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        _mm512_set1_ps(x)
    }
    #[inline(always)]
    unsafe fn splat_pair(src: *const f32) -> Self::F {
        _mm512_castpd_ps(_mm512_set1_pd(src.cast::<f64>().read_unaligned()))
    }
    #[inline(always)]
    unsafe fn load(src: *const f32) -> Self::F {
        _mm512_loadu_ps(src)
    }
    #[inline(always)]
    unsafe fn store(dst: *mut f32, x: Self::F) {
        _mm512_storeu_ps(dst, x);
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        _mm512_add_ps(a, b)
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        _mm512_sub_ps(a, b)
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        _mm512_mul_ps(a, b)
    }
    #[inline(always)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        _mm512_div_ps(a, b)
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        _mm512_max_ps(a, b)
    }
    #[inline(always)]
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        _mm512_min_ps(a, b)
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        _mm512_fmadd_ps(a, b, c)
    }
    #[inline(always)]
    unsafe fn zero_where_le(x: Self::F, test: Self::F, limit: f32) -> Self::F {
        _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLE_UQ>(test, _mm512_set1_ps(limit)), x)
    }
    #[inline(always)]
    unsafe fn reduce_sum(x: Self::F) -> f32 {
        let (low, high) = halves(x);
        Avx2::reduce_sum([low, high])
    }
    #[inline(always)]
    unsafe fn reduce_max(x: Self::F) -> f32 {
        let (low, high) = halves(x);
        Avx2::reduce_max([low, high])
    }
    #[inline(always)]
    unsafe fn ldexp(x: Self::F, n: Self::F) -> Self::F {
        _mm512_scalef_ps(x, n)
    }
    #[inline(always)]
    unsafe fn round_even(x: Self::F) -> Self::F {
        _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x)
    }
    #[inline(always)]
    unsafe fn load_f16(src: *const u16) -> Self::F {
        _mm512_cvtph_ps(_mm256_loadu_si256(src.cast()))
    }
    #[inline(always)]
    unsafe fn store_f16(dst: *mut u16, x: Self::F) {
        _mm256_storeu_si256(dst.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x));
    }
    #[inline(always)]
    unsafe fn load_bf16_pairs(src: *const u8) -> (Self::F, Self::F) {
        let pairs = _mm512_loadu_si512(src.cast());
        let second = _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000_u32 as i32));
        (_mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)), _mm512_castsi512_ps(second))
    }
    #[inline(always)]
    unsafe fn store_bf16(dst: *mut u16, x: Self::F) {
        if BF16 {
            let rounded = std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(x));
            return _mm256_storeu_si256(dst.cast(), rounded);
        }
        let bits = _mm512_castps_si512(x);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
        let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x40_0000));
        let result = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x), quiet);
        _mm256_storeu_si256(dst.cast(), _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(result)));
    }
    #[inline(always)]
    unsafe fn dot_bf16_pairs(sum: Self::F, pairs: *const u8, x: u32) -> Self::F {
        if !BF16 {
            return dot_widened::<Self>(sum, pairs, x);
        }
        let pairs = std::mem::transmute::<__m512i, __m512bh>(_mm512_loadu_si512(pairs.cast()));
        _mm512_dpbf16_ps(sum, pairs, std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(x as i32)))
    }
    #[inline(always)]
    unsafe fn load_i8(src: *const i8) -> Self::F {
        _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(src.cast())))
    }
    #[inline(always)]
    unsafe fn load_u8(src: *const u8) -> Self::F {
        _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(src.cast())))
    }
    #[inline(always)]
    unsafe fn splat_int(x: i32) -> Self::I {
        _mm512_set1_epi32(x)
    }
    #[inline(always)]
    unsafe fn to_float(x: Self::I) -> Self::F {
        _mm512_cvtepi32_ps(x)
    }
    #[inline(always)]
    unsafe fn to_int(x: Self::F) -> Self::I {
        _mm512_cvtps_epi32(x)
    }
    #[inline(always)]
    unsafe fn abs_bits(x: Self::F) -> Self::I {
        _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(i32::MAX))
    }
    #[inline(always)]
    unsafe fn max_int(a: Self::I, b: Self::I) -> Self::I {
        _mm512_max_epi32(a, b)
    }
    #[inline(always)]
    unsafe fn reduce_max_int(x: Self::I) -> i32 {
        _mm512_reduce_max_epi32(x)
    }
    #[inline(always)]
    unsafe fn store_codes(dst: *mut i8, first: Self::I, second: Self::I) -> (i32, i32) {
        let codes = _mm256_set_m128i(_mm512_cvtepi32_epi8(second), _mm512_cvtepi32_epi8(first));
        _mm256_storeu_si256(dst.cast(), codes);
        sum_halves(codes)
    }
    #[inline(always)]
    unsafe fn load_bytes(src: *const u8) -> Self::B {
        _mm512_loadu_si512(src.cast())
    }
    #[inline(always)]
    unsafe fn low_nibbles(x: Self::B) -> Self::B {
        _mm512_and_si512(x, _mm512_set1_epi8(15))
    }
    #[inline(always)]
    unsafe fn high_nibbles(x: Self::B) -> Self::B {
        _mm512_and_si512(_mm512_srli_epi16::<4>(x), _mm512_set1_epi8(15))
    }
    #[inline(always)]
    unsafe fn two_bits(x: Self::B, field: usize) -> Self::B {
        let shifted = match field {
            0 => x,
            1 => _mm512_srli_epi16::<2>(x),
            2 => _mm512_srli_epi16::<4>(x),
            _ => _mm512_srli_epi16::<6>(x),
        };
        _mm512_and_si512(shifted, _mm512_set1_epi8(3))
    }
    #[inline(always)]
    unsafe fn lookup(x: Self::B, table: &[i8; 16]) -> Self::B {
        _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), x)
    }
    #[inline(always)]
    unsafe fn add_bit(x: Self::B, bits: *const u8, bit: i8) -> Self::B {
        _mm512_mask_add_epi8(x, bits.cast::<u64>().read_unaligned(), x, _mm512_set1_epi8(bit))
    }
    #[inline(always)]
    unsafe fn add_two_bits(x: Self::B, fields: Self::B, field: usize) -> Self::B {
        let mask = _mm512_set1_epi8(0x30);
        let shifted = match field {
            0 => _mm512_slli_epi16::<4>(fields),
            1 => _mm512_slli_epi16::<2>(fields),
            2 => fields,
            _ => _mm512_srli_epi16::<2>(fields),
        };
        // x | (shifted & mask)
        _mm512_ternarylogic_epi32::<0xf8>(x, shifted, mask)
    }
    #[inline(always)]
    unsafe fn dot(sum: Self::I, codes: Self::B, x: *const i8) -> Self::I {
        _mm512_dpbusd_epi32(sum, codes, _mm512_set1_epi32(load_four(x)))
    }
    #[inline(always)]
    unsafe fn dot_signed(sum: Self::I, codes: Self::B, x: *const i8) -> Self::I {
        Self::dot(sum, _mm512_xor_si512(codes, _mm512_set1_epi8(-128)), x)
    }
}

#[inline(always)]
unsafe fn halves(x: __m512) -> (__m256, __m256) {
    (_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x))
}

/// Applies an operation to both registers.
macro_rules! both_registers {
    (|$($name:ident),+| $value:expr) => {{
        [{ $(let $name = $name[0];)+ $value }, { $(let $name = $name[1];)+ $value }]
    }};
}

impl<const VNNI: bool> Avx2Impl<VNNI> {
    /// `dot` for one register.
    #[inline(always)]
    unsafe fn dot_half(sum: __m256i, codes: __m256i, x: __m256i) -> __m256i {
        if VNNI {
            _mm256_dpbusd_avx_epi32(sum, codes, x)
        } else {
            // Pair sums stay within 2 · 128 · 127, which fits 16 bits.
            let pairs = _mm256_maddubs_epi16(codes, x);
            _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }
}

impl<const VNNI: bool> Simd for Avx2Impl<VNNI> {
    type F = [__m256; 2];
    type I = [__m256i; 2];
    type B = [__m256i; 2];

    const TILE_ROWS: usize = 4;
    const DOT_SIGNED_BIASED: bool = VNNI;

    #[inline(always)]
    unsafe fn prefetch(address: *const u8) {
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        [_mm256_set1_ps(x); 2]
    }
    #[inline(always)]
    unsafe fn splat_pair(src: *const f32) -> Self::F {
        [_mm256_castpd_ps(_mm256_set1_pd(src.cast::<f64>().read_unaligned())); 2]
    }
    #[inline(always)]
    unsafe fn load(src: *const f32) -> Self::F {
        [_mm256_loadu_ps(src), _mm256_loadu_ps(src.add(8))]
    }
    #[inline(always)]
    unsafe fn store(dst: *mut f32, x: Self::F) {
        _mm256_storeu_ps(dst, x[0]);
        _mm256_storeu_ps(dst.add(8), x[1]);
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        both_registers!(|a, b| _mm256_add_ps(a, b))
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        both_registers!(|a, b| _mm256_sub_ps(a, b))
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        both_registers!(|a, b| _mm256_mul_ps(a, b))
    }
    #[inline(always)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        both_registers!(|a, b| _mm256_div_ps(a, b))
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        both_registers!(|a, b| _mm256_max_ps(a, b))
    }
    #[inline(always)]
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        both_registers!(|a, b| _mm256_min_ps(a, b))
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        both_registers!(|a, b, c| _mm256_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    unsafe fn zero_where_le(x: Self::F, test: Self::F, limit: f32) -> Self::F {
        both_registers!(|x, test| _mm256_and_ps(x, _mm256_cmp_ps::<_CMP_NLE_UQ>(test, _mm256_set1_ps(limit))))
    }
    #[inline(always)]
    unsafe fn reduce_sum(x: Self::F) -> f32 {
        let x = _mm256_add_ps(x[0], x[1]);
        let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
        let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
        _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
    }
    #[inline(always)]
    unsafe fn reduce_max(x: Self::F) -> f32 {
        let x = _mm256_max_ps(x[0], x[1]);
        let x = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
        let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
        _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)))
    }
    #[inline(always)]
    unsafe fn ldexp(x: Self::F, n: Self::F) -> Self::F {
        both_registers!(|x, n| {
            let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent)))
        })
    }
    #[inline(always)]
    unsafe fn round_even(x: Self::F) -> Self::F {
        both_registers!(|x| _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x))
    }
    #[inline(always)]
    unsafe fn load_f16(src: *const u16) -> Self::F {
        [_mm256_cvtph_ps(_mm_loadu_si128(src.cast())), _mm256_cvtph_ps(_mm_loadu_si128(src.add(8).cast()))]
    }
    #[inline(always)]
    unsafe fn store_f16(dst: *mut u16, x: Self::F) {
        _mm_storeu_si128(dst.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x[0]));
        _mm_storeu_si128(dst.add(8).cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x[1]));
    }
    #[inline(always)]
    unsafe fn load_bf16_pairs(src: *const u8) -> (Self::F, Self::F) {
        let pairs = Self::load_bytes(src);
        let first = both_registers!(|pairs| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs)));
        let upper = _mm256_set1_epi32(0xffff_0000_u32 as i32);
        (first, both_registers!(|pairs| _mm256_castsi256_ps(_mm256_and_si256(pairs, upper))))
    }
    #[inline(always)]
    unsafe fn load_i8(src: *const i8) -> Self::F {
        let src = [src, src.add(8)];
        both_registers!(|src| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(src.cast()))))
    }
    #[inline(always)]
    unsafe fn load_u8(src: *const u8) -> Self::F {
        let src = [src, src.add(8)];
        both_registers!(|src| _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(src.cast()))))
    }
    #[inline(always)]
    unsafe fn splat_int(x: i32) -> Self::I {
        [_mm256_set1_epi32(x); 2]
    }
    #[inline(always)]
    unsafe fn to_float(x: Self::I) -> Self::F {
        both_registers!(|x| _mm256_cvtepi32_ps(x))
    }
    #[inline(always)]
    unsafe fn to_int(x: Self::F) -> Self::I {
        both_registers!(|x| _mm256_cvtps_epi32(x))
    }
    #[inline(always)]
    unsafe fn abs_bits(x: Self::F) -> Self::I {
        both_registers!(|x| _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(i32::MAX)))
    }
    #[inline(always)]
    unsafe fn max_int(a: Self::I, b: Self::I) -> Self::I {
        both_registers!(|a, b| _mm256_max_epi32(a, b))
    }
    #[inline(always)]
    unsafe fn reduce_max_int(x: Self::I) -> i32 {
        let x = _mm256_max_epi32(x[0], x[1]);
        let x = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
        let x = _mm_max_epi32(x, _mm_shuffle_epi32::<0x4e>(x));
        _mm_cvtsi128_si32(_mm_max_epi32(x, _mm_shuffle_epi32::<0xb1>(x)))
    }
    #[inline(always)]
    unsafe fn store_codes(dst: *mut i8, first: Self::I, second: Self::I) -> (i32, i32) {
        // Packing works within 128-bit lanes; the permutation restores the order.
        let words = [_mm256_packs_epi32(first[0], first[1]), _mm256_packs_epi32(second[0], second[1])];
        let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        let codes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(words[0], words[1]), order);
        _mm256_storeu_si256(dst.cast(), codes);
        sum_halves(codes)
    }
    #[inline(always)]
    unsafe fn load_bytes(src: *const u8) -> Self::B {
        [_mm256_loadu_si256(src.cast()), _mm256_loadu_si256(src.add(32).cast())]
    }
    #[inline(always)]
    unsafe fn low_nibbles(x: Self::B) -> Self::B {
        both_registers!(|x| _mm256_and_si256(x, _mm256_set1_epi8(15)))
    }
    #[inline(always)]
    unsafe fn high_nibbles(x: Self::B) -> Self::B {
        both_registers!(|x| _mm256_and_si256(_mm256_srli_epi16::<4>(x), _mm256_set1_epi8(15)))
    }
    #[inline(always)]
    unsafe fn two_bits(x: Self::B, field: usize) -> Self::B {
        both_registers!(|x| {
            let shifted = match field {
                0 => x,
                1 => _mm256_srli_epi16::<2>(x),
                2 => _mm256_srli_epi16::<4>(x),
                _ => _mm256_srli_epi16::<6>(x),
            };
            _mm256_and_si256(shifted, _mm256_set1_epi8(3))
        })
    }
    #[inline(always)]
    unsafe fn lookup(x: Self::B, table: &[i8; 16]) -> Self::B {
        let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
        both_registers!(|x| _mm256_shuffle_epi8(table, x))
    }
    #[inline(always)]
    unsafe fn add_bit(x: Self::B, bits: *const u8, bit: i8) -> Self::B {
        let bits = [bits, bits.add(4)];
        // Byte i of a register tests bit i % 8 of byte i / 8.
        let byte_index = _mm256_set_epi64x(0x0303_0303_0303_0303, 0x0202_0202_0202_0202, 0x0101_0101_0101_0101, 0);
        let bit_mask = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        both_registers!(|x, bits| {
            let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(bits.cast::<i32>().read_unaligned()), byte_index);
            let set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit_mask), bit_mask);
            _mm256_or_si256(x, _mm256_and_si256(set, _mm256_set1_epi8(bit)))
        })
    }
    #[inline(always)]
    unsafe fn add_two_bits(x: Self::B, fields: Self::B, field: usize) -> Self::B {
        both_registers!(|x, fields| {
            let shifted = match field {
                0 => _mm256_slli_epi16::<4>(fields),
                1 => _mm256_slli_epi16::<2>(fields),
                2 => fields,
                _ => _mm256_srli_epi16::<2>(fields),
            };
            _mm256_or_si256(x, _mm256_and_si256(shifted, _mm256_set1_epi8(0x30)))
        })
    }
    #[inline(always)]
    unsafe fn dot(sum: Self::I, codes: Self::B, x: *const i8) -> Self::I {
        let x = _mm256_set1_epi32(load_four(x));
        both_registers!(|sum, codes| Self::dot_half(sum, codes, x))
    }
    #[inline(always)]
    unsafe fn dot_two(sum: Self::I, a: Self::B, xa: *const i8, b: Self::B, xb: *const i8) -> Self::I {
        if VNNI {
            return Self::dot(Self::dot(sum, a, xa), b, xb);
        }
        // Codes are below 64, so sums of four products fit 16 bits.
        let (xa, xb) = (_mm256_set1_epi32(load_four(xa)), _mm256_set1_epi32(load_four(xb)));
        both_registers!(|sum, a, b| {
            let pairs = _mm256_add_epi16(_mm256_maddubs_epi16(a, xa), _mm256_maddubs_epi16(b, xb));
            _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        })
    }
    #[inline(always)]
    unsafe fn dot_signed(sum: Self::I, codes: Self::B, x: *const i8) -> Self::I {
        let x = _mm256_set1_epi32(load_four(x));
        both_registers!(|sum, codes| {
            if VNNI {
                Self::dot_half(sum, _mm256_xor_si256(codes, _mm256_set1_epi8(-128)), x)
            } else {
                // |code| · (x with the code's sign), because the first factor must be unsigned.
                Self::dot_half(sum, _mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes))
            }
        })
    }
}
