//! Describes a Whisper model in a `ggml-*.bin` of whisper.cpp.
//!
//! whisper.cpp reads no GGUF. The GGUF files of other projects have different names and lack sizes, so a reader of one
//! of them would not read the next.

use std::path::Path;

use crate::model_info::{ModelInfo, ModelKind};
use outpost_models::whisper::GgmlFile;

pub(super) fn describe(path: &Path, info: &mut ModelInfo) {
    info.kind = ModelKind::Transcription;
    info.architecture = "whisper".to_owned();
    match GgmlFile::open(path) {
        Ok(file) => {
            info.parameters = file.parameters();
            info.quantization = file.quantization().map(str::to_owned);
        }
        Err(error) => info.problem = Some(error.to_string()),
    }
}
