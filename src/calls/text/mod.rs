//! Chats, completions and the other calls of text models.

pub mod chat;
pub mod completions;
pub mod dialect;
pub mod generation;
mod running_generation;
pub mod sampling_request;
pub mod tokenization;
