//! The models of `tests/fixtures`.

use std::path::{Path, PathBuf};

/// The path of a file or folder in `tests/fixtures`.
pub fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(path)
}

/// Copies a folder and everything in it.
pub fn copy_folder(src: &Path, dst: &Path) {
    std::fs::create_dir_all(dst).unwrap();
    for entry in src.read_dir().unwrap() {
        let path = entry.unwrap().path();
        let target = dst.join(path.file_name().unwrap());
        if path.is_dir() {
            copy_folder(&path, &target);
        } else {
            std::fs::copy(&path, &target).unwrap();
        }
    }
}

/// Copies the model `tests/fixtures/<kind>/<name>` into a folder of models.
pub fn add_fixture(kind: &str, models: &Path, name: &str) {
    copy_folder(&fixture(kind).join(name), &models.join(name));
}
