//! Encoders: networks with bidirectional attention that return a hidden state for each token.
//!
//! A pass runs a ragged batch without padding: texts share every read of the weights, and only attention runs text by
//! text. It advances layer by layer, so that other work can run in between.

mod config;
pub mod head;
mod layer;
mod pooling;
mod projection;
mod static_embedding;
mod tensor_names;

use std::ops::Range;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::backend::{Angles, AttentionShape, DType, Norm, PagedAttention, RopeLayout, Tensor};
use super::nn::rope::Rope;
use super::nn::{Context, EmbeddingTable, LoraDeltas, RelativeBias};
use super::peft::{FittedAdapter, LoadedAdapter, PeftAdapter};
use super::text_batch::{TextBatch, arena_bytes};
use super::weights::{Footprint, LoadedMatrix, Loader, Weights};
use crate::error::{ModelError, Result};
pub use config::{EncoderConfig, LayerAttention, Positions};
pub use head::Head;
use layer::{Layer, ResidualStream};
pub use pooling::{Pooling, normalise, truncate_dimensions};
pub use projection::{MODULE_STEM, ModuleWeights, Projection, ProjectionActivation, ProjectionConfig};
pub use static_embedding::{STATIC_MODEL_TYPE, StaticConfig, StaticEmbedding};
pub use tensor_names::{EncoderWeights, Family};

/// The distance from which on MPNet's bias is the same.
const RELATIVE_MAX_DISTANCE: usize = 128;

/// A loaded encoder, shared by all passes.
#[derive(Debug)]
pub struct Encoder<B: PagedAttention> {
    config: EncoderConfig,
    token_embd: EmbeddingTable,
    position_embd: Option<EmbeddingTable>,
    relative_bias: Option<RelativeBias>,
    token_types: Option<EmbeddingTable>,
    embd_norm: Norm<B>,
    layers: Vec<Layer<B>>,
    output_norm: Option<Norm<B>>,
    ropes: Vec<Rope>,
    /// The projections of the layers, which adapters may target.
    projections: Vec<LoadedMatrix>,
}

/// The tokens of a text, or of a pair of texts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokenized {
    pub ids: Vec<u32>,
    /// Index of the second text's first token; the length if there is only one.
    pub second: usize,
}

impl Tokenized {
    /// One text.
    pub fn new(ids: Vec<u32>) -> Self {
        Self { second: ids.len(), ids }
    }
}

/// A batch in progress.
#[derive(Debug)]
pub struct Pass<B: PagedAttention> {
    stream: ResidualStream<B>,
    texts: TextBatch,
    attention: AttentionInputs<B>,
    layer: usize,
}

/// What the attention of a batch needs in each layer.
#[derive(Debug)]
enum AttentionInputs<B: PagedAttention> {
    /// `arena`: keys and values of one layer.
    Paged { arena: B::KvArena, batch: B::Batch, angles: Vec<Angles<B>> },
    /// The bias of the scores of each text.
    Biased(Vec<Tensor<B>>),
}

impl<B: PagedAttention> Encoder<B> {
    /// Reads the weights, with projections rounded to `precision`. `with_head` is the `config.json` of a model with a
    /// classification head.
    pub fn load(
        source: &dyn Weights,
        config: EncoderConfig,
        with_head: Option<&Value>,
        precision: Option<DType>,
        backend: &B,
    ) -> Result<(Self, Option<Head<B>>)> {
        let loader = Loader::new(source, backend).with_precision(precision);
        let head = with_head.map(|json| Head::load(&loader, json, &config)).transpose()?;
        let mut encoder = Self::from_loader(&loader, config)?;
        encoder.projections = loader.matrices();
        loader.finish()?;
        Ok((encoder, head))
    }

    /// Loads from a `loader` that may also load other networks.
    pub(crate) fn from_loader(loader: &Loader<'_, B>, config: EncoderConfig) -> Result<Self> {
        let EncoderConfig { width, vocabulary, token_types: types, epsilon, context, .. } = config;
        let (offset, buckets, kinds) = match &config.positions {
            Positions::Table { offset, relative_buckets } => (Some(*offset), *relative_buckets, &[][..]),
            Positions::Rotary { kinds, .. } => (None, None, kinds.as_slice()),
        };
        let relative_bias = buckets
            .map(|buckets| RelativeBias::load(loader, "attn_rel_b", [buckets, config.heads], RELATIVE_MAX_DISTANCE));
        let table = |stem: &str, rows: usize| loader.table(stem, rows, width);
        let layers = (0..config.layers).map(|index| Layer::load(loader, &config, index)).collect::<Result<_>>()?;
        let ropes = kinds.iter().map(|attention| Rope::load(loader, &attention.rope)).collect::<Result<_>>()?;
        Ok(Self {
            token_embd: table("token_embd", vocabulary)?,
            position_embd: offset.map(|offset| table("position_embd", offset + context)).transpose()?,
            relative_bias: relative_bias.transpose()?,
            token_types: (types > 0).then(|| table("token_types", types)).transpose()?,
            embd_norm: Norm::load_layer_norm(loader, "token_embd_norm", width, epsilon)?,
            output_norm: config
                .pre_norm
                .then(|| Norm::load_layer_norm(loader, "output_norm", width, epsilon))
                .transpose()?,
            layers,
            ropes,
            projections: Vec::new(),
            config,
        })
    }

