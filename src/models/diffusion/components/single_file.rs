//! A single-file pipeline. Configs in folders next to it override what is inferred from its tensors:
//! `unet/config.json`, `vae/config.json`, `text_encoder/config.json`, `scheduler/scheduler_config.json`, `tokenizer/`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};

use super::model_index::{ModelIndex, settings};
use super::{Components, Family, Result, TensorSource, TextComponent, TextEncoderConfig, invalid};
use crate::models::diffusion::clip::ClipConfig;
use crate::models::diffusion::ldm_checkpoint::{
    self, AUTOENCODER, LdmComponent, LdmVersion, LdmWeights, NETWORK, ShapeInference, TextEncoderLayout,
};
use crate::models::diffusion::network::NetworkConfig;
use crate::models::diffusion::unet::UnetConfig;
use crate::models::diffusion::vae::VaeConfig;
use crate::models::safetensors::{ModelFolder, read_json};

/// Maximum size of an original config file, `NAME.yaml`.
const LONGEST_YAML: u64 = 1 << 20;
/// Padding tokens of the original code.
const CLIP_PADDING: &str = "<|endoftext|>";
const OPEN_CLIP_PADDING: &str = "!";

/// The checkpoint and the folders that belong to it.
struct SingleFile {
    file: Arc<ModelFolder>,
    /// The folder of the model's own configs; it may not exist.
    config_dir: PathBuf,
    models_dir: PathBuf,
    version: LdmVersion,
    predicts_v: bool,
}

/// The file, config folder and models folder of `path`: the file itself, or a folder without other checkpoints.
fn locate(path: &Path) -> Option<(PathBuf, PathBuf, PathBuf)> {
    let models_dir = path.parent()?.to_owned();
    if !path.is_dir() {
        return Some((path.to_owned(), path.with_extension(""), models_dir));
    }
    let entries = fs::read_dir(path).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let file = entries.into_iter().find(|path| path.extension().is_some_and(|one| one == "safetensors"))?;
    Some((file, path.to_owned(), models_dir))
}

/// Files besides the tensors that this model uses, including tokenizers of other models that it may borrow.
pub fn sidecar_files(path: &Path) -> Vec<PathBuf> {
    let Some((file, config_dir, models_dir)) = locate(path) else { return Vec::new() };
    let inside = |folder: &Path| -> Vec<PathBuf> {
        fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect()
    };
    let components = inside(&config_dir)
        .into_iter()
        .filter(|part| part.is_dir())
        .chain(ldm_checkpoint::neighbour_tokenizers(&models_dir));
    let files = components.flat_map(|part| inside(&part)).chain([file.with_extension("yaml")]);
    let mut files: Vec<PathBuf> = files.filter(|path| path.is_file()).collect();
    files.sort();
    files.dedup();
    files
}

impl Components {
    /// Opens a single-file pipeline: the file itself, or a folder without other checkpoints.
    pub fn open_single_file(path: &Path) -> Result<Self> {
        let Some((file, config_dir, models_dir)) = locate(path) else {
            return invalid("there is no .safetensors file".to_owned());
        };
        let settings_of = file.with_extension("yaml");
        let file = Arc::new(ModelFolder::open_file(&file)?);
        let version = LdmVersion::of(&file)?;
        let predicts_v = file.tensor("v_pred").is_some() || yaml_predicts_v(&settings_of);
        SingleFile { file, config_dir, models_dir, version, predicts_v }.components()
    }
}

/// Whether an original config file says that the network predicts velocities.
fn yaml_predicts_v(yaml: &Path) -> bool {
    let short = fs::metadata(yaml).is_ok_and(|metadata| metadata.is_file() && metadata.len() <= LONGEST_YAML);
    let text = fs::read_to_string(yaml).ok().filter(|_| short).unwrap_or_default();
    let mut values = text.lines().filter_map(|line| line.trim().strip_prefix("parameterization:"));
    values.any(|value| value.trim().trim_matches(['"', '\'']) == "v")
}

