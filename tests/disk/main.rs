//! What the storage promises when the power goes or the disk fails, on a disk that lives in memory.
#![cfg(test)]
#![expect(clippy::disallowed_methods, reason = "a test measures how long a refusal really takes")]

mod damage;
mod faults;
mod history;
mod panics;
mod power_loss;
mod recovery;
mod server;
mod simulated_disk;
mod workload;
