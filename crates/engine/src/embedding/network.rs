//! The networks of embedding models: encoders, whose tokens attend to the whole text, decoders, whose last token does, and
//! tables of static embeddings; and what follows them: projections of the pooled vector, or a head for scores.

use std::sync::Arc;

use super::sentence_transformers::ProjectionModule;
use crate::checkpoint::Checkpoint;
use outpost_models::ModelError;
use outpost_models::backend::{DType, Recurrent};
use outpost_models::causal_lm::CausalLm;
use outpost_models::decoder::{Decoder, EncodePass, EncodedTokens, ScoreHead, ScoreHeadConfig, encode_pass_bytes};
use outpost_models::decoder_config::DecoderConfig;
use outpost_models::encoder::{
    self, Encoder, EncoderConfig, Head, ModuleWeights, Pooling, Projection, StaticConfig, StaticEmbedding, Tokenized,
    normalise,
};
use outpost_models::nn::{Context, LoraDeltas};
use outpost_models::peft::{LoadedAdapter, PeftAdapter};
use outpost_models::weights::Footprint;

/// The network's dimensions, from the model's files.
#[derive(Clone, Debug)]
pub enum NetworkConfig {
    Encoder(EncoderConfig),
    Decoder(Box<DecoderConfig>),
    Static(StaticConfig),
}

