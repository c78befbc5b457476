//! Facts about this machine from the operating system.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use super::super::stopwatch::Stopwatch;
use crate::clock_rng::ClockRng;

/// The name of the CPU, such as `AMD EPYC 9B45`.
pub(super) fn cpu_name() -> String {
    let mut system = sysinfo::System::new();
    system.refresh_cpu_list(sysinfo::CpuRefreshKind::nothing());
    let brand = system.cpus().first().map(|cpu| cpu.brand().trim().to_owned()).unwrap_or_default();
    if brand.is_empty() { std::env::consts::ARCH.to_owned() } else { brand }
}

/// The share of the CPU that programs have used in the last minute: 1 is all of it.
pub(super) fn load() -> f64 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    sysinfo::System::load_average().one / cores as f64
}

/// How quickly a disk makes small writes durable.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SyncRate {
    pub per_second: f64,
    /// 99 of 100 writes take no longer.
    pub p99: Duration,
}

/// Appends 4 KiB to a temporary file in `folder` and waits for the disk, again and again for about `duration`.
pub(super) fn sync_rate(folder: &Path, duration: Duration, clock: &dyn ClockRng) -> io::Result<SyncRate> {
    // The file has no name, so nothing is left behind.
    let mut file: File = tempfile::tempfile_in(folder)?;
    let mut times = Vec::new();
    let began = Stopwatch::start(clock);
    while began.elapsed() < duration || times.is_empty() {
        let write = Stopwatch::start(clock);
        file.write_all(&[7; 4096])?;
        file.sync_data()?;
        times.push(write.elapsed());
    }
    let per_second = times.len() as f64 / began.elapsed().as_secs_f64();
    times.sort_unstable();
    let p99 = times.get(times.len() * 99 / 100).or(times.last()).copied().unwrap_or_default();
    Ok(SyncRate { per_second, p99 })
}

/// Whether systemd reports that the clock is synchronized; `None` if that is not known.
pub(super) fn is_clock_synchronized() -> Option<bool> {
    fs::exists("/run/systemd/timesync").ok()?.then(|| Path::new("/run/systemd/timesync/synchronized").exists())
}
