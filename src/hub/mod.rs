//! Models of hubs, which a user installs by name: `outpost models pull hf:USER/REPO:QUANT`.
//!
//! A pull has two steps. [`Hub::plan`] lists the files of a repository, chooses one, and reads the first megabytes of it:
//! the header of a GGUF file says whether this server supports the model, and how much memory it takes. Only then does
//! [`Hub::install`] download the file, verify it and give the model its place in the models folder by one rename.
//!
//! Only the user's own command opens connections. What a hub says is untrusted: names, sizes and texts are checked.

mod client;
mod error;
mod hugging_face;
mod install;
mod plan;
mod quantization;
mod reference;
mod settings;
mod source_file;

pub use client::Hub;
pub use error::HubError;
pub use hugging_face::Repository;
pub use install::{InstallOptions, Installed};
pub use plan::{Plan, PlanOptions};
pub use quantization::{Candidate, State};
pub use reference::{BadReference, HuggingFaceModel, ModelReference};
pub use settings::HubSettings;
pub use source_file::{SOURCE_FILE, SourceFile, read_source};
