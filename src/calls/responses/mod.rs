//! Stored responses that are generated in the background, and what streams follow of them.

pub mod background;
pub mod item_format;
pub mod live;
pub mod shared_steps;
