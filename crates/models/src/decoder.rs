//! The decoder of Llama and related families (Touvron et al. 2023, <https://arxiv.org/abs/2302.13971>; grouped-query
//! attention: Ainslie et al. 2023, <https://arxiv.org/abs/2305.13245>).
//!
//! A step computes a ragged batch. Rows of different lengths and positions share each read of the weights; only attention
//! processes them one by one. Fields have the tensor names of GGUF checkpoints.

mod attention;
mod delta_net;
mod drafting;
mod encode_pass;
mod feed_forward;
mod latent_attention;
mod layer;
mod mamba2;
mod mtp;
mod per_layer;
mod rows;
mod score_head;
mod short_conv;
mod training_pass;

use std::ops::Range;

use super::backend::{Angles, Backend, DType, Norm, Pool, Recurrent, StatePart, Tensor};
use super::block_arena::BlockArena;
use super::causal_lm::{BatchRow, CausalLm, EmbeddedTokens, Logits, LogitsAt};
use super::decoder_config::DecoderConfig;
use super::error::{ModelError, Result, reject_config};
use super::kv::{KvType, SequenceSlice};
use super::nn::rope::Rope;
use super::nn::{Context, Linear};
use super::peft::{FittedAdapter, LoadedAdapter, PeftAdapter};
use super::sequence_state::SequenceState;
use super::state_arenas::StateArenas;
use super::state_layout::StateGroup;
use super::weights::{DecoderCheckpoint, Footprint, LoadedMatrix, Loader};
use attention::KvLayer;
pub use encode_pass::{EncodePass, EncodedTokens, encode_pass_bytes};
use layer::{DecoderLayer, LayerInputs, LayerState, ResidualStream};
use mtp::{MtpHead, kept_states};
use per_layer::{PerLayerEmbeddings, PerLayerInputs};
use rows::{logit_slices, logit_tokens, per_layer_tokens, sequence_slices, sequence_states};
pub use score_head::{ScoreHead, ScoreHeadConfig};
pub use training_pass::{TargetScore, TrainingPass, TrainingText};

/// The projections of pooled vectors in GGUF files, in order.
pub const GGUF_PROJECTIONS: [&str; 2] = ["dense_2", "dense_3"];

/// Where a layer keeps its part of a sequence.
#[derive(Clone, Copy, Debug)]
enum StatePlace {
    /// Keys and values: the group, the arena among those of all groups, and the index in that arena of the layer that writes them.
    Attention { group: usize, arena: usize, layer: usize },
    /// The layer's first part of a recurrent state.
    Recurrent { part: usize },
}

/// A loaded decoder; shared by all sequences.
#[derive(Debug)]
pub struct Decoder<B: Recurrent> {
    _binding: B::ThreadBinding,
    config: DecoderConfig,
    token_embd: Linear<B>,
    per_layer: Option<PerLayerEmbeddings<B>>,
    layers: Vec<DecoderLayer<B>>,
    output_norm: Norm<B>,
    output: Linear<B>,
    /// The layer for multi-token prediction, if it is loaded.
    mtp: Option<MtpHead<B>>,
    ropes: Vec<Rope>,
    /// Where each layer keeps its part of a sequence; `None`: it has no mixer.
    places: Vec<Option<StatePlace>>,
    /// Of each group of attention, whether there are layers in it. A group without layers only stands for positions.
    used_groups: Vec<bool>,
    /// The projections of the layers, which adapters may target.
    projections: Vec<LoadedMatrix>,
    backend: B,
}

impl<B: Recurrent> Decoder<B> {
    /// Reads the weights of a decoder that computes on `backend`.
    pub fn load(source: &dyn DecoderCheckpoint, backend: &B) -> Result<Self> {
        let (loader, config) = (Loader::new(source, backend), source.decoder_config()?);
        if !config.is_causal() {
            return reject_config("its attention is not causal, so it can only embed texts".to_owned());
        }
        let decoder = Self::from_loader(&loader, config, backend)?;
        loader.finish()?;
        Ok(decoder)
    }

