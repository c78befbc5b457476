//! Safetensors files: eight bytes of length, a JSON header, data
//! (<https://huggingface.co/docs/safetensors>). The header is checked before it is believed.
//!
//! Files are read, not mapped, for the reason that [`super::gguf`] gives.

mod header;
mod model_folder;

use crate::models::error::ModelError;
pub use header::{Header, TensorInfo, read_header};
pub use model_folder::{ModelFolder, is_file_name, parse_json, read_json, shards};

/// The error for a file, with its name.
fn file_error(path: &std::path::Path, problem: impl std::fmt::Display) -> ModelError {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    ModelError::Checkpoint(format!("{file}: {problem}"))
}
