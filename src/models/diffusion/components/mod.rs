//! A pipeline folder as diffusers saves it: `model_index.json` names the components, each in a folder.

mod bert_encoder;
mod check;
mod model_index;
mod single_file;
mod tensor_source;

use std::path::PathBuf;

use outpost_kernels::DType;

use super::bert::BertConfig;
use super::clip::ClipConfig;
use super::network::NetworkConfig;
use super::samplers::SchedulerConfig;
use super::t5::T5Config;
use super::vae::VaeConfig;
use crate::models::error::{ModelError, Result};
use crate::models::weights::Footprint;
pub use bert_encoder::referenced_models;
pub use single_file::sidecar_files;
pub use tensor_source::TensorSource;

/// The file that describes a pipeline.
pub const MODEL_INDEX: &str = "model_index.json";

/// Pipeline families.
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

/// T5's default sequence lengths. FLUX.1 \[schnell\] was trained with fewer tokens than \[dev\].
const SD3_TOKENS: usize = 256;
const FLUX_TOKENS: usize = 512;
const SCHNELL_TOKENS: usize = 256;

/// The components, with files opened and configs checked; weights are not read.
#[derive(Debug)]
pub struct Components {
    /// The model's own folder; a single-file pipeline may have none.
    pub path: PathBuf,
    pub class: String,
    pub family: Family,
    pub scheduler: SchedulerConfig,
    pub network: (NetworkConfig, TensorSource),
    pub vae: (VaeConfig, TensorSource),
    pub text_encoders: Vec<TextComponent>,
    /// Whether a missing negative prompt is embedded as zeros (SDXL).
    pub zero_empty_negative: bool,
    pub default_steps: usize,
    pub default_guidance: f32,
}

/// A text encoder with its tokenizer.
#[derive(Debug)]
pub struct TextComponent {
    pub encoder: TextEncoderConfig,
    pub tensors: TensorSource,
    /// The tokenizer's folder.
    pub tokenizer: PathBuf,
    /// Tokens of every text, after padding.
    pub tokens: usize,
    /// The padding token, if the tokenizer was not made for this encoder.
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
            Self::Bert(bert) => bert.sizes.width,
        }
    }

    /// Vocabulary size.
    pub fn vocabulary(&self) -> usize {
        match self {
            Self::Clip(clip) => clip.vocabulary,
            Self::T5(t5) => t5.vocabulary,
            Self::Bert(bert) => bert.sizes.vocabulary,
        }
    }
}

impl Components {
    /// The configurations of the CLIP encoders and of T5.
    fn encoders(&self) -> (Vec<&ClipConfig>, Option<&T5Config>) {
        let (mut clips, mut last) = (Vec::new(), None);
        for text in &self.text_encoders {
            match &text.encoder {
                TextEncoderConfig::Clip(clip) => clips.push(clip),
                TextEncoderConfig::T5(t5) => last = Some(t5),
                TextEncoderConfig::Bert(_) => {}
            }
        }
        (clips, last)
    }

    /// Memory for all weights, and for reading them, with floats rounded to `precision`.
    pub fn footprint(&self, threads: usize, precision: Option<DType>) -> Footprint {
        let all = [&self.network.1, &self.vae.1].into_iter().chain(self.text_encoders.iter().map(|text| &text.tensors));
        let each = all.map(|tensors| tensors.footprint(threads, precision));
        each.fold(Footprint::default(), |all, one| Footprint {
            weights: all.weights + one.weights,
            loading: all.loading.max(one.loading),
        })
    }

    /// Default height and width of an image.
    pub fn default_size(&self) -> [usize; 2] {
        let ((network, _), (vae, _)) = (&self.network, &self.vae);
        let of_latents = network.sample_size().map(|size| size.map(|side| side * vae.factor()));
        of_latents.or(vae.sample_size).unwrap_or([512, 512])
    }

    /// Image height and width must be multiples of this.
    pub fn size_multiple(&self) -> usize {
        (self.vae.0.factor() * self.network.0.patch()).max(8)
    }

    /// Maximum pixels along a side, where the network limits positions.
    pub fn max_side(&self) -> Option<usize> {
        self.network.0.max_side().map(|latents| latents * self.vae.0.factor())
    }

    /// Tokens and width of T5's embeddings in Stable Diffusion 3, whether T5 is present or not.
    pub fn t5_shape(&self) -> [usize; 2] {
        [SD3_TOKENS, self.network.0.context_width()]
    }
}

fn invalid<T>(message: String) -> Result<T> {
    Err(ModelError::Checkpoint(message))
}
