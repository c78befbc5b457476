//! Encodes whole texts with a decoder and returns hidden states of their tokens.
//!
//! All texts pass through a layer before the next one. The cache therefore holds the keys and values of one layer, and
//! weights are read once. A layer processes [`CHUNK`] tokens at a time, so that other work can run in between. Without a causal
//! mask, tokens need the keys of later ones, so a layer processes all tokens at once.

use std::ops::Range;

use super::Decoder;
use super::attention::KvLayer;
use super::layer::{LayerInputs, LayerState, ResidualStream};
use super::per_layer::PerLayerInputs;
use crate::backend::{Angles, Recurrent};
use crate::causal_lm::CausalLm;
use crate::decoder_config::DecoderConfig;
use crate::error::Result;
use crate::nn::{Context, LoraDeltas};
use crate::peft::LoadedAdapter;
use crate::step_memory::{StepLimits, angle_floats, scratch_bytes};
use crate::text_batch::{TextBatch, arena_bytes};

/// Tokens of a chunk.
const CHUNK: usize = 128;

/// The tokens of each text whose hidden states a pass computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncodedTokens {
    Last,
    All,
}

/// A batch in progress.
#[derive(Debug)]
pub struct EncodePass<B: Recurrent> {
    texts: TextBatch,
    wanted: EncodedTokens,
    chunks: Vec<Chunk<B>>,
    stream: ResidualStream<B>,
    /// Keys and values of one layer.
    arena: B::KvArena,
    layer: usize,
    /// The layer's first chunk that is not computed yet.
    chunk: usize,
}

/// Tokens of the batch that pass through a layer together, and what all layers share that compute them.
#[derive(Debug)]
struct Chunk<B: Recurrent> {
    tokens: Range<usize>,
    batch: B::Batch,
    angles: Vec<Angles<B>>,
    per_layer: Option<PerLayerInputs<B>>,
    lora: LoraDeltas<B>,
}

/// An upper bound of the bytes that a pass over `tokens` tokens in `texts` texts takes.
pub fn encode_pass_bytes<B: Recurrent>(config: &DecoderConfig, backend: &B, tokens: usize, texts: usize) -> u64 {
    let step = match config.is_causal() {
        true => StepLimits { tokens: CHUNK, rows: CHUNK, logits: 0 },
        false => StepLimits { tokens, rows: texts, logits: 0 },
    };
    // The residual stream, its copy for the output norm, the result on the host, the angles, and the per-layer embeddings.
    let per_layer = config.per_layer.map_or(0, |plan| plan.width * config.layers.len());
    let floats = tokens * (6 * config.width + angle_floats(config) + per_layer);
    scratch_bytes(config, backend, &step)
        + (floats * size_of::<f32>()) as u64
        + arena_bytes(kv_sizes(config), tokens, texts)
}

/// `[kv_heads, head_width]` of all layers; decoders whose layers differ are not loaded.
fn kv_sizes(config: &DecoderConfig) -> [usize; 2] {
    config.uniform_kv_sizes().unwrap_or_default()
}

impl<B: Recurrent> Decoder<B> {
    /// Starts a pass over texts, each with its adapter; no text may be empty.
    pub fn begin_encode(
        &self,
        texts: &[(&[u32], Option<&LoadedAdapter>)],
        wanted: EncodedTokens,
    ) -> Result<EncodePass<B>> {
        for (tokens, _) in texts {
            self.check_tokens(tokens)?;
        }
        let ctx = &Context::new(&self.backend);
        let counts = || texts.iter().map(|(tokens, _)| tokens.len());
        let lora = LoadedAdapter::deltas(self.id(), texts.iter().map(|(tokens, adapter)| (tokens.len(), *adapter)))?;
        let text_batch = TextBatch::new(counts());
        let tokens = text_batch.tokens();
        let angles = self.angles(tokens, || counts().map(|count| (0..count, self.is_long(count))))?;
        let arena = text_batch.arena(&self.backend, kv_sizes(&self.config))?;
        let ids: Vec<u32> = texts.iter().flat_map(|(tokens, _)| *tokens).copied().collect();
        let x = self.embed(ctx, &ids)?;
        let per_layer = self.per_layer_inputs(ctx, &ids, &x)?;
        let chunk_tokens = if self.config.is_causal() { CHUNK } else { tokens.max(1) };
        let chunk = |first: usize| {
            let chunk = first..tokens.min(first + chunk_tokens);
            let angles = angles.iter().map(|Angles { cos, sin }| {
                Ok(Angles { cos: ctx.rows(cos, chunk.clone())?, sin: ctx.rows(sin, chunk.clone())? })
            });
            let (angles, batch) = (angles.collect::<Result<_>>()?, ctx.batch(text_batch.slices(&chunk))?);
            let rows: Vec<usize> = chunk.clone().collect();
            let per_layer = per_layer.as_ref().map(|inputs| inputs.for_tokens(ctx, &rows)).transpose()?;
            Ok(Chunk { lora: lora.for_rows(&rows), tokens: chunk, batch, angles, per_layer })
        };
        let chunks = (0..tokens).step_by(chunk_tokens).map(chunk).collect::<Result<_>>()?;
        let y = ctx.zeros(x.shape())?;
        Ok(EncodePass { texts: text_batch, wanted, chunks, stream: ResidualStream { x, y }, arena, layer: 0, chunk: 0 })
    }

