//! Models of hubs, registries and other servers, which a user installs by name: `outpost models pull hf:USER/REPO:QUANT`.
//!
//! A pull has two steps. [`Hub::plan`] lists the files of a source, chooses some, and reads their headers, which say
//! whether this server supports the model, and how much memory it takes. Only then does [`Hub::install`] download the files,
//! verify them and move the model into the models folder by one rename. Sources differ only in how they list their
//! files (`hugging_face`, `registry`, `url_source`).
//!
//! Only a user's own command, or an admin of a server with `--allow-pull`, opens connections. What a source says is untrusted:
//! names, sizes and texts are checked.

mod client;
mod error;
mod folder_owner;
mod folder_plan;
mod folder_selection;
mod gguf_plan;
mod header_folder;
mod hugging_face;
mod hugging_face_reference;
mod install;
mod plan;
mod quantization;
mod reference;
mod registry;
mod registry_archive;
mod registry_manifest;
mod registry_reference;
mod remote_file;
mod repository;
mod settings;
mod url_reference;
mod url_source;

pub use client::Hub;
pub use error::HubError;
pub use folder_owner::foreign_owner;
pub use hugging_face_reference::HuggingFaceModel;
pub use install::{InstallOptions, Installed, verify_installed};
pub use plan::{Plan, PlanOptions};
pub use quantization::{Candidate, State};
pub use reference::{BadReference, ModelReference};
#[doc(hidden)]
pub use registry_manifest::{Artifact, Manifest};
pub use registry_reference::RegistryModel;
pub use remote_file::PlannedFile;
pub use repository::{HubFile, Repository};
pub use settings::HubSettings;
pub use url_reference::UrlFile;

pub use crate::catalog::{Integrity, SOURCE_FILE, SourceEntry, SourceFile, read_source};
