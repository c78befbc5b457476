//! Files that are named by their address.

use std::path::Path;

use percent_encoding::percent_decode_str;

use crate::catalog::check_file_path;
use crate::download::Location;
use outpost_models::model_files::{is_ggml, is_gguf, is_hidden};

/// A file at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlFile {
    pub location: Location,
    /// The last segment of its path, decoded: a GGUF file, or a `ggml-*.bin` file of Whisper.
    pub name: String,
}

impl UrlFile {
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        if text.contains('#') {
            return Err("has a fragment");
        }
        let location = Location::parse(text)?;
        let last = location.path().rsplit('/').next().unwrap_or_default();
        let name = percent_decode_str(last).decode_utf8().map_err(|_| "has a name that is not UTF-8")?.into_owned();
        if check_file_path(&name).is_err() || name.contains('/') {
            return Err("has a name that cannot be that of a file");
        }
        match !is_hidden(&name) && (is_gguf(Path::new(&name)) || is_ggml(Path::new(&name))) {
            true => Ok(Self { location, name }),
            false => Err("is not the address of a .gguf file or a ggml-*.bin file"),
        }
    }
}
