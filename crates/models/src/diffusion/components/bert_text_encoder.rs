//! BERT as the text encoder of Stable Diffusion. It is in the folder of the pipeline, or it is another installed model:
//! `"text_encoder": ["outpost", "all-minilm-l6-v2"]`.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::model_index::{CLIP, ModelIndex};
use super::{MODEL_INDEX, Result, TensorSource, TextComponent, TextEncoderConfig, invalid};
use crate::diffusion::bert::BertConfig;
use crate::safetensors::{ModelFolder, is_file_name, read_json};

const BERT: &str = "BertModel";
/// The value that replaces the library name in `model_index.json` if the next entry is the name of an installed model.
const INSTALLED_MODEL: &str = "outpost";
const TEXT_ENCODER: &str = "text_encoder";
const TOKENIZER: &str = "tokenizer";

/// The installed model that `model_index.json` names for a component.
fn installed_model<'a>(index: &'a Value, component: &str) -> Option<&'a str> {
    let entry = index.get(component)?;
    let name = entry.get(1)?.as_str()?;
    entry.get(0)?.as_str().filter(|library| *library == INSTALLED_MODEL).map(|_| name)
}

/// The folder of an installed model, which is next to that of the pipeline; `None` if `name` is not a plain file name.
fn sibling_model(pipeline: &Path, name: &str) -> Option<PathBuf> {
    pipeline.parent().filter(|_| is_file_name(name)).map(|models| models.join(name))
}

/// Folders of the installed models that a pipeline uses. A change in them changes the pipeline.
pub fn referenced_models(pipeline: &Path) -> Vec<PathBuf> {
    let Ok(index) = read_json(&pipeline.join(MODEL_INDEX)) else { return Vec::new() };
    let mut folders: Vec<PathBuf> = [TEXT_ENCODER, TOKENIZER]
        .iter()
        .filter_map(|name| sibling_model(pipeline, installed_model(&index, name)?))
        .collect();
    folders.dedup();
    folders
}

impl ModelIndex<'_> {
    /// The text encoder, if it is BERT; `None` for CLIP.
    pub fn bert_text_encoder(&self) -> Result<Option<TextComponent>> {
        if let Some(name) = installed_model(self.json, TEXT_ENCODER) {
            return self.installed_text_encoder(name).map(Some);
        }
        match self.class(TEXT_ENCODER) {
            None | Some(CLIP) => return Ok(None),
            Some(BERT) => {}
            Some(other) => return invalid(format!("the {TEXT_ENCODER} is a {other}; supported: {CLIP}, {BERT}")),
        }
        let folder = self.component(TEXT_ENCODER, &[BERT])?;
        let config = BertConfig::read(&folder.config, &format!("{TEXT_ENCODER}/"))?;
        let tokenizer = self.path.join(TOKENIZER);
        match tokenizer.is_dir() {
            true => self.text_component(config, folder, tokenizer).map(Some),
            false => invalid(format!("there is no folder {TOKENIZER}")),
        }
    }

    fn installed_text_encoder(&self, name: &str) -> Result<TextComponent> {
        let path = self.installed_model_dir(name)?;
        let folder = match ModelFolder::open(&path) {
            Ok(folder) => folder,
            Err(error) => return invalid(format!("the model {name}, the pipeline's text encoder: {error}")),
        };
        let mut config = BertConfig::read(&folder.config, &format!("{name}/"))?;
        if let Some(mask_padding) = self.json.get("_use_attention_mask").and_then(Value::as_bool) {
            config.mask_padding = mask_padding;
        }
        let tokenizer = match installed_model(self.json, TOKENIZER) {
            Some(other) => self.installed_model_dir(other)?,
            None if self.path.join(TOKENIZER).is_dir() => self.path.join(TOKENIZER),
            None => path,
        };
        self.text_component(config, folder, tokenizer)
    }

    /// The folder of an installed model.
    fn installed_model_dir(&self, name: &str) -> Result<PathBuf> {
        match sibling_model(self.path, name) {
            None => invalid(format!("{MODEL_INDEX} names the model {name:?}, which is not a valid model name")),
            Some(path) if path.join("config.json").is_file() => Ok(path),
            Some(_) => invalid(format!(
                "the pipeline's text encoder is the model {name}, which is not installed; add it to the models folder (`outpost models pull {name}` if the catalog has it)"
            )),
        }
    }

    fn text_component(&self, config: BertConfig, folder: ModelFolder, tokenizer: PathBuf) -> Result<TextComponent> {
        let max_tokens = config.encoder.context;
        let configured =
            self.json.get("_max_length").and_then(Value::as_u64).and_then(|tokens| usize::try_from(tokens).ok());
        let tokens = configured.filter(|tokens| (1..=max_tokens).contains(tokens)).unwrap_or(max_tokens);
        Ok(TextComponent {
            encoder: TextEncoderConfig::Bert(config),
            tensors: TensorSource::Encoder(folder),
            tokenizer,
            tokens,
            padding: None,
        })
    }
}
