//! The types of arguments that are a choice.

use clap::ValueEnum;

use crate::device_choice::DeviceChoice;

/// The least serious messages that are logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl LogLevel {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Readable lines
    Text,
    /// One JSON object per line
    Json,
}

/// The draft model of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DraftModel {
    /// The best one in the models folder.
    Auto,
    None,
    Named {
        target: String,
        draft: String,
    },
}

/// The weight precision of a model, or of all models that are not named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelPrecision {
    pub model: Option<String>,
    pub precision: Precision,
}

/// The device of a model, or of all models that are not named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelDevice {
    pub model: Option<String>,
    pub device: DeviceChoice,
}

/// The precision of weights in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Precision {
    /// As the file has them
    F32,
    Bf16,
    Int8,
}

/// The data type of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KvType {
    /// 16 bits per number
    F16,
    /// 8 bits per number and a scale for each position of a head
    Q8,
    /// 32 bits per number
    F32,
}
