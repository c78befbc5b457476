//! The thread pool in unusual situations.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outpost_kernels::Pool;

/// Sections of a long run; Miri takes a thousand times as long.
const SECTIONS: usize = if cfg!(miri) { 200 } else { 50_000 };

fn counts(pool: &Pool, tasks: usize) -> Vec<usize> {
    let counters: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
    pool.run(tasks, |index| {
        counters[index].fetch_add(1, Ordering::Relaxed);
    });
    counters.into_iter().map(AtomicUsize::into_inner).collect()
}

#[test]
fn every_task_runs_once() {
    for threads in [0, 1, 2, 3, 8] {
        let pool = Pool::new(threads);
        assert_eq!(pool.threads(), threads.max(1));
        for tasks in [0, 1, 2, 3, 100, SECTIONS / 5] {
            assert!(counts(&pool, tasks).iter().all(|count| *count == 1));
        }
    }
}

#[test]
fn many_short_sections_follow_each_other() {
    let pool = Pool::new(4);
    let total = AtomicUsize::new(0);
    for section in 0..SECTIONS {
        pool.run(section % 7, |index| {
            total.fetch_add(index + 1, Ordering::Relaxed);
        });
    }
    let expected: usize = (0..SECTIONS).map(|section| (section % 7) * (section % 7 + 1) / 2).sum();
    assert_eq!(total.into_inner(), expected);
}

#[test]
fn sleeping_workers_wake_up() {
    let pool = Pool::new(3);
    for _ in 0..20 {
        assert!(counts(&pool, 50).iter().all(|count| *count == 1));
        std::thread::sleep(Duration::from_millis(3));
    }
}

#[test]
fn a_caller_sleeps_until_a_slow_task_ends() {
    let pool = Pool::new(2);
    for _ in 0..5 {
        let done = AtomicUsize::new(0);
        pool.run(2, |_| {
            std::thread::sleep(Duration::from_millis(20));
            done.fetch_add(1, Ordering::SeqCst);
        });
        assert_eq!(done.into_inner(), 2);
    }
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_remains_usable() {
    for threads in [1, 2, 4] {
        let pool = Pool::new(threads);
        for bad in [0, 7, 63] {
            let ran = AtomicUsize::new(0);
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(64, |index| {
                    assert_ne!(index, bad, "task {bad}");
                    ran.fetch_add(1, Ordering::Relaxed);
                });
            }));
            let payload = result.unwrap_err();
            assert!(payload.downcast_ref::<String>().unwrap().contains(&format!("task {bad}")));
            if threads > 1 {
                assert_eq!(ran.into_inner(), 63);
            }
            assert!(counts(&pool, 64).iter().all(|count| *count == 1));
        }
    }
}

#[test]
fn nested_and_concurrent_calls_run_all_tasks() {
    let pool = Pool::new(3);
    let inner = AtomicUsize::new(0);
    pool.run(8, |_| {
        pool.run(8, |_| {
            inner.fetch_add(1, Ordering::Relaxed);
        });
    });
    assert_eq!(inner.into_inner(), 64);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope
                .spawn(|| (0..SECTIONS / 250).for_each(|_| assert!(counts(&pool, 30).iter().all(|count| *count == 1))));
        }
    });
}

#[test]
fn pools_can_be_created_and_dropped_repeatedly() {
    for round in 0..SECTIONS / 250 {
        let pool = Pool::new(1 + round % 5);
        if round % 3 > 0 {
            counts(&pool, round);
        }
    }
}
