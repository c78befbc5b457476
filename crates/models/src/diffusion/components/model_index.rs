//! Opens the components that `model_index.json` lists.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{
    Components, FLUX_DEV_T5_TOKENS, FLUX_SCHNELL_T5_TOKENS, Family, MODEL_INDEX, Result, SD3_T5_TOKENS, TensorSource,
    TextComponent, TextEncoderConfig, invalid,
};
use crate::diffusion::clip::ClipConfig;
use crate::diffusion::denoiser::DenoiserConfig;
use crate::diffusion::dit::{FluxConfig, MmditConfig};
use crate::diffusion::samplers::SchedulerConfig;
use crate::diffusion::t5::T5Config;
use crate::diffusion::unet::UnetConfig;
use crate::diffusion::vae::VaeConfig;
use crate::gguf::GgufFile;
use crate::model_files::FolderListing;
use crate::safetensors::{ModelFolder, read_json};

/// diffusers' pipeline classes and their families.
const CLASSES: &[(&str, Family)] = &[
    ("StableDiffusionPipeline", Family::StableDiffusion),
    ("StableDiffusionImg2ImgPipeline", Family::StableDiffusion),
    ("StableDiffusionInpaintPipeline", Family::StableDiffusion),
    ("LatentConsistencyModelPipeline", Family::StableDiffusion),
    ("LatentConsistencyModelImg2ImgPipeline", Family::StableDiffusion),
    ("StableDiffusionXLPipeline", Family::StableDiffusionXl),
    ("StableDiffusionXLImg2ImgPipeline", Family::StableDiffusionXl),
    ("StableDiffusionXLInpaintPipeline", Family::StableDiffusionXl),
    ("StableDiffusion3Pipeline", Family::StableDiffusion3),
    ("StableDiffusion3Img2ImgPipeline", Family::StableDiffusion3),
    ("StableDiffusion3InpaintPipeline", Family::StableDiffusion3),
    ("FluxPipeline", Family::Flux),
    ("FluxImg2ImgPipeline", Family::Flux),
    ("FluxInpaintPipeline", Family::Flux),
];

pub(super) const CLIP: &str = "CLIPTextModel";
const CLIP_WITH_PROJECTION: &str = "CLIPTextModelWithProjection";
const T5: &str = "T5EncoderModel";
const FLUX: &str = "FluxTransformer2DModel";

/// A text encoder of a family: its folder, the folder of its tokenizer, its class, and whether it may be missing.
struct EncoderEntry {
    encoder: &'static str,
    tokenizer: &'static str,
    class: &'static str,
    optional: bool,
}

const fn entry(encoder: &'static str, tokenizer: &'static str, class: &'static str) -> EncoderEntry {
    EncoderEntry { encoder, tokenizer, class, optional: false }
}

const SD_ENCODERS: &[EncoderEntry] = &[entry("text_encoder", "tokenizer", CLIP)];
const SDXL_ENCODERS: &[EncoderEntry] =
    &[entry("text_encoder", "tokenizer", CLIP), entry("text_encoder_2", "tokenizer_2", CLIP_WITH_PROJECTION)];
const SD3_ENCODERS: &[EncoderEntry] = &[
    entry("text_encoder", "tokenizer", CLIP_WITH_PROJECTION),
    entry("text_encoder_2", "tokenizer_2", CLIP_WITH_PROJECTION),
    EncoderEntry { encoder: "text_encoder_3", tokenizer: "tokenizer_3", class: T5, optional: true },
];
const FLUX_ENCODERS: &[EncoderEntry] =
    &[entry("text_encoder", "tokenizer", CLIP), entry("text_encoder_2", "tokenizer_2", T5)];

/// Reads a `scheduler_config.json`. Like diffusers, overrides two fields of old Stable Diffusion files.
pub(super) fn read_scheduler(family: Family, mut config: Value) -> Result<SchedulerConfig> {
    let overrides = [("steps_offset", Value::from(1)), ("clip_sample", false.into())];
    if let (Family::StableDiffusion, Some(fields)) = (family, config.as_object_mut()) {
        for (key, value) in overrides {
            // A missing field takes the default of the requested scheduler.
            fields.entry(key).and_modify(|field| *field = value);
        }
    }
    SchedulerConfig::read(&config)
}

