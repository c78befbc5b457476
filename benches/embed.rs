//! `cargo bench --bench embed -- MODEL [--models FOLDER] [--threads N] [--precision KIND]`: the engine without a
//! server, for `benches/peers/embed.py --in-process`. Reads one line per run, a JSON list of batches of texts. Prints
//! one line for each: the duration of all batches in seconds, and the vectors of the last batch.
#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a benchmark, not the program"
)]

use std::io::{BufRead, stdin};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use clap::Parser;
use outpost::app::SystemClockRng;
use outpost::config::Precision;
use outpost::engine::{Engine, InputType, ModelKind, Precisions, Settings, TokenizeLimits};

/// Bytes for the model and its activations.
const MEMORY: u64 = 8 << 30;

#[derive(Parser)]
struct Args {
    model: String,
    #[arg(long, default_value = "models")]
    models: PathBuf,
    #[arg(long, default_value_t = 2)]
    threads: usize,
    #[arg(long, default_value = "f32")]
    precision: Precision,
    /// Passed by `cargo bench`; ignored.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let args = Args::parse();
    let mut settings = Settings::new(args.models, MEMORY);
    settings.threads = args.threads;
    settings.precisions = Precisions { usual: args.precision.into(), ..Precisions::default() };
    let engine = Engine::start(settings, Arc::new(SystemClockRng::default())).expect("a thread");
    let model = engine.models().load_encoder(&args.model, ModelKind::Embedding).expect("a model");
    let vectors = |texts: &[String]| {
        let texts = texts
            .iter()
            .map(|text| {
                model
                    .encode(&[text], InputType::Unspecified, true, &TokenizeLimits::default())
                    .expect("tokens")
                    .remove(0)
                    .0
            })
            .collect();
        let receiver = engine.embed(&model, 1, texts).expect("space in the queue");
        receiver.blocking_recv().expect("a result").expect("vectors")
    };
    println!("ready");
    for line in stdin().lock().lines() {
        let batches: Vec<Vec<String>> = serde_json::from_str(&line.expect("a line")).expect("batches of texts");
        let began = Instant::now();
        let mut last = Vec::new();
        for texts in &batches {
            last = vectors(texts);
        }
        let seconds = began.elapsed().as_secs_f64();
        println!("{}", serde_json::json!({ "seconds": seconds, "vectors": last }));
    }
}
