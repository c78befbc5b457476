//! A pipeline of one file. What its tensors do not tell may stand in folders beside it, as diffusers has them:
//! `unet/config.json`, `vae/config.json`, `text_encoder/config.json`, `scheduler/scheduler_config.json`, `tokenizer/`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};

use super::opener::{Opener, settings};
use super::{EncoderConfig, Family, Parts, Result, Tensors, TextPart, invalid};
use crate::models::diffusion::clip::ClipConfig;
use crate::models::diffusion::network::NetworkConfig;
use crate::models::diffusion::single::{self, AUTOENCODER, Layout, NETWORK, Part, Single, Sizes, TextSizes};
use crate::models::diffusion::unet::UnetConfig;
use crate::models::diffusion::vae::VaeConfig;
use crate::models::safetensors::{Folder, read_json};

/// The longest settings of the first code, `NAME.yaml`, that are looked at.
const LONGEST_YAML: u64 = 1 << 20;
/// What the first code fills texts up with.
const CLIP_PADDING: &str = "<|endoftext|>";
const OPEN_CLIP_PADDING: &str = "!";

/// The file, and where what belongs to it lies.
struct Place {
    file: Arc<Folder>,
    /// The folder of the model's own settings, which may not be there.
    own: PathBuf,
    models: PathBuf,
    layout: Layout,
    predicts_v: bool,
}

/// A model of one file at `path`: the file, or a folder that has no other.
fn place(path: &Path) -> Option<(PathBuf, PathBuf, PathBuf)> {
    let models = path.parent()?.to_owned();
    if !path.is_dir() {
        return Some((path.to_owned(), path.with_extension(""), models));
    }
    let entries = fs::read_dir(path).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let file = entries.into_iter().find(|path| path.extension().is_some_and(|one| one == "safetensors"))?;
    Some((file, path.to_owned(), models))
}

/// The files beside the tensors that make up a model of one file; those of other models among them that it may borrow.
pub fn accessories(path: &Path) -> Vec<PathBuf> {
    let Some((file, own, models)) = place(path) else { return Vec::new() };
    let inside = |folder: &Path| -> Vec<PathBuf> {
        fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect()
    };
    let parts = inside(&own).into_iter().filter(|part| part.is_dir()).chain(single::beside(&models));
    let files = parts.flat_map(|part| inside(&part)).chain([file.with_extension("yaml")]);
    let mut files: Vec<PathBuf> = files.filter(|path| path.is_file()).collect();
    files.sort();
    files.dedup();
    files
}

impl Parts {
    /// Of one file: itself, or a folder that has no other.
    pub fn open_single(path: &Path) -> Result<Self> {
        let Some((file, own, models)) = place(path) else { return invalid("there is no .safetensors file".to_owned()) };
        let settings_of = file.with_extension("yaml");
        let file = Arc::new(Folder::of_file(&file)?);
        let layout = Layout::of(&file)?;
        let predicts_v = file.tensor("v_pred").is_some() || says_v(&settings_of);
        Place { file, own, models, layout, predicts_v }.parts()
    }
}

/// Whether settings in the words of the first code say that the network guesses velocities.
fn says_v(yaml: &Path) -> bool {
    let short = fs::metadata(yaml).is_ok_and(|metadata| metadata.is_file() && metadata.len() <= LONGEST_YAML);
    let text = fs::read_to_string(yaml).ok().filter(|_| short).unwrap_or_default();
    let mut values = text.lines().filter_map(|line| line.trim().strip_prefix("parameterization:"));
    values.any(|value| value.trim().trim_matches(['"', '\'']) == "v")
}

