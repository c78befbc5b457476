//! Links the CUDA runtime statically, and records what the kernels are compiled for.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

use cudaforge::{CudaToolkit, detect_compute_cap};

fn main() -> Result<(), Box<dyn Error>> {
    for variable in ["CUDA_HOME", "CUDA_COMPUTE_CAP", "NVCC"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    // The same search as that of candle's kernels.
    let toolkit = CudaToolkit::detect().map_err(|error| format!("{error}. `tools/cuda-toolchain` installs nvcc"))?;
    let version = toolkit.version.as_deref().ok_or("`nvcc --version` names no release")?;
    let (major, minor) = version.split_once('.').ok_or("`nvcc --version` names no release")?;
    println!("cargo::rustc-env=CUDA_MAJOR={major}");
    println!("cargo::rustc-env=CUDA_MINOR={minor}");
    println!("cargo::rustc-env=COMPUTE_CAPABILITY={}", detect_compute_cap()?);

    // candle's kernels link `cudart`. In this folder the linker finds only the static library under that name.
    let folder = PathBuf::from(env::var("OUT_DIR")?);
    let link = folder.join("libcudart.a");
    if fs::symlink_metadata(&link).is_ok() {
        fs::remove_file(&link)?;
    }
    std::os::unix::fs::symlink(static_runtime(&toolkit.lib_dir)?, link)?;
    println!("cargo::rustc-link-search=native={}", folder.display());
    Ok(())
}

/// `libcudart_static.a` of the toolkit with the folder `lib64`.
fn static_runtime(lib64: &Path) -> Result<PathBuf, String> {
    let name = "libcudart_static.a";
    let folders = [lib64.to_owned(), lib64.with_file_name("lib"), lib64.with_file_name("lib").join("x86_64-linux-gnu")];
    let found = folders.iter().map(|folder| folder.join(name)).find(|file| file.exists());
    found.ok_or_else(|| format!("{name} is in none of {folders:?}"))
}
