//! Stored conversations as the context of a chat, and the turns that are added to them.

pub mod context;
pub mod persist_turn;
pub mod truncation;
