//! Describes a pipeline in a single file, whose tensors have the names of the original implementation.

use std::path::{Path, PathBuf};

use super::model_card::license;
use super::safetensors::count_weights;
use crate::image::{self, ImageSizes};
use crate::model_info::{ModelInfo, ModelKind};
use outpost_models::model_files::FolderListing;

/// `path`: the file, or the folder in which it is the only safetensors file.
pub(super) fn describe(path: &Path, info: &mut ModelInfo) {
    info.kind = ModelKind::Image;
    info.license = license(path);
    match image::open(path) {
        Ok(components) => {
            info.architecture.clone_from(&components.class);
            info.image_sizes = ImageSizes::of(&components).preferred();
        }
        Err(problem) => info.problem = Some(problem),
    }
    let files: Vec<PathBuf> = if path.is_dir() { FolderListing::read(path).files } else { vec![path.to_owned()] };
    if let Err(problem) = count_weights(&files, info) {
        info.problem.get_or_insert(problem);
    }
}
