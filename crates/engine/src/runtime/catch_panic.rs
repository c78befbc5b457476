//! Turns panics in libraries and computations into errors, so that the server keeps running.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard};

use outpost_models::ModelError;

/// For loading a model's files, which may be damaged.
pub fn catch_load_panic<T>(load: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_panic(load, "loading it panicked")
}

/// For running a model's tokenizer or chat template.
pub fn catch_preprocess_panic<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_panic(work, "running it panicked: it may be damaged")
}

/// For running a network. KV blocks that it was writing may be left incomplete.
pub fn catch_compute_panic<T>(work: impl FnOnce() -> Result<T, ModelError>) -> Result<T, ModelError> {
    catch_panic(work, "the computation panicked")
}

/// Locks the mutex. If a panic left its value in an unknown state, `reset` repairs it first.
pub fn lock_or_reset<T>(mutex: &Mutex<T>, reset: impl FnOnce(&mut T)) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| {
        let mut value = poisoned.into_inner();
        reset(&mut value);
        mutex.clear_poison();
        value
    })
}

fn catch_panic<T, E: From<String>>(work: impl FnOnce() -> Result<T, E>, panicked: &str) -> Result<T, E> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(panicked.to_owned().into()))
}
