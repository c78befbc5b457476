//! The device that runs a model, as users name it.

use std::fmt;
use std::str::FromStr;

/// The device that runs a model. `docs/gpu.md` describes the devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceChoice {
    /// A GPU if this build and this machine have one, otherwise the CPU.
    #[default]
    Auto,
    /// The CPU, with Outpost's own kernels.
    Cpu,
    /// An NVIDIA card, by its index in the driver's order.
    Cuda(usize),
    /// The GPU of a Mac.
    Metal,
    /// The CPU, with the kernels of candle, which also computes on GPUs. For tests: users do not see it.
    Candle,
}

/// The text names no device.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("write auto, cpu, cuda, cuda:1 for the second card, or metal")]
pub struct BadDevice;

impl FromStr for DeviceChoice {
    type Err = BadDevice;

    fn from_str(text: &str) -> Result<Self, BadDevice> {
        match text.to_ascii_lowercase().as_str() {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            "metal" => Ok(Self::Metal),
            "candle" => Ok(Self::Candle),
            other => {
                let digits = other.strip_prefix("cuda:").ok_or(BadDevice)?;
                let is_number = (1..=3).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
                digits.parse().ok().filter(|_| is_number).map(Self::Cuda).ok_or(BadDevice)
            }
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(index) => write!(f, "cuda:{index}"),
            Self::Metal => f.write_str("metal"),
            Self::Candle => f.write_str("candle"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BadDevice, DeviceChoice};

    #[test]
    fn devices_are_read_as_they_are_displayed() {
        use DeviceChoice::{Auto, Candle, Cpu, Cuda, Metal};
        for device in [Auto, Cpu, Cuda(0), Cuda(15), Metal, Candle] {
            assert_eq!(device.to_string().parse(), Ok(device));
        }
        assert_eq!(("cuda".parse(), "CUDA:1".parse(), "Metal".parse()), (Ok(Cuda(0)), Ok(Cuda(1)), Ok(Metal)));
    }

    #[test]
    fn other_names_are_refused() {
        for bad in
            ["", "gpu", "cuda:", "cuda:-1", "cuda:+1", "cuda:1000", "cuda:0x1", "cuda0", "metal:0", " cpu", "cpu,"]
        {
            assert_eq!(bad.parse::<DeviceChoice>(), Err(BadDevice), "{bad}");
        }
        assert!(BadDevice.to_string().contains("cuda:1"));
    }
}
