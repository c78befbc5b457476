//! Classification heads: small networks over hidden states. That of a cross-encoder scores a pair of texts with one logit;
//! that of a classifier has a logit for each label.
//!
//! The heads are those of transformers' `…ForSequenceClassification`.

use serde_json::Value;

use super::Pooling;
use super::config::EncoderConfig;
use super::tensor_names::Family;
use crate::backend::{Activation, Backend, Norm};
use crate::error::{Result, reject_config};
use crate::nn::{Context, Linear};
use crate::weights::{Candidate, Loader};

/// Max labels of a classifier.
const MAX_LABELS: usize = 128;

/// A classification head.
#[derive(Debug)]
pub struct Head<B: Backend> {
    pooling: Pooling,
    dense: Linear<B>,
    /// The activation of DistilBERT and ModernBERT; `None`: tanh.
    activation: Option<Activation>,
    norm: Option<Norm<B>>,
    output: Linear<B>,
}

/// The labels of a classifier, and how its logits become scores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labels {
    pub names: Vec<String>,
    /// Several labels may apply to a text: each logit is scored by itself (sigmoid). Otherwise, the scores of all
    /// labels add up to one (softmax).
    pub are_independent: bool,
}

/// The number of outputs of the head that a `config.json` describes.
pub fn outputs(config: &Value) -> usize {
    let labels = config.get("id2label").and_then(Value::as_object).map(serde_json::Map::len);
    let number = config.get("num_labels").and_then(Value::as_u64).map(|number| number as usize);
    number.or(labels).unwrap_or(2)
}

/// Checks that a `config.json` describes a supported head.
pub fn check(config: &Value, sizes: &EncoderConfig) -> Result<()> {
    match outputs(config) {
        _ if sizes.family == Family::Nomic => {
            reject_config("classification heads of this family are not supported".to_owned())
        }
        0 => reject_config("the model has no labels".to_owned()),
        1 => Ok(()),
        _ => Labels::read(config).map(drop),
    }
}

impl Labels {
    /// Reads the `config.json` of a model with more than one label.
    pub fn read(config: &Value) -> Result<Self> {
        let count = outputs(config);
        if count > MAX_LABELS {
            return reject_config(format!("the model has {count} labels; at most {MAX_LABELS} are supported"));
        }
        let are_independent = match config.get("problem_type").and_then(Value::as_str) {
            None | Some("single_label_classification") => false,
            Some("multi_label_classification") => true,
            Some(other) => return reject_config(format!("the problem type {other} is not supported")),
        };
        let name = |index: usize| {
            let name = config.pointer(&format!("/id2label/{index}")).and_then(Value::as_str);
            name.map_or_else(|| format!("LABEL_{index}"), str::to_owned)
        };
        Ok(Self { names: (0..count).map(name).collect(), are_independent })
    }

    /// The scores of logits, from 0 to 1.
    pub fn scores(&self, logits: &[f32]) -> Vec<f32> {
        if self.are_independent {
            return logits.iter().map(|logit| 1. / (1. + (-logit).exp())).collect();
        }
        let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let powers: Vec<f32> = logits.iter().map(|logit| (logit - highest).exp()).collect();
        let sum: f32 = powers.iter().sum();
        powers.into_iter().map(|power| power / sum).collect()
    }
}

impl<B: Backend> Head<B> {
    /// `config` is the `config.json`, or null.
    pub(super) fn load(loader: &Loader<'_, B>, config: &Value, sizes: &EncoderConfig) -> Result<Self> {
        let EncoderConfig { width, epsilon, family, .. } = *sizes;
        // A GGUF file has no `config.json`, and always one output.
        let outputs = if config.is_null() { 1 } else { outputs(config) };
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
            activation: match family {
                Family::Modern => Some(activation),
                Family::Distil => Some(Activation::Relu),
                Family::Bert | Family::Roberta | Family::Mpnet | Family::Nomic => None,
            },
            norm: modern.then(|| Norm::load_layer_norm(loader, "cls.norm", width, epsilon)).transpose()?,
            output: linear("cls.output", outputs)?,
        })
    }

    /// Computes the logits of a text or a pair of texts; `vectors` are its hidden states, `[tokens, width]`.
    pub fn logits(&self, ctx: &Context<'_, B>, vectors: &[f32], width: usize) -> Result<Vec<f32>> {
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
        ctx.to_vec(&self.output.forward(ctx, &inner)?)
    }
}
