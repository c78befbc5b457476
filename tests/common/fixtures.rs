//! The models of `tests/fixtures`.

use std::path::Path;

/// Copies the model `tests/fixtures/<kind>/<name>` into a folder of models.
pub fn add_fixture(kind: &str, models: &Path, name: &str) {
    fn copy(src: &Path, dst: &Path) {
        std::fs::create_dir_all(dst).unwrap();
        for entry in src.read_dir().unwrap() {
            let entry = entry.unwrap();
            let (src, dst) = (entry.path(), dst.join(entry.file_name()));
            if src.is_dir() {
                copy(&src, &dst);
            } else {
                std::fs::copy(&src, &dst).unwrap();
            }
        }
    }
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(kind);
    copy(&fixtures.join(name), &models.join(name));
}
