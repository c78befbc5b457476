//! To whom the models folder belongs.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The ID of the user to whom the models folder belongs, if that is another one and this process is root. Files that root creates
/// there could not be changed by that user, and a link that this user has planted could lead root elsewhere.
pub fn foreign_owner(models_dir: &Path) -> Option<u32> {
    let owner = std::fs::metadata(models_dir).map_or(0, |it| it.uid());
    (rustix::process::geteuid().is_root() && owner != 0).then_some(owner)
}
