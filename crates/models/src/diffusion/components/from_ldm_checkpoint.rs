//! A single-file pipeline. Configs in the folders of components override the configs that are inferred from tensors:
//! `unet/config.json`, `vae/config.json`, `text_encoder/config.json`, `scheduler/scheduler_config.json`, `tokenizer/`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};

use super::model_index::{ModelIndex, read_scheduler};
use super::{Components, Family, Result, TensorSource, TextComponent, TextEncoderConfig, invalid};
use crate::diffusion::clip::ClipConfig;
use crate::diffusion::denoiser::DenoiserConfig;
use crate::diffusion::ldm_checkpoint::{
    self, LdmComponent, LdmVersion, LdmWeights, ShapeInference, TextEncoderLayout, UNET_PREFIX, VAE_PREFIX,
};
use crate::diffusion::unet::UnetConfig;
use crate::diffusion::vae::VaeConfig;
use crate::model_files::FolderListing;
use crate::safetensors::{ModelFolder, read_json};

/// Maximum size of an original config file, `NAME.yaml`, in bytes.
const MAX_YAML_BYTES: u64 = 1 << 20;
/// Padding tokens of the original code, used instead of the tokenizer's own.
const CLIP_PADDING: &str = "<|endoftext|>";
const OPEN_CLIP_PADDING: &str = "!";

/// An open checkpoint and the folders that belong to it.
struct SingleFile {
    file: Arc<ModelFolder>,
    /// The folder of this model's configs; it may not exist.
    config_dir: PathBuf,
    models_dir: PathBuf,
    version: LdmVersion,
    /// Whether the UNet predicts velocity.
    predicts_v: bool,
}

/// The checkpoint, config folder and models folder of a pipeline. `path` is the checkpoint, or a folder with one
/// checkpoint.
fn locate(path: &Path) -> Option<(PathBuf, PathBuf, PathBuf)> {
    let models_dir = path.parent()?.to_owned();
    if !path.is_dir() {
        return Some((path.to_owned(), path.with_extension(""), models_dir));
    }
    let listing = FolderListing::read(path);
    let file = listing.safetensors().into_iter().next()?.clone();
    Some((file, path.to_owned(), models_dir))
}

/// The files besides the checkpoint that a single-file pipeline uses, including the tokenizers of other models that it
/// may use.
pub fn sidecar_files(path: &Path) -> Vec<PathBuf> {
    let Some((file, config_dir, models_dir)) = locate(path) else { return Vec::new() };
    let own_folders = FolderListing::read(&config_dir).folders;
    let folders = own_folders.into_iter().chain(ldm_checkpoint::neighbour_tokenizers(&models_dir));
    let yaml = Some(file.with_extension("yaml")).filter(|path| path.is_file());
    let mut files: Vec<PathBuf> = folders.flat_map(|folder| FolderListing::read(&folder).files).chain(yaml).collect();
    files.sort();
    files.dedup();
    files
}

impl Components {
    /// Opens a single-file pipeline. `path` is the checkpoint, or a folder with one checkpoint.
    pub fn open_single_file(path: &Path) -> Result<Self> {
        let Some((file, config_dir, models_dir)) = locate(path) else {
            return invalid("there is no .safetensors file".to_owned());
        };
        let yaml = file.with_extension("yaml");
        let file = Arc::new(ModelFolder::open_file(&file)?);
        let version = LdmVersion::detect(&file)?;
        let predicts_v = file.tensor("v_pred").is_some() || yaml_predicts_v(&yaml);
        SingleFile { file, config_dir, models_dir, version, predicts_v }.components()
    }
}

/// Whether an original config file specifies velocity prediction.
fn yaml_predicts_v(yaml: &Path) -> bool {
    let is_small = fs::metadata(yaml).is_ok_and(|metadata| metadata.is_file() && metadata.len() <= MAX_YAML_BYTES);
    let text = if is_small { fs::read_to_string(yaml).unwrap_or_default() } else { String::new() };
    let mut values = text.lines().filter_map(|line| line.trim().strip_prefix("parameterization:"));
    values.any(|value| value.trim().trim_matches(['"', '\'']) == "v")
}

