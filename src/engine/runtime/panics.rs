//! A panic in a library, or in a computation, is an error like others: the program lives on.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::models::ModelError;

/// Whatever a library does with a damaged file.
pub fn guarded<T>(load: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    caught(load, "loading it failed")
}

/// What a model's tokenizer and chat template are at.
pub fn interpreted<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    caught(work, "it is damaged")
}

/// What a network is at; unread blocks of keys and values may be left behind.
pub fn computed<T>(work: impl FnOnce() -> Result<T, ModelError>) -> Result<T, String> {
    caught(|| work().map_err(|error| error.to_string()), "the computation panicked")
}

/// What the image thread is doing.
pub fn generated<T>(work: impl FnOnce() -> Result<T, ModelError>) -> Result<T, ModelError> {
    caught(work, "the computation panicked")
}

fn caught<T, E: From<String>>(work: impl FnOnce() -> Result<T, E>, panicked: &str) -> Result<T, E> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(panicked.to_owned().into()))
}
