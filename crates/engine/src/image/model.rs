//! A loaded image model: the pipeline, its tokenizers and its defaults.

use std::path::Path;

use super::device_pipeline::{self, DevicePipeline};
use super::prompt_tokenizer::PromptTokenizer;
use super::request::PromptIds;
use super::sizes::ImageSizes;
use super::{ImageRequest, SchedulerName};
use crate::error::PreprocessError;
use crate::kinds::{LoadOptions, LoadSource};
use crate::preprocessor::{Preprocessor, PromptTokenizerSpec};
use crate::runtime::DeviceIndex;
use crate::runtime::memory_budget::Lease;
use outpost_common::display::format_bytes;
use outpost_models::backend::{Convolutions, Recurrent};
use outpost_models::diffusion::pipeline::{Components, MODEL_INDEX, TextComponent};

/// The autoencoder may take one over this of all memory before images are decoded in tiles.
const VAE_BUDGET_DIVISOR: u64 = 2;

pub struct ImageModel {
    id: String,
    /// The device that runs it.
    pub(crate) device: DeviceIndex,
    pipeline: Box<dyn DevicePipeline>,
    preprocessor: Preprocessor,
    sizes: ImageSizes,
    defaults: Defaults,
    schedulers: Vec<SchedulerName>,
    /// Memory for images beyond the weights, in bytes.
    available: u64,
    /// Its share of the memory budget, returned on drop.
    pub(crate) lease: Lease,
}

/// Request defaults.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Defaults {
    steps: usize,
    guidance: f32,
}

/// Opens and checks a pipeline without reading weights. `path`: its `model_index.json`, or a single-file pipeline or
/// its folder.
pub fn open(path: &Path) -> Result<Components, String> {
    let folder = path.parent().ok_or("the model is in no folder")?;
    let index = path.file_name().is_some_and(|name| name == MODEL_INDEX);
    let components = if index { Components::open(folder) } else { Components::open_single_file(path) };
    let components = components.map_err(|error| error.to_string())?;
    components.text_encoders.iter().try_for_each(|text| PromptTokenizer::check(&text.tokenizer))?;
    Ok(components)
}

