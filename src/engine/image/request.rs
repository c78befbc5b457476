//! What callers ask of a model that paints, and what they get.

pub use crate::models::diffusion::SchedulerName;

/// A request for pictures. [`super::ImageModel`] tells what it takes where the caller says nothing.
#[derive(Clone, Debug)]
pub struct ImageRequest {
    pub prompt: String,
    /// What the picture shall not show. Nothing and an empty text are not the same to every model.
    pub negative_prompt: Option<String>,
    /// Width and height; pixels.
    pub size: [usize; 2],
    pub steps: usize,
    pub guidance: f32,
    /// `None`: the one that the pipeline comes with.
    pub scheduler: Option<SchedulerName>,
    /// One for each picture.
    pub seeds: Vec<u64>,
    /// What to begin with; `None` is pure noise.
    pub init_image: Option<InitImage>,
    /// Adapters of the weights, by name, and how much each counts.
    pub lora: Vec<(String, f32)>,
    /// Pictures to be shown of each on its way.
    pub previews: usize,
    /// Whoever shares the machine fairly with the others.
    pub tenant: u128,
}

/// A picture to begin with.
#[derive(Clone, Debug)]
pub struct InitImage {
    /// Of the size that is asked for.
    pub image: Image,
    /// How much of it is painted anew, 0 to 1.
    pub strength: f32,
    /// For each pixel 255 where it is painted anew and 0 where it stays, `[height, width]`; `None`: all of it.
    pub mask: Option<Vec<u8>>,
}

/// A picture: 8 bits for red, green and blue of each pixel, `[height, width, 3]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    pub width: usize,
    pub height: usize,
    pub rgb: Vec<u8>,
}

/// What a step came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageEvent {
    /// So many steps of so many are done of one of the pictures, from zero.
    Step {
        index: usize,
        step: usize,
        steps: usize,
        preview: Option<Image>,
    },
    Done {
        index: usize,
        image: Image,
    },
}