    pub fn config(&self) -> &EncoderConfig {
        &self.config
    }

    /// Identifies the encoder among all networks in memory.
    fn id(&self) -> usize {
        self.projections.first().map_or(0, |projection| projection.id)
    }

    /// The memory that an adapter takes.
    ///
    /// # Errors
    /// If the adapter does not fit the encoder.
    pub fn adapter_footprint(&self, adapter: &PeftAdapter, backend: &B) -> Result<Footprint> {
        Ok(FittedAdapter::new(adapter, &self.projections, |_| None)?.footprint(backend))
    }

    /// Reads the weights of an adapter.
    ///
    /// # Errors
    /// If the adapter does not fit the encoder, or is damaged.
    pub fn load_adapter(&self, adapter: &PeftAdapter, backend: &B) -> Result<LoadedAdapter> {
        let fitted = FittedAdapter::new(adapter, &self.projections, |_| None)?;
        Ok(LoadedAdapter::new(fitted.read(&backend.for_loading())?, self.id()))
    }

    /// The deltas of a batch of texts, each with its adapter.
    ///
    /// # Errors
    /// If another network has loaded an adapter.
    pub fn lora_deltas<'a>(
        &self,
        texts: impl Iterator<Item = (&'a Tokenized, Option<&'a LoadedAdapter>)>,
    ) -> Result<LoraDeltas<B>> {
        LoadedAdapter::deltas(self.id(), texts.map(|(text, adapter)| (text.ids.len(), adapter)))
    }

    /// Starts a pass. `lengths`: the lengths of the texts without padding, which is masked.
    ///
    /// # Errors
    /// If a text is empty or longer than the context.
    pub fn begin(&self, ctx: &Context<'_, B>, texts: &[&Tokenized], lengths: Option<&[usize]>) -> Result<Pass<B>> {
        let EncoderConfig { width, heads, context, .. } = self.config;
        let counts = || texts.iter().map(|text| text.ids.len());
        if let Some(count) = counts().find(|count| *count == 0 || *count > context) {
            return Err(ModelError::Compute(format!("a text has {count} tokens; 1 to {context} are allowed")));
        }
        let positions = || counts().flat_map(|count| (0..count).map(|position| (position, false)));
        let mut ranges = TextBatch::new(counts());
        if let Some(lengths) = lengths {
            ranges.mask_padding(lengths.iter().copied());
        }
        let tokens = ranges.tokens();
        let attention = match &self.relative_bias {
            Some(_) if lengths.is_some() => {
                return Err(ModelError::Compute("an encoder with relative positions cannot mask padding".to_owned()));
            }
            Some(bias) => {
                AttentionInputs::Biased(counts().map(|count| bias.for_length(&**ctx, count)).collect::<Result<_>>()?)
            }
            None => {
                let angles = self.ropes.iter().map(|rope| rope.angles(&**ctx, tokens, positions));
                let angles = angles.collect::<Result<_>>()?;
                let arena = ranges.arena(&**ctx, [heads, width / heads])?;
                AttentionInputs::Paged { arena, batch: ctx.batch(ranges.slices(&(0..tokens)))?, angles }
            }
        };
        let stream = ResidualStream { x: self.embed(ctx, texts, tokens)?, y: None };
        Ok(Pass { stream, texts: ranges, attention, layer: 0 })
    }

    /// Computes the sum of token, position and type embeddings, and its norm.
    fn embed(&self, ctx: &Context<'_, B>, texts: &[&Tokenized], tokens: usize) -> Result<Tensor<B>> {
        // A model with one type does not mark second texts.
        let max_type = (self.config.token_types as u32).saturating_sub(1);
        let types = |text: &&Tokenized| {
            let second = text.second;
            (0..text.ids.len()).map(move |index| u32::from(index >= second).min(max_type))
        };
        let sum = ctx.upload([1, tokens, 1, self.config.width], &mut |x| {
            self.token_embd.look_up(texts.iter().flat_map(|text| &text.ids).copied(), false, x)?;
            if let (Some(table), Positions::Table { offset, .. }) = (&self.position_embd, &self.config.positions) {
                let offset = *offset as u32;
                table.look_up(texts.iter().flat_map(|text| offset..offset + text.ids.len() as u32), true, x)?;
            }
            match &self.token_types {
                Some(table) => table.look_up(texts.iter().flat_map(types), true, x),
                None => Ok(()),
            }
        })?;
        ctx.norm(&self.embd_norm, &sum)
    }

    /// Computes one layer. Returns whether it was the last one; [`Pass::hidden_states`] then returns the result.
    pub fn advance(&self, ctx: &Context<'_, B>, pass: &mut Pass<B>) -> Result<bool> {
        let Some(layer) = self.layers.get(pass.layer) else { return Ok(true) };
        let qkv = layer.project(ctx, &mut pass.stream)?;
        let output = match &mut pass.attention {
            AttentionInputs::Paged { arena, batch, angles } => {
                self.paged_attention(ctx, pass.layer, qkv, (arena, batch), angles)?
            }
            AttentionInputs::Biased(biases) => self.biased_attention(ctx, qkv, &pass.texts, biases)?,
        };
        layer.finish(ctx, &mut pass.stream, &output)?;
        pass.layer += 1;
        if pass.layer < self.layers.len() {
            return Ok(false);
        }
        if let (Some(norm), Some(y)) = (&self.output_norm, pass.stream.y.take()) {
            pass.stream.x = ctx.add_norm(norm, &mut pass.stream.x, &y)?;
        }
        Ok(true)
    }

    fn paged_attention(
        &self,
        ctx: &Context<'_, B>,
        layer: usize,
        [mut q, mut k, v]: [Tensor<B>; 3],
        (arena, batch): (&mut B::KvArena, &B::Batch),
        angles: &[Angles<B>],
    ) -> Result<Tensor<B>> {
        let heads = self.config.heads;
        let attention = self.config.layer_attention(layer);
        if let Some(angles) = attention.and_then(|(index, _)| angles.get(index)) {
            ctx.rope(&mut q, heads, RopeLayout::Halves, angles)?;
            ctx.rope(&mut k, heads, RopeLayout::Halves, angles)?;
        }
        ctx.write_kv(arena, 0, batch, [&k, &v])?;
        let shape = shape(&self.config, attention.and_then(|(_, attention)| attention.window));
        ctx.kv_attention(arena, 0, batch, &shape, None, &q)
    }

    /// Attention text by text, with a bias for each.
    fn biased_attention(
        &self,
        ctx: &Context<'_, B>,
        [mut q, k, v]: [Tensor<B>; 3],
        texts: &TextBatch,
        biases: &[Tensor<B>],
    ) -> Result<Tensor<B>> {
        ctx.multiply(&mut q, (self.config.head_width() as f32).sqrt().recip())?;
        let mut output = ctx.zeros(q.shape())?;
        for (text, bias) in texts.ranges().zip(biases) {
            let [q, k, v] = [ctx.rows(&q, text.clone())?, ctx.rows(&k, text.clone())?, ctx.rows(&v, text.clone())?];
            let of_text = ctx.biased_attention([&q, &k, &v], self.config.heads, bias)?;
            ctx.write_rows(&mut output, text.start, &of_text)?;
        }
        Ok(output)
    }

    /// An upper bound of the bytes of a pass over `tokens` tokens in `texts` texts, including scratch buffers.
    pub fn pass_bytes(config: &EncoderConfig, backend: &B, tokens: usize, texts: usize) -> u64 {
        let EncoderConfig { width, inner, heads, .. } = *config;
        let kinds = if let Positions::Rotary { kinds, .. } = &config.positions { kinds.len() } else { 0 };
        // The residual stream and its copy on the host, angles, the tensors of one layer, and quantised activations.
        let angles = kinds * width / heads;
        let floats = tokens * (2 * width + 5 * width.max(inner) + width.max(inner) + angles);
        let attention = match config.positions {
            // The biases of all texts, the scores of one, and its queries, keys, values and result.
            Positions::Table { relative_buckets: Some(_), .. } => {
                let longest = tokens.min(config.context);
                (heads * (2 * tokens + 2 * longest * longest) + 5 * longest * width) * size_of::<f32>()
            }
            _ => backend.kv_attention_bytes(&shape(config, None), tokens, tokens.min(config.context)),
        };
        (floats * size_of::<f32>() + attention) as u64 + arena_bytes([heads, width / heads], tokens, texts)
    }
}

