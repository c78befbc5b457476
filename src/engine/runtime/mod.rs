//! What every kind of work shares: the queue, the compute thread, the memory budget, the models on disk and in memory,
//! and the metrics.

pub mod discovery;
pub mod memory;
pub mod metrics;
pub mod panics;
pub mod queue;
pub mod registry;
pub mod worker;
