//! Image requests and events.

pub use outpost_models::diffusion::SchedulerName;

/// A request for images. [`super::ImageModel`] provides defaults.
#[derive(Clone, Debug)]
pub struct ImageRequest {
    pub prompt: String,
    /// The negative prompt. Some models treat a missing one and an empty one differently.
    pub negative_prompt: Option<String>,
    /// Width and height in pixels.
    pub size: [usize; 2],
    pub steps: usize,
    pub guidance: f32,
    /// `None`: the pipeline's own.
    pub scheduler: Option<SchedulerName>,
    /// One for each image.
    pub seeds: Vec<u64>,
    /// The initial image; `None` starts from noise.
    pub init_image: Option<InitImage>,
    /// LoRA adapters by name, with their weights.
    pub lora: Vec<(String, f32)>,
    /// Previews of each image.
    pub previews: usize,
    /// The tenant, for fair scheduling.
    pub tenant: u128,
}

/// An initial image.
#[derive(Clone, Debug)]
pub struct InitImage {
    /// Has the requested size.
    pub image: Image,
    /// Strength of the change, 0 to 1.
    pub strength: f32,
    /// 255 for pixels to regenerate and 0 for pixels to keep, `[height, width]`; `None` regenerates all.
    pub mask: Option<Vec<u8>>,
}

/// An 8-bit RGB image, `[height, width, 3]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    pub width: usize,
    pub height: usize,
    pub rgb: Vec<u8>,
}

/// An event of an image request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageEvent {
    /// Progress of one image; indices start at 0.
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

/// Tokens of the negative prompt and the prompt, for each tokenizer.
pub type PromptIds = Vec<[Vec<u32>; 2]>;
