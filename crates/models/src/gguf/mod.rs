//! GGUF files: a header and tensors (<https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>, versions 2 and 3,
//! little-endian).
//!
//! Model files are untrusted input, so every count, alignment and offset in the header is checked against the file's size
//! before it is used. candle's header reader does not check them.
//!
//! Files are read, not memory-mapped. Weights are repacked anyway, and if a mapped file is truncated, the process is
//! killed; a failed read is an error.

mod architecture_metadata;
mod cursor;
mod file;
mod header;
mod stored_type;
mod tensor;
mod value;

#[cfg(test)]
mod tests;

pub(crate) use architecture_metadata::ArchitectureMetadata;
pub use file::{GgufFile, MAX_HEADER_BYTES};
pub use header::{Header, parse_header};
pub use stored_type::{ConvertedType, StoredType};
pub use tensor::{TensorInfo, type_named};
pub(crate) use tensor::{find_type, most_frequent_type, size_in_bytes};
pub use value::{Array, Metadata, Number, Value};

/// The reason why a file was rejected.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    #[error("not a GGUF file: it begins with {0:02x?}, not with \"GGUF\"{hint}", hint = git_lfs_hint(*.0))]
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
    /// The header continues after the bytes that were read; more of the file must be read.
    #[error("the header is longer than the {0} bytes read of it")]
    Short(u64),
}

impl GgufError {
    fn damaged(message: impl Into<String>) -> Self {
        Self::Damaged(message.into())
    }
}

fn git_lfs_hint(magic: [u8; 4]) -> &'static str {
    if &magic == b"vers" { " (it is a pointer of Git LFS: run `git lfs pull` in its repository)" } else { "" }
}

fn big_endian_hint(version: u32) -> &'static str {
    if matches!(version.swap_bytes(), 1..=3) { " (the file is big-endian)" } else { "" }
}