impl ImageModel {
    /// Reads the weights of a pipeline.
    pub(super) fn new<B: Convolutions + Recurrent>(
        components: &Components,
        source: &LoadSource<'_>,
        lease: Lease,
        backend: &B,
    ) -> Result<Self, String> {
        let LoadSource { id, device, options: LoadOptions { precision, .. }, isolation, .. } = *source;
        let spec = |text: &TextComponent| PromptTokenizerSpec {
            folder: text.tokenizer.clone(),
            positions: text.tokens,
            padding: text.padding.map(str::to_owned),
        };
        let (preprocessor, vocabularies) =
            Preprocessor::pipeline(isolation, components.text_encoders.iter().map(spec).collect())?;
        for (tokens, text) in vocabularies.iter().zip(&components.text_encoders) {
            let known = text.encoder.vocabulary();
            if *tokens > known {
                return Err(format!("a tokenizer has {tokens} tokens, its encoder only {known}"));
            }
        }
        // Depends on total memory, not on free memory, so that a request gives the same image at any time.
        let total = lease.budget_bytes();
        let vae_budget = total / VAE_BUDGET_DIVISOR;
        let pipeline = device_pipeline::load(components, backend, precision, vae_budget);
        let pipeline = pipeline.map_err(|error| error.to_string())?;
        let own = components.scheduler.name();
        let others = SchedulerName::ALL.iter().map(|(name, _)| *name);
        let others = others.filter(|name| *name != own && components.scheduler.with_scheduler(*name).is_ok());
        let schedulers = std::iter::once(own).chain(others).collect();
        let available = total.saturating_sub(lease.bytes());
        let defaults = Defaults { steps: components.default_steps, guidance: components.default_guidance };
        let (id, sizes) = (id.to_owned(), ImageSizes::of(components));
        Ok(Self { id, device, pipeline, preprocessor, sizes, defaults, schedulers, available, lease })
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    /// Default width and height in pixels.
    pub fn default_size(&self) -> [usize; 2] {
        self.sizes.training()
    }

    /// The sizes that the model supports, apart from the memory that an image takes.
    pub fn sizes(&self) -> &ImageSizes {
        &self.sizes
    }

    /// Checks that images of this width and height can be generated; errors say why not.
    pub fn check_size(&self, size: [usize; 2]) -> Result<(), String> {
        self.sizes.check(size)?;
        let needed = self.image_bytes(size);
        match needed <= self.available {
            true => Ok(()),
            false => Err(format!(
                "an image of {}x{} takes {} of memory, but {} are available beside the model",
                size[0],
                size[1],
                format_bytes(needed),
                format_bytes(self.available)
            )),
        }
    }

    pub fn default_steps(&self) -> usize {
        self.defaults.steps
    }

    pub fn default_guidance(&self) -> f32 {
        self.defaults.guidance
    }

    /// Supported schedulers; the first is the pipeline's own.
    pub fn schedulers(&self) -> &[SchedulerName] {
        &self.schedulers
    }

    /// Checks that these adapters can be used with an image of the default size; errors say why not. May read file
    /// headers.
    pub fn check_adapters(&self, requested: &[(String, f32)]) -> Result<(), String> {
        self.check_memory(self.default_size(), requested)
    }

    fn check_memory(&self, size: [usize; 2], requested: &[(String, f32)]) -> Result<(), String> {
        let (image_bytes, bytes) = (self.image_bytes(size), self.pipeline.check_adapters(requested)?);
        match image_bytes.saturating_add(bytes) <= self.available || requested.is_empty() {
            true => Ok(()),
            false => Err(format!(
                "the adapters take {} of memory and an image of {}x{} takes {}, but {} are available beside the model",
                format_bytes(bytes),
                size[0],
                size[1],
                format_bytes(image_bytes),
                format_bytes(self.available)
            )),
        }
    }

    /// Evicts all adapters. `false` if there were none.
    pub(crate) fn evict_adapters(&self) -> bool {
        self.pipeline.evict_adapters()
    }

    /// Checks that a request can be served; errors say why not.
    pub(crate) fn check(&self, request: &ImageRequest) -> Result<(), String> {
        self.check_size(request.size)?;
        self.check_memory(request.size, &request.lora)?;
        if request.negative_prompt.is_some() && self.pipeline.ignores_negative_prompt() {
            return Err(
                "the model does not support a negative prompt; describe in the prompt what the image should show"
                    .to_owned(),
            );
        }
        let source = request.init_image.as_ref();
        if source.is_none() && self.pipeline.takes_mask() {
            return Err("this is an inpainting model; send an image and a mask".to_owned());
        }
        if let Some(source) = source {
            let [width, height] = request.size;
            let whole = [source.image.width, source.image.height] == request.size
                && source.image.rgb.len() == 3 * width * height
                && source.mask.as_ref().is_none_or(|mask| mask.len() == width * height);
            if !whole {
                return Err("the initial image does not have the requested size".to_owned());
            }
        }
        self.pipeline.check_sampler(request).map_err(|error| error.to_string())
    }

    /// Memory that an image takes, in bytes.
    pub(crate) fn image_bytes(&self, [width, height]: [usize; 2]) -> u64 {
        self.pipeline.image_bytes([height, width])
    }

    /// The pipeline on its device.
    pub(crate) fn pipeline(&self) -> &dyn DevicePipeline {
        &*self.pipeline
    }

    /// Tokenises the negative prompt and the prompt with each tokenizer. Takes time proportional to their length; do
    /// not call it on an async thread.
    pub(crate) fn tokenize(&self, request: &ImageRequest) -> Result<PromptIds, PreprocessError> {
        let texts = [request.negative_prompt.as_deref().unwrap_or_default(), &request.prompt];
        let pair = |ids: Vec<Vec<u32>>| <[Vec<u32>; 2]>::try_from(ids);
        let all: Result<PromptIds, _> = self.preprocessor.encode_image_prompts(texts)?.into_iter().map(pair).collect();
        all.map_err(|_| PreprocessError::Failed("it lost a prompt".to_owned()))
    }
}

impl std::fmt::Debug for ImageModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImageModel").field("id", &self.id).finish_non_exhaustive()
    }
}
