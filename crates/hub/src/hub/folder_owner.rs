//! The owner of the models folder.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The ID of the user who owns the models folder, if this process is root and that user is not. The user could not change files
/// that root creates there, and could plant a link that leads root elsewhere.
pub fn foreign_owner(models_dir: &Path) -> Option<u32> {
    let owner = std::fs::metadata(models_dir).map_or(0, |it| it.uid());
    (rustix::process::geteuid().is_root() && owner != 0).then_some(owner)
}