/// What follows a network.
pub struct Outputs<'a> {
    /// The head of a decoder that ranks or classifies. That of an encoder is in its `config.json`.
    pub score: Option<ScoreHeadConfig>,
    pub projections: &'a [ProjectionModule],
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

    /// Starts a batch of texts, each with its adapter. A decoder computes the hidden states of the `wanted` tokens.
    fn begin(&self, texts: &[AdaptedText<'_>], wanted: EncodedTokens) -> Result<Box<dyn Pass>, ModelError>;
}

/// A partly computed batch.
pub trait Pass: Send {
    /// Computes a part of the batch, short enough for other workloads to wait for. `true`: it was the last part.
    fn advance(&mut self) -> Result<bool, ModelError>;

    /// Applies `pool` to each text's index and its hidden states, `[tokens, width]`, and gives the projected and normalized
    /// vectors; with a head for scores, gives the logits of each text.
    fn vectors(&self, pool: &dyn Fn(usize, &[f32]) -> Vec<f32>) -> Result<Vec<Vec<f32>>, ModelError>;
}

impl NetworkConfig {
    pub fn width(&self) -> usize {
        match self {
            Self::Encoder(sizes) => sizes.width,
            Self::Decoder(config) => config.width,
            Self::Static(config) => config.width,
        }
    }

    /// Max tokens of a text.
    pub fn context(&self) -> usize {
        match self {
            Self::Encoder(sizes) => sizes.context,
            Self::Decoder(config) => config.context,
            Self::Static(config) => config.context,
        }
    }

    pub fn vocabulary(&self) -> usize {
        match self {
            Self::Encoder(sizes) => sizes.vocabulary,
            Self::Decoder(config) => config.vocabulary,
            Self::Static(config) => config.vocabulary,
        }
    }

    /// An upper bound on the scratch bytes of a batch with this many tokens and texts.
    pub fn pass_bytes<B: Recurrent>(&self, backend: &B, tokens: usize, texts: usize) -> u64 {
        match self {
            Self::Encoder(sizes) => Encoder::pass_bytes(sizes, backend, tokens, texts),
            Self::Decoder(config) => encode_pass_bytes(config, backend, tokens, texts),
            Self::Static(config) => (tokens * config.width * size_of::<f32>()) as u64,
        }
    }
}

/// The tokens of a decoder that a model with these poolings needs.
pub fn wanted_tokens(poolings: &[Pooling]) -> EncodedTokens {
    let is_last = poolings.iter().all(|pooling| *pooling == Pooling::Last);
    if is_last { EncodedTokens::Last } else { EncodedTokens::All }
}

/// Reads the weights of a network and of what follows it, rounded to `precision`.
pub fn load<B: Recurrent>(
    files: &Checkpoint,
    config: &NetworkConfig,
    outputs: &Outputs<'_>,
    precision: Option<DType>,
    backend: &B,
) -> Result<Box<dyn Network>, ModelError> {
    let projection = |module: &ProjectionModule| match &module.file {
        None => Projection::load(files.weights(), module.stem, &module.config, precision, backend),
        Some(file) => Projection::load(&ModuleWeights::open(file)?, module.stem, &module.config, precision, backend),
    };
    let projections = outputs.projections.iter().map(projection).collect::<Result<_, _>>()?;
    let (_binding, own_backend) = (backend.thread_binding(), backend.clone());
    match config {
        NetworkConfig::Decoder(_) => {
            let (network, head) = Decoder::load_encoder(files.weights(), outputs.score, precision, backend)?;
            let ignored = ignored_ending(files, outputs.score);
            let network = DecoderNetwork { _binding, network, head, ignored, projections, backend: own_backend };
            Ok(Box::new(Arc::new(network)))
        }
        NetworkConfig::Static(sizes) => match files {
            Checkpoint::HuggingFace(folder) => {
                let network = StaticEmbedding::load(folder, *sizes)?;
                Ok(Box::new(Arc::new(StaticNetwork { network, projections, backend: own_backend })))
            }
            Checkpoint::Gguf(_) => {
                Err(ModelError::Checkpoint("static embeddings are not supported in GGUF files".to_owned()))
            }
        },
        NetworkConfig::Encoder(sizes) => files.with_encoder(config, |source| {
            let (network, head) = Encoder::load(source, sizes.clone(), files.head_config(), precision, backend)?;
            let network = EncoderNetwork { _binding, network, head, projections, backend: own_backend };
            Ok(Box::new(Arc::new(network)) as Box<dyn Network>)
        }),
    }
}

/// Projects pooled vectors, and normalizes the results.
fn finish<B: Recurrent>(
    backend: &B,
    projections: &[Projection<B>],
    mut vectors: Vec<Vec<f32>>,
) -> Result<Vec<Vec<f32>>, ModelError> {
    for projection in projections {
        vectors = projection.forward(backend, &vectors)?;
    }
    vectors.iter_mut().for_each(|vector| normalise(vector));
    Ok(vectors)
}

/// An encoder; with a head it is a cross-encoder or a classifier.
struct EncoderNetwork<B: Recurrent> {
    _binding: B::ThreadBinding,
    network: Encoder<B>,
    head: Option<Head<B>>,
    projections: Vec<Projection<B>>,
    backend: B,
}

struct EncoderPass<B: Recurrent> {
    network: Arc<EncoderNetwork<B>>,
    lora: LoraDeltas<B>,
    pass: encoder::Pass<B>,
}

impl<B: Recurrent> Network for Arc<EncoderNetwork<B>> {
    fn adapter_footprint(&self, adapter: &PeftAdapter) -> Result<Footprint, ModelError> {
        self.network.adapter_footprint(adapter, &self.backend)
    }

    fn load_adapter(&self, adapter: &PeftAdapter) -> Result<LoadedAdapter, ModelError> {
        self.network.load_adapter(adapter, &self.backend)
    }

    /// An encoder computes the hidden states of all tokens.
    fn begin(&self, texts: &[AdaptedText<'_>], _wanted: EncodedTokens) -> Result<Box<dyn Pass>, ModelError> {
        let lora = self.network.lora_deltas(texts.iter().copied())?;
        let texts: Vec<&Tokenized> = texts.iter().map(|(text, _)| *text).collect();
        let pass = self.network.begin(&Context::new(&self.backend), &texts, None)?;
        Ok(Box::new(EncoderPass { network: Self::clone(self), lora, pass }))
    }
}

impl<B: Recurrent> Pass for EncoderPass<B> {
    fn advance(&mut self) -> Result<bool, ModelError> {
        let EncoderNetwork { network, backend, .. } = &*self.network;
        network.advance(&Context::new(backend).with_lora(self.lora.clone()), &mut self.pass)
    }

    fn vectors(&self, pool: &dyn Fn(usize, &[f32]) -> Vec<f32>) -> Result<Vec<Vec<f32>>, ModelError> {
        let EncoderNetwork { network, head, projections, backend, .. } = &*self.network;
        let states = self.pass.hidden_states(backend)?;
        if let Some(head) = head {
            let width = network.config().width;
            return states.texts().map(|states| head.logits(&Context::new(backend), states, width)).collect();
        }
        finish(backend, projections, states.texts().enumerate().map(|(index, states)| pool(index, states)).collect())
    }
}

/// A decoder; with a head it ranks or classifies.
struct DecoderNetwork<B: Recurrent> {
    _binding: B::ThreadBinding,
    network: Decoder<B>,
    head: Option<ScoreHead<B>>,
    /// A token that does not count at the end of a text.
    ignored: Option<u32>,
    projections: Vec<Projection<B>>,
    backend: B,
}

/// Heads of transformers' `…ForSequenceClassification` read the last token of a text that is no padding.
fn ignored_ending(files: &Checkpoint, score: Option<ScoreHeadConfig>) -> Option<u32> {
    let Checkpoint::HuggingFace(folder) = files else { return None };
    let id = || u32::try_from(folder.config.get("pad_token_id")?.as_u64()?).ok();
    matches!(score, Some(ScoreHeadConfig::Matrix { .. })).then(id)?
}

/// A text up to its last token that counts; the whole text if none does.
fn counted(ids: &[u32], ignored: Option<u32>) -> &[u32] {
    let last = ids.iter().rposition(|id| Some(*id) != ignored);
    last.and_then(|last| ids.get(..=last)).unwrap_or(ids)
}

struct DecoderPass<B: Recurrent> {
    network: Arc<DecoderNetwork<B>>,
    pass: EncodePass<B>,
}

impl<B: Recurrent> Network for Arc<DecoderNetwork<B>> {
    fn adapter_footprint(&self, adapter: &PeftAdapter) -> Result<Footprint, ModelError> {
        self.network.adapter_footprint(adapter)
    }

    fn load_adapter(&self, adapter: &PeftAdapter) -> Result<LoadedAdapter, ModelError> {
        self.network.load_adapter(adapter)
    }

    fn begin(&self, texts: &[AdaptedText<'_>], wanted: EncodedTokens) -> Result<Box<dyn Pass>, ModelError> {
        let texts: Vec<_> = texts.iter().map(|(text, adapter)| (counted(&text.ids, self.ignored), *adapter)).collect();
        let wanted = if self.head.is_some() { EncodedTokens::Last } else { wanted };
        let pass = self.network.begin_encode(&texts, wanted)?;
        Ok(Box::new(DecoderPass { network: Self::clone(self), pass }))
    }
}

impl<B: Recurrent> Pass for DecoderPass<B> {
    fn advance(&mut self) -> Result<bool, ModelError> {
        self.network.network.advance(&mut self.pass)
    }

    fn vectors(&self, pool: &dyn Fn(usize, &[f32]) -> Vec<f32>) -> Result<Vec<Vec<f32>>, ModelError> {
        let DecoderNetwork { network, head, projections, backend, .. } = &*self.network;
        let states = network.hidden_states(&self.pass)?;
        match head {
            Some(head) => head.logits(backend, &states),
            None => {
                let pooled = states.iter().enumerate().map(|(index, states)| pool(index, states));
                finish(backend, projections, pooled.collect())
            }
        }
    }
}

/// A table of static embeddings, on the host.
struct StaticNetwork<B: Recurrent> {
    network: StaticEmbedding,
    projections: Vec<Projection<B>>,
    backend: B,
}

struct StaticPass<B: Recurrent> {
    network: Arc<StaticNetwork<B>>,
    /// The vectors of each text's tokens.
    texts: Vec<Vec<f32>>,
}

impl<B: Recurrent> Network for Arc<StaticNetwork<B>> {
    fn adapter_footprint(&self, _: &PeftAdapter) -> Result<Footprint, ModelError> {
        Err(ModelError::Checkpoint("static embeddings have no projections that an adapter could target".to_owned()))
    }

    fn load_adapter(&self, adapter: &PeftAdapter) -> Result<LoadedAdapter, ModelError> {
        self.adapter_footprint(adapter)?;
        Err(ModelError::Checkpoint("static embeddings have no adapters".to_owned()))
    }

    fn begin(&self, texts: &[AdaptedText<'_>], _wanted: EncodedTokens) -> Result<Box<dyn Pass>, ModelError> {
        let texts = texts.iter().map(|(text, _)| self.network.look_up(&text.ids)).collect::<Result<_, _>>()?;
        Ok(Box::new(StaticPass { network: Self::clone(self), texts }))
    }
}

impl<B: Recurrent> Pass for StaticPass<B> {
    fn advance(&mut self) -> Result<bool, ModelError> {
        Ok(true)
    }

    fn vectors(&self, pool: &dyn Fn(usize, &[f32]) -> Vec<f32>) -> Result<Vec<Vec<f32>>, ModelError> {
        let StaticNetwork { network, projections, backend } = &*self.network;
        // A text of unknown tokens has none.
        let pooled = self.texts.iter().enumerate().map(|(index, states)| match states.is_empty() {
            true => vec![0.; network.config().width],
            false => pool(index, states),
        });
        finish(backend, projections, pooled.collect())
    }
}
