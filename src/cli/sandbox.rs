//! `outpost sandbox`, which only the server starts.

use std::io;
use std::sync::Arc;

use crate::ambient::Ambient;
use crate::app::{self, Machine};

pub fn run() -> io::Result<()> {
    let machine: Arc<dyn Ambient> = Arc::new(Machine::new());
    app::run_sandbox(&machine)
}
