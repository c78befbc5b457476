//! Models of hubs, which a user installs by name: `outpost models pull hf:USER/REPO:QUANT`.
//!
//! A pull has two steps. [`Hub::plan`] lists the files of a repository, chooses some, and reads their headers, which say
//! whether this server supports the model, and how much memory it takes. Only then does [`Hub::install`] download the files,
//! verify them and give the model its place in the models folder by one rename.
//!
//! Only a user's own command, or the request of an admin to a server with `--allow-pull`, opens connections. What a hub says is untrusted: names, sizes and texts are checked.

mod client;
mod error;
mod folder_owner;
mod folder_plan;
mod folder_selection;
mod gguf_plan;
mod header_folder;
mod hugging_face;
mod install;
mod plan;
mod quantization;
mod reference;
mod remote_file;
mod settings;
mod source_file;

pub use client::Hub;
pub use error::HubError;
pub use folder_owner::foreign_owner;
pub use hugging_face::Repository;
pub use install::{InstallOptions, Installed};
pub use plan::{Plan, PlanOptions};
pub use quantization::{Candidate, State};
pub use reference::{BadReference, HuggingFaceModel, ModelReference};
pub use remote_file::PlannedFile;
pub use settings::HubSettings;
pub use source_file::{SOURCE_FILE, SourceEntry, SourceFile, read_source};
