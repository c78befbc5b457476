//! The GPUs of this machine: which ones this build can use, why not, and how to open one.
//!
//! A build without the features `cuda` and `metal` has no code for GPUs. A build with one of them also runs on machines
//! without a GPU: libraries are loaded only when a GPU is looked for, and a missing library is a reason, not a crash.

#[cfg(any(feature = "cuda", test))]
mod compute_capability;
#[cfg(feature = "cuda")]
mod cuda;
mod gpu;
#[cfg(feature = "metal")]
mod metal;

use candle_core::Device;

use crate::backend::Isa;
pub use gpu::Gpu;
use outpost_common::device_choice::DeviceChoice;

/// The device of this machine that a [`DeviceChoice`] selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selected {
    /// The CPU, with Outpost's own kernels. `reason`: why it is not a GPU, if a GPU would have been preferred.
    Cpu {
        reason: Option<String>,
    },
    /// The CPU, with the kernels of candle.
    Candle,
    Gpu(Gpu),
}

/// Why a build without features for GPUs uses the CPU.
const NO_SUPPORT: &str = "this build has no GPU support";

/// The GPUs of this machine, in the order of their driver. [`find`] says which of them can be used.
///
/// # Errors
/// If there is none, or if this build has no support for it, with the reason.
pub fn present() -> Result<Vec<DeviceChoice>, String> {
    #[cfg(feature = "cuda")]
    let found = cuda::count().map(|count| (0..count).map(DeviceChoice::Cuda).collect());
    #[cfg(all(feature = "metal", not(feature = "cuda")))]
    let found = metal::find().map(|_| vec![DeviceChoice::Metal]);
    #[cfg(not(any(feature = "cuda", feature = "metal")))]
    let found = Err(NO_SUPPORT.to_owned());
    found
}

/// The name and the memory of a GPU.
///
/// # Errors
/// If it cannot be used, with the reason and the remedy.
pub fn find(choice: DeviceChoice) -> Result<Gpu, String> {
    match choice {
        #[cfg(feature = "cuda")]
        DeviceChoice::Cuda(index) => cuda::find(index),
        #[cfg(not(feature = "cuda"))]
        DeviceChoice::Cuda(_) => {
            Err("this build has no CUDA support; build with `tools/cuda-toolchain build` (docs/gpu.md)".to_owned())
        }
        #[cfg(feature = "metal")]
        DeviceChoice::Metal => metal::find(),
        #[cfg(not(feature = "metal"))]
        DeviceChoice::Metal => Err(
            "this build has no Metal support; on a Mac, build with `cargo build --release --features metal` (docs/gpu.md)"
                .to_owned(),
        ),
        DeviceChoice::Auto | DeviceChoice::Cpu | DeviceChoice::Candle => Err(format!("{choice} is not a GPU")),
    }
}

/// Decides what a choice means. [`DeviceChoice::Auto`] is the first GPU that can be used, otherwise the CPU.
///
/// # Errors
/// If another choice cannot be used, as [`find`].
pub fn select(choice: DeviceChoice) -> Result<Selected, String> {
    match choice {
        DeviceChoice::Auto => Ok(match present().and_then(|gpus| first_usable(gpus.into_iter().map(find))) {
            Ok(gpu) => Selected::Gpu(gpu),
            Err(reason) => Selected::Cpu { reason: Some(reason) },
        }),
        DeviceChoice::Cpu => Ok(Selected::Cpu { reason: None }),
        DeviceChoice::Candle => Ok(Selected::Candle),
        DeviceChoice::Cuda(_) | DeviceChoice::Metal => find(choice).map(Selected::Gpu),
    }
}

/// Opens the device of a choice for candle.
///
/// # Errors
/// As [`select`], or if the device cannot be opened.
pub fn open(choice: DeviceChoice) -> Result<Device, String> {
    select(choice)?.open()
}

/// The device of tests of candle: that of the variable `OUTPOST_TEST_DEVICE`, such as `cuda`, otherwise the CPU. Opened once.
#[cfg(test)]
pub(crate) fn under_test() -> Device {
    static DEVICE: std::sync::OnceLock<Device> = std::sync::OnceLock::new();
    let named = || std::env::var("OUTPOST_TEST_DEVICE").map_or(DeviceChoice::Candle, |name| name.parse().unwrap());
    DEVICE.get_or_init(|| open(named()).unwrap()).clone()
}

/// The greatest difference that a test of candle allows, if the CPU keeps to `exact`: a GPU multiplies 16-bit weights in 16
/// bits, and rounds inputs of quantized weights to 8 bits.
#[cfg(test)]
pub(crate) fn tolerance_under_test(exact: f32) -> f32 {
    if under_test().is_cpu() { exact } else { exact.max(2e-2) }
}

/// The first GPU that can be used, or why the first one cannot.
fn first_usable(gpus: impl Iterator<Item = Result<Gpu, String>>) -> Result<Gpu, String> {
    let mut reason = None;
    for gpu in gpus {
        match gpu {
            Ok(gpu) => return Ok(gpu),
            Err(cause) => drop(reason.get_or_insert(cause)),
        }
    }
    Err(reason.unwrap_or_else(|| "this machine has no GPU".to_owned()))
}

/// The CPU.
impl Default for Selected {
    fn default() -> Self {
        Self::Cpu { reason: None }
    }
}

