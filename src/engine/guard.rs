//! A panic in a library, or in a computation, is an error like others: the program lives on.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Whatever a library does with a damaged file.
pub(super) fn guarded<T>(load: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    caught(load, "loading it failed")
}

/// What a network is at; unread blocks of keys and values may be left behind.
pub(super) fn computed<T>(work: impl FnOnce() -> candle_core::Result<T>) -> Result<T, String> {
    caught(work, "the computation panicked")
}

fn caught<T, E: ToString>(work: impl FnOnce() -> Result<T, E>, panicked: &str) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(_) => Err(panicked.to_owned()),
    }
}
