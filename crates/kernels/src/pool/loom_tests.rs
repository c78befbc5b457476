//! Model checking of the pool with loom: all interleavings of a few threads and sections, including those of a weak
//! memory model, with a limited number of preemptions. loom does not reorder a store before earlier operations of its
//! thread, so it cannot check that `publish` invalidates the index before it changes the other fields.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p outpost-kernels --lib --release loom_tests` takes one minute.

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Condvar, Mutex};

use super::shared::Shared;

/// Data that one thread at a time may access; loom reports races.
struct Exclusive(UnsafeCell<usize>);

// SAFETY: loom checks each access.
unsafe impl Sync for Exclusive {}

/// Runs `sections` with `workers` worker threads in all interleavings with up to `preemptions` preemptions.
fn check(workers: usize, preemptions: Option<usize>, sections: impl Fn(&Shared) + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = preemptions;
    model.check(move || {
        let shared = Arc::new(Shared::new());
        let worker = |_| {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || shared.run_worker())
        };
        let threads: Vec<_> = (0..workers).map(worker).collect();
        sections(&shared);
        shared.stop();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// Runs a section; each task must run once, and its writes must be visible afterwards.
fn count_tasks(shared: &Shared, tasks: usize) {
    let counts: Vec<_> = (0..tasks).map(|_| Exclusive(UnsafeCell::new(0))).collect();
    // SAFETY: loom checks the access.
    let panic = shared.run(tasks, &|index| counts[index].0.with_mut(|count| unsafe { *count += 1 }));
    assert!(panic.is_none());
    // SAFETY: loom checks the access.
    assert!(counts.iter().all(|count| count.0.with(|count| unsafe { *count == 1 })));
}

/// Runs a section whose tasks wait for each other, so that all threads must take part. loom reports deadlocks.
fn run_barrier(shared: &Shared, tasks: usize) {
    let (arrived, all_arrived) = (Mutex::new(0), Condvar::new());
    let panic = shared.run(tasks, &|_| {
        let mut count = arrived.lock().unwrap();
        *count += 1;
        all_arrived.notify_all();
        while *count < tasks {
            count = all_arrived.wait(count).unwrap();
        }
    });
    assert!(panic.is_none());
}

#[test]
fn one_section() {
    check(1, None, |shared| count_tasks(shared, 2));
}

#[test]
fn two_workers() {
    check(2, Some(2), |shared| [2, 3].into_iter().for_each(|tasks| count_tasks(shared, tasks)));
}

/// With more preemptions, a worker may still have the claim of a finished section.
#[test]
fn a_late_worker_does_not_run_a_task_of_a_finished_section() {
    check(1, Some(4), |shared| [2, 2].into_iter().for_each(|tasks| count_tasks(shared, tasks)));
    check(1, Some(2), |shared| [2, 3, 2].into_iter().for_each(|tasks| count_tasks(shared, tasks)));
}

#[test]
fn sleeping_workers_wake_up() {
    check(1, Some(3), |shared| (0..2).for_each(|_| run_barrier(shared, 2)));
    check(2, Some(1), |shared| run_barrier(shared, 3));
}
