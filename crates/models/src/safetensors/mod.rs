//! Safetensors files: the header's length in eight bytes, a JSON header, and data
//! (<https://huggingface.co/docs/safetensors>). The header is checked before it is used.
//!
//! Files are read, not memory-mapped; [`super::gguf`] explains why.

mod fp8_format;
mod header;
mod model_folder;

use crate::error::ModelError;
pub use fp8_format::Fp8Format;
pub(crate) use header::{FP8_SCALES, MXFP4_CODES, MXFP4_SCALES};
pub use header::{Header, TensorInfo, parse_header, read_header};
pub use model_folder::{
    MULTIMODAL_TYPES, ModelFolder, OLD_TEXT_PREFIX, is_file_name, open, parse_json, read_config, read_json, shards,
};

/// An error with the name of the file.
fn file_error(path: &std::path::Path, problem: impl std::fmt::Display) -> ModelError {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    ModelError::Checkpoint(format!("{file}: {problem}"))
}
