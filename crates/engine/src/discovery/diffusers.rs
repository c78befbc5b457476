//! Describes a diffusers pipeline: `model_index.json` and one folder for each component.

use std::path::{Path, PathBuf};

use super::model_card::license;
use super::safetensors::count_weights;
use crate::image::{self, ImageSizes};
use crate::model_info::{LORAS, ModelInfo, ModelKind};
use outpost_models::gguf::GgufFile;
use outpost_models::model_files::{FolderListing, SplitPart, gguf_files, is_gguf};
use outpost_models::safetensors::{read_json, shards};

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
    let parts = FolderListing::read(folder).folders.into_iter().filter(|part| !part.ends_with(LORAS));
    // Those in use were opened above. Others, such as a safety checker, may be damaged.
    let is_readable = |files: &Vec<PathBuf>| count(files, &mut info.clone()).is_ok();
    let files: Vec<PathBuf> = parts.filter_map(|part| weight_files(&part)).filter(is_readable).flatten().collect();
    if let Err(problem) = count(&files, info) {
        info.problem.get_or_insert(problem);
    }
}

/// The weight files of a component; `None` if it has none, or none that can be used. A GGUF file replaces all others.
pub(super) fn weight_files(part: &Path) -> Option<Vec<PathBuf>> {
    match FolderListing::read(part).gguf() {
        Ok(Some(path)) => Some(gguf_files(path)),
        _ => shards(part).ok(),
    }
}

fn count(files: &[PathBuf], info: &mut ModelInfo) -> Result<(), String> {
    count_weights(files, info)?;
    count_gguf_weights(files, info)
}

/// Adds the weights in GGUF files to those already counted.
fn count_gguf_weights(files: &[PathBuf], info: &mut ModelInfo) -> Result<(), String> {
    // The first part of a split file opens the others.
    let is_first = |path: &Path| SplitPart::of_file(path).is_none_or(|part| part.number == 1);
    for path in files.iter().filter(|path| is_gguf(path) && is_first(path)) {
        let file = GgufFile::open(path).map_err(|error| error.to_string())?;
        info.bytes += file.length;
        info.parameters += file.header.parameters();
        info.quantization = file.header.quantization().map(str::to_owned);
    }
    Ok(())
}
