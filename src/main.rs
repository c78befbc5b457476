//! The `outpost` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    outpost::cli::run(std::env::args_os())
}
