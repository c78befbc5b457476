//! Kinds of models: chat models, encoders, transcription, speech and image models.
//!
//! A kind is a folder of this crate and a line in `list.rs`. The folder's `kind.rs` implements [`Model`], which says what memory
//! a checkpoint needs and how its weights are read. Everything that handles models of all kinds goes through that trait or through
//! the list; nothing else has a branch for each kind.

mod list;
mod model;

pub use list::{Kind, LoadHooks};
pub use model::{Adaptable, LoadSource, LoadedModel, MemoryNeed, Model, downcast};
