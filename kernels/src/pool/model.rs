//! Model checking of the pool with loom: all interleavings of a few threads and sections, including those that weak
//! memory allows, with a limited number of preemptions. loom does not reorder a store before earlier operations of its
//! thread; that a section is closed before its fields change must be checked by reading.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p outpost-kernels --lib --release model`: one minute.

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Condvar, Mutex};

use super::shared::Shared;

/// Data that only one thread may access at a time; loom reports races.
struct Mine(UnsafeCell<usize>);

// SAFETY: loom checks every access.
unsafe impl Sync for Mine {}

/// Runs `sections` and `workers` threads in all interleavings.
fn check(workers: usize, switches: Option<usize>, sections: impl Fn(&Shared) + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = switches;
    model.check(move || {
        let shared = Arc::new(Shared::new());
        let worker = |_| {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || shared.work())
        };
        let threads: Vec<_> = (0..workers).map(worker).collect();
        sections(&shared);
        shared.stop();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// Each task runs once, in its own section, and its writes are visible afterwards.
fn count(shared: &Shared, tasks: usize) {
    let counts: Vec<_> = (0..tasks).map(|_| Mine(UnsafeCell::new(0))).collect();
    // SAFETY: as loom checks.
    let panic = shared.run(tasks, &|index| counts[index].0.with_mut(|count| unsafe { *count += 1 }));
    assert!(panic.is_none());
    // SAFETY: as loom checks.
    assert!(counts.iter().all(|count| count.0.with(|count| unsafe { *count == 1 })));
}

/// Tasks that wait for each other, so all threads must take part. loom reports deadlocks.
fn meet(shared: &Shared, tasks: usize) {
    let (here, all_here) = (Mutex::new(0), Condvar::new());
    let panic = shared.run(tasks, &|_| {
        let mut here = here.lock().unwrap();
        *here += 1;
        all_here.notify_all();
        while *here < tasks {
            here = all_here.wait(here).unwrap();
        }
    });
    assert!(panic.is_none());
}

#[test]
fn one_section() {
    check(1, None, |shared| count(shared, 2));
}

#[test]
fn two_workers() {
    check(2, Some(2), |shared| [2, 3].into_iter().for_each(|tasks| count(shared, tasks)));
}

/// More preemptions, so that a worker may still hold the claim of a finished section.
#[test]
fn a_worker_that_comes_late() {
    check(1, Some(4), |shared| [2, 2].into_iter().for_each(|tasks| count(shared, tasks)));
    check(1, Some(2), |shared| [2, 3, 2].into_iter().for_each(|tasks| count(shared, tasks)));
}

#[test]
fn sleeping_workers_wake_up() {
    check(1, Some(3), |shared| (0..2).for_each(|_| meet(shared, 2)));
    check(2, Some(1), |shared| meet(shared, 3));
}
