//! The vectors that kernels compute with: 16 floats, 16 integers, or 64 bytes (16 lanes of 4). AVX-512 holds each in one
//! register, AVX2 in two, NEON in four.

pub(crate) const LANES: usize = 16;

/// Code that is generic over the instruction set.
pub(crate) trait Kernel {
    type Output;
    /// Must be `#[inline(always)]`, and so must everything it calls that uses `S`.
    ///
    /// # Safety
    /// The CPU has the features of `S`; call it only through [`super::run`].
    unsafe fn run<S: Simd>(self) -> Self::Output;
}

/// Operations on vectors of sixteen lanes. Loads and stores need no alignment.
///
/// # Safety
/// For all functions: the CPU has the features of the implementing type, and pointers are valid for all accessed
/// elements.
pub(crate) trait Simd: Copy {
    /// 16 × f32.
    type F: Copy;
    /// 16 × i32.
    type I: Copy;
    /// 64 × 8 bits: four bytes per lane.
    type B: Copy;

    /// See [`super::Isa::tile_rows`].
    const TILE_ROWS: usize;
    /// Queries that attention processes together: 8 or 2.
    const QUERY_TILE: usize = if Self::TILE_ROWS > 4 { 8 } else { 2 };
    /// Whether [`Simd::dot_signed`] computes the product with codes + 128. The caller then starts the sum at −128 · the
    /// sum of `x`.
    const DOT_SIGNED_BIASED: bool;

    /// Prefetches a cache line; any address is allowed.
    #[inline(always)]
    unsafe fn prefetch(_address: *const u8) {}

    unsafe fn splat(x: f32) -> Self::F;
    /// The two elements at `src`, alternately in all lanes.
    #[inline(always)]
    unsafe fn splat_pair(src: *const f32) -> Self::F {
        // SAFETY: as the trait says; there are two elements at `src`, and the array has 16.
        unsafe {
            let lanes = [src.cast::<[f32; 2]>().read_unaligned(); LANES / 2];
            Self::load(lanes.as_ptr().cast())
        }
    }
    unsafe fn load(src: *const f32) -> Self::F;
    unsafe fn store(dst: *mut f32, x: Self::F);
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// Maximum; `b` where one operand is NaN. The same holds for `min`.
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// Zero in lanes where `test <= limit`, else `x`.
    unsafe fn zero_where_le(x: Self::F, test: Self::F, limit: f32) -> Self::F;
    unsafe fn reduce_sum(x: Self::F) -> f32;
    unsafe fn reduce_max(x: Self::F) -> f32;
    /// `x * 2^n` for integer `n` with a finite normal result.
    unsafe fn ldexp(x: Self::F, n: Self::F) -> Self::F;
    unsafe fn round_even(x: Self::F) -> Self::F;

    unsafe fn load_f16(src: *const u16) -> Self::F;
    unsafe fn store_f16(dst: *mut u16, x: Self::F);
    /// Rounds to the nearest bf16, ties to even; NaN is preserved.
    #[inline(always)]
    unsafe fn store_bf16(dst: *mut u16, x: Self::F) {
        let mut lanes = [0f32; LANES];
        // SAFETY: as the trait says; both buffers hold 16 elements.
        unsafe {
            Self::store(lanes.as_mut_ptr(), x);
            dst.cast::<[u16; LANES]>().write_unaligned(lanes.map(bf16_bits));
        }
    }
    /// The first and the second elements of 16 bf16 pairs.
    unsafe fn load_bf16_pairs(src: *const u8) -> (Self::F, Self::F);
    unsafe fn load_i8(src: *const i8) -> Self::F;
    unsafe fn load_u8(src: *const u8) -> Self::F;

