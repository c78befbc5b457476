//! `outpost audio-decoder`, which only `outpost serve` starts: `audio::process` describes it.

use std::io;

use clap::Args;

use crate::audio::{self, Pass};

#[derive(Args)]
pub struct AudioDecoderArgs {
    /// Only say what the file on standard input is and how long
    #[arg(long)]
    measure: bool,
    /// Refuse audio that is longer
    #[arg(long, value_name = "SECONDS")]
    max_seconds: u32,
}

pub fn run(args: &AudioDecoderArgs) -> io::Result<()> {
    audio::process::run(if args.measure { Pass::Measure } else { Pass::Decode }, args.max_seconds)
}