    /// Computes the next chunk. Returns whether it was the last chunk of the last layer.
    pub fn advance(&self, pass: &mut EncodePass<B>) -> Result<bool> {
        let EncodePass { texts, wanted, chunks, stream, arena, layer, chunk: index } = pass;
        let Some((current, Chunk { tokens: chunk, batch, angles, per_layer, lora })) =
            self.layers.get(*layer).zip(chunks.get(*index))
        else {
            return Ok(true);
        };
        let ctx = &Context::new(&self.backend).with_lora(lora.clone());
        // In the last layer, only the outputs of the wanted tokens are needed.
        let is_last = *layer + 1 == self.layers.len() && *wanted == EncodedTokens::Last;
        let ends =
            texts.ranges().map(|text| text.end - 1).filter(|end| chunk.contains(end)).map(|end| end - chunk.start);
        let output_tokens: Option<Vec<usize>> = is_last.then(|| ends.collect());
        let rows = ResidualStream { x: ctx.rows(&stream.x, chunk.clone())?, y: ctx.rows(&stream.y, chunk.clone())? };
        let state = LayerState::Attention(KvLayer { arena, batch, layer: 0 });
        let per_layer = per_layer.as_ref().map(|inputs| inputs.of_layer(ctx, *layer)).transpose()?;
        let inputs = LayerInputs { angles, output_tokens: output_tokens.as_deref(), per_layer };
        let rows = current.forward(ctx, rows, inputs, Some(state))?;
        if let Some(rows) = rows {
            for (whole, rows) in [(&mut stream.x, &rows.x), (&mut stream.y, &rows.y)] {
                match &output_tokens {
                    None => ctx.write_rows(whole, chunk.start, rows)?,
                    Some(output_tokens) => {
                        for (index, token) in output_tokens.iter().enumerate() {
                            ctx.write_rows(whole, chunk.start + token, &ctx.rows(rows, index..index + 1)?)?;
                        }
                    }
                }
            }
        }
        *index += 1;
        if *index == chunks.len() {
            (*index, *layer) = (0, *layer + 1);
        }
        Ok(*layer == self.layers.len())
    }

    /// The hidden states of each text's tokens after the output norm, `[tokens, width]` each: those of all tokens, or of the
    /// last one, as the pass was started.
    pub fn hidden_states(&self, pass: &EncodePass<B>) -> Result<Vec<Vec<f32>>> {
        let (ctx, width) = (&Context::new(&self.backend), self.config.width);
        let ResidualStream { x, y } = &pass.stream;
        let ends: Vec<usize> = pass.texts.ranges().map(|text: Range<usize>| text.end - 1).collect();
        let mut stream = match pass.wanted {
            EncodedTokens::Last => ResidualStream { x: ctx.gather_rows(x, &ends)?, y: ctx.gather_rows(y, &ends)? },
            EncodedTokens::All => ResidualStream { x: ctx.copy(x)?, y: ctx.copy(y)? },
        };
        let mut states = ctx.to_vec(&self.apply_output_norm(ctx, &mut stream)?)?.into_iter();
        let count = |text: Range<usize>| if pass.wanted == EncodedTokens::Last { 1 } else { text.len() };
        Ok(pass.texts.ranges().map(|text| states.by_ref().take(count(text) * width).collect()).collect())
    }
}
