//! What the storage promises when the power goes or the disk fails, on a disk that lives in memory.
#![cfg(test)]
#![expect(clippy::disallowed_methods, reason = "a test measures how long a refusal really takes")]

mod damage;
mod disk;
mod faults;
mod history;
mod panics;
mod power;
mod recovery;
mod server;
mod workload;
