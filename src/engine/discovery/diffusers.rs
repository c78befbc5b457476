//! Describes a diffusers pipeline: `model_index.json` and one folder for each component.

use std::path::{Path, PathBuf};

use super::folder_listing::entries;
use super::safetensors::{count_weights, license};
use crate::engine::model_info::{ModelInfo, ModelKind};

use crate::engine::checkpoint::is_gguf;
use crate::engine::image::{self, ImageSizes};
use crate::models::gguf::GgufFile;
use crate::models::safetensors::read_json;

pub(super) fn describe(index: &Path, info: &mut ModelInfo) {
    let Some(folder) = index.parent() else { return };
    info.kind = ModelKind::Image;
    info.license = license(folder);
    let class = read_json(index).ok().and_then(|index| Some(index.get("_class_name")?.as_str()?.to_owned()));
    info.architecture = class.unwrap_or_else(|| "unknown".to_owned());
    match image::open(index) {
        Ok(components) => info.image_sizes = ImageSizes::of(&components).preferred(),
        Err(problem) => info.problem = Some(problem),
    }
    let files: Vec<PathBuf> = entries(folder).iter().flat_map(|part| weight_files(part)).collect();
    if let Err(problem) = count_weights(&files, info).and_then(|()| count_gguf_weights(&files, info)) {
        info.problem.get_or_insert(problem);
    }
}

/// The weight files of a component. A GGUF file replaces all others.
fn weight_files(part: &Path) -> Vec<PathBuf> {
    let files = entries(part);
    let ggufs: Vec<PathBuf> = files.iter().filter(|path| is_gguf(path)).cloned().collect();
    if ggufs.is_empty() { files } else { ggufs }
}

/// Adds the weights in GGUF files to those already counted.
fn count_gguf_weights(files: &[PathBuf], info: &mut ModelInfo) -> Result<(), String> {
    for path in files.iter().filter(|path| is_gguf(path)) {
        let file = GgufFile::open(path).map_err(|error| error.to_string())?;
        info.bytes += file.length;
        info.parameters += file.header.parameters();
        info.quantization = file.header.quantization().map(str::to_owned);
    }
    Ok(())
}
