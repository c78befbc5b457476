//! The `ggml-*.bin` files of whisper.cpp: sizes, mel filters, the vocabulary, and tensors, one after the other
//! (<https://github.com/ggml-org/whisper.cpp/blob/master/models/convert-pt-to-ggml.py>).
//!
//! Files are untrusted input. Every count is checked against its limit and the file's size before it is used.

mod file;
mod reader;
mod tensor;
#[cfg(test)]
mod tests;

use std::path::Path;

pub use file::GgmlFile;

/// Whether the name is that of a model of whisper.cpp: `ggml-NAME.bin`.
pub fn is_ggml(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.and_then(|name| name.strip_prefix("ggml-")?.strip_suffix(".bin")).is_some_and(|name| !name.is_empty())
}