impl Selected {
    /// `cpu`, `candle`, `cuda:0` or `metal`.
    pub fn name(&self) -> String {
        match self {
            Self::Cpu { .. } => DeviceChoice::Cpu.to_string(),
            Self::Candle => DeviceChoice::Candle.to_string(),
            Self::Gpu(gpu) => gpu.choice.to_string(),
        }
    }

    /// As part of a sentence: `the CPU`, `cuda:0` or `metal`.
    pub fn in_sentence(&self) -> String {
        match self {
            Self::Cpu { .. } | Self::Candle => "the CPU".to_owned(),
            Self::Gpu(gpu) => gpu.choice.to_string(),
        }
    }

    /// Opens the device for candle.
    ///
    /// # Errors
    /// If the device cannot be opened.
    pub fn open(&self) -> Result<Device, String> {
        let Self::Gpu(gpu) = self else { return Ok(Device::Cpu) };
        let opened = match gpu.choice {
            DeviceChoice::Cuda(index) => Device::new_cuda(index),
            _ => Device::new_metal(0),
        };
        opened.map_err(|cause| format!("{gpu} cannot be opened: {cause}"))
    }

    /// What the server says when it starts: `cuda:0 (NVIDIA L4, 21.9 GiB free)`.
    pub fn describe(&self, threads: usize) -> String {
        match self {
            // It cannot change without another build.
            Self::Cpu { reason: Some(reason) } if reason == NO_SUPPORT => describe_cpu(threads),
            other => other.describe_with_reason(threads),
        }
    }

    /// Like [`Self::describe`], always with the reason why it is not a GPU.
    pub fn describe_with_reason(&self, threads: usize) -> String {
        match self {
            Self::Cpu { reason: None } => describe_cpu(threads),
            Self::Cpu { reason: Some(reason) } => format!("{}: {reason}", describe_cpu(threads)),
            Self::Candle => format!("{} with candle's kernels", describe_cpu(threads)),
            Self::Gpu(gpu) => gpu.to_string(),
        }
    }
}

fn describe_cpu(threads: usize) -> String {
    format!("the CPU ({threads} threads, {})", Isa::detect().name())
}

#[cfg(test)]
mod tests {
    use super::{Gpu, Selected, find, first_usable, open, present, select};
    use outpost_common::device_choice::DeviceChoice;

    fn gpu(index: usize) -> Gpu {
        let name = "NVIDIA H100 80GB HBM3".to_owned();
        Gpu { choice: DeviceChoice::Cuda(index), name, total_memory: 80 << 30, free_memory: (79 << 30) + (300 << 20) }
    }

    #[test]
    fn the_cpu_is_always_there() {
        for choice in [DeviceChoice::Cpu, DeviceChoice::Candle] {
            assert!(open(choice).unwrap().is_cpu(), "{choice}");
        }
        assert!(select(DeviceChoice::Auto).is_ok());
        assert_eq!(select(DeviceChoice::Cpu), Ok(Selected::Cpu { reason: None }));
    }

    #[test]
    fn the_log_names_the_device() {
        let text = |selected: Selected| selected.describe(8);
        assert_eq!(text(Selected::Gpu(gpu(0))), "cuda:0 (NVIDIA H100 80GB HBM3, 79.2 GiB free)");
        assert!(text(Selected::Cpu { reason: None }).starts_with("the CPU (8 threads, "));
        assert!(text(Selected::Cpu { reason: Some("why".to_owned()) }).ends_with("): why"));
        assert!(text(Selected::Candle).contains("candle"));
    }

    #[test]
    fn the_first_gpu_that_can_be_used_is_taken() {
        let bad = |text: &str| Err(text.to_owned());
        let mut found = [bad("too old"), Ok(gpu(1)), Ok(gpu(2))].into_iter();
        assert_eq!(first_usable(&mut found), Ok(gpu(1)));
        assert_eq!(found.len(), 1, "the GPUs behind it are not opened");
        assert_eq!(first_usable([bad("one"), bad("two")].into_iter()), bad("one"));
        assert!(first_usable(std::iter::empty()).is_err());
    }

    #[test]
    fn only_gpus_are_found() {
        for choice in [DeviceChoice::Auto, DeviceChoice::Cpu, DeviceChoice::Candle] {
            assert!(find(choice).unwrap_err().contains("not a GPU"));
        }
        for choice in present().unwrap_or_default() {
            assert!(matches!(choice, DeviceChoice::Cuda(_) | DeviceChoice::Metal));
        }
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn a_build_without_cuda_names_the_build_that_has_it() {
        for choice in [DeviceChoice::Cuda(0), DeviceChoice::Cuda(7)] {
            let reason = open(choice).unwrap_err();
            assert!(reason.contains("no CUDA support") && reason.contains("tools/cuda-toolchain"), "{reason}");
        }
    }

    #[cfg(not(feature = "metal"))]
    #[test]
    fn a_build_without_metal_names_the_build_that_has_it() {
        let reason = open(DeviceChoice::Metal).unwrap_err();
        assert!(reason.contains("no Metal support") && reason.contains("--features metal"), "{reason}");
    }

    #[cfg(not(any(feature = "cuda", feature = "metal")))]
    #[test]
    fn a_build_for_the_cpu_says_so() {
        let Ok(Selected::Cpu { reason: Some(reason) }) = select(DeviceChoice::Auto) else { panic!() };
        assert_eq!(reason, "this build has no GPU support");
    }
}
