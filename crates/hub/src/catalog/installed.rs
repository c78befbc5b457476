//! The contents of the models folder, compared with the catalog.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use super::catalog_toml::{Catalog, CatalogModel};
use super::hashing;
use super::name_validation::is_reserved;
use super::progress::Progress;
use outpost_models::diffusion::pipeline::MODEL_INDEX;
use outpost_models::model_files::{
    FolderListing, file_model_name, gguf_files, is_ggml, is_gguf, is_hidden, is_hidden_path, is_projector,
    is_safetensors, is_weights,
};

/// The file that names other servers as those that run a model.
pub(super) const UPSTREAM: &str = "upstream.toml";

/// A model in the models folder: a folder or a file.
#[derive(Debug, PartialEq, Eq)]
pub struct ModelOnDisk {
    pub name: String,
    /// Sum of its files.
    pub bytes: u64,
    /// Set for upstream models, which other servers run.
    pub is_upstream: bool,
}

/// State of a catalog model on disk.
pub(super) enum InstallState {
    Absent,
    Complete,
    /// Something with that name exists but is not this model, for this reason.
    Different(String),
}

/// The models of the catalog that are complete on disk, by the sizes of their files.
pub fn installed<'c>(catalog: &'c Catalog, models_dir: &Path) -> Vec<&'c CatalogModel> {
    catalog.models().iter().filter(|model| matches!(install_state(model, models_dir), InstallState::Complete)).collect()
}

/// Every file of weights, and every folder that has weights or describes an upstream model, sorted by name. The parts of a split
/// file are one model. A folder hides a file of its name. An unreadable models folder has none.
pub fn models_on_disk(models_dir: &Path) -> Vec<ModelOnDisk> {
    let FolderListing { folders, files, .. } = FolderListing::read(models_dir);
    let folders = folders.iter().filter_map(|path| Some((false, measure_folder(path)?)));
    let files = files.iter().filter_map(|path| Some((true, measure_file(path)?)));
    let mut found: Vec<(bool, ModelOnDisk)> = folders.chain(files).collect();
    found.sort_by(|(is_file, one), (is_other_file, other)| (&one.name, is_file).cmp(&(&other.name, is_other_file)));
    found.dedup_by(|(_, later), (_, earlier)| later.name == earlier.name);
    found.into_iter().map(|(_, found)| found).collect()
}

fn measure_folder(path: &Path) -> Option<ModelOnDisk> {
    let (name, is_upstream) = (listed_name(path.file_name()?)?, path.join(UPSTREAM).is_file());
    let mut sum = Sum::default();
    sum.add(path, 0);
    (is_upstream || sum.weights).then_some(ModelOnDisk { name, bytes: sum.bytes, is_upstream })
}

fn measure_file(path: &Path) -> Option<ModelOnDisk> {
    let name = file_model_name(path).filter(|_| is_weights(path) && !is_projector(path))?;
    let bytes = gguf_files(path).iter().map(|file| fs::metadata(file).map_or(0, |metadata| metadata.len())).sum();
    Some(ModelOnDisk { name: listed_name(name.as_ref())?, bytes, is_upstream: false })
}

/// The name of a model in the models folder; `None` for what is not a model.
fn listed_name(name: &OsStr) -> Option<String> {
    let name = name.to_str()?;
    let is_other = is_hidden(name) || name.chars().any(char::is_control) || is_reserved(name);
    (!is_other).then(|| name.to_owned())
}

#[derive(Default)]
struct Sum {
    bytes: u64,
    weights: bool,
}

impl Sum {
    fn add(&mut self, dir: &Path, depth: usize) {
        let FolderListing { folders, files, .. } = FolderListing::read(dir);
        for path in files {
            self.bytes += fs::metadata(&path).map_or(0, |metadata| metadata.len());
            self.weights |= is_weights(&path);
        }
        // A link to a folder could lead in a circle.
        for folder in folders.iter().filter(|folder| depth < 8 && !folder.is_symlink()) {
            self.add(folder, depth + 1);
        }
    }
}

/// True if the server treats a folder with these files (relative paths) as a model.
pub(super) fn is_model<'f>(files: impl IntoIterator<Item = &'f str> + Clone) -> bool {
    let visible = || files.clone().into_iter().filter(|file| !is_hidden_path(file)).map(Path::new);
    let top_level = || visible().filter(|file| file.components().count() == 1);
    let has = |name: &str| visible().any(|file| file == Path::new(name));
    let ggufs = top_level().filter(|file| is_gguf(file) && !is_projector(file)).count();
    match (ggufs, top_level().filter(|file| is_safetensors(file)).count()) {
        _ if has(MODEL_INDEX) => visible().any(is_weights),
        (1.., _) | (0, 1) => true,
        (0, 0) => top_level().any(is_ggml),
        (0, _) => has("config.json"),
    }
}

/// Compares only sizes, which is fast enough for every start.
pub(super) fn install_state(model: &CatalogModel, models_dir: &Path) -> InstallState {
    let dir = models_dir.join(&model.name);
    if dir.symlink_metadata().is_err() {
        return InstallState::Absent;
    }
    for file in &model.files {
        match fs::metadata(dir.join(&file.name)) {
            Err(_) => return InstallState::Different(format!("lacks the file {}", file.name)),
            Ok(meta) if meta.len() != file.bytes => {
                return InstallState::Different(format!(
                    "its {} has {} bytes, not {}",
                    file.name,
                    meta.len(),
                    file.bytes
                ));
            }
            Ok(_) => {}
        }
    }
    InstallState::Complete
}

/// Hashes every file of a model that [`install_state`] found complete.
pub(super) fn verify_hashes(model: &CatalogModel, models_dir: &Path, progress: &mut dyn Progress) -> InstallState {
    progress.start(&format!("checking {}", model.name), model.bytes());
    let dir = models_dir.join(&model.name);
    let wrong = model.files.iter().find_map(|file| {
        match hashing::file(&dir.join(&file.name), &mut |bytes| progress.advance(bytes)) {
            Ok(copied) if copied.sha256 == file.sha256 => None,
            Ok(copied) => Some(format!("its {} has the sha256 {}, not {}", file.name, copied.sha256, file.sha256)),
            Err(e) => Some(format!("its {} cannot be read: {e}", file.name)),
        }
    });
    progress.done();
    wrong.map_or(InstallState::Complete, InstallState::Different)
}
