//! The prompt of an embedding model that a request chooses.

use crate::engine::InputType;

/// The model's own prompt that is prepended to the texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PromptChoice {
    /// That of a purpose, if the model has one.
    Purpose(InputType),
    /// The one of this name, which the model must have.
    Named(String),
}
