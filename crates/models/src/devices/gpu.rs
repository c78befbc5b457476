//! A GPU of this machine.

use std::fmt;

use outpost_common::device_choice::DeviceChoice;

/// A GPU that this build can use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// [`DeviceChoice::Cuda`] or [`DeviceChoice::Metal`].
    pub choice: DeviceChoice,
    /// As its driver names it.
    pub name: String,
    /// Bytes.
    pub total_memory: u64,
    /// Bytes that no program uses.
    pub free_memory: u64,
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { choice, name, free_memory, .. } = self;
        let tenths = free_memory * 10 / (1 << 30);
        write!(f, "{choice} ({name}, {}.{} GiB free)", tenths / 10, tenths % 10)
    }
}
