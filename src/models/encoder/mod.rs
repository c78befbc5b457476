//! Encoders: networks with bidirectional attention that return a hidden state for each token.
//!
//! A pass runs a ragged batch without padding: texts share every read of the weights, and only attention runs text by
//! text. It advances layer by layer, so that other work can run in between.

mod config;
pub mod head;
mod layer;
mod pooling;
mod tensor_names;

use std::ops::Range;
use std::sync::Arc;

use outpost_kernels::{AttentionShape, DType, attend_bytes};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::attention;
use super::embedding_table::EmbeddingTable;
use super::kv::{BlockWrite, KvArena};
use super::norm::Norm;
use super::rope::{Angles, Rope, RopeLayout};
use super::scratch_buffers::{Cpu, ScratchBuffers, grow};
use super::text_batch::{TextBatch, arena_bytes};
use super::weights::{Loader, Weights};
use crate::models::error::{ModelError, Result};
pub use config::{EncoderConfig, LayerAttention, Positions};
pub use head::Head;
use layer::{Layer, ResidualStream};
pub use pooling::{Pooling, normalise, truncate_dimensions};
pub use tensor_names::{EncoderWeights, Family};

/// A loaded encoder, shared by all passes.
#[derive(Debug)]
pub struct Encoder {
    config: EncoderConfig,
    token_embd: EmbeddingTable,
    position_embd: Option<EmbeddingTable>,
    token_types: Option<EmbeddingTable>,
    embd_norm: Norm,
    layers: Vec<Layer>,
    output_norm: Option<Norm>,
    ropes: Vec<Rope>,
    cpu: Arc<Cpu>,
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
pub struct Pass {
    stream: ResidualStream,
    texts: TextBatch,
    /// Keys and values of one layer.
    arena: KvArena,
    writes: Vec<BlockWrite>,
    angles: Vec<Angles>,
    layer: usize,
}

impl Encoder {
    /// Reads the weights, with projections rounded to `precision`. `cross_encoder` is the `config.json` of a model with a
    /// classification head.
    pub fn load(
        source: &dyn Weights,
        config: EncoderConfig,
        cross_encoder: Option<&Value>,
        precision: Option<DType>,
        cpu: Arc<Cpu>,
    ) -> Result<(Self, Option<Head>)> {
        let loader = Loader::new(source, cpu.pool().threads()).with_precision(precision);
        let head = cross_encoder.map(|json| Head::load(&loader, json, &config)).transpose()?;
        let encoder = Self::from_loader(&loader, config, cpu)?;
        loader.finish()?;
        Ok((encoder, head))
    }

    /// Loads from a `loader` that may also load other networks.
    pub(in crate::models) fn from_loader(loader: &Loader<'_>, config: EncoderConfig, cpu: Arc<Cpu>) -> Result<Self> {
        let EncoderConfig { width, vocabulary, token_types: types, epsilon, context, .. } = config;
        let (offset, kinds) = match &config.positions {
            Positions::Table { offset } => (Some(*offset), &[][..]),
            Positions::Rotary { kinds, .. } => (None, kinds.as_slice()),
        };
        let table = |stem: &str, rows: usize| loader.table(stem, rows, width);
        let layers = (0..config.layers).map(|index| Layer::load(loader, &config, index)).collect::<Result<_>>()?;
        let ropes = kinds.iter().map(|attention| Rope::load(loader, &attention.rope)).collect::<Result<_>>()?;
        Ok(Self {
            token_embd: table("token_embd", vocabulary)?,
            position_embd: offset.map(|offset| table("position_embd", offset + context)).transpose()?,
            token_types: (types > 0).then(|| table("token_types", types)).transpose()?,
            embd_norm: Norm::load_layer_norm(loader, "token_embd_norm", width, epsilon)?,
            output_norm: config
                .pre_norm
                .then(|| Norm::load_layer_norm(loader, "output_norm", width, epsilon))
                .transpose()?,
            layers,
            ropes,
            config,
            cpu,
        })
    }

    pub fn config(&self) -> &EncoderConfig {
        &self.config
    }

    /// The threads and buffers with which it computes.
    pub fn cpu(&self) -> &Cpu {
        &self.cpu
    }

    /// Starts a pass.
    ///
    /// # Errors
    /// If a text is empty or longer than the context.
    pub fn begin(&self, texts: &[&Tokenized]) -> Result<Pass> {
        let EncoderConfig { width, heads, context, .. } = self.config;
        let counts = || texts.iter().map(|text| text.ids.len());
        if let Some(count) = counts().find(|count| *count == 0 || *count > context) {
            return Err(ModelError::Compute(format!("a text has {count} tokens; 1 to {context} are allowed")));
        }
        let positions = || counts().flat_map(|count| (0..count).map(|position| (position, false)));
        let angles = self.ropes.iter().map(|rope| Angles::new(rope, positions())).collect();
        let batch = TextBatch::new(counts());
        let arena = batch.arena([heads, width / heads]);
        let writes = attention::block_writes(&batch.slices(&(0..batch.tokens())))?;
        let mut pass = Pass { stream: ResidualStream::default(), texts: batch, arena, writes, angles, layer: 0 };
        self.embed(texts, pass.texts.tokens(), &mut pass.stream)?;
        Ok(pass)
    }

