//! Timing on a machine with other load.
#![expect(clippy::disallowed_methods, reason = "a benchmark takes the time")]

use std::time::Instant;

use outpost_kernels::Pool;

/// The best of `runs` times in seconds. On one thread, it is the mean of the processor time, which other processes affect
/// less.
pub fn best(pool: &Pool, runs: usize, mut work: impl FnMut()) -> f64 {
    if let (1, Some(start)) = (pool.threads(), processor_time()) {
        (0..4 * runs).for_each(|_| work());
        return (processor_time().unwrap_or(f64::NAN) - start) / (4 * runs) as f64;
    }
    let mut time = || {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    };
    (0..runs).map(|_| time()).fold(f64::INFINITY, f64::min)
}

/// Processor time of this thread in seconds, if known.
fn processor_time() -> Option<f64> {
    let line = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(line.split(' ').next()?.parse::<f64>().ok()? / 1e9)
}
