//! GGUF files: a header that is checked before anything in it is believed, then the tensors.
//!
//! The format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>, versions 2 and 3,
//! little-endian. candle's own header reader trusts counts, alignments and offsets; a model file
//! comes from strangers, so this one checks every number against the file's size first.
//!
//! Files are read, not mapped: weights are packed anew anyway, and a mapped file that someone
//! truncates kills the process where a failed read is an error.

mod cursor;
mod file;
mod header;
mod tensor;
mod value;

pub use file::{GgufFile, MAX_HEADER_BYTES};
pub use header::{Header, parse_header};
pub use tensor::TensorInfo;
pub use value::{Array, Metadata, Number, Value};

/// Why a file is refused, in words for the person who put it there.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    #[error("not a GGUF file: it begins with {0:02x?}, not with \"GGUF\"")]
    NotGguf([u8; 4]),
    #[error("GGUF version {0} is not supported: versions 2 and 3 are{hint}", hint = big_endian_hint(*.0))]
    Version(u32),
    #[error("the file is truncated: {what} ends at byte {end}, the file has {length} bytes")]
    Truncated { what: String, end: u64, length: u64 },
    #[error("the header is damaged: {0}")]
    Damaged(String),
    #[error("{0}")]
    Unsupported(String),
    #[error("the file cannot be read: {0}")]
    Io(#[from] std::io::Error),
    /// The header goes on after the bytes at hand, but inside the file: read more.
    #[error("the header is longer than the {0} bytes read of it")]
    Short(u64),
}

impl GgufError {
    fn damaged(message: impl Into<String>) -> Self {
        Self::Damaged(message.into())
    }
}

fn big_endian_hint(version: u32) -> &'static str {
    if matches!(version.swap_bytes(), 1..=3) { " (the file is big-endian)" } else { "" }
}
