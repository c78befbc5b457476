//! Describes a GGUF file.

use std::path::Path;

use crate::kinds::{Kind, ModelFiles};
use crate::model_info::ModelInfo;
use outpost_models::gguf::{GgufFile, Header};

pub(super) fn describe(path: &Path, info: &mut ModelInfo) {
    match GgufFile::open(path) {
        Ok(file) => fill(&file.header, info),
        Err(error) => info.problem = Some(error.to_string()),
    }
}

fn fill(header: &Header, info: &mut ModelInfo) {
    let metadata = &header.metadata;
    let name = metadata.text("general.architecture").unwrap_or("unknown");
    let small = |key: &str| metadata.integer(&format!("{name}.{key}")).and_then(|number| u32::try_from(number).ok());
    let text = |key: &str| metadata.text(key).filter(|text| !text.is_empty()).map(str::to_owned);
    info.architecture = name.to_owned();
    info.parameters = header.parameters();
    info.quantization = header.quantization().map(str::to_owned);
    info.context_window = small("context_length");
    info.width = small("embedding_length");
    info.license = text("general.license");
    if let Some(owner) = text("general.organization").or_else(|| text("general.author")) {
        info.owned_by = owner;
    }
    Kind::describe(&ModelFiles::Gguf(header), info);
}