impl Place {
    fn parts(self) -> Result<Parts> {
        let (family, class) = match self.layout {
            Layout::Xl => (Family::StableDiffusionXl, "StableDiffusionXLPipeline"),
            Layout::One | Layout::Two => (Family::StableDiffusion, "StableDiffusionPipeline"),
        };
        let (network, vae) = (self.network()?, self.vae()?);
        let config = self.scheduler()?;
        // No model of one file is told from a distilled one.
        let index = json!({"_default_steps": 50, "_default_guidance_scale": if family == Family::StableDiffusionXl { 5. } else { 7.5 }});
        let opener = Opener { path: &self.own, index: &index };
        let (default_steps, default_guidance) = opener.defaults(class, family, &network.0, &config);
        let texts = self.layout.texts().iter().enumerate().map(|(at, text)| self.text(at, text));
        let parts = Parts {
            scheduler: settings(family, config)?,
            default_steps,
            default_guidance,
            texts: texts.collect::<Result<_>>()?,
            network,
            vae,
            empty_is_zero: true,
            path: self.own,
            family,
            class: class.to_owned(),
        };
        parts.check()?;
        Ok(parts)
    }

    /// A part's settings: of its folder if there is one, else what the file tells.
    fn config(&self, part: &str, told: impl FnOnce() -> Result<Value>) -> Result<Value> {
        let path = self.own.join(part);
        if path.is_file() { Ok(read_json(&path)?) } else { told() }
    }

    fn tensors(&self, prefix: &str, part: Part) -> Tensors {
        Tensors::Single(Single { file: Arc::clone(&self.file), prefix: prefix.to_owned(), part })
    }

    fn network(&self) -> Result<(NetworkConfig, Tensors)> {
        let told = || Sizes::new(&self.file, NETWORK).unet(self.layout, self.predicts_v);
        let config = Box::new(UnetConfig::read(&self.config("unet/config.json", told)?)?);
        let tensors = self.tensors(NETWORK, Part::Unet(config.clone()));
        Ok((NetworkConfig::Unet(config), tensors))
    }

    fn vae(&self) -> Result<(VaeConfig, Tensors)> {
        let told = || Sizes::new(&self.file, AUTOENCODER).vae(self.layout, self.predicts_v);
        let config = VaeConfig::read(&self.config("vae/config.json", told)?)?;
        let part = Part::Vae(config.channels.len());
        Ok((config, self.tensors(AUTOENCODER, part)))
    }

    fn scheduler(&self) -> Result<Value> {
        let zero_snr = self.file.tensor("ztsnr").is_some();
        let told = || Ok(single::scheduler(self.layout, self.predicts_v, zero_snr));
        self.config("scheduler/scheduler_config.json", told)
    }

    /// One of the text encoders.
    fn text(&self, at: usize, text: &TextSizes) -> Result<TextPart> {
        let behind = if at == 0 { "" } else { "_2" };
        let own = format!("{}text_model.", text.prefix);
        let inner = self.file.names().any(|name| name.starts_with(&own));
        let prefix = if inner { own.as_str() } else { text.prefix };
        let told = || Sizes::new(&self.file, prefix).text(self.layout, text.open);
        let config = self.config(&format!("text_encoder{behind}/config.json"), told)?;
        let projects = text.open && self.layout == Layout::Xl;
        let clip = ClipConfig::read(&config, &format!("text_encoder{behind}/"), projects)?;
        let layers = if self.layout == Layout::Two { clip.layers } else { usize::MAX };
        let part = if text.open { Part::OpenClip { layers, projects } } else { Part::Clip };
        let second = Some(self.own.join(format!("tokenizer{behind}"))).filter(|folder| at > 0 && folder.is_dir());
        let Some(tokenizer) = second.or_else(|| single::find(&self.own, &self.models, clip.vocabulary)) else {
            let name = self.own.file_name().unwrap_or_default().to_string_lossy();
            return invalid(format!(
                "a single file has no tokenizer, and no other pipeline has one of {} tokens: put a CLIP tokenizer (vocab.json and merges.txt) into {name}/tokenizer in the models folder",
                clip.vocabulary
            ));
        };
        let tokens = clip.positions;
        // Whatever the tokenizer was made for.
        let padding = Some(if text.open { OPEN_CLIP_PADDING } else { CLIP_PADDING });
        let tensors = self.tensors(prefix, part);
        Ok(TextPart { encoder: EncoderConfig::Clip(clip), tensors, tokenizer, tokens, padding })
    }
}