    unsafe fn splat_int(x: i32) -> Self::I;
    unsafe fn to_float(x: Self::I) -> Self::F;
    /// Rounds to the nearest integer, ties to even.
    unsafe fn to_int(x: Self::F) -> Self::I;
    /// The bits of |x|. As integers, they have the order of the magnitudes, with NaN last.
    unsafe fn abs_bits(x: Self::F) -> Self::I;
    unsafe fn max_int(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn reduce_max_int(x: Self::I) -> i32;
    /// Stores 32 integers of magnitude at most 127 as bytes, and returns the sums of `first` and of `second`.
    unsafe fn store_codes(dst: *mut i8, first: Self::I, second: Self::I) -> (i32, i32);

    unsafe fn load_bytes(src: *const u8) -> Self::B;
    unsafe fn low_nibbles(x: Self::B) -> Self::B;
    unsafe fn high_nibbles(x: Self::B) -> Self::B;
    /// Extracts the two-bit field `field` (0 to 3) of each byte.
    unsafe fn two_bits(x: Self::B, field: usize) -> Self::B;
    /// Replaces each byte, which must be below 16, by its entry in the table.
    unsafe fn lookup(x: Self::B, table: &[i8; 16]) -> Self::B;
    /// Adds `bit` to the bytes whose bit in `bits` (64 bits) is set. `bit` is a power of two larger than every byte.
    unsafe fn add_bit(x: Self::B, bits: *const u8, bit: i8) -> Self::B;
    /// Adds 16 · the two-bit field `field` (0 to 3) of each byte of `fields`.
    unsafe fn add_two_bits(x: Self::B, fields: Self::B, field: usize) -> Self::B;
    /// Adds to each lane the dot product of its four codes (unsigned, below 64) with the four signed bytes at `x`, of
    /// magnitude at most 127.
    unsafe fn dot(sum: Self::I, codes: Self::B, x: *const i8) -> Self::I;
    /// Adds two dot products, which may be cheaper than one by one.
    #[inline(always)]
    unsafe fn dot_two(sum: Self::I, a: Self::B, xa: *const i8, b: Self::B, xb: *const i8) -> Self::I {
        // SAFETY: as the trait says.
        unsafe { Self::dot(Self::dot(sum, a, xa), b, xb) }
    }
    /// Like [`Simd::dot`], with signed codes; see [`Simd::DOT_SIGNED_BIASED`].
    unsafe fn dot_signed(sum: Self::I, codes: Self::B, x: *const i8) -> Self::I;

    /// Adds to each lane the dot product of its pair of bf16 with the pair `x`.
    #[inline(always)]
    unsafe fn dot_bf16_pairs(sum: Self::F, pairs: *const u8, x: u32) -> Self::F {
        // SAFETY: as the trait says.
        unsafe { dot_widened::<Self>(sum, pairs, x) }
    }

    #[inline(always)]
    unsafe fn tanh(x: Self::F) -> Self::F {
        // 1 − 2 / (e^2x + 1), where e^2x is finite for every x.
        // SAFETY: as the trait says.
        unsafe {
            let one = Self::splat(1.0);
            let denominator = Self::add(Self::exp(Self::add(x, x)), one);
            Self::sub(one, Self::div(Self::splat(2.0), denominator))
        }
    }

    /// 2^x for x below 128, with a relative error of at most 8 · 10⁻⁸; exact for integers; zero for x ≤ −126.
    #[inline(always)]
    unsafe fn exp2(x: Self::F) -> Self::F {
        // 2^n · 2^r with integer n and |r| ≤ 1/2. 2^r is the minimax polynomial (relative error) with p(0) = 1.
        // SAFETY: as the trait says.
        unsafe {
            let clamped = Self::max(Self::splat(-126.0), x);
            let n = Self::round_even(clamped);
            let r = Self::sub(clamped, n);
            let mut p = Self::splat(1.527_230_5e-4);
            for coefficient in [1.341_047_9e-3, 9.618_775e-3, 5.550_293_5e-2, 2.402_264_5e-1, 6.931_472_3e-1, 1.0] {
                p = Self::fma(p, r, Self::splat(coefficient));
            }
            Self::zero_where_le(Self::ldexp(p, n), x, -126.0)
        }
    }

    /// 2^x for x below 128, with a relative error of at most 10⁻⁴, for results that are rounded to bf16; zero for
    /// x ≤ −126.
    #[inline(always)]
    unsafe fn exp2_approx(x: Self::F) -> Self::F {
        // SAFETY: as the trait says.
        unsafe {
            let clamped = Self::max(Self::splat(-126.0), x);
            let n = Self::round_even(clamped);
            let r = Self::sub(clamped, n);
            let mut p = Self::splat(5.500_893e-2);
            for coefficient in [2.422_109_6e-1, 6.932_829e-1, 1.0] {
                p = Self::fma(p, r, Self::splat(coefficient));
            }
            Self::zero_where_le(Self::ldexp(p, n), x, -126.0)
        }
    }

    /// e^x; zero for x ≤ −87, and e^88 for x > 88.
    #[inline(always)]
    unsafe fn exp(x: Self::F) -> Self::F {
        // Cephes' expf: x = n·ln 2 + r, and a polynomial for e^r on |r| ≤ ln 2 / 2.
        // SAFETY: as the trait says.
        unsafe {
            let clamped = Self::max(Self::splat(-87.0), Self::min(Self::splat(88.0), x));
            let n = Self::round_even(Self::mul(clamped, Self::splat(std::f32::consts::LOG2_E)));
            let r = Self::fma(n, Self::splat(-0.693_359_4), clamped);
            let r = Self::fma(n, Self::splat(2.121_944_4e-4), r);
            let mut p = Self::splat(1.987_569_1e-4);
            for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
                p = Self::fma(p, r, Self::splat(coefficient));
            }
            let p = Self::add(Self::fma(Self::mul(r, r), p, r), Self::splat(1.0));
            Self::zero_where_le(Self::ldexp(p, n), x, -87.0)
        }
    }
}

