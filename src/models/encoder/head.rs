//! The classification head of a cross-encoder: a small network over hidden states that scores a pair of texts.

use outpost_kernels as kernels;
use serde_json::Value;

use super::Pooling;
use super::config::EncoderConfig;
use super::tensor_names::Family;
use crate::models::decoder_family::Activation;
use crate::models::error::{Result, reject_config};
use crate::models::linear::Linear;
use crate::models::norm::Norm;
use crate::models::scratch_buffers::Cpu;
use crate::models::weights::{Candidate, Loader};

/// A classification head with one output.
#[derive(Debug)]
pub struct Head {
    pooling: Pooling,
    dense: Linear,
    /// ModernBERT's activation; `None`: tanh.
    activation: Option<Activation>,
    norm: Option<Norm>,
    output: Linear,
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

impl Head {
    /// `config` is the `config.json`; only ModernBERT uses it.
    pub(super) fn load(loader: &Loader<'_>, config: &Value, sizes: &EncoderConfig) -> Result<Self> {
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
    pub fn score(&self, cpu: &Cpu, vectors: &[f32], width: usize) -> Result<f32> {
        let (pool, mut pooled, mut inner, mut out) = (cpu.pool(), Vec::with_capacity(width), vec![0.; width], [0.]);
        self.pooling.add(vectors, width, &mut pooled);
        self.dense.forward(pool, &pooled, 1, &mut inner)?;
        match self.activation {
            Some(activation) => kernels::activate(pool, activation, &mut inner, None),
            None => inner.iter_mut().for_each(|x| *x = x.tanh()),
        }
        if let Some(norm) = &self.norm {
            norm.forward_in_place(pool, &mut inner, width, &mut pooled);
        }
        self.output.forward(pool, &inner[..width], 1, &mut out)?;
        let [logit] = out;
        Ok(logit)
    }
}
