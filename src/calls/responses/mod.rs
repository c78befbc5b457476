//! Responses: those that are generated in the background, what streams follow of them, and summaries of conversations.

pub mod background;
pub mod item_format;
pub mod live;
pub mod shared_steps;
pub mod summary;