/// The attention parameters of a layer with this window.
fn shape(config: &EncoderConfig, window: Option<usize>) -> AttentionShape {
    let EncoderConfig { width, heads, .. } = *config;
    let scale = ((width / heads) as f32).sqrt().recip();
    AttentionShape { heads, kv_heads: heads, width: width / heads, scale, causal: false, window, soft_cap: None }
}

impl<B: PagedAttention> Pass<B> {
    /// The hidden states of a finished pass on the host.
    pub fn hidden_states(&self, backend: &B) -> Result<HiddenStates> {
        let x = &self.stream.x;
        Ok(HiddenStates { values: backend.to_vec(x)?, width: x.channels, texts: self.texts.ranges().collect() })
    }

    /// The hidden states of a finished pass: `[1, tokens, 1, width]`.
    pub(crate) fn into_hidden_states(self) -> Tensor<B> {
        self.stream.x
    }
}

/// The hidden states of a batch.
#[derive(Debug)]
pub struct HiddenStates {
    /// `[tokens, width]`
    values: Vec<f32>,
    width: usize,
    /// The tokens of each text.
    texts: Vec<Range<usize>>,
}

impl HiddenStates {
    /// The hidden states of each text, `[tokens, width]`, in batch order.
    pub fn texts(&self) -> impl Iterator<Item = &[f32]> {
        let states = |text: &Range<usize>| self.values.get(text.start * self.width..text.end * self.width);
        self.texts.iter().filter_map(states)
    }
}
