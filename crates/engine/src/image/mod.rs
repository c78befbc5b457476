//! Image generation: loaded pipelines, and requests as jobs.

mod adapters;
mod device_pipeline;
mod job;
mod kind;
mod model;
mod prompt_tokenizer;
mod request;
mod sizes;

pub use job::ImageJob;
pub use model::{ImageModel, open};
pub use prompt_tokenizer::PromptTokenizer;
pub use request::{Image, ImageEvent, ImageRequest, InitImage, SchedulerName};
pub use sizes::{ImageSizes, MAX_SIDE, MIN_SIDE};

use crate::jobs::{Events, JobQueue};

/// The events of a request. Dropping it cancels images that are not generated yet.
pub type ImageEvents = Events<ImageEvent>;
pub type ImageQueue = JobQueue<ImageJob>;
