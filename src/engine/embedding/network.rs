//! The networks of embedding models: encoders, whose tokens attend to the whole text, and decoders, whose last token
//! does.

use crate::engine::checkpoint::Checkpoint;
use crate::models::ModelError;
use crate::models::backend::{Cpu, DType};
use crate::models::decoder::{Decoder, EncodePass, encode_pass_bytes};
use crate::models::decoder_config::DecoderConfig;
use crate::models::encoder::{self, Encoder, EncoderConfig, Head, Tokenized};
use crate::models::nn::Context;

/// The network's dimensions, from the model's files.
#[derive(Clone, Debug)]
pub enum NetworkConfig {
    Encoder(EncoderConfig),
    Decoder(Box<DecoderConfig>),
}

pub enum Network {
    Encoder { encoder: Box<Encoder<Cpu>>, head: Option<Head<Cpu>>, backend: Cpu },
    Decoder(Box<Decoder<Cpu>>),
}

/// A partly computed batch.
pub enum Pass {
    Encoder(encoder::Pass<Cpu>),
    Decoder(EncodePass<Cpu>),
}

impl NetworkConfig {
    pub fn width(&self) -> usize {
        match self {
            Self::Encoder(sizes) => sizes.width,
            Self::Decoder(config) => config.width,
        }
    }

    /// Max tokens of a text.
    pub fn context(&self) -> usize {
        match self {
            Self::Encoder(sizes) => sizes.context,
            Self::Decoder(config) => config.context,
        }
    }

    pub fn vocabulary(&self) -> usize {
        match self {
            Self::Encoder(sizes) => sizes.vocabulary,
            Self::Decoder(config) => config.vocabulary,
        }
    }

    /// An upper bound on the scratch bytes of a batch with this many tokens and texts.
    pub fn pass_bytes(&self, tokens: usize, texts: usize, threads: usize) -> u64 {
        match self {
            Self::Encoder(sizes) => Encoder::<Cpu>::pass_bytes(sizes, tokens, texts, threads),
            Self::Decoder(config) => encode_pass_bytes::<Cpu>(config, tokens, texts, threads),
        }
    }
}

impl Network {
    pub fn load(
        files: &Checkpoint,
        config: &NetworkConfig,
        precision: Option<DType>,
        backend: &Cpu,
    ) -> Result<Self, ModelError> {
        match config {
            NetworkConfig::Decoder(_) => {
                Ok(Self::Decoder(Box::new(Decoder::load_headless(files.weights(), precision, backend)?)))
            }
            NetworkConfig::Encoder(sizes) => files.with_encoder(config, |source| {
                let (encoder, head) =
                    Encoder::load(source, sizes.clone(), files.cross_encoder_config(), precision, backend)?;
                Ok(Self::Encoder { encoder: Box::new(encoder), head, backend: backend.clone() })
            }),
        }
    }

    pub fn begin(&self, texts: &[&Tokenized]) -> Result<Pass, ModelError> {
        match self {
            Self::Encoder { encoder, backend, .. } => encoder.begin(&Context::new(backend), texts).map(Pass::Encoder),
            Self::Decoder(network) => {
                let texts: Vec<&[u32]> = texts.iter().map(|text| text.ids.as_slice()).collect();
                network.begin_encode(&texts).map(Pass::Decoder)
            }
        }
    }

    /// Computes a part of the batch, short enough for other workloads to wait for. `true`: it was the last part.
    pub fn advance(&self, pass: &mut Pass) -> Result<bool, ModelError> {
        match (self, pass) {
            (Self::Encoder { encoder, backend, .. }, Pass::Encoder(pass)) => {
                encoder.advance(&Context::new(backend), pass)
            }
            (Self::Decoder(network), Pass::Decoder(pass)) => network.advance(pass),
            _ => Err(ModelError::Compute("the batch belongs to another network".to_owned())),
        }
    }

    /// Applies `pool` to each text's token vectors, `[tokens, width]`; for a cross-encoder gives one logit for each
    /// text.
    pub fn vectors(&self, pass: &Pass, pool: impl Fn(&[f32]) -> Vec<f32>) -> Result<Vec<Vec<f32>>, ModelError> {
        match (self, pass) {
            (Self::Encoder { encoder, head, backend }, Pass::Encoder(pass)) => {
                let width = encoder.config().width;
                let one = |vectors: &[f32]| match head {
                    Some(head) => Ok(vec![head.score(&Context::new(backend), vectors, width)?]),
                    None => Ok(pool(vectors)),
                };
                pass.hidden_states(backend)?.texts().map(one).collect()
            }
            (Self::Decoder(network), Pass::Decoder(pass)) => {
                Ok(network.last_hidden_states(pass)?.iter().map(|vector| pool(vector)).collect())
            }
            _ => Err(ModelError::Compute("the batch belongs to another network".to_owned())),
        }
    }
}
