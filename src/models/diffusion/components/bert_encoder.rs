//! BERT as the text encoder of Stable Diffusion: in the pipeline's own folder, or an installed model, `"text_encoder":
//! ["outpost", "all-minilm-l6-v2"]`.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::model_index::{CLIP, ModelIndex};
use super::{MODEL_INDEX, Result, TensorSource, TextComponent, TextEncoderConfig, invalid};
use crate::models::diffusion::bert::BertConfig;
use crate::models::safetensors::{ModelFolder, is_file_name, read_json};

const BERT: &str = "BertModel";
/// In place of a library in `model_index.json`: the next entry names an installed model.
const INSTALLED: &str = "outpost";
const ENCODER: &str = "text_encoder";
const TOKENIZER: &str = "tokenizer";

/// The installed model that `model_index.json` names for a component.
fn named<'a>(index: &'a Value, part: &str) -> Option<&'a str> {
    let part = index.get(part)?;
    let name = part.get(1)?.as_str()?;
    part.get(0)?.as_str().filter(|library| *library == INSTALLED).map(|_| name)
}

/// The folder of an installed model, next to the pipeline's; `None` for names that would lead elsewhere.
fn beside(pipeline: &Path, name: &str) -> Option<PathBuf> {
    pipeline.parent().filter(|_| is_file_name(name)).map(|models| models.join(name))
}

/// Folders of installed models that this pipeline uses; a change in them changes the pipeline.
pub fn referenced_models(pipeline: &Path) -> Vec<PathBuf> {
    let Ok(index) = read_json(&pipeline.join(MODEL_INDEX)) else { return Vec::new() };
    let mut folders: Vec<PathBuf> =
        [ENCODER, TOKENIZER].iter().filter_map(|part| beside(pipeline, named(&index, part)?)).collect();
    folders.dedup();
    folders
}

impl ModelIndex<'_> {
    /// The text encoder, if it is BERT; `None` for CLIP.
    pub fn bert(&self) -> Result<Option<TextComponent>> {
        if let Some(name) = named(self.json, ENCODER) {
            return self.installed(name).map(Some);
        }
        match self.class(ENCODER) {
            None | Some(CLIP) => return Ok(None),
            Some(BERT) => {}
            Some(other) => return invalid(format!("the {ENCODER} is a {other}; supported: {CLIP}, {BERT}")),
        }
        let folder = self.component(ENCODER, &[BERT])?;
        let config = BertConfig::read(&folder.config, &format!("{ENCODER}/"))?;
        let tokenizer = self.path.join(TOKENIZER);
        match tokenizer.is_dir() {
            true => self.reader(config, folder, tokenizer).map(Some),
            false => invalid(format!("there is no folder {TOKENIZER}")),
        }
    }

    fn installed(&self, name: &str) -> Result<TextComponent> {
        let path = self.model(name)?;
        let folder = match ModelFolder::open(&path) {
            Ok(folder) => folder,
            Err(error) => return invalid(format!("the model {name}, the pipeline's text encoder: {error}")),
        };
        let mut config = BertConfig::read(&folder.config, &format!("{name}/"))?;
        if let Some(masks) = self.json.get("_use_attention_mask").and_then(Value::as_bool) {
            config.masks_padding = masks;
        }
        let tokenizer = match named(self.json, TOKENIZER) {
            Some(other) => self.model(other)?,
            None if self.path.join(TOKENIZER).is_dir() => self.path.join(TOKENIZER),
            None => path,
        };
        self.reader(config, folder, tokenizer)
    }

    /// The folder of an installed model.
    fn model(&self, name: &str) -> Result<PathBuf> {
        match beside(self.path, name) {
            None => invalid(format!("{MODEL_INDEX} names the model {name:?}, which is not a valid model name")),
            Some(path) if path.join("config.json").is_file() => Ok(path),
            Some(_) => invalid(format!(
                "the pipeline's text encoder is the model {name}, which is not installed; add it to the models folder (`outpost models pull {name}` if the catalogue has it)"
            )),
        }
    }

    fn reader(&self, config: BertConfig, folder: ModelFolder, tokenizer: PathBuf) -> Result<TextComponent> {
        let most = config.sizes.context;
        let asked = self.json.get("_max_length").and_then(Value::as_u64).and_then(|most| usize::try_from(most).ok());
        let tokens = asked.filter(|asked| (1..=most).contains(asked)).unwrap_or(most);
        Ok(TextComponent {
            encoder: TextEncoderConfig::Bert(config),
            tensors: TensorSource::Encoder(folder),
            tokenizer,
            tokens,
            padding: None,
        })
    }
}
