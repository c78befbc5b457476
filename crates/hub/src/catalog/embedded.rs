//! Models embedded in the binary: small models of this project, which no registry has.
//!
//! No registry has an image model that is small and has a free license, so this one was trained for the purpose
//! (`tools/pictogram`), and there is no source to pull it from. The binary is 44 MB larger; these bytes are read from
//! disk only when they are written to the models folder. A separate file would have to accompany the binary. In a
//! checkout, `models/pictogram` contains the same files, and a development build reads them from there. A models folder
//! that contains only this model counts as empty: the first start pulls the other starter models.

use rust_embed::RustEmbed;

use super::catalog_toml::CatalogModel;
use super::error::{FolderError, PullError};
use super::hashing;
use super::progress::Progress;
use super::staging::Staging;

/// Development builds read the files from the checkout instead.
#[derive(RustEmbed)]
#[folder = "../../models/pictogram"]
#[prefix = "pictogram/"]
struct Files;

/// Fills the staging's `files` with the verified files of the model.
pub fn write(model: &CatalogModel, staging: &Staging, progress: &mut dyn Progress) -> Result<(), PullError> {
    staging.check_space(model.bytes())?;
    progress.start(&format!("writing {}", model.name), model.bytes());
    let written = model.files.iter().try_for_each(|file| {
        let (mut writer, path) = staging.create(&file.name)?;
        let data = Files::get(&format!("{}/{}", model.name, file.name)).map(|found| found.data).unwrap_or_default();
        let copied = hashing::copy(&*data, &mut writer, file.bytes, &mut |n| progress.advance(n));
        let found = copied.map_err(FolderError::at(&path))?.sha256;
        match found == file.sha256 {
            true => Ok(()),
            false => Err(PullError::HashMismatch { file: file.name.clone(), expected: file.sha256.clone(), found }),
        }
    });
    progress.done();
    written
}
