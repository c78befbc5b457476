//! A panic in a library, or in a computation, is an error like others: the program lives on.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::models::diffusion::pipeline::Interrupted;

/// Whatever a library does with a damaged file.
pub fn catch_load_panic<T>(load: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_panic(load, "loading it failed")
}

/// What a model's tokenizer and chat template are at.
pub fn catch_preprocess_panic<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_panic(work, "it is damaged")
}

/// What a network is at; unread blocks of keys and values may be left behind.
pub fn catch_compute_panic<T>(work: impl FnOnce() -> candle_core::Result<T>) -> Result<T, String> {
    catch_panic(|| work().map_err(|error| error.to_string()), "the computation panicked")
}

/// What a painter is at.
pub fn catch_generate_panic<T>(work: impl FnOnce() -> Result<T, Interrupted>) -> Result<T, Interrupted> {
    catch_panic(work, "the computation panicked")
}

fn catch_panic<T, E: From<String>>(work: impl FnOnce() -> Result<T, E>, panicked: &str) -> Result<T, E> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(panicked.to_owned().into()))
}