    /// Reads the weights of a decoder that only encodes texts ([`Self::begin_encode`]), without an output projection, and those
    /// of its `head` for scores. The weights of projections are rounded to `precision`.
    pub fn load_encoder(
        source: &dyn DecoderCheckpoint,
        head: Option<ScoreHeadConfig>,
        precision: Option<DType>,
        backend: &B,
    ) -> Result<(Self, Option<ScoreHead<B>>)> {
        let loader = Loader::new(source, backend).with_precision(precision);
        let config = source.decoder_config()?;
        if config.is_recurrent() {
            return reject_config("a decoder with recurrent layers cannot encode texts yet".to_owned());
        }
        if config.uniform_kv_sizes().is_none() {
            return reject_config(
                "a decoder whose layers have different key-value heads, or share keys and values, cannot encode texts yet"
                    .to_owned(),
            );
        }
        let decoder = Self::from_loader(&loader, DecoderConfig { tied_embeddings: Some(true), ..config }, backend)?;
        // These are loaded by themselves.
        GGUF_PROJECTIONS.iter().for_each(|stem| loader.ignore(stem));
        let head = head.map(|head| ScoreHead::load(&loader, &decoder.config, head)).transpose()?;
        loader.finish()?;
        Ok((decoder, head))
    }

    fn from_loader(loader: &Loader<'_, B>, config: DecoderConfig, backend: &B) -> Result<Self> {
        let DecoderConfig { vocabulary, width, norm, .. } = config;
        let token_embd = loader.embedding("token_embd", vocabulary, width)?;
        let output = load_output(loader, &config, &token_embd)?;
        let per_layer = config.per_layer.as_ref().map(|plan| PerLayerEmbeddings::load(loader, &config, plan));
        let per_layer = per_layer.transpose()?;
        let layers = config.layers.iter().enumerate();
        let layers = layers.map(|(index, plan)| DecoderLayer::load(loader, &config, index, plan));
        let layers = layers.collect::<Result<_>>()?;
        // GGUF files of LFM2 call it `token_embd_norm`.
        let output_norm = if loader.has("token_embd_norm") { "token_embd_norm" } else { "output_norm" };
        let output_norm = Norm::load(loader, output_norm, width, norm)?;
        let ropes = config.ropes.iter().map(|spec| Rope::load(loader, spec)).collect::<Result<_>>()?;
        // Adapters cannot target the layer for multi-token prediction, which is loaded after this.
        let projections = loader.matrices();
        let mtp = config.mtp.as_ref().map(|plan| MtpHead::load(loader, &config, plan)).transpose()?;
        let places = state_places(&config, B::RELEASES_KV_BLOCKS);
        let groups = config.layer_groups(B::RELEASES_KV_BLOCKS);
        let used_groups = groups.iter().map(|(_, layers)| !layers.is_empty()).collect();
        let (_binding, backend) = (backend.thread_binding(), backend.clone());
        Ok(Self {
            _binding,
            config,
            token_embd,
            per_layer,
            layers,
            output_norm,
            output,
            mtp,
            ropes,
            places,
            used_groups,
            projections,
            backend,
        })
    }

    /// The projections of the layers, which adapters may target.
    pub(super) fn projections(&self) -> &[LoadedMatrix] {
        &self.projections
    }

    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// Computes the logits (`[vocabulary]`) after the last of `tokens`, which follow those of `sequence`, and adds them to it.
    pub fn extend(&self, tokens: &[u32], sequence: &mut SequenceState) -> Result<Vec<f32>> {
        sequence.reserve(tokens.len())?;
        let row = BatchRow {
            tokens,
            embedded: &[],
            start: sequence.length,
            tables: std::slice::from_ref(&sequence.blocks),
            state: Some(sequence.update()),
            logits: LogitsAt::Last,
            long: sequence.long,
            adapter: None,
            hidden: None,
        };
        let mut logits = self.forward(&[row], &mut sequence.arenas)?;
        sequence.advance(tokens.len());
        logits.values.truncate(self.config.vocabulary);
        Ok(logits.values)
    }

    /// Looks up the token embeddings: `[1, tokens, 1, width]`.
    fn embed(&self, ctx: &Context<'_, B>, tokens: &[u32]) -> Result<Tensor<B>> {
        let mut x = self.token_embd.embedding(ctx, tokens)?;
        if self.config.embedding_scale != 1. {
            ctx.multiply(&mut x, self.config.embedding_scale)?;
        }
        Ok(x)
    }

    /// The parts of tokens' per-layer embeddings, if the network has them. `x`: their embeddings.
    fn per_layer_inputs(
        &self,
        ctx: &Context<'_, B>,
        tokens: &[u32],
        x: &Tensor<B>,
    ) -> Result<Option<PerLayerInputs<B>>> {
        self.per_layer.as_ref().map(|embeddings| embeddings.forward(ctx, tokens, x)).transpose()
    }