impl Components {
    /// Opens a pipeline folder.
    pub fn open(path: &Path) -> Result<Self> {
        let json = read_json(&path.join(MODEL_INDEX))?;
        let class = json.get("_class_name").and_then(Value::as_str).unwrap_or_default().to_owned();
        let Some((_, family)) = CLASSES.iter().find(|(name, _)| *name == class) else {
            let supported: Vec<&str> = CLASSES.iter().map(|(name, _)| *name).collect();
            return invalid(format!("{MODEL_INDEX} describes a {class}; supported: {}", supported.join(", ")));
        };
        let index = ModelIndex { path, json: &json };
        let denoiser = index.denoiser(*family)?;
        let vae = index.component("vae", &["AutoencoderKL"])?;
        let scheduler = index.scheduler()?;
        let (default_steps, default_guidance) = index.defaults(&class, *family, &denoiser.0, &scheduler);
        let components = Self {
            scheduler: read_scheduler(*family, scheduler)?,
            default_steps,
            default_guidance,
            text_encoders: index.text_encoders(*family, &denoiser.0)?,
            denoiser,
            vae: (VaeConfig::read(&vae.config)?, TensorSource::ModelFolder(vae)),
            zero_empty_negative: json.get("force_zeros_for_empty_prompt").and_then(Value::as_bool).unwrap_or(true),
            path: path.to_owned(),
            family: *family,
            class,
        };
        components.check_compatibility()?;
        Ok(components)
    }
}

/// A parsed `model_index.json` and the folder of its pipeline.
pub(super) struct ModelIndex<'a> {
    pub path: &'a Path,
    pub json: &'a Value,
}

