//! Image generation: loaded pipelines, the queue and the image thread.

mod adapters;
mod events;
mod model;
mod prompt_tokenizer;
mod queue;
mod request;
mod thread;

pub(super) use adapters::MemorySource;
pub use events::ImageEvents;
pub use model::ImageModel;
pub(super) use model::{ImageModelInfo, PromptIds, footprint, open};
pub(super) use prompt_tokenizer::PromptTokenizer;
pub(super) use queue::{ImageJob, ImageQueue};
pub use request::{Image, ImageEvent, ImageRequest, InitImage, SchedulerName};
pub(super) use thread::{ImageThread, Pause};