    /// Replaces the embeddings of tokens that have their own.
    fn write_embedded(&self, ctx: &Context<'_, B>, x: &mut Tensor<B>, rows: &[BatchRow<'_>]) -> Result<()> {
        let mut offset = 0;
        for row in rows {
            for EmbeddedTokens { first, count, embeddings } in row.embedded {
                if first + count > row.tokens.len() {
                    return Err(ModelError::Compute(format!("{count} embeddings at {first} do not fit their row")));
                }
                ctx.write_rows(x, offset + first, &ctx.tensor(embeddings, [1, *count, 1, self.config.width])?)?;
            }
            offset += row.tokens.len();
        }
        Ok(())
    }

    /// The rotation angles of `tokens` tokens in rows at these positions; the flag selects the frequencies for long
    /// contexts.
    fn angles<I: Iterator<Item = (Range<usize>, bool)>>(
        &self,
        tokens: usize,
        rows: impl Fn() -> I,
    ) -> Result<Vec<Angles<B>>> {
        let positions = || rows().flat_map(|(range, long)| range.map(move |position| (position, long)));
        self.ropes.iter().map(|rope| rope.angles(&self.backend, tokens, positions)).collect()
    }

    /// The final hidden states after the output norm.
    fn apply_output_norm(&self, ctx: &Context<'_, B>, stream: &mut ResidualStream<B>) -> Result<Tensor<B>> {
        ctx.add_norm(&self.output_norm, &mut stream.x, &stream.y)
    }

    /// Identifies the decoder among all networks in memory.
    fn id(&self) -> usize {
        self.token_embd.id()
    }

    /// The adapter, fitted to the projections.
    fn fit_adapter<'a>(&'a self, adapter: &'a PeftAdapter) -> Result<FittedAdapter<'a>> {
        let fitted = FittedAdapter::new(adapter, &self.projections, |matrix| self.config.interleaved_heads(matrix))?;
        if let Some(matrix) = fitted.matrices().find(|matrix| self.config.is_reordered(matrix)) {
            return Err(ModelError::Checkpoint(format!(
                "it adapts {}, whose rows or columns GGUF files have in another order; it needs the base model's safetensors files",
                matrix.stem
            )));
        }
        Ok(fitted)
    }

    fn check_tokens(&self, tokens: &[u32]) -> Result<()> {
        if tokens.is_empty() {
            return Err(ModelError::Compute("a row has no tokens".to_owned()));
        }
        match tokens.iter().find(|&&id| id as usize >= self.config.vocabulary) {
            Some(id) => {
                Err(ModelError::Compute(format!("token {id} is not in the vocabulary of {}", self.config.vocabulary)))
            }
            None => Ok(()),
        }
    }

    /// The inputs of the output projection.
    fn head_inputs(&self, ctx: &Context<'_, B>, stream: &mut ResidualStream<B>) -> Result<Tensor<B>> {
        let mut normed = self.apply_output_norm(ctx, stream)?;
        self.scale_head_inputs(ctx, &mut normed)?;
        Ok(normed)
    }

    fn scale_head_inputs(&self, ctx: &Context<'_, B>, normed: &mut Tensor<B>) -> Result<()> {
        if self.config.logit_scale != 1. { ctx.multiply(normed, self.config.logit_scale) } else { Ok(()) }
    }

    /// Computes the logits of tokens with these hidden states after the output norm: `[tokens, vocabulary]`, and undefined values after
    /// them.
    fn logits(&self, ctx: &Context<'_, B>, output: &Linear<B>, hidden: Option<Tensor<B>>) -> Result<Vec<f32>> {
        let Some(mut hidden) = hidden else { return Ok(Vec::new()) };
        self.scale_head_inputs(ctx, &mut hidden)?;
        let logits = output.forward(ctx, &hidden)?;
        drop(hidden);
        let len = logits.len();
        let mut logits = ctx.download(logits)?;
        if let Some(cap) = self.config.logit_soft_cap {
            logits[..len].iter_mut().for_each(|logit| *logit = (*logit / cap).tanh() * cap);
        }
        Ok(logits)
    }
}

impl<B: Recurrent> CausalLm for Decoder<B> {
    fn vocabulary(&self) -> usize {
        self.config.vocabulary
    }

    fn context(&self) -> usize {
        self.config.context
    }

    fn width(&self) -> usize {
        self.config.width
    }

    fn pool(&self) -> &Pool {
        self.backend.pool()
    }

    fn state_groups(&self, kv_type: KvType) -> Vec<StateGroup> {
        self.config.state_groups(kv_type, B::RELEASES_KV_BLOCKS)
    }

