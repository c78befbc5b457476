//! Decode steps of a small decoder alone, and while another process spins on one of the cores. On more than two cores,
//! pin the benchmark to two: `taskset -c 0,1 cargo bench …`.
//!
//! `cargo bench -p outpost-kernels --bench contention -- [threads]`
#![expect(clippy::print_stdout, clippy::expect_used, clippy::disallowed_methods, reason = "a benchmark")]

mod decoder;

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use decoder::{Buffers, Model};
use outpost_kernels::{DType, Pool};

const ROUNDS: usize = 5;
const MEASURED: Duration = Duration::from_secs(2);
/// Time in which the system schedules the spinning process.
const SETTLING: Duration = Duration::from_millis(500);
const SPIN: &str = "spin";

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    if words.first().is_some_and(|word| word == SPIN) {
        spin();
    }
    let pool = Pool::new(words.first().and_then(|word| word.parse().ok()).unwrap_or(2));
    let (model, mut buffers) = (Model::new(DType::Q4_1, DType::Q8_0), Buffers::new(1));
    println!("{pool:?}, weights {:.1} MB, load before: {}", model.bytes() as f64 / 1e6, load());
    let mut steps_a_second = |time: Duration| {
        let (start, mut steps) = (Instant::now(), 0);
        while start.elapsed() < time {
            model.step(&pool, 1, 1, &mut buffers);
            steps += 1;
        }
        f64::from(steps) / start.elapsed().as_secs_f64()
    };
    steps_a_second(SETTLING);
    let (mut alone, mut contended) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        alone.push(steps_a_second(MEASURED));
        let spinning = SpinningProcess::new();
        steps_a_second(SETTLING);
        contended.push(steps_a_second(MEASURED));
        drop(spinning);
        println!(
            "alone {:>6.1} steps/s, with contention {:>6.1}",
            alone[alone.len() - 1],
            contended[contended.len() - 1]
        );
    }
    let (alone, contended) = (median(alone), median(contended));
    println!("medians: alone {alone:.1}, with contention {contended:.1} steps/s: {:.0} %", contended / alone * 100.0);
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// The system's load, if known; on a busy machine, it distorts the result.
fn load() -> String {
    std::fs::read_to_string("/proc/loadavg").map_or_else(|_| "unknown".to_owned(), |line| line.trim().to_owned())
}

/// A process that spins, pinned to one core if `taskset` exists.
struct SpinningProcess(Child);

impl SpinningProcess {
    fn new() -> Self {
        let exe = std::env::current_exe().expect("a path");
        let spawn = |command: &mut Command| command.arg(SPIN).stdin(Stdio::piped()).spawn();
        let pinned = spawn(Command::new("taskset").args(["-c", "1"]).arg(&exe));
        Self(pinned.or_else(|_| spawn(&mut Command::new(&exe))).expect("a process"))
    }
}

impl Drop for SpinningProcess {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Spins until standard input closes, so that the process does not outlive the benchmark.
fn spin() -> ! {
    std::thread::spawn(|| {
        drop(std::io::stdin().read_to_end(&mut Vec::new()));
        std::process::exit(0)
    });
    loop {
        std::hint::spin_loop();
    }
}
