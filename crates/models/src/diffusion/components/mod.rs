//! The components of a pipeline, from a folder that diffusers saved or from a single file. In a folder,
//! `model_index.json` names the components, and each has a folder of its own.

mod bert_text_encoder;
mod compatibility;
mod from_ldm_checkpoint;
mod model_index;
mod tensor_source;

use std::path::PathBuf;

use crate::backend::{Convolutions, DType};

use super::bert::BertConfig;
use super::clip::ClipConfig;
use super::denoiser::DenoiserConfig;
use super::samplers::SchedulerConfig;
use super::t5::T5Config;
use super::vae::VaeConfig;
use crate::error::{ModelError, Result};
use crate::weights::Footprint;
pub use bert_text_encoder::referenced_models;
pub use from_ldm_checkpoint::sidecar_files;
pub use tensor_source::TensorSource;

/// The file that describes a pipeline.
pub const MODEL_INDEX: &str = "model_index.json";

/// Model families, which differ in their text encoders and denoiser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Stable Diffusion 1 and 2, and derivatives.
    StableDiffusion,
    StableDiffusionXl,
    /// Stable Diffusion 3 and 3.5.
    StableDiffusion3,
    /// FLUX.1 \[dev\] and \[schnell\].
    Flux,
}

/// Default sequence lengths of T5. FLUX.1 \[schnell\] was trained with fewer tokens than \[dev\].
const SD3_T5_TOKENS: usize = 256;
const FLUX_DEV_T5_TOKENS: usize = 512;
const FLUX_SCHNELL_T5_TOKENS: usize = 256;

/// The components of a pipeline. Files are open and configs are checked, but weights are not read.
#[derive(Debug)]
pub struct Components {
    /// The folder of the model. For a single-file pipeline it may not exist.
    pub path: PathBuf,
    /// The pipeline class in diffusers.
    pub class: String,
    pub family: Family,
    pub scheduler: SchedulerConfig,
    pub denoiser: (DenoiserConfig, TensorSource),
    pub vae: (VaeConfig, TensorSource),
    pub text_encoders: Vec<TextComponent>,
    /// A missing negative prompt is embedded as zeros (SDXL).
    pub zero_empty_negative: bool,
    pub default_steps: usize,
    pub default_guidance: f32,
}

/// A text encoder with its tokenizer.
#[derive(Debug)]
pub struct TextComponent {
    pub encoder: TextEncoderConfig,
    pub tensors: TensorSource,
    /// The folder of the tokenizer.
    pub tokenizer: PathBuf,
    /// Tokens of every text after padding.
    pub tokens: usize,
    /// The padding token, if it differs from the tokenizer's own.
    pub padding: Option<&'static str>,
}

/// The configuration of a text encoder.
#[derive(Clone, Debug)]
pub enum TextEncoderConfig {
    Clip(ClipConfig),
    T5(T5Config),
    Bert(BertConfig),
}

impl TextEncoderConfig {
    /// Width of an embedding.
    pub fn width(&self) -> usize {
        match self {
            Self::Clip(clip) => clip.width,
            Self::T5(t5) => t5.width,
            Self::Bert(bert) => bert.encoder.width,
        }
    }

    /// Vocabulary size.
    pub fn vocabulary(&self) -> usize {
        match self {
            Self::Clip(clip) => clip.vocabulary,
            Self::T5(t5) => t5.vocabulary,
            Self::Bert(bert) => bert.encoder.vocabulary,
        }
    }
}

impl Components {
    /// The configurations of the CLIP encoders and of T5, if it is present.
    fn clip_and_t5_configs(&self) -> (Vec<&ClipConfig>, Option<&T5Config>) {
        let (mut clips, mut t5_config) = (Vec::new(), None);
        for text in &self.text_encoders {
            match &text.encoder {
                TextEncoderConfig::Clip(clip) => clips.push(clip),
                TextEncoderConfig::T5(t5) => t5_config = Some(t5),
                TextEncoderConfig::Bert(_) => {}
            }
        }
        (clips, t5_config)
    }

    /// Memory for all weights, and for reading them, with floats rounded to `precision`.
    pub fn footprint<B: Convolutions>(&self, backend: &B, precision: Option<DType>) -> Footprint {
        let text_encoders = self.text_encoders.iter().map(|text| &text.tensors);
        let sources = [&self.denoiser.1, &self.vae.1].into_iter().chain(text_encoders);
        let footprints = sources.map(|tensors| tensors.footprint(backend, precision));
        footprints.fold(Footprint::default(), |total, component| Footprint {
            weights: total.weights + component.weights,
            loading: total.loading.max(component.loading),
        })
    }

    /// Default height and width of an image in pixels.
    pub fn default_size(&self) -> [usize; 2] {
        let ((denoiser, _), (vae, _)) = (&self.denoiser, &self.vae);
        let denoiser_size = denoiser.sample_size().map(|size| size.map(|side| side * vae.factor()));
        denoiser_size.or(vae.sample_size).unwrap_or([512, 512])
    }

    /// Height and width of an image must be multiples of this.
    pub fn size_multiple(&self) -> usize {
        (self.vae.0.factor() * self.denoiser.0.patch_size()).max(8)
    }

    /// Maximum height and width of an image in pixels; `None` if there is no limit.
    pub fn max_side(&self) -> Option<usize> {
        self.denoiser.0.max_latent_side().map(|side| side * self.vae.0.factor())
    }

    /// Tokens and width of the T5 embeddings in Stable Diffusion 3. Zeros replace them if T5 is missing.
    pub fn t5_shape(&self) -> [usize; 2] {
        [SD3_T5_TOKENS, self.denoiser.0.context_width()]
    }
}

fn invalid<T>(message: String) -> Result<T> {
    Err(ModelError::Checkpoint(message))
}
