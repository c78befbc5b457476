//! An idle pool uses no processor time. A test binary of its own, so that the process has no other pool.
#![cfg(all(target_os = "linux", not(miri)))]

use std::fs;
use std::sync::Barrier;
use std::time::Duration;

use outpost_kernels::Pool;

const IDLE: Duration = Duration::from_millis(300);
/// Clock ticks, the unit of a thread's times.
const TICK: Duration = Duration::from_millis(10);

/// Processor time of each of the pool's threads.
fn processor_times() -> Vec<Duration> {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let stats = threads.filter_map(|thread| fs::read_to_string(thread.path().join("stat")).ok());
    stats.filter_map(|stat| parse_processor_time(&stat)).collect()
}

/// The name is in parentheses; eleven fields later come user time and system time.
fn parse_processor_time(stat: &str) -> Option<Duration> {
    let (before, after) = stat.rsplit_once(')')?;
    let ticks: Result<Vec<u32>, _> = after.split_whitespace().skip(11).take(2).map(str::parse).collect();
    before.contains("(kernels-").then_some(ticks.ok()?.iter().sum::<u32>() * TICK)
}

#[test]
fn an_idle_pool_uses_no_processor_time() {
    let pool = Pool::new(4);
    // Tasks that wait for each other, so that all threads have started and have their names.
    let barrier = Barrier::new(4);
    for _ in 0..10 {
        pool.run(4, |_| {
            barrier.wait();
        });
    }
    let before = processor_times();
    assert_eq!(before.len(), 3);
    std::thread::sleep(IDLE);
    let used = processor_times().iter().sum::<Duration>() - before.iter().sum::<Duration>();
    // Three spinning threads would use more than this even on a busy machine.
    assert!(used <= IDLE / 5, "{used:?} in {IDLE:?}");
}
