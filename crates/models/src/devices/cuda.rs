//! NVIDIA cards.
//!
//! cudarc panics in a function whose library is missing. Everything here therefore begins with [`count`], which looks for
//! the libraries first.

use cudarc::Library;
use cudarc::driver::{CudaContext, DriverError};

use super::compute_capability::{display, runs_on};
use super::gpu::Gpu;
use outpost_common::device_choice::DeviceChoice;

/// The number of cards, at least one. The variable `CUDA_VISIBLE_DEVICES` of the driver hides cards.
///
/// # Errors
/// If a library is missing, or if the driver is too old or finds no card.
pub fn count() -> Result<usize, String> {
    let (major, minor) = cudarc::cuda_version();
    if let Some(library) = cudarc::missing_libraries().first() {
        return Err(missing(*library, major, minor));
    }
    let failed = |cause| format!("the NVIDIA driver reports: {}", text(cause));
    let supported = cudarc::driver_version().map_err(failed)?;
    if supported < (major, minor) {
        return Err(format!(
            "the NVIDIA driver supports CUDA {}.{}, but this build needs CUDA {major}.{minor}; install a newer driver",
            supported.0, supported.1
        ));
    }
    match usize::try_from(CudaContext::device_count().map_err(failed)?) {
        Ok(count) if count > 0 => Ok(count),
        _ => Err("the NVIDIA driver finds no card".to_owned()),
    }
}

/// The name and the memory of a card. Takes up to a second, because the card must be initialized to tell.
///
/// # Errors
/// As [`count`], or if there is no such card, or if the kernels are not compiled for it.
pub fn find(index: usize) -> Result<Gpu, String> {
    let count = count()?;
    if index >= count {
        let cards = if count == 1 {
            "one card, cuda:0".to_owned()
        } else {
            format!("{count} cards, the last is cuda:{}", count - 1)
        };
        return Err(format!("there is no cuda:{index}; this machine has {cards}"));
    }
    let failed = |cause| format!("cuda:{index} cannot be used: {}", text(cause));
    let context = CudaContext::new(index).map_err(failed)?;
    let name = context.name().map_err(failed)?;
    let (major, minor) = context.compute_capability().map_err(failed)?;
    check_capability(index, &name, (major.unsigned_abs(), minor.unsigned_abs()))?;
    let (free, total) = context.mem_get_info().map_err(failed)?;
    Ok(Gpu { choice: DeviceChoice::Cuda(index), name, total_memory: total as u64, free_memory: free as u64 })
}

fn check_capability(index: usize, name: &str, (major, minor): (u32, u32)) -> Result<(), String> {
    let compiled = cudarc::COMPUTE_CAPABILITY;
    if runs_on(compiled, (major, minor)) {
        return Ok(());
    }
    Err(format!(
        "cuda:{index} ({name}) has compute capability {major}.{minor}, but this build is for {}; \
         build with CUDA_COMPUTE_CAP={major}{minor}",
        display(compiled)
    ))
}

/// Names the packages that contain a missing library: those of NVIDIA's Debian repository and of PyPI.
fn missing(library: Library, major: u32, minor: u32) -> String {
    let (file, debian, pypi) = match library {
        Library::Driver => return "libcuda.so.1 was not found; install the NVIDIA driver".to_owned(),
        Library::Cublas => (format!("libcublas.so.{major}"), "libcublas", "nvidia-cublas"),
        Library::CublasLt => (format!("libcublasLt.so.{major}"), "libcublas", "nvidia-cublas"),
        Library::Curand => ("libcurand.so.10".to_owned(), "libcurand", "nvidia-curand"),
        Library::Nvrtc => (format!("libnvrtc.so.{major}"), "cuda-nvrtc", "nvidia-cuda-nvrtc"),
    };
    format!(
        "{file} was not found; install the package {debian}-{major}-{minor} of NVIDIA's repository or {pypi} of PyPI \
         (docs/gpu.md)"
    )
}

fn text(error: DriverError) -> String {
    match error.error_string() {
        Ok(text) => text.to_string_lossy().into_owned(),
        Err(_) => format!("{:?}", error.0),
    }
}

#[cfg(test)]
mod tests {
    use cudarc::Library;

    use super::{check_capability, count, find, missing};

    #[test]
    fn missing_libraries_are_named_with_their_packages() {
        assert!(missing(Library::Driver, 13, 0).contains("install the NVIDIA driver"));
        for (library, names) in [
            (Library::Cublas, ["libcublas.so.13", "libcublas-13-0", "nvidia-cublas"]),
            (Library::CublasLt, ["libcublasLt.so.13", "libcublas-13-0", "nvidia-cublas"]),
            (Library::Curand, ["libcurand.so.10", "libcurand-13-0", "nvidia-curand"]),
            (Library::Nvrtc, ["libnvrtc.so.13", "cuda-nvrtc-13-0", "nvidia-cuda-nvrtc"]),
        ] {
            let reason = missing(library, 13, 0);
            assert!(names.iter().all(|name| reason.contains(name)), "{reason}");
        }
    }

    /// On a machine with a card and without one. A panic of cudarc would fail this.
    #[test]
    fn cards_are_counted_on_every_machine() {
        let reason = find(999).unwrap_err();
        match count() {
            Ok(_) => assert!(reason.contains("there is no cuda:999"), "{reason}"),
            Err(cause) => assert_eq!(reason, cause),
        }
    }

    #[test]
    fn a_build_for_other_cards_is_refused() {
        let reason = check_capability(1, "NVIDIA A30X", (3, 5)).unwrap_err();
        assert!(reason.contains("cuda:1 (NVIDIA A30X) has compute capability 3.5"), "{reason}");
        assert!(reason.contains("CUDA_COMPUTE_CAP=35"), "{reason}");
    }
}
