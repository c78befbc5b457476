//! Cuts audio into windows of at most 30 seconds that contain the speech.

mod packing;
mod segments;
mod splitter;
#[cfg(test)]
mod tests;
mod voice;

pub use splitter::{MAX_WINDOW, Window, WindowSplitter};
