//! Prompts become pictures: a loaded pipeline, and the queue of what is to be painted.

mod adapters;
mod model;
mod painter;
mod queue;
mod request;
mod strokes;
mod words;

pub(super) use adapters::Lender;
pub use model::ImageModel;
pub(super) use model::{Facts, PromptIds, needs, open};
pub(super) use painter::{Painter, Pause};
pub(super) use queue::{Commission, Paintings};
pub use request::{Painting, Picture, SchedulerName, Source, Stroke};
pub use strokes::Strokes;
pub(super) use words::PromptTokens;
