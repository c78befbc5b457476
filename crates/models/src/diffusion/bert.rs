//! BERT (Devlin et al. 2018, <https://arxiv.org/abs/1810.04805>) as a text encoder: the hidden states of the last
//! layer are the prompt embeddings.

use serde_json::Value;

use crate::backend::{PagedAttention, Tensor};
use crate::encoder::{Encoder, EncoderConfig, Family, Tokenized};
use crate::error::Result;
use crate::error::{ModelError, reject_config};
use crate::nn::Context;
use crate::weights::Loader;

/// The configuration of a BERT text encoder.
#[derive(Clone, Debug, PartialEq)]
pub struct BertConfig {
    pub encoder: EncoderConfig,
    /// Attention masks padding tokens.
    pub mask_padding: bool,
    /// The ID of the padding token.
    pub padding_id: u32,
}

impl BertConfig {
    /// Reads a `config.json`; `path` is for error messages.
    pub fn read(value: &Value, path: &str) -> Result<Self> {
        let encoder = match EncoderConfig::from_config_json(value) {
            Ok(encoder) if encoder.family == Family::Bert => encoder,
            Ok(_) => {
                return reject_config(format!(
                    "{path}config.json does not describe a BERT model; supported text encoders: CLIP, BERT"
                ));
            }
            Err(error) => return reject_config(format!("{path}config.json: {error}")),
        };
        let padding_id = value.get("pad_token_id").and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
        let mask_padding = value.get("use_attention_mask").and_then(Value::as_bool).unwrap_or(false);
        Ok(Self { encoder, mask_padding, padding_id: padding_id.unwrap_or(0) })
    }
}

#[derive(Debug)]
pub struct Bert<B: PagedAttention> {
    encoder: Encoder<B>,
    mask_padding: bool,
    padding_id: u32,
}

impl<B: PagedAttention> Bert<B> {
    pub fn load(loader: &Loader<'_, B>, config: &BertConfig) -> Result<Self> {
        let encoder = Encoder::from_loader(loader, config.encoder.clone())?;
        Ok(Self { encoder, mask_padding: config.mask_padding, padding_id: config.padding_id })
    }

    /// An upper bound of the floats that encoding two texts of `tokens` tokens takes.
    pub fn scratch_elements(&self, backend: &B, tokens: usize) -> usize {
        Encoder::pass_bytes(self.encoder.config(), backend, 2 * tokens, 2) as usize / size_of::<f32>()
    }

    /// Hidden states of `texts`, token IDs of equal length: `[texts, tokens, 1, width]`, including padding.
    pub fn forward(&self, ctx: &Context<'_, B>, texts: &[Vec<u32>]) -> Result<Tensor<B>> {
        let tokens = texts.first().map_or(0, Vec::len);
        if texts.iter().any(|text| text.len() != tokens) {
            return Err(ModelError::Compute("texts have different lengths".to_owned()));
        }
        let tokenized: Vec<_> = texts.iter().map(|text| Tokenized::new(text.clone())).collect();
        let unpadded_len =
            |text: &Vec<u32>| text.iter().rposition(|id| *id != self.padding_id).map_or(0, |last| last + 1);
        let lengths: Option<Vec<usize>> = self.mask_padding.then(|| texts.iter().map(unpadded_len).collect());
        let mut pass = self.encoder.begin(ctx, &tokenized.iter().collect::<Vec<_>>(), lengths.as_deref())?;
        while !self.encoder.advance(ctx, &mut pass)? {}
        let mut hidden = pass.into_hidden_states();
        (hidden.images, hidden.size) = (texts.len(), [tokens, 1]);
        Ok(hidden)
    }
}
