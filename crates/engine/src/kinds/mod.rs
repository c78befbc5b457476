//! Kinds of models: chat models, encoders, transcription, speech and image models.
//!
//! A kind is a folder of this crate and a line in `list.rs`. The folder's `kind.rs` implements [`Model`], which says which files
//! are a model of the kind and which workload computes its requests. It implements [`Runs`] of the model for the backends with
//! all operations that its network needs, which says what memory a checkpoint needs and how its weights are read. Everything that
//! handles models of all kinds goes through these traits or through the list; nothing else has a branch for each kind.

mod list;
mod model;
mod queue;

pub use list::{KINDS, Kind, LoadHooks, start_queues};
pub use model::{Adaptable, LoadOptions, LoadSource, LoadedModel, MemoryNeed, Model, ModelFiles, Runs, downcast};
pub use queue::{QueuedWorkload, Queues, RequestQueue};