impl ModelIndex<'_> {
    /// The class that the index names for a component.
    pub fn class(&self, name: &str) -> Option<&str> {
        self.json.get(name)?.get(1)?.as_str()
    }

    /// The folder of a component.
    ///
    /// # Errors
    /// The index does not name the component, its class is not supported, or it has no folder.
    fn component_dir(&self, name: &str, supported: &[&str]) -> Result<PathBuf> {
        match self.class(name) {
            None => return invalid(format!("{MODEL_INDEX} names no {name}")),
            Some(class) if !supported.contains(&class) => {
                return invalid(format!("the {name} is a {class}; supported: {}", supported.join(", ")));
            }
            Some(_) => {}
        }
        let path = self.path.join(name);
        match path.is_dir() {
            true => Ok(path),
            false => invalid(format!("{MODEL_INDEX} names a {name}, but there is no folder {name}")),
        }
    }

    pub fn component(&self, name: &str, supported: &[&str]) -> Result<ModelFolder> {
        match ModelFolder::open(&self.component_dir(name, supported)?) {
            Ok(folder) => Ok(folder),
            Err(error) => invalid(format!("{name}/{error}")),
        }
    }

    pub fn denoiser(&self, family: Family) -> Result<(DenoiserConfig, TensorSource)> {
        match family {
            Family::StableDiffusion | Family::StableDiffusionXl => {
                let folder = self.component("unet", &["UNet2DConditionModel"])?;
                Ok((
                    DenoiserConfig::Unet(Box::new(UnetConfig::read(&folder.config)?)),
                    TensorSource::ModelFolder(folder),
                ))
            }
            Family::StableDiffusion3 => {
                let folder = self.component("transformer", &["SD3Transformer2DModel"])?;
                Ok((DenoiserConfig::Mmdit(MmditConfig::read(&folder.config)?), TensorSource::ModelFolder(folder)))
            }
            Family::Flux => self.flux(),
        }
    }

    /// The FLUX transformer, from a GGUF file if there is one, else from safetensors.
    fn flux(&self) -> Result<(DenoiserConfig, TensorSource)> {
        let path = self.component_dir("transformer", &[FLUX])?;
        let listing = FolderListing::read(&path);
        let file = match listing.gguf() {
            Ok(None) => {
                let folder = self.component("transformer", &[FLUX])?;
                return Ok((
                    DenoiserConfig::Flux(FluxConfig::read(&folder.config)?),
                    TensorSource::ModelFolder(folder),
                ));
            }
            Ok(Some(file)) => match GgufFile::open(file) {
                Ok(file) => file,
                Err(error) => return invalid(format!("the GGUF file in transformer/: {error}")),
            },
            Err(problem) => return invalid(format!("transformer/: {problem}")),
        };
        if let Some(other) = file.header.metadata.text("general.architecture").filter(|name| *name != "flux") {
            return invalid(format!("the GGUF file in transformer/ has the architecture {other}, not flux"));
        }
        let config = path.join("config.json");
        let config = match config.is_file() {
            true => FluxConfig::read(&read_json(&config)?)?,
            false => FluxConfig::flux1(file.header.tensors.iter().any(|tensor| tensor.name.contains("guidance_in."))),
        };
        Ok((DenoiserConfig::Flux(config), TensorSource::Gguf(file)))
    }

    pub fn scheduler(&self) -> Result<Value> {
        let path = self.path.join("scheduler/scheduler_config.json");
        match path.is_file() {
            true => Ok(read_json(&path)?),
            false => invalid("there is no scheduler/scheduler_config.json".to_owned()),
        }
    }

    /// Default steps and guidance scale: from Outpost's own fields in the index, else values for distilled models, else
    /// the defaults of diffusers' pipelines.
    pub fn defaults(&self, class: &str, family: Family, denoiser: &DenoiserConfig, scheduler: &Value) -> (usize, f32) {
        let text = |key: &str| scheduler.get(key).and_then(Value::as_str).unwrap_or_default();
        let euler = text("_class_name").starts_with("Euler");
        let (steps, guidance) = match family {
            _ if text("_class_name") == "LCMScheduler" || class.starts_with("LatentConsistency") => (4, 8.5),
            // Turbo models.
            _ if euler && text("timestep_spacing") == "trailing" => (4, 0.),
            Family::StableDiffusion => (50, 7.5),
            Family::StableDiffusionXl => (50, 5.),
            Family::StableDiffusion3 => (28, 7.),
            Family::Flux if denoiser.embeds_guidance() => (28, 3.5),
            Family::Flux => (4, 0.),
        };
        let index_field = |key: &str| self.json.get(key).and_then(Value::as_f64);
        let index_steps =
            index_field("_default_steps").filter(|steps| (1. ..=1000.).contains(steps)).map(|steps| steps as usize);
        let index_guidance = index_field("_default_guidance_scale").filter(|scale| (0. ..=100.).contains(scale));
        (index_steps.unwrap_or(steps), index_guidance.map_or(guidance, |scale| scale as f32))
    }

    pub fn text_encoders(&self, family: Family, denoiser: &DenoiserConfig) -> Result<Vec<TextComponent>> {
        if family == Family::StableDiffusion
            && let Some(bert) = self.bert_text_encoder()?
        {
            return Ok(vec![bert]);
        }
        let (entries, t5_tokens) = match family {
            Family::StableDiffusion => (SD_ENCODERS, 0),
            Family::StableDiffusionXl => (SDXL_ENCODERS, 0),
            Family::StableDiffusion3 => (SD3_ENCODERS, SD3_T5_TOKENS),
            Family::Flux if denoiser.embeds_guidance() => (FLUX_ENCODERS, FLUX_DEV_T5_TOKENS),
            Family::Flux => (FLUX_ENCODERS, FLUX_SCHNELL_T5_TOKENS),
        };
        let present = entries.iter().filter(|entry| !entry.optional || self.class(entry.encoder).is_some());
        present.map(|entry| self.text_encoder(entry, t5_tokens)).collect()
    }

    /// `t5_tokens`: the sequence length of T5.
    fn text_encoder(&self, entry: &EncoderEntry, t5_tokens: usize) -> Result<TextComponent> {
        let folder = self.component(entry.encoder, &[entry.class])?;
        let tokenizer = self.path.join(entry.tokenizer);
        if !tokenizer.is_dir() {
            return invalid(format!("there is no folder {}", entry.tokenizer));
        }
        let path = format!("{}/", entry.encoder);
        let (encoder, tokens) = if entry.class == T5 {
            (TextEncoderConfig::T5(T5Config::read(&folder.config, &path)?), t5_tokens)
        } else {
            let clip = ClipConfig::read(&folder.config, &path, entry.class == CLIP_WITH_PROJECTION)?;
            let positions = clip.positions;
            (TextEncoderConfig::Clip(clip), positions)
        };
        Ok(TextComponent { encoder, tensors: TensorSource::ModelFolder(folder), tokenizer, tokens, padding: None })
    }
}
