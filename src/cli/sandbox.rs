//! `outpost sandbox`, which only the server starts.

use std::io;
use std::sync::Arc;

use crate::app::{self, SystemClockRng};
use crate::clock_rng::ClockRng;

pub fn run() -> io::Result<()> {
    let machine: Arc<dyn ClockRng> = Arc::new(SystemClockRng::new());
    app::run_sandbox(&machine)
}