    fn new_arenas(&self, kv_type: KvType) -> StateArenas {
        let groups = self.config.layer_groups(B::RELEASES_KV_BLOCKS).into_iter();
        let arena = |(shape, _)| Box::new(self.backend.new_kv_arena(shape)) as Box<dyn BlockArena>;
        let attention =
            groups.map(|(_, layers)| self.config.kv_shapes(&layers, kv_type).into_iter().map(arena).collect());
        let parts = self.config.recurrent_parts();
        let recurrent =
            (!parts.is_empty()).then(|| Box::new(self.backend.new_state_arena(&parts)) as Box<dyn BlockArena>);
        StateArenas::new(kv_type, attention.collect(), recurrent)
    }

    fn is_long(&self, limit: usize) -> bool {
        self.ropes.iter().any(|rope| rope.is_long(limit))
    }

    fn adapter_footprint(&self, adapter: &PeftAdapter) -> Result<Footprint> {
        Ok(self.fit_adapter(adapter)?.footprint(&self.backend))
    }

    fn load_adapter(&self, adapter: &PeftAdapter) -> Result<LoadedAdapter> {
        let adapter = self.fit_adapter(adapter)?.read(&self.backend.for_loading())?;
        Ok(LoadedAdapter::new(adapter, self.id()))
    }

    fn forward(&self, rows: &[BatchRow<'_>], arenas: &mut StateArenas) -> Result<Logits> {
        let (mut arenas, mut recurrent) = arenas.of_device::<B::KvArena, B::StateArena>()?;
        let lora = LoadedAdapter::deltas(self.id(), rows.iter().map(|row| (row.tokens.len(), row.adapter)))?;
        let ctx = Context::new(&self.backend).with_lora(lora);
        rows.iter().try_for_each(|row| self.check_tokens(row.tokens))?;
        let (logit_tokens, counts) = logit_tokens(rows);
        let tokens: Vec<u32> = rows.iter().flat_map(|row| row.tokens).copied().collect();
        let angles =
            self.angles(tokens.len(), || rows.iter().map(|row| (row.start..row.start + row.tokens.len(), row.long)))?;
        let batches = |slices: &dyn Fn(usize) -> Result<Vec<SequenceSlice>>| {
            let batch =
                |(group, is_used): (usize, &bool)| is_used.then(|| self.backend.batch(slices(group)?)).transpose();
            self.used_groups.iter().enumerate().map(batch).collect::<Result<Vec<_>>>()
        };
        let states = if recurrent.is_some() { sequence_states(rows)? } else { Vec::new() };
        let mut x = self.embed(&ctx, &tokens)?;
        self.write_embedded(&ctx, &mut x, rows)?;
        let per_layer =
            self.per_layer.as_ref().map(|own| own.forward(&ctx, &per_layer_tokens(rows), &x)).transpose()?;
        let y = ctx.zeros(x.shape())?;
        let mut stream = Some(ResidualStream { x, y });
        let all = LayerTokens { batches: batches(&|group| sequence_slices(rows, group))?, ctx, angles, per_layer };
        // After the last layer that keeps something of all tokens, only those with logits are computed; with a layer for multi-token
        // prediction, all.
        let last_stateful = if self.mtp.is_some() { self.layers.len() } else { self.config.last_stateful_layer() };
        let mut selected = None;
        for (index, (layer, place)) in self.layers.iter().zip(&self.places).enumerate() {
            let Some(before) = stream else { break };
            let LayerTokens { ctx, batches: of_groups, angles, per_layer } = selected.as_ref().unwrap_or(&all);
            let state = match *place {
                None => None,
                Some(StatePlace::Attention { group, arena, layer }) => {
                    let batch = of_groups.get(group).and_then(Option::as_ref);
                    let arena = arenas.get_mut(arena).zip(batch);
                    arena.map(|(arena, batch)| LayerState::Attention(KvLayer { arena: &mut **arena, batch, layer }))
                }
                Some(StatePlace::Recurrent { part }) => recurrent
                    .as_deref_mut()
                    .map(|arena| LayerState::Recurrent(StatePart { arena, part, sequences: &states })),
            };
            if place.is_some() && state.is_none() {
                return Err(ModelError::Compute(format!("there is no arena for layer {index}")));
            }
            let output_tokens = (index == last_stateful).then_some(logit_tokens.as_slice());
            let per_layer = per_layer.as_ref().map(|inputs| inputs.of_layer(ctx, index)).transpose()?;
            stream = layer.forward(ctx, before, LayerInputs { angles, output_tokens, per_layer }, state)?;
            let is_followed = index == last_stateful && index + 1 < self.layers.len();
            if is_followed && !logit_tokens.is_empty() && logit_tokens.len() < tokens.len() {
                let batches = batches(&|group| logit_slices(rows, group))?;
                selected = Some(all.select(batches, &logit_tokens)?);
            }
        }
        let (hidden, kept) = match (&self.mtp, stream) {
            (_, None) => (None, Vec::new()),
            (None, Some(mut stream)) => (Some(self.apply_output_norm(&all.ctx, &mut stream)?), Vec::new()),
            (Some(head), Some(stream)) => {
                let arena = arenas.into_iter().next().zip(all.batches.first().and_then(Option::as_ref));
                let missing = || ModelError::Compute("there is no arena for the layer that drafts".to_owned());
                let hidden = self.write_mtp(head, rows, stream, &all.angles, arena.ok_or_else(missing)?)?;
                let kept = kept_states(&all.ctx, rows, &hidden)?;
                let selected = (!logit_tokens.is_empty()).then(|| all.ctx.gather_rows(&hidden, &logit_tokens));
                (selected.transpose()?, kept)
            }
        };
        let values = self.logits(&all.ctx, &self.output, hidden)?;
        Ok(Logits { values, vocabulary: self.config.vocabulary, counts, hidden: kept })
    }

    fn mtp_cost(&self) -> Option<f64> {
        self.config.mtp_cost()
    }

    fn draft(&self, rows: &[BatchRow<'_>], arenas: &mut StateArenas) -> Result<Logits> {
        self.draft_next(rows, arenas)
    }

    fn reuse(&self, logits: Logits) {
        self.backend.recycle(logits.values);
    }
}

/// What layers need of the tokens that they compute.
struct LayerTokens<'a, B: Recurrent> {
    ctx: Context<'a, B>,
    /// By group of attention; `None`: no layer is in it, and it only stands for positions.
    batches: Vec<Option<B::Batch>>,
    angles: Vec<Angles<B>>,
    per_layer: Option<PerLayerInputs<B>>,
}

impl<B: Recurrent> LayerTokens<'_, B> {
    /// Those of some tokens, in ascending order.
    fn select(&self, batches: Vec<Option<B::Batch>>, tokens: &[usize]) -> Result<Self> {
        let ctx = self.ctx.for_rows(tokens);
        let angles = self.angles.iter().map(|Angles { cos, sin }| {
            Ok(Angles { cos: ctx.gather_rows(cos, tokens)?, sin: ctx.gather_rows(sin, tokens)? })
        });
        let angles = angles.collect::<Result<_>>()?;
        let per_layer = self.per_layer.as_ref().map(|inputs| inputs.for_tokens(&ctx, tokens)).transpose()?;
        Ok(Self { ctx, batches, angles, per_layer })
    }
}

