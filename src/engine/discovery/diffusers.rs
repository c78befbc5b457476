//! The row of a pipeline's folder: `model_index.json`, and a folder for each of its parts.

use std::path::{Path, PathBuf};

use super::entries::entries;
use super::safetensors::{license, weigh_all};
use crate::engine::model_info::{ModelInfo, ModelKind};

use crate::engine::checkpoint::is_gguf;
use crate::engine::image::{self, ImageModelInfo};
use crate::models::gguf::GgufFile;
use crate::models::safetensors::read_json;

pub(super) fn describe(index: &Path, info: &mut ModelInfo) {
    let Some(folder) = index.parent() else { return };
    info.kind = ModelKind::Image;
    info.license = license(folder);
    let class = read_json(index).ok().and_then(|index| Some(index.get("_class_name")?.as_str()?.to_owned()));
    info.architecture = class.unwrap_or_else(|| "unknown".to_owned());
    match image::open(index) {
        Ok(components) => info.image_size = Some(ImageModelInfo::of(&components).size),
        Err(problem) => info.problem = Some(problem),
    }
    let files: Vec<PathBuf> = entries(folder).iter().flat_map(|part| weights(part)).collect();
    if let Err(problem) = weigh_all(&files, info).and_then(|()| weigh_ggufs(&files, info)) {
        info.problem.get_or_insert(problem);
    }
}

/// The files of a part: a GGUF file stands in for what else is there.
fn weights(part: &Path) -> Vec<PathBuf> {
    let files = entries(part);
    let ggufs: Vec<PathBuf> = files.iter().filter(|path| is_gguf(path)).cloned().collect();
    if ggufs.is_empty() { files } else { ggufs }
}

/// Counts weights in GGUF files beside those that are counted.
fn weigh_ggufs(files: &[PathBuf], info: &mut ModelInfo) -> Result<(), String> {
    for path in files.iter().filter(|path| is_gguf(path)) {
        let file = GgufFile::open(path).map_err(|error| error.to_string())?;
        info.bytes += file.length;
        info.parameters += file.header.parameters();
        info.quantization = file.header.quantization().map(str::to_owned);
    }
    Ok(())
}
