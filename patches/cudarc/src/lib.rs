//! [cudarc](https://docs.rs/cudarc) with CUDA's libraries loaded at run time.
//!
//! candle asks cudarc to link the libraries, and features of a crate add up, so no dependent can ask for the opposite. The
//! program would then not start on a machine without CUDA. `[patch.crates-io]` of the workspace puts this crate in the
//! place of cudarc. It is the real cudarc with the feature `dynamic-loading`, and some functions that are safe to call on
//! every machine: cudarc panics in a function whose library is missing.
//!
//! The alternatives were a copy of candle's manifest, and `RUSTFLAGS='--cfg feature="dynamic-loading"'`, which applies
//! to every crate and breaks without `--target`. The CUDA runtime, which the quantized kernels need, is linked
//! statically.

use std::ffi::c_int;
use std::sync::LazyLock;

pub use real::*;

/// The version of CUDA that this program is built for, for example `(13, 0)`.
pub fn cuda_version() -> (u32, u32) {
    let number = |text: &str| text.parse().unwrap_or(0);
    (number(env!("CUDA_MAJOR")), number(env!("CUDA_MINOR")))
}

/// The compute capability that the kernels are compiled for, for example `80`, `90a` or `121f`.
pub const COMPUTE_CAPABILITY: &str = env!("COMPUTE_CAPABILITY");

/// A library that candle needs. cuBLAS loads NVRTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    Driver,
    Cublas,
    CublasLt,
    Curand,
    Nvrtc,
}

/// The libraries that candle needs and that this machine lacks. Only the first call looks for them.
pub fn missing_libraries() -> &'static [Library] {
    static MISSING: LazyLock<Vec<Library>> = LazyLock::new(|| {
        let all = [Library::Driver, Library::Cublas, Library::CublasLt, Library::Curand, Library::Nvrtc];
        all.into_iter().filter(|library| !is_present(*library)).collect()
    });
    &MISSING
}

fn is_present(library: Library) -> bool {
    // SAFETY: these libraries may be loaded and unloaded at any time. Doing so does not touch this program's state.
    unsafe {
        match library {
            Library::Driver => driver::sys::is_culib_present(),
            Library::Cublas => cublas::sys::is_culib_present(),
            Library::CublasLt => cublaslt::sys::is_culib_present(),
            Library::Curand => curand::sys::is_culib_present(),
            Library::Nvrtc => nvrtc::sys::is_culib_present(),
        }
    }
}

/// The version of CUDA that the driver supports. The driver must be present.
///
/// # Errors
/// If the driver cannot tell.
pub fn driver_version() -> Result<(u32, u32), driver::DriverError> {
    let mut version: c_int = 0;
    // SAFETY: the function writes one number, and needs no other call before it.
    unsafe { driver::sys::cuDriverGetVersion(&mut version).result()? };
    let version = u32::try_from(version).unwrap_or(0);
    Ok((version / 1000, version % 1000 / 10))
}
