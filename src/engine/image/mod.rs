//! Image generation: loaded pipelines, the queue and the image thread.

mod adapters;
mod device_pipeline;
mod job;
mod model;
mod prompt_tokenizer;
mod queue;
mod request;
mod sizes;
mod workload;

pub use model::{ImageModel, footprint, open};
pub use prompt_tokenizer::PromptTokenizer;
pub use queue::{ImageEvents, ImageQueue};
pub use request::{Image, ImageEvent, ImageRequest, InitImage, SchedulerName};
pub use sizes::{ImageSizes, MAX_SIDE, MIN_SIDE};
pub use workload::ImageWorkload;