    /// Computes the sum of token, position and type embeddings, and its norm.
    fn embed(&self, texts: &[&Tokenized], m: usize, stream: &mut ResidualStream) -> Result<()> {
        let (pool, mut scratch, len) = (self.cpu.pool(), self.cpu.scratch(), m * self.config.width);
        let x = grow(&mut stream.x, len);
        self.token_embd.look_up(texts.iter().flat_map(|text| &text.ids).copied(), false, x)?;
        if let (Some(table), Positions::Table { offset }) = (&self.position_embd, &self.config.positions) {
            let offset = *offset as u32;
            table.look_up(texts.iter().flat_map(|text| offset..offset + text.ids.len() as u32), true, x)?;
        }
        if let Some(table) = &self.token_types {
            // A model with one type does not mark second texts.
            let max_type = self.config.token_types as u32 - 1;
            let types = |text: &&Tokenized| {
                let second = text.second;
                (0..text.ids.len()).map(move |index| u32::from(index >= second).min(max_type))
            };
            table.look_up(texts.iter().flat_map(types), true, x)?;
        }
        self.embd_norm.forward_in_place(pool, &mut stream.x, len, &mut scratch.normed);
        Ok(())
    }

    /// Computes one layer. Returns whether it was the last one; [`Pass::vectors`] then returns the result.
    pub fn advance(&self, pass: &mut Pass) -> Result<bool> {
        let EncoderConfig { width, heads, .. } = self.config;
        let Some(layer) = self.layers.get(pass.layer) else { return Ok(true) };
        let (pool, mut scratch, m) = (self.cpu.pool(), self.cpu.scratch(), pass.texts.tokens());
        let (len, head_width, attention) = (m * width, width / heads, self.config.layer_attention(pass.layer));
        layer.project(pool, m, &mut pass.stream, &mut scratch)?;
        if let Some(angles) = attention.and_then(|(index, _)| pass.angles.get(index)) {
            angles.rotate(pool, grow(&mut scratch.q, len), heads, head_width, RopeLayout::Halves);
            angles.rotate(pool, grow(&mut scratch.k, len), heads, head_width, RopeLayout::Halves);
        }
        pass.arena.write(pool, 0, &pass.writes, &scratch.k, &scratch.v)?;
        let ScratchBuffers { q, attention: output, .. } = &mut *scratch;
        let shape = shape(&self.config, attention.and_then(|(_, attention)| attention.window));
        let spans = pass.texts.slices(&(0..m));
        attention::forward(pool, &pass.arena, 0, &shape, &spans, grow(q, len), grow(output, len))?;
        layer.finish(pool, m, &mut pass.stream, &mut scratch)?;
        pass.layer += 1;
        if pass.layer < self.layers.len() {
            return Ok(false);
        }
        if let Some(norm) = &self.output_norm {
            let ResidualStream { x, y } = &mut pass.stream;
            norm.add_forward_in_place(pool, x, grow(y, len), &mut scratch.normed);
        }
        Ok(true)
    }

    /// An upper bound of the bytes of a pass over `tokens` tokens in `texts` texts, including scratch buffers.
    pub fn pass_bytes(config: &EncoderConfig, tokens: usize, texts: usize, threads: usize) -> u64 {
        let EncoderConfig { width, inner, heads, .. } = *config;
        let kinds = if let Positions::Rotary { kinds, .. } = &config.positions { kinds.len() } else { 0 };
        // The residual stream, angles in vectors that grow by doubling, the scratch of one layer, and quantised
        // activations.
        let angles = 2 * kinds * width / heads;
        let floats = tokens * (2 * width + 7 * width + 2 * inner + width.max(inner) + angles);
        let attention = attend_bytes(threads, &shape(config, None), tokens, tokens.min(config.context));
        (floats * size_of::<f32>() + attention) as u64 + arena_bytes([heads, width / heads], tokens, texts)
    }
}

/// The attention parameters of a layer with this window.
fn shape(config: &EncoderConfig, window: Option<usize>) -> AttentionShape {
    let EncoderConfig { width, heads, .. } = *config;
    let scale = ((width / heads) as f32).sqrt().recip();
    AttentionShape { heads, kv_heads: heads, width: width / heads, scale, causal: false, window, soft_cap: None }
}

impl Pass {
    /// Masks padding; `lengths` are the lengths of the texts without padding.
    pub fn mask_padding(&mut self, lengths: impl Iterator<Item = usize>) {
        self.texts.mask_padding(lengths);
    }

    /// The hidden states of each text, `[tokens, width]`, in batch order.
    pub fn vectors(&self, width: usize) -> impl Iterator<Item = &[f32]> {
        let states = move |text: Range<usize>| self.stream.x.get(text.start * width..text.end * width);
        self.texts.ranges().filter_map(states)
    }
}
