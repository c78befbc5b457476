//! `outpost sandbox`, which only `outpost serve` and `outpost tune` start.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::app::{self, SystemClockRng};
use crate::clock_rng::ClockRng;

pub fn run() -> io::Result<()> {
    let machine: Arc<dyn ClockRng> = Arc::new(SystemClockRng::new());
    app::run_sandbox(&machine)
}

/// This program's executable. Linux finds it even after it was replaced by a newer one.
pub fn this_program() -> io::Result<PathBuf> {
    let own = PathBuf::from("/proc/self/exe");
    if own.exists() { Ok(own) } else { std::env::current_exe() }
}
