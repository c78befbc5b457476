//! The classification head of a cross-encoder: a small network over hidden states that scores a pair of texts.

use serde_json::Value;

use super::Pooling;
use super::config::EncoderConfig;
use super::tensor_names::Family;
use crate::models::backend::{Activation, Backend, Norm};
use crate::models::error::{ModelError, Result, reject_config};
use crate::models::nn::{Context, Linear};
use crate::models::weights::{Candidate, Loader};

/// A classification head with one output.
#[derive(Debug)]
pub struct Head<B: Backend> {
    pooling: Pooling,
    dense: Linear<B>,
    /// ModernBERT's activation; `None`: tanh.
    activation: Option<Activation>,
    norm: Option<Norm<B>>,
    output: Linear<B>,
}

/// The number of classes in a `config.json`.
fn classes(config: &Value) -> usize {
    let labels = config.get("id2label").and_then(Value::as_object).map(serde_json::Map::len);
    let number = config.get("num_labels").and_then(Value::as_u64).map(|number| number as usize);
    number.or(labels).unwrap_or(2)
}

/// Checks that a `config.json` describes a supported cross-encoder.
pub fn check(config: &Value, sizes: &EncoderConfig) -> Result<()> {
    match (sizes.family, classes(config)) {
        (Family::Nomic, _) => reject_config("cross-encoders of this family are not supported".to_owned()),
        (_, 1) => Ok(()),
        (_, count) => reject_config(format!("the model has {count} classes; a cross-encoder must have one")),
    }
}

impl<B: Backend> Head<B> {
    /// `config` is the `config.json`; only ModernBERT uses it.
    pub(super) fn load(loader: &Loader<'_, B>, config: &Value, sizes: &EncoderConfig) -> Result<Self> {
        let EncoderConfig { width, epsilon, family, .. } = *sizes;
        let linear = |stem: &str, rows| loader.linear(&[Candidate::whole(stem.to_owned(), rows)], rows, width, false);
        let modern = family == Family::Modern;
        // The other families have fixed settings.
        let setting = |key: &str| config.get(key).filter(|_| modern).and_then(Value::as_str);
        let pooling = match setting("classifier_pooling") {
            Some("mean") => Pooling::Mean,
            None | Some("cls") => Pooling::Cls,
            Some(other) => return reject_config(format!("classifier_pooling {other} is not supported")),
        };
        let activation = match setting("classifier_activation") {
            None | Some("gelu") => Activation::Gelu,
            Some("silu") => Activation::Silu,
            Some("relu") => Activation::Relu,
            Some(other) => return reject_config(format!("classifier_activation {other} is not supported")),
        };
        Ok(Self {
            pooling,
            dense: linear("cls", width)?,
            activation: modern.then_some(activation),
            norm: modern.then(|| Norm::load_layer_norm(loader, "cls.norm", width, epsilon)).transpose()?,
            output: linear("cls.output", 1)?,
        })
    }

    /// Computes the relevance logit of a pair; `vectors` are its hidden states, `[tokens, width]`.
    pub fn score(&self, ctx: &Context<'_, B>, vectors: &[f32], width: usize) -> Result<f32> {
        let mut pooled = Vec::with_capacity(width);
        self.pooling.add(vectors, width, &mut pooled);
        let mut inner = self.dense.forward(ctx, &ctx.tensor(&pooled, [1, 1, 1, width])?)?;
        match self.activation {
            Some(activation) => ctx.activate(activation, &mut inner, None)?,
            None => {
                let values: Vec<f32> = ctx.to_vec(&inner)?.into_iter().map(f32::tanh).collect();
                inner = ctx.tensor(&values, inner.shape())?;
            }
        }
        if let Some(norm) = &self.norm {
            inner = ctx.norm(norm, &inner)?;
        }
        let logits = ctx.to_vec(&self.output.forward(ctx, &inner)?)?;
        logits.first().copied().ok_or_else(|| ModelError::Compute("the head has no output".to_owned()))
    }
}
