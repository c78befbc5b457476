//! Describes a GGUF file.

use std::path::Path;

use crate::model_info::{ModelInfo, ModelKind};

use crate::checkpoint;
use crate::embedding;
use crate::tokenizer;
use outpost_models::decoder_family;
use outpost_models::gguf::{GgufFile, Header};

/// Architectures of embedding models.
const EMBEDDING_ARCHITECTURES: &[&str] = &[
    "bert",
    "modern-bert",
    "nomic-bert",
    "nomic-bert-moe",
    "neo-bert",
    "jina-bert-v2",
    "jina-bert-v3",
    "gemma-embedding",
];

pub(super) fn describe(path: &Path, info: &mut ModelInfo) {
    match GgufFile::open(path) {
        Ok(file) => fill(&file.header, info),
        Err(error) => info.problem = Some(error.to_string()),
    }
}

fn fill(header: &Header, info: &mut ModelInfo) {
    let metadata = &header.metadata;
    if let Some(count) = metadata.integer("split.count").filter(|count| *count > 1) {
        info.problem = Some(format!(
            "the file is one of {count} parts of a split model: merge them with `llama-gguf-split --merge`"
        ));
        return;
    }
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
    if EMBEDDING_ARCHITECTURES.contains(&name) || embedding::pooling_type(metadata).is_some_and(|kind| kind > 0) {
        let cross_encoder = embedding::gguf_is_cross_encoder(metadata);
        info.kind = if cross_encoder { ModelKind::Reranker } else { ModelKind::Embedding };
        info.embedding_dimensions = small("embedding_length").filter(|_| !cross_encoder);
        match embedding::check_gguf(header, &info.id) {
            Ok(encoder) => {
                info.context_window = u32::try_from(encoder.limit).ok();
                info.embedding_dimensions = u32::try_from(encoder.dimensions).ok().filter(|_| !cross_encoder);
            }
            Err(problem) => info.problem = Some(problem),
        }
        return;
    }
    info.kind = if decoder_family::find_architecture(name).is_some() { ModelKind::Text } else { ModelKind::Unknown };
    match checkpoint::check_gguf(header) {
        Ok(has_template) => info.has_chat_template = has_template,
        Err(problem) => info.problem = Some(problem),
    }
    info.infills = info.kind == ModelKind::Text && info.problem.is_none() && tokenizer::has_fim_tokens(metadata);
}
