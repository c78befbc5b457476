//! The decoder of Llama and related families (Touvron et al. 2023, <https://arxiv.org/abs/2302.13971>; grouped-query
//! attention: Ainslie et al. 2023, <https://arxiv.org/abs/2305.13245>).
//!
//! A step computes a ragged batch. Rows of different lengths and positions share each read of the weights; only attention
//! processes them one by one. Fields have the tensor names of GGUF checkpoints.

mod encode_pass;

use std::ops::Range;
use std::sync::Arc;

use outpost_kernels::DType;

use super::attention::{self, SequenceSlice};
use super::causal_lm::{BatchRow, CausalLm, Logits, LogitsAt};
use super::decoder_config::{DecoderConfig, LayerConfig};
use super::decoder_layer::DecoderLayer;
use super::error::{ModelError, Result};
use super::kv::{BlockWrite, KvArena, KvCache, KvShape, KvType};
use super::linear::Linear;
use super::norm::Norm;
use super::rope::{Angles, Rope};
use super::scratch_buffers::{Cpu, ScratchBuffers, grow};
use super::weights::{DecoderCheckpoint, Loader};
pub use encode_pass::{EncodePass, encode_pass_bytes};

/// A loaded decoder; shared by all sequences.
#[derive(Debug)]
pub struct Decoder {
    config: DecoderConfig,
    token_embd: Linear,
    layers: Vec<DecoderLayer>,
    output_norm: Norm,
    output: Linear,
    ropes: Vec<Rope>,
    cpu: Arc<Cpu>,
}

impl Decoder {
    /// Reads the weights of a decoder that computes on `cpu`.
    pub fn load(source: &dyn DecoderCheckpoint, cpu: Arc<Cpu>) -> Result<Self> {
        let loader = Loader::new(source, cpu.pool().threads());
        Self::from_loader(loader, source.decoder_config()?, cpu)
    }

    /// Reads the weights of a decoder that only encodes texts ([`Self::begin_encode`]), without an output projection. The
    /// weights of projections are rounded to `precision`.
    pub fn load_headless(source: &dyn DecoderCheckpoint, precision: Option<DType>, cpu: Arc<Cpu>) -> Result<Self> {
        let loader = Loader::new(source, cpu.pool().threads()).with_precision(precision);
        Self::from_loader(loader, DecoderConfig { tied_embeddings: Some(true), ..source.decoder_config()? }, cpu)
    }

    fn from_loader(loader: Loader<'_>, config: DecoderConfig, cpu: Arc<Cpu>) -> Result<Self> {
        let (vocabulary, width) = (config.vocabulary, config.width);
        let token_embd = loader.matrix("token_embd", vocabulary, width)?;
        let output = load_output(&loader, &config, &token_embd)?;
        let layers = (0..config.layer_count).map(|index| DecoderLayer::load(&loader, &config, index));
        let layers = layers.collect::<std::result::Result<_, _>>()?;
        let output_norm = Norm::load(&loader, &config, "output_norm", width)?;
        let ropes = config.ropes.iter().map(|spec| Rope::load(&loader, spec)).collect::<std::result::Result<_, _>>()?;
        loader.finish()?;
        Ok(Self { config, token_embd, layers, output_norm, output, ropes, cpu })
    }

    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// Computes the logits (`[vocabulary]`) after the last of `tokens`, which follow the tokens in `cache`, and adds
    /// them to the cache.
    pub fn extend(&self, tokens: &[u32], cache: &mut KvCache) -> Result<Vec<f32>> {
        cache.reserve(tokens.len());
        let row =
            BatchRow { tokens, start: cache.length, blocks: &cache.blocks, logits: LogitsAt::Last, long: cache.long };
        let logits = self.forward(&[row], &mut cache.arena)?;
        cache.length += tokens.len();
        Ok(logits.values)
    }

