//! Decoding in a child process, `outpost audio-decoder`.
//!
//! Containers and codecs are parsed where neither a crash nor an endless loop nor the memory that a hostile file asks
//! for can harm the server: the child can open nothing, and its memory and CPU time are limited.
//!
//! symphonia panics on some damaged files when overflow checks are on, as they are here. The child turns a panic into
//! an error for one request.

mod child;
mod parent;
mod positioned_file;
mod protocol;

pub use child::run;
pub use parent::{AudioDecoder, Samples};
pub use protocol::Pass;

/// The subcommand of `outpost` that runs as the child process.
pub const SUBCOMMAND: &str = "audio-decoder";
