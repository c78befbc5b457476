//! What a build with CUDA says about drivers, libraries and cards, with a stand-in for the driver. Nothing is computed.

use std::path::Path;
use std::process::Command;

use crate::process::{command, output_text};

/// Compiles a shared library. `/dev/null` is the source of one without functions.
fn compile(folder: &Path, file: &str, source: &str) {
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-w", "-x", "c", "-o"]).arg(folder.join(file)).arg(source);
    assert!(compiler.status().unwrap().success(), "{file}");
}

/// What `outpost serve --device DEVICE` says when it refuses to start.
fn refusal(folder: &Path, libraries: &Path, device: &str, variables: &[(&str, &str)]) -> String {
    let mut serve = command(folder, &["serve", "--listen", "127.0.0.1:0", "--device", device]);
    serve.env("LD_LIBRARY_PATH", libraries).envs(variables.iter().copied());
    let output = serve.output().unwrap();
    let text = output_text(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(!text.contains("panicked"), "{text}");
    text
}

#[test]
fn every_obstacle_has_its_own_message() {
    let folder = tempfile::tempdir().unwrap();
    let libraries = folder.path().join("libraries");
    std::fs::create_dir(&libraries).unwrap();
    let check = |device: &str, variables: &[(&str, &str)], expected: &str| {
        let text = refusal(folder.path(), &libraries, device, variables);
        assert!(text.contains(expected), "{variables:?}: {text}");
    };
    if !Path::new("/dev/nvidiactl").exists() {
        check("cuda", &[], "libcuda.so.1 was not found; install the NVIDIA driver");
    }
    compile(&libraries, "libcuda.so.1", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/cuda_driver.c"));
    for (library, package) in [
        ("libcublas.so", "nvidia-cublas"),
        ("libcublasLt.so", "nvidia-cublas"),
        ("libcurand.so", "nvidia-curand"),
        ("libnvrtc.so", "nvidia-cuda-nvrtc"),
    ] {
        check("cuda", &[], &format!("{library}."));
        check("cuda", &[], package);
        compile(&libraries, library, "/dev/null");
    }
    check(
        "cuda",
        &[("STAND_IN_VERSION", "11040")],
        "the NVIDIA driver supports CUDA 11.4, but this build needs CUDA 1",
    );
    check("cuda", &[("STAND_IN_INIT", "100")], "the NVIDIA driver reports: no CUDA-capable device is detected");
    check("cuda", &[("STAND_IN_COUNT", "0")], "the NVIDIA driver finds no card");
    check("cuda:2", &[], "there is no cuda:2; this machine has 2 cards, the last is cuda:1");
    check("cuda:1", &[("STAND_IN_COUNT", "1")], "this machine has one card, cuda:0");
    check("cuda", &[("STAND_IN_CONTEXT", "2")], "cuda:0 cannot be used: out of memory");
    check("cuda:1", &[], "cuda:1 (Stand-in) has compute capability 1.0, but this build is for ");
    check("cuda", &[("STAND_IN_CAPABILITY", "35")], "build with CUDA_COMPUTE_CAP=35");
}