    /// Runs all layers. The hidden states of the tokens with logits are then at the start of the scratch buffers. Returns
    /// their number, in total and for each row.
    fn run_layers(
        &self,
        rows: &[BatchRow<'_>],
        arena: &mut KvArena,
        scratch: &mut ScratchBuffers,
    ) -> Result<(usize, Vec<usize>)> {
        let (mut spans, mut offset) = (Vec::with_capacity(rows.len()), 0);
        for BatchRow { tokens, start, blocks, .. } in rows {
            self.check_tokens(tokens)?;
            spans.push(SequenceSlice { offset, count: tokens.len(), start: *start, visible: None, blocks });
            offset += tokens.len();
        }
        let (logit_tokens, counts) = logit_tokens(rows, &spans);
        let positions = || rows.iter().map(|row| (row.start..row.start + row.tokens.len(), row.long));
        let angles = self.angles(positions);
        let step = Step::new(spans, angles)?;
        let tokens: Vec<u32> = rows.iter().flat_map(|row| row.tokens).copied().collect();
        self.embed(&tokens, grow(&mut scratch.x, offset * self.config.width))?;
        // The first norm adds `y` to `x`.
        grow(&mut scratch.y, offset * self.config.width).fill(0.);
        let mut m = offset;
        for index in 0..self.layers.len() {
            let output_tokens = (index + 1 == self.layers.len()).then_some(logit_tokens.as_slice());
            m = self.run_layer((index, index), m, &step, output_tokens, arena, scratch)?;
        }
        Ok((m, counts))
    }

    /// Looks up the token embeddings; `x` is `[tokens, width]`.
    fn embed(&self, tokens: &[u32], x: &mut [f32]) -> Result<()> {
        self.token_embd.embedding(tokens, x)?;
        if self.config.embedding_scale != 1. {
            x.iter_mut().for_each(|x| *x *= self.config.embedding_scale);
        }
        Ok(())
    }

    /// The rotation angles of rows at these positions; the flag selects the frequencies for long contexts.
    fn angles<I: Iterator<Item = (Range<usize>, bool)>>(&self, rows: impl Fn() -> I) -> Vec<Angles> {
        let positions = || rows().flat_map(|(range, long)| range.map(move |position| (position, long)));
        self.ropes.iter().map(|rope| Angles::new(rope, positions())).collect()
    }

    /// Runs layer `index` on `m` tokens in the scratch buffers and returns how many tokens remain there. Layer `kv_layer`
    /// of the arena holds its keys and values.
    ///
    /// With `output_tokens` (in ascending order), only these tokens pass through the rest of the layer after attention.
    fn run_layer(
        &self,
        (index, kv_layer): (usize, usize),
        m: usize,
        step: &Step<'_>,
        output_tokens: Option<&[usize]>,
        arena: &mut KvArena,
        scratch: &mut ScratchBuffers,
    ) -> Result<usize> {
        let (Some(layer), Some(layer_config)) = (self.layers.get(index), self.config.layers.get(index)) else {
            return Err(ModelError::Compute(format!("the decoder has no layer {index}")));
        };
        let pool = self.cpu.pool();
        layer.project(pool, m, scratch)?;
        self.rotate(m, scratch, layer_config, &step.angles);
        arena.write(pool, kv_layer, &step.writes, &scratch.k, &scratch.v)?;
        self.attend(m, scratch, (kv_layer, layer_config), &step.spans, arena)?;
        let m = output_tokens.map_or(m, <[usize]>::len);
        if let Some(tokens) = output_tokens {
            gather_rows(&mut scratch.x, self.config.width, tokens);
            gather_rows(&mut scratch.attention, self.config.heads * self.config.head_width, tokens);
        }
        if m > 0 {
            layer.finish(pool, m, scratch)?;
        }
        Ok(m)
    }

    /// Applies the output norm to the `m` hidden states that the last layer has left in the scratch buffers.
    fn apply_output_norm(&self, m: usize, scratch: &mut ScratchBuffers, out: &mut [f32]) {
        let (ScratchBuffers { x, y, .. }, len) = (scratch, m * self.config.width);
        if m > 0 {
            self.output_norm.add_forward(self.cpu.pool(), grow(x, len), grow(y, len), out);
        }
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

    /// Computes the logits of the `m` tokens in the scratch buffers.
    fn logits(&self, m: usize, scratch: &mut ScratchBuffers, counts: Vec<usize>) -> Result<Logits> {
        let DecoderConfig { width, vocabulary, logit_soft_cap, .. } = self.config;
        let mut logits = std::mem::take(&mut scratch.logits);
        grow(&mut logits, m * vocabulary);
        logits.truncate(m * vocabulary);
        if m > 0 {
            let mut normed = std::mem::take(&mut scratch.normed);
            let input = grow(&mut normed, m * width);
            self.apply_output_norm(m, scratch, input);
            self.output.forward(self.cpu.pool(), input, m, &mut logits)?;
            scratch.normed = normed;
        }
        if let Some(cap) = logit_soft_cap {
            logits.iter_mut().for_each(|logit| *logit = (*logit / cap).tanh() * cap);
        }
        Ok(Logits { values: logits, vocabulary, counts })
    }

    /// Applies RoPE to queries and keys.
    fn rotate(&self, m: usize, scratch: &mut ScratchBuffers, layer: &LayerConfig, angles: &[Angles]) {
        let DecoderConfig { heads, kv_heads, head_width, rope_layout, .. } = self.config;
        let pool = self.cpu.pool();
        if let Some(angles) = layer.rope.and_then(|rope| angles.get(rope)) {
            angles.rotate(pool, grow(&mut scratch.q, m * heads * head_width), heads, head_width, rope_layout);
            angles.rotate(pool, grow(&mut scratch.k, m * kv_heads * head_width), kv_heads, head_width, rope_layout);
        }
    }

    /// Computes attention of all rows in one layer, from `q` to `attention`.
    fn attend(
        &self,
        m: usize,
        scratch: &mut ScratchBuffers,
        (index, layer): (usize, &LayerConfig),
        spans: &[SequenceSlice<'_>],
        arena: &KvArena,
    ) -> Result<()> {
        let (ScratchBuffers { q, attention: output, .. }, len) =
            (scratch, m * self.config.heads * self.config.head_width);
        let shape = attention::decoder_shape(&self.config, layer.window);
        attention::forward(self.cpu.pool(), arena, index, &shape, spans, grow(q, len), grow(output, len))
    }
}

impl CausalLm for Decoder {
    fn vocabulary(&self) -> usize {
        self.config.vocabulary
    }

    fn context(&self) -> usize {
        self.config.context
    }

    fn cpu(&self) -> &Cpu {
        &self.cpu
    }

    fn kv_shape(&self, kv_type: KvType) -> KvShape {
        let DecoderConfig { layer_count: layers, kv_heads, head_width, .. } = self.config;
        KvShape { layers, kv_heads, head_width, kv_type }
    }

    fn is_long(&self, limit: usize) -> bool {
        self.ropes.iter().any(|rope| rope.is_long(limit))
    }

    fn forward(&self, rows: &[BatchRow<'_>], arena: &mut KvArena) -> Result<Logits> {
        let mut scratch = self.cpu.scratch();
        let (m, counts) = self.run_layers(rows, arena, &mut scratch)?;
        self.logits(m, &mut scratch, counts)
    }

    fn reuse(&self, logits: Logits) {
        self.cpu.scratch().logits = logits.values;
    }
}

/// The inputs of a step that all layers share.
struct Step<'a> {
    spans: Vec<SequenceSlice<'a>>,
    writes: Vec<BlockWrite>,
    angles: Vec<Angles>,
}

impl<'a> Step<'a> {
    fn new(spans: Vec<SequenceSlice<'a>>, angles: Vec<Angles>) -> Result<Self> {
        Ok(Self { writes: attention::block_writes(&spans)?, spans, angles })
    }
}

/// The tokens with logits as indices into the batch, in ascending order, and their number in each row.
fn logit_tokens(rows: &[BatchRow<'_>], spans: &[SequenceSlice<'_>]) -> (Vec<usize>, Vec<usize>) {
    let range = |(row, span): (&BatchRow<'_>, &SequenceSlice<'_>)| match row.logits {
        LogitsAt::None => 0..0,
        LogitsAt::Last => span.offset + span.count - 1..span.offset + span.count,
        LogitsAt::All => span.offset..span.offset + span.count,
    };
    let ranges = rows.iter().zip(spans).map(range);
    (ranges.clone().flatten().collect(), ranges.map(|range| range.len()).collect())
}

/// Moves these rows of `width` elements to the start of the buffer. Their indices must be in ascending order.
fn gather_rows(buffer: &mut [f32], width: usize, rows: &[usize]) {
    for (dst, src) in rows.iter().enumerate() {
        buffer.copy_within(src * width..(src + 1) * width, dst * width);
    }
}

/// The output projection: a matrix of its own, or the token embedding if the two are tied.
fn load_output(loader: &Loader<'_>, config: &DecoderConfig, token_embd: &Linear) -> Result<Linear> {
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
