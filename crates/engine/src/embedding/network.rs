//! The networks of embedding models: encoders, whose tokens attend to the whole text, and decoders, whose last token
//! does.

use std::sync::Arc;

use crate::checkpoint::Checkpoint;
use outpost_models::ModelError;
use outpost_models::backend::{DType, Recurrent};
use outpost_models::causal_lm::CausalLm;
use outpost_models::decoder::{Decoder, EncodePass, encode_pass_bytes};
use outpost_models::decoder_config::DecoderConfig;
use outpost_models::encoder::{self, Encoder, EncoderConfig, Head, Tokenized};
use outpost_models::nn::{Context, LoraDeltas};
use outpost_models::peft::{LoadedAdapter, PeftAdapter};
use outpost_models::weights::Footprint;

/// The network's dimensions, from the model's files.
#[derive(Clone, Debug)]
pub enum NetworkConfig {
    Encoder(EncoderConfig),
    Decoder(Box<DecoderConfig>),
}

/// A text, and the adapter that it is computed with.
pub type AdaptedText<'a> = (&'a Tokenized, Option<&'a LoadedAdapter>);

/// A network on its device.
pub trait Network: Send + Sync {
    /// The memory that an adapter takes.
    ///
    /// # Errors
    /// If the adapter does not fit the network.
    fn adapter_footprint(&self, adapter: &PeftAdapter) -> Result<Footprint, ModelError>;

    /// Reads the weights of an adapter.
    ///
    /// # Errors
    /// If the adapter does not fit the network, or is damaged.
    fn load_adapter(&self, adapter: &PeftAdapter) -> Result<LoadedAdapter, ModelError>;

    /// Starts a batch of texts, each with its adapter.
    fn begin(&self, texts: &[AdaptedText<'_>]) -> Result<Box<dyn Pass>, ModelError>;
}

/// A partly computed batch.
pub trait Pass: Send {
    /// Computes a part of the batch, short enough for other workloads to wait for. `true`: it was the last part.
    fn advance(&mut self) -> Result<bool, ModelError>;

    /// Applies `pool` to each text's index and its token vectors, `[tokens, width]`; with a classification head, gives the
    /// logits of each text.
    fn vectors(&self, pool: &dyn Fn(usize, &[f32]) -> Vec<f32>) -> Result<Vec<Vec<f32>>, ModelError>;
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
    pub fn pass_bytes<B: Recurrent>(&self, backend: &B, tokens: usize, texts: usize) -> u64 {
        match self {
            Self::Encoder(sizes) => Encoder::pass_bytes(sizes, backend, tokens, texts),
            Self::Decoder(config) => encode_pass_bytes(config, backend, tokens, texts),
        }
    }
}

/// Reads the weights of a network, rounded to `precision`.
pub fn load<B: Recurrent>(
    files: &Checkpoint,
    config: &NetworkConfig,
    precision: Option<DType>,
    backend: &B,
) -> Result<Box<dyn Network>, ModelError> {
    match config {
        NetworkConfig::Decoder(_) => {
            Ok(Box::new(Arc::new(Decoder::load_headless(files.weights(), precision, backend)?)))
        }
        NetworkConfig::Encoder(sizes) => files.with_encoder(config, |source| {
            let (encoder, head) = Encoder::load(source, sizes.clone(), files.head_config(), precision, backend)?;
            Ok(Box::new(Arc::new(EncoderNetwork {
                _binding: backend.thread_binding(),
                encoder,
                head,
                backend: backend.clone(),
            })) as Box<dyn Network>)
        }),
    }
}

/// An encoder; with a head it is a cross-encoder or a classifier.
struct EncoderNetwork<B: Recurrent> {
    _binding: B::ThreadBinding,
    encoder: Encoder<B>,
    head: Option<Head<B>>,
    backend: B,
}

struct EncoderPass<B: Recurrent> {
    network: Arc<EncoderNetwork<B>>,
    lora: LoraDeltas<B>,
    pass: encoder::Pass<B>,
}

impl<B: Recurrent> Network for Arc<EncoderNetwork<B>> {
    fn adapter_footprint(&self, adapter: &PeftAdapter) -> Result<Footprint, ModelError> {
        self.encoder.adapter_footprint(adapter, &self.backend)
    }

    fn load_adapter(&self, adapter: &PeftAdapter) -> Result<LoadedAdapter, ModelError> {
        self.encoder.load_adapter(adapter, &self.backend)
    }

    fn begin(&self, texts: &[AdaptedText<'_>]) -> Result<Box<dyn Pass>, ModelError> {
        let lora = self.encoder.lora_deltas(texts.iter().copied())?;
        let texts: Vec<&Tokenized> = texts.iter().map(|(text, _)| *text).collect();
        let pass = self.encoder.begin(&Context::new(&self.backend), &texts, None)?;
        Ok(Box::new(EncoderPass { network: Self::clone(self), lora, pass }))
    }
}

impl<B: Recurrent> Pass for EncoderPass<B> {
    fn advance(&mut self) -> Result<bool, ModelError> {
        let EncoderNetwork { encoder, backend, .. } = &*self.network;
        encoder.advance(&Context::new(backend).with_lora(self.lora.clone()), &mut self.pass)
    }

    fn vectors(&self, pool: &dyn Fn(usize, &[f32]) -> Vec<f32>) -> Result<Vec<Vec<f32>>, ModelError> {
        let EncoderNetwork { encoder, head, backend, .. } = &*self.network;
        let one = |(index, vectors): (usize, &[f32])| match head {
            Some(head) => head.logits(&Context::new(backend), vectors, encoder.config().width),
            None => Ok(pool(index, vectors)),
        };
        self.pass.hidden_states(backend)?.texts().enumerate().map(one).collect()
    }
}

struct DecoderPass<B: Recurrent> {
    network: Arc<Decoder<B>>,
    pass: EncodePass<B>,
}

impl<B: Recurrent> Network for Arc<Decoder<B>> {
    fn adapter_footprint(&self, adapter: &PeftAdapter) -> Result<Footprint, ModelError> {
        CausalLm::adapter_footprint(&**self, adapter)
    }

    fn load_adapter(&self, adapter: &PeftAdapter) -> Result<LoadedAdapter, ModelError> {
        CausalLm::load_adapter(&**self, adapter)
    }

    fn begin(&self, texts: &[AdaptedText<'_>]) -> Result<Box<dyn Pass>, ModelError> {
        let texts: Vec<_> = texts.iter().map(|(text, adapter)| (text.ids.as_slice(), *adapter)).collect();
        let pass = self.begin_encode(&texts)?;
        Ok(Box::new(DecoderPass { network: Self::clone(self), pass }))
    }
}

impl<B: Recurrent> Pass for DecoderPass<B> {
    fn advance(&mut self) -> Result<bool, ModelError> {
        self.network.advance(&mut self.pass)
    }

    fn vectors(&self, pool: &dyn Fn(usize, &[f32]) -> Vec<f32>) -> Result<Vec<Vec<f32>>, ModelError> {
        let vectors = self.network.last_hidden_states(&self.pass)?;
        Ok(vectors.iter().enumerate().map(|(index, vector)| pool(index, vector)).collect())
    }
}