/// The nearest bf16, ties to even; NaN is preserved.
#[inline(always)]
pub(crate) fn bf16_bits(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    (if x.is_nan() { bits >> 16 | 0x40 } else { rounded }) as u16
}

/// [`Simd::dot_bf16_pairs`] for instruction sets without bf16 dot products.
///
/// # Safety
/// As [`Simd`] says.
#[inline(always)]
pub(super) unsafe fn dot_widened<S: Simd>(sum: S::F, pairs: *const u8, x: u32) -> S::F {
    // SAFETY: as the caller says.
    unsafe {
        let ((a, b), first) = (S::load_bf16_pairs(pairs), S::splat(f32::from_bits(x << 16)));
        S::fma(b, S::splat(f32::from_bits(x & 0xffff_0000)), S::fma(a, first, sum))
    }
}

/// Loads `count` (below 16) floats; the other lanes are zero.
///
/// # Safety
/// As [`Simd`] says.
#[inline(always)]
pub(crate) unsafe fn load_partial<S: Simd>(src: *const f32, count: usize) -> S::F {
    let mut lanes = [0f32; LANES];
    // SAFETY: the source holds `count` floats, and the buffer 16.
    unsafe {
        std::ptr::copy_nonoverlapping(src, lanes.as_mut_ptr(), count.min(LANES));
        S::load(lanes.as_ptr())
    }
}

/// Stores the first `count` lanes.
///
/// # Safety
/// As [`Simd`] says.
#[inline(always)]
pub(crate) unsafe fn store_partial<S: Simd>(dst: *mut f32, x: S::F, count: usize) {
    let mut lanes = [0f32; LANES];
    // SAFETY: the destination has space for `count` floats, and the buffer holds 16.
    unsafe {
        S::store(lanes.as_mut_ptr(), x);
        std::ptr::copy_nonoverlapping(lanes.as_ptr(), dst, count.min(LANES));
    }
}
