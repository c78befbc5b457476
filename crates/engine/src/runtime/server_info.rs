//! The machine and build of the server, for its metrics.

use sysinfo::{CpuRefreshKind, RefreshKind, System};

use outpost_models::backend::Isa;

/// Labels that do not change while the server runs: version, CPU, instruction set and compute threads.
pub fn server_info(threads: usize) -> Vec<(&'static str, String)> {
    vec![
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ("cpu", cpu_name()),
        ("instruction_set", Isa::detect().name().to_owned()),
        ("threads", threads.to_string()),
    ]
}

/// The name that the CPU gives itself, or its architecture.
fn cpu_name() -> String {
    let system = System::new_with_specifics(RefreshKind::nothing().with_cpu(CpuRefreshKind::nothing()));
    let name = system.cpus().first().map(|cpu| cpu.brand().trim()).filter(|name| !name.is_empty());
    name.unwrap_or(std::env::consts::ARCH).to_owned()
}