fn state_places(config: &DecoderConfig, by_window: bool) -> Vec<Option<StatePlace>> {
    let mut places = vec![None; config.layers.len()];
    let mut arena = 0;
    for (group, (_, layers)) in config.layer_groups(by_window).iter().enumerate() {
        for (_, layers) in config.kv_shapes(layers, KvType::F32) {
            for (index, layer) in layers.iter().enumerate() {
                // The layer for multi-token prediction has no place here.
                if let Some(place) = places.get_mut(*layer) {
                    *place = Some(StatePlace::Attention { group, arena, layer: index });
                }
            }
            arena += 1;
        }
    }
    let mut part = 0;
    for (layer, parts) in config.recurrent_layers() {
        if let Some(place) = places.get_mut(layer) {
            *place = Some(StatePlace::Recurrent { part });
        }
        part += parts.len();
    }
    for (index, layer) in config.layers.iter().enumerate() {
        if let Some(source) = layer.attention().and_then(|attention| attention.kv_layer) {
            places[index] = places.get(source).copied().flatten();
        }
    }
    places
}

/// The output projection: a matrix of its own, or the token embedding if the two are tied.
fn load_output<B: Backend>(
    loader: &Loader<'_, B>,
    config: &DecoderConfig,
    token_embd: &Linear<B>,
) -> Result<Linear<B>> {
    if config.tied_embeddings == Some(true) {
        loader.ignore("output");
        return Ok(token_embd.clone());
    }
    match loader.optional_matrix("output", config.vocabulary, config.width)? {
        Some(output) => Ok(output),
        None if config.tied_embeddings.is_none() => Ok(token_embd.clone()),
        None => Err(loader.missing("output")),
    }
}
