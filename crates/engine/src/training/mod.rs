//! Training of LoRA adapters: a background workload, which gives way to all others.

mod events;
mod memory;
mod options;
mod plan;
mod queue;
mod run;
mod state;
mod trainable;
mod workload;

pub use events::{Measurement, StepReport, TrainingCheckpoint, TrainingEvent, TrainingRun};
pub use memory::Memory;
pub use options::{TrainingData, TrainingMethod, TrainingOptions};
pub use outpost_models::training::TrainingText;
pub use queue::TrainingQueue;
pub use state::micro_batch;
pub use trainable::TrainableModel;
pub use workload::TrainingWorkload;
