//! How long work takes on a machine that others use too.
#![expect(clippy::disallowed_methods, reason = "a benchmark takes the time")]

use std::time::Instant;

use outpost_kernels::Pool;

/// Best of `runs` times, in seconds; on one thread the mean of the times that it had a core, which other
/// processes disturb less.
pub fn best(pool: &Pool, runs: usize, mut work: impl FnMut()) -> f64 {
    if let (1, Some(from)) = (pool.threads(), running_time()) {
        (0..4 * runs).for_each(|_| work());
        return (running_time().unwrap_or(f64::NAN) - from) / (4 * runs) as f64;
    }
    let mut time = || {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    };
    (0..runs).map(|_| time()).fold(f64::INFINITY, f64::min)
}

/// Seconds that this thread has had a core, where the system tells.
fn running_time() -> Option<f64> {
    let line = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(line.split(' ').next()?.parse::<f64>().ok()? / 1e9)
}
