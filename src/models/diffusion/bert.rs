//! BERT (Devlin et al. 2018, <https://arxiv.org/abs/1810.04805>) as a text encoder: the last layer's hidden states are
//! the prompt embeddings.

use std::sync::Arc;

use serde_json::Value;

use super::feature_map::FeatureMap;
use super::layers::Loaded;
use super::op_context::{OpContext, Result};
use crate::models::encoder::{Encoder, EncoderConfig, Family, Tokenized};
use crate::models::error::{ModelError, reject_config};
use crate::models::scratch_buffers::Cpu;
use crate::models::weights::Loader;

/// The configuration of a text encoder.
#[derive(Clone, Debug, PartialEq)]
pub struct BertConfig {
    pub sizes: EncoderConfig,
    /// Whether attention masks padding.
    pub masks_padding: bool,
    /// The ID of the padding token.
    pub padding: u32,
}

impl BertConfig {
    /// Reads a `config.json`; `path` is for error messages.
    pub fn read(value: &Value, path: &str) -> std::result::Result<Self, ModelError> {
        let sizes = match EncoderConfig::from_config_json(value) {
            Ok(sizes) if sizes.family == Family::Bert => sizes,
            Ok(_) => {
                return reject_config(format!(
                    "{path}config.json does not describe a BERT; supported text encoders: CLIP, BERT"
                ));
            }
            Err(error) => return reject_config(format!("{path}config.json: {error}")),
        };
        let padding = value.get("pad_token_id").and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
        let masks_padding = value.get("use_attention_mask").and_then(Value::as_bool).unwrap_or(false);
        Ok(Self { sizes, masks_padding, padding: padding.unwrap_or(0) })
    }
}

#[derive(Debug)]
pub struct Bert {
    encoder: Encoder,
    masks_padding: bool,
    padding: u32,
}

impl Bert {
    pub fn load(loader: &Loader<'_>, config: &BertConfig, cpu: &Arc<Cpu>) -> Loaded<Self> {
        let BertConfig { sizes, masks_padding, padding } = config;
        let encoder = Encoder::from_loader(loader, sizes.clone(), Arc::clone(cpu))?;
        Ok(Self { encoder, masks_padding: *masks_padding, padding: *padding })
    }

    /// An upper bound of the floats that encoding two texts of `tokens` tokens takes.
    pub fn scratch_elements(&self, tokens: usize, threads: usize) -> usize {
        Encoder::pass_bytes(self.encoder.config(), 2 * tokens, 2, threads) as usize / size_of::<f32>()
    }

    /// Hidden states of `texts` of equal length, `[texts, tokens, 1, width]`, including padding.
    pub fn forward(&self, ctx: &OpContext<'_>, texts: &[Vec<u32>]) -> Result<FeatureMap> {
        let (count, width) = (texts.first().map_or(0, Vec::len), self.encoder.config().width);
        if texts.iter().any(|text| text.len() != count) {
            return Err(ModelError::Compute("texts of different lengths".to_owned()));
        }
        let tokenized: Vec<_> = texts.iter().map(|text| Tokenized::new(text.clone())).collect();
        let mut pass = self.encoder.begin(&tokenized.iter().collect::<Vec<_>>())?;
        if self.masks_padding {
            // A text never ends with a real padding token.
            let real = |text: &Vec<u32>| text.iter().rposition(|id| *id != self.padding).map_or(0, |last| last + 1);
            pass.mask_padding(texts.iter().map(real));
        }
        while !self.encoder.advance(&mut pass)? {
            ctx.pause()?;
        }
        let mut hidden = ctx.alloc(texts.len(), [count, 1], width);
        let to = hidden.data_mut().chunks_exact_mut((count * width).max(1));
        to.zip(pass.vectors(width)).for_each(|(to, from)| to.copy_from_slice(from));
        Ok(hidden)
    }
}