impl SingleFile {
    fn components(self) -> Result<Components> {
        let (family, class) = match self.version {
            LdmVersion::Sdxl => (Family::StableDiffusionXl, "StableDiffusionXLPipeline"),
            LdmVersion::Sd1 | LdmVersion::Sd2 => (Family::StableDiffusion, "StableDiffusionPipeline"),
        };
        let (network, vae) = (self.network()?, self.vae()?);
        let config = self.scheduler()?;
        // Single files carry nothing that tells distilled models apart.
        let json = json!({"_default_steps": 50, "_default_guidance_scale": if family == Family::StableDiffusionXl { 5. } else { 7.5 }});
        let index = ModelIndex { path: &self.config_dir, json: &json };
        let (default_steps, default_guidance) = index.defaults(class, family, &network.0, &config);
        let texts = self.version.text_encoders().iter().enumerate().map(|(at, text)| self.text_encoder(at, text));
        let components = Components {
            scheduler: settings(family, config)?,
            default_steps,
            default_guidance,
            text_encoders: texts.collect::<Result<_>>()?,
            network,
            vae,
            zero_empty_negative: true,
            path: self.config_dir,
            family,
            class: class.to_owned(),
        };
        components.check()?;
        Ok(components)
    }

    /// A component's config: from its folder if there is one, else inferred.
    fn config(&self, part: &str, inferred: impl FnOnce() -> Result<Value>) -> Result<Value> {
        let path = self.config_dir.join(part);
        if path.is_file() { Ok(read_json(&path)?) } else { inferred() }
    }

    fn tensors(&self, prefix: &str, part: LdmComponent) -> TensorSource {
        TensorSource::Ldm(LdmWeights { file: Arc::clone(&self.file), prefix: prefix.to_owned(), part })
    }

    fn network(&self) -> Result<(NetworkConfig, TensorSource)> {
        let inferred = || ShapeInference::new(&self.file, NETWORK).unet(self.version, self.predicts_v);
        let config = Box::new(UnetConfig::read(&self.config("unet/config.json", inferred)?)?);
        let tensors = self.tensors(NETWORK, LdmComponent::Unet(config.clone()));
        Ok((NetworkConfig::Unet(config), tensors))
    }

    fn vae(&self) -> Result<(VaeConfig, TensorSource)> {
        let inferred = || ShapeInference::new(&self.file, AUTOENCODER).vae(self.version, self.predicts_v);
        let config = VaeConfig::read(&self.config("vae/config.json", inferred)?)?;
        let part = LdmComponent::Vae(config.channels.len());
        Ok((config, self.tensors(AUTOENCODER, part)))
    }

    fn scheduler(&self) -> Result<Value> {
        let zero_snr = self.file.tensor("ztsnr").is_some();
        let inferred = || Ok(ldm_checkpoint::default_scheduler_config(self.version, self.predicts_v, zero_snr));
        self.config("scheduler/scheduler_config.json", inferred)
    }

    /// A text encoder.
    fn text_encoder(&self, at: usize, text: &TextEncoderLayout) -> Result<TextComponent> {
        let behind = if at == 0 { "" } else { "_2" };
        let own_prefix = format!("{}text_model.", text.prefix);
        let inner = self.file.names().any(|name| name.starts_with(&own_prefix));
        let prefix = if inner { own_prefix.as_str() } else { text.prefix };
        let inferred = || ShapeInference::new(&self.file, prefix).text(self.version, text.open_clip);
        let config = self.config(&format!("text_encoder{behind}/config.json"), inferred)?;
        let projects = text.open_clip && self.version == LdmVersion::Sdxl;
        let clip = ClipConfig::read(&config, &format!("text_encoder{behind}/"), projects)?;
        let layers = if self.version == LdmVersion::Sd2 { clip.layers } else { usize::MAX };
        let part = if text.open_clip { LdmComponent::OpenClip { layers, projects } } else { LdmComponent::Clip };
        let second =
            Some(self.config_dir.join(format!("tokenizer{behind}"))).filter(|folder| at > 0 && folder.is_dir());
        let Some(tokenizer) =
            second.or_else(|| ldm_checkpoint::find_tokenizer(&self.config_dir, &self.models_dir, clip.vocabulary))
        else {
            let name = self.config_dir.file_name().unwrap_or_default().to_string_lossy();
            return invalid(format!(
                "a single file has no tokenizer, and no other pipeline has one of {} tokens: put a CLIP tokenizer (vocab.json and merges.txt) into {name}/tokenizer in the models folder",
                clip.vocabulary
            ));
        };
        let tokens = clip.positions;
        // Regardless of the tokenizer's own padding.
        let padding = Some(if text.open_clip { OPEN_CLIP_PADDING } else { CLIP_PADDING });
        let tensors = self.tensors(prefix, part);
        Ok(TextComponent { encoder: TextEncoderConfig::Clip(clip), tensors, tokenizer, tokens, padding })
    }
}
