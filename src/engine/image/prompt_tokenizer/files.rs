//! The tokenizer files of a text encoder.

use crate::engine::tokenizer::files::TextFiles;

/// The error for a tokenizer that a library refuses.
pub fn unusable(error: impl std::fmt::Display) -> String {
    format!("its tokenizer cannot be used: {error}")
}

/// A file's text.
pub fn text<'a>(files: &'a TextFiles, name: &str) -> Result<&'a str, String> {
    files.text(name).map_err(unusable)?.ok_or_else(|| unusable(format!("its folder has no {name}")))
}
