//! The backend of a device: the CPU's own kernels, or candle.

use candle_core::Device;

use crate::runtime::DeviceCheck;
use crate::settings::Settings;
use outpost_models::backend::candle::is_dequantised;
use outpost_models::backend::{Candle, Cpu};
use outpost_models::devices::Selected;
use outpost_models::gguf;

/// The backend of a device.
pub enum DeviceBackend {
    Cpu(Cpu),
    Candle(Candle),
}

impl DeviceBackend {
    /// Opens a device. `settings`: adapted to it.
    ///
    /// # Errors
    /// If it cannot be opened, with the reason.
    pub fn open(selected: &Selected, settings: &Settings) -> Result<Self, String> {
        let host = Cpu::new(settings.threads);
        match selected {
            Selected::Cpu { .. } => Ok(Self::Cpu(host)),
            _ => Ok(Self::Candle(Candle::new(selected.open()?, host))),
        }
    }

    /// The backend that trains on the device. The CPU's own kernels have no gradients.
    pub(crate) fn for_training(&self) -> Candle {
        match self {
            Self::Cpu(cpu) => Candle::new(Device::Cpu, cpu.clone()),
            Self::Candle(candle) => candle.clone(),
        }
    }

    /// A check whether the device works.
    pub fn check(&self) -> DeviceCheck {
        match self {
            Self::Cpu(_) => Box::new(|| Ok(())),
            Self::Candle(candle) => {
                let candle = candle.clone();
                Box::new(move || candle.check().map_err(|error| error.to_string()))
            }
        }
    }

    /// True if the device has no kernels for weights of this type and stores them without quantization.
    pub fn dequantizes(&self, quantization: &str) -> bool {
        match self {
            Self::Cpu(_) => false,
            Self::Candle(_) => gguf::type_named(quantization).is_some_and(|stored| is_dequantised(stored.loaded())),
        }
    }
}
