//! The purpose of a file.

use serde::{Deserialize, Serialize};

use crate::display::one_of;
use crate::error::{Error, Result};

/// The purpose of a file. The number is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum Purpose {
    #[serde(rename = "fine-tune")]
    FineTune = 1,
    /// The requests of a batch.
    #[serde(rename = "batch")]
    Batch = 2,
    /// The results of a batch.
    #[serde(rename = "batch_output")]
    BatchOutput = 3,
}

impl Purpose {
    const ALL: [Purpose; 3] = [Purpose::FineTune, Purpose::Batch, Purpose::BatchOutput];
    /// The purposes that files are uploaded for.
    const UPLOADED: [Purpose; 2] = [Purpose::FineTune, Purpose::Batch];

    pub fn as_str(self) -> &'static str {
        match self {
            Purpose::FineTune => "fine-tune",
            Purpose::Batch => "batch",
            Purpose::BatchOutput => "batch_output",
        }
    }

    /// Parses the name of any purpose.
    pub fn from_name(name: &str) -> Result<Self> {
        Self::one_of(&Self::ALL, name)
    }

    /// Parses the name of a purpose that files are uploaded for.
    pub fn of_upload(name: &str) -> Result<Self> {
        Self::one_of(&Self::UPLOADED, name)
    }

    fn one_of(known: &[Purpose], name: &str) -> Result<Self> {
        known.iter().copied().find(|purpose| purpose.as_str() == name).ok_or_else(|| {
            let shown: String = name.chars().take(40).collect();
            let names: Vec<&str> = known.iter().map(|purpose| purpose.as_str()).collect();
            let text = format!("'purpose' is '{shown}'; it must be {}.", one_of(&names));
            Error::invalid("purpose", text)
        })
    }

    /// Numbers written by a later version are shown as results of a batch, which nothing reads.
    pub(super) fn from_number(number: u8) -> Self {
        Self::ALL.into_iter().find(|purpose| *purpose as u8 == number).unwrap_or(Purpose::BatchOutput)
    }
}
