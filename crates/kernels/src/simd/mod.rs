//! One vector interface of sixteen lanes for all instruction sets.
//!
//! Every kernel is written once over [`Simd`]. [`run`] enters a kernel with the features of the
//! chosen instruction set enabled. All functions that a kernel calls are inlined into it, so there are no calls between
//! vector instructions.

#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
mod vectors;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::sync::OnceLock;

pub(crate) use vectors::{Kernel, LANES, Simd, bf16_bits, load_partial, store_partial};

/// An instruction set that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// AVX-512 F, BW, VL, DQ and VNNI, and bf16 dot products.
    Avx512Bf16,
    /// AVX-512 F, BW, VL, DQ and VNNI.
    Avx512,
    /// AVX2 with FMA, and the 256-bit VNNI instructions.
    Avx2Vnni,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// NEON with the dot product extension, which all cores from ARMv8.4 on have.
    NeonDot,
    /// NEON, which all 64-bit ARM cores have.
    Neon,
    /// Plain code, vectorised by the compiler.
    Portable,
}

impl Isa {
    const ALL: [Self; 7] =
        [Self::Avx512Bf16, Self::Avx512, Self::Avx2Vnni, Self::Avx2, Self::NeonDot, Self::Neon, Self::Portable];

    /// Detects the fastest available instruction set once. The environment variable `OUTPOST_KERNELS` (`avx512-bf16`,
    /// `avx512`, `avx2-vnni`, `avx2`, `neon-dotprod`, `neon`, `portable`) overrides it with an available one.
    pub fn detect() -> Self {
        static DETECTED: OnceLock<Isa> = OnceLock::new();
        *DETECTED.get_or_init(|| {
            let name = std::env::var("OUTPOST_KERNELS").ok();
            let forced = Self::available().into_iter().find(|isa| Some(isa.name()) == name.as_deref());
            forced.or_else(|| Self::available().into_iter().next()).unwrap_or(Self::Portable)
        })
    }

    /// The instruction sets of this CPU, fastest first; the last is always the portable one.
    pub fn available() -> Vec<Self> {
        Self::ALL.into_iter().filter(|isa| isa.is_available()).collect()
    }

    /// True for instruction sets with bf16 dot products.
    pub fn has_bf16_dot(self) -> bool {
        self == Self::Avx512Bf16
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Avx512Bf16 => "avx512-bf16",
            Self::Avx512 => "avx512",
            Self::Avx2Vnni => "avx2-vnni",
            Self::Avx2 => "avx2",
            Self::NeonDot => "neon-dotprod",
            Self::Neon => "neon",
            Self::Portable => "portable",
        }
    }

    #[cfg(target_arch = "x86_64")]
    pub fn is_available(self) -> bool {
        let avx2 =
            || is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        match self {
            Self::Avx512Bf16 => Self::Avx512.is_available() && is_x86_feature_detected!("avx512bf16"),
            Self::Avx512 => {
                avx2()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vnni")
            }
            Self::Avx2Vnni => avx2() && is_x86_feature_detected!("avxvnni"),
            Self::Avx2 => avx2(),
            Self::NeonDot | Self::Neon => false,
            Self::Portable => true,
        }
    }

    #[cfg(target_arch = "aarch64")]
    pub fn is_available(self) -> bool {
        let neon = || std::arch::is_aarch64_feature_detected!("neon");
        match self {
            Self::NeonDot => neon() && std::arch::is_aarch64_feature_detected!("dotprod"),
            Self::Neon => neon(),
            Self::Avx512Bf16 | Self::Avx512 | Self::Avx2Vnni | Self::Avx2 => false,
            Self::Portable => true,
        }
    }

    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    pub fn is_available(self) -> bool {
        self == Self::Portable
    }

    /// Maximum rows of a tile of activations, as registers allow.
    pub(crate) fn tile_rows(self) -> usize {
        run(self, TileRows)
    }
}

struct TileRows;

impl Kernel for TileRows {
    type Output = usize;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> usize {
        S::TILE_ROWS
    }
}

/// Runs `kernel` with the instructions of `isa`, which a [`crate::Pool`] has checked.
#[inline]
pub(crate) fn run<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    match isa {
        // SAFETY: the instruction set comes from a `Pool`, which accepts only available ones.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bf16 | Isa::Avx512 => unsafe { x86::run_avx512(kernel) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2Vnni => unsafe { x86::run_avx2_vnni(kernel) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { x86::run_avx2(kernel) },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        Isa::NeonDot => unsafe { neon::run_neon_dot(kernel) },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => unsafe { neon::run_neon(kernel) },
        // SAFETY: needs no features.
        _ => unsafe { kernel.run::<portable::Portable>() },
    }
}

/// Like [`run`], with bf16 dot products enabled if `isa` has them.
#[inline]
pub(crate) fn run_bf16<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    match isa {
        // SAFETY: as `run` says.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bf16 => unsafe { x86::run_avx512_bf16(kernel) },
        _ => run(isa, kernel),
    }
}
