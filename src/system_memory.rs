//! The memory of this machine or container.

use sysinfo::{MemoryRefreshKind, System};

/// Bytes of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemMemory {
    pub machine: u64,
    /// The limit of the container or service, if it is lower.
    pub limit: Option<u64>,
    /// Memory that programs can still take.
    pub available: u64,
}

impl SystemMemory {
    pub fn read() -> Self {
        let mut system = System::new();
        system.refresh_memory_specifics(MemoryRefreshKind::nothing().with_ram());
        let machine = system.total_memory();
        let limits = system.cgroup_limits().filter(|limits| limits.total_memory < machine);
        let available = system.available_memory();
        Self {
            machine,
            limit: limits.as_ref().map(|limits| limits.total_memory),
            available: limits.map_or(available, |limits| limits.free_memory.min(available)),
        }
    }

    /// Memory that all programs together can take.
    pub fn total(&self) -> u64 {
        self.limit.unwrap_or(self.machine)
    }
}
