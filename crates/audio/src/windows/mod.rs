//! Cuts audio into windows of at most 30 seconds that contain the speech.
//!
//! Windows are independent. OpenAI's implementation decodes window by window, each from the last timestamp of the one
//! before and with its text as a prompt. Here pauses decide where windows begin, as in WhisperX and faster-whisper's
//! batched pipeline, so that several are computed together, an error does not spread, and silence, for which the model
//! invents text, is left out. Within a window, the rule of the last timestamp still holds, and a file of at most 30
//! seconds gives the text and times of transformers. The price is that a prompt applies to every window, and that
//! spelling may differ between windows.

mod packing;
mod segments;
mod splitter;
#[cfg(test)]
mod tests;
mod voice;

pub use splitter::{MAX_WINDOW, Window, WindowSplitter};
