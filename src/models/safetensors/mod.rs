//! Safetensors files: eight bytes of length, a JSON header, data
//! (<https://huggingface.co/docs/safetensors>). The header is checked before it is believed.
//!
//! Files are read, not mapped, for the reason that [`super::gguf`] gives.

mod header;
mod model_folder;

pub use header::{Header, TensorInfo, read_header};
pub use model_folder::{ModelFolder, is_file_name, parse_json, read_json, shards};

/// Why a file is refused, in words for the person who put it there.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {problem}")]
pub struct SafetensorsError {
    pub file: String,
    pub problem: String,
}

impl SafetensorsError {
    fn new(path: &std::path::Path, problem: impl std::fmt::Display) -> Self {
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Self { file, problem: problem.to_string() }
    }
}