impl SingleFile {
    fn components(self) -> Result<Components> {
        let (family, class) = match self.version {
            LdmVersion::Sdxl => (Family::StableDiffusionXl, "StableDiffusionXLPipeline"),
            LdmVersion::Sd1 | LdmVersion::Sd2 => (Family::StableDiffusion, "StableDiffusionPipeline"),
        };
        let (denoiser, vae) = (self.denoiser()?, self.vae()?);
        let config = self.scheduler()?;
        // A single file does not tell whether the model is distilled.
        let json = json!({"_default_steps": 50, "_default_guidance_scale": if family == Family::StableDiffusionXl { 5. } else { 7.5 }});
        let index = ModelIndex { path: &self.config_dir, json: &json };
        let (default_steps, default_guidance) = index.defaults(class, family, &denoiser.0, &config);
        let texts = self.version.text_encoders().iter().enumerate().map(|(index, text)| self.text_encoder(index, text));
        let components = Components {
            scheduler: read_scheduler(family, config)?,
            default_steps,
            default_guidance,
            text_encoders: texts.collect::<Result<_>>()?,
            denoiser,
            vae,
            zero_empty_negative: true,
            path: self.config_dir,
            family,
            class: class.to_owned(),
        };
        components.check_compatibility()?;
        Ok(components)
    }

    /// The config at `path` in the config folder if there is one, else the inferred one.
    fn config(&self, path: &str, inferred: impl FnOnce() -> Result<Value>) -> Result<Value> {
        let path = self.config_dir.join(path);
        if path.is_file() { Ok(read_json(&path)?) } else { inferred() }
    }

    fn tensors(&self, prefix: &str, component: LdmComponent) -> TensorSource {
        TensorSource::Ldm(LdmWeights { file: Arc::clone(&self.file), prefix: prefix.to_owned(), component })
    }

    fn denoiser(&self) -> Result<(DenoiserConfig, TensorSource)> {
        let inferred = || ShapeInference::new(&self.file, UNET_PREFIX).unet(self.version, self.predicts_v);
        let config = Box::new(UnetConfig::read(&self.config("unet/config.json", inferred)?)?);
        let tensors = self.tensors(UNET_PREFIX, LdmComponent::Unet(config.clone()));
        Ok((DenoiserConfig::Unet(config), tensors))
    }

    fn vae(&self) -> Result<(VaeConfig, TensorSource)> {
        let inferred = || ShapeInference::new(&self.file, VAE_PREFIX).vae(self.version, self.predicts_v);
        let config = VaeConfig::read(&self.config("vae/config.json", inferred)?)?;
        let component = LdmComponent::Vae(config.channels.len());
        Ok((config, self.tensors(VAE_PREFIX, component)))
    }

    fn scheduler(&self) -> Result<Value> {
        let zero_snr = self.file.tensor("ztsnr").is_some();
        let inferred = || Ok(ldm_checkpoint::default_scheduler_config(self.version, self.predicts_v, zero_snr));
        self.config("scheduler/scheduler_config.json", inferred)
    }

    /// The text encoder at `index`.
    fn text_encoder(&self, index: usize, text: &TextEncoderLayout) -> Result<TextComponent> {
        let folder_suffix = if index == 0 { "" } else { "_2" };
        let text_model_prefix = format!("{}text_model.", text.prefix);
        let has_text_model = self.file.names().any(|name| name.starts_with(&text_model_prefix));
        let prefix = if has_text_model { text_model_prefix.as_str() } else { text.prefix };
        let inferred = || ShapeInference::new(&self.file, prefix).text_encoder(self.version, text.open_clip);
        let config = self.config(&format!("text_encoder{folder_suffix}/config.json"), inferred)?;
        let has_projection = text.open_clip && self.version == LdmVersion::Sdxl;
        let clip = ClipConfig::read(&config, &format!("text_encoder{folder_suffix}/"), has_projection)?;
        let layers = if self.version == LdmVersion::Sd2 { clip.layers } else { usize::MAX };
        let component =
            if text.open_clip { LdmComponent::OpenClip { layers, has_projection } } else { LdmComponent::Clip };
        let own_tokenizer = Some(self.config_dir.join(format!("tokenizer{folder_suffix}")))
            .filter(|folder| index > 0 && folder.is_dir());
        let Some(tokenizer) = own_tokenizer
            .or_else(|| ldm_checkpoint::find_tokenizer(&self.config_dir, &self.models_dir, clip.vocabulary))
        else {
            let name = self.config_dir.file_name().unwrap_or_default().to_string_lossy();
            return invalid(format!(
                "a single file has no tokenizer, and no other pipeline has one with {} tokens: put a CLIP tokenizer (vocab.json and merges.txt) into {name}/tokenizer in the models folder",
                clip.vocabulary
            ));
        };
        let tokens = clip.positions;
        let padding = Some(if text.open_clip { OPEN_CLIP_PADDING } else { CLIP_PADDING });
        let tensors = self.tensors(prefix, component);
        Ok(TextComponent { encoder: TextEncoderConfig::Clip(clip), tensors, tokenizer, tokens, padding })
    }
}
