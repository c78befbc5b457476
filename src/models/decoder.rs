//! The decoder of Llama and its relatives (Touvron et al. 2023, <https://arxiv.org/abs/2302.13971>;
//! grouped queries: Ainslie et al. 2023, <https://arxiv.org/abs/2305.13245>), from any checkpoint.
//!
//! A step takes a ragged batch: rows of different lengths and positions share each weight read,
//! and only attention looks at them one by one. Tensor names mirror the checkpoint's.

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
use super::scratch::{Cpu, Scratch, grow};
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
    /// Reads the weights; `cpu` computes with them.
    pub fn load(source: &dyn DecoderCheckpoint, cpu: Arc<Cpu>) -> Result<Self> {
        let loader = Loader::new(source, cpu.pool().threads());
        Self::from_loader(loader, source.decoder_config()?, cpu)
    }

    /// A decoder that only reads ([`Self::read`]): it has no output of its own. Weights of projections are
    /// rounded to `precision`.
    pub fn load_headless(source: &dyn DecoderCheckpoint, precision: Option<DType>, cpu: Arc<Cpu>) -> Result<Self> {
        let loader = Loader::new(source, cpu.pool().threads()).with_precision(precision);
        Self::from_loader(loader, DecoderConfig { tied_embeddings: Some(true), ..source.decoder_config()? }, cpu)
    }

    fn from_loader(loader: Loader<'_>, config: DecoderConfig, cpu: Arc<Cpu>) -> Result<Self> {
        let (vocabulary, width) = (config.vocabulary, config.width);
        let token_embd = loader.matrix("token_embd", vocabulary, width)?;
        let output = output(&loader, &config, &token_embd)?;
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

    /// Logits (`[vocabulary]`) after the last of `tokens`, which follow what `cache` holds; it then
    /// holds them too.
    pub fn extend(&self, tokens: &[u32], cache: &mut KvCache) -> Result<Vec<f32>> {
        cache.reserve(tokens.len());
        let row =
            BatchRow { tokens, start: cache.length, blocks: &cache.blocks, logits: LogitsAt::Last, long: cache.long };
        let logits = self.forward(&[row], &mut cache.arena)?;
        cache.length += tokens.len();
        Ok(logits.values)
    }

    /// All blocks: how many vectors are left in the scratch, and how many of each row.
    fn run_layers(
        &self,
        rows: &[BatchRow<'_>],
        arena: &mut KvArena,
        scratch: &mut Scratch,
    ) -> Result<(usize, Vec<usize>)> {
        let (mut spans, mut offset) = (Vec::with_capacity(rows.len()), 0);
        for BatchRow { tokens, start, blocks, .. } in rows {
            self.check(tokens)?;
            spans.push(SequenceSlice { offset, count: tokens.len(), start: *start, visible: None, blocks });
            offset += tokens.len();
        }
        let (wanted, counts) = logit_rows(rows, &spans);
        let places = || rows.iter().map(|row| (row.start..row.start + row.tokens.len(), row.long));
        let angles = self.angles(places);
        let step = Step::new(spans, angles)?;
        let tokens: Vec<u32> = rows.iter().flat_map(|row| row.tokens).copied().collect();
        self.embed(&tokens, grow(&mut scratch.x, offset * self.config.width))?;
        // Nothing to add yet.
        grow(&mut scratch.y, offset * self.config.width).fill(0.);
        let mut m = offset;
        for index in 0..self.layers.len() {
            let wanted = (index + 1 == self.layers.len()).then_some(wanted.as_slice());
            m = self.run_layer((index, index), m, &step, wanted, arena, scratch)?;
        }
        Ok((m, counts))
    }

    /// The vectors that tokens begin with; `x`: `[tokens, width]`.
    fn embed(&self, tokens: &[u32], x: &mut [f32]) -> Result<()> {
        self.token_embd.embedding(tokens, x)?;
        if self.config.embedding_scale != 1. {
            x.iter_mut().for_each(|x| *x *= self.config.embedding_scale);
        }
        Ok(())
    }

    /// For tokens at these positions, each row in a sequence that is long or is not.
    fn angles<I: Iterator<Item = (Range<usize>, bool)>>(&self, rows: impl Fn() -> I) -> Vec<Angles> {
        let positions = || rows().flat_map(|(range, long)| range.map(move |position| (position, long)));
        self.ropes.iter().map(|rope| Angles::new(rope, positions())).collect()
    }

    /// One block, whose keys and values are in a layer of the arena, over `m` rows of the scratch: how many it has
    /// left there. Of `wanted` ones, named upwards, attention alone needs the others.
    fn run_layer(
        &self,
        (index, kept): (usize, usize),
        m: usize,
        step: &Step<'_>,
        wanted: Option<&[usize]>,
        arena: &mut KvArena,
        scratch: &mut Scratch,
    ) -> Result<usize> {
        let (Some(block), Some(layer)) = (self.layers.get(index), self.config.layers.get(index)) else {
            return Err(ModelError::Compute(format!("there is no block {index}")));
        };
        let pool = self.cpu.pool();
        block.project(pool, m, scratch)?;
        self.rotate(m, scratch, layer, &step.angles);
        arena.write(pool, kept, &step.writes, &scratch.k, &scratch.v)?;
        self.attend(m, scratch, (kept, layer), &step.spans, arena)?;
        let m = wanted.map_or(m, <[usize]>::len);
        if let Some(wanted) = wanted {
            gather(&mut scratch.x, self.config.width, wanted);
            gather(&mut scratch.mixed, self.config.heads * self.config.head_width, wanted);
        }
        if m > 0 {
            block.finish(pool, m, scratch)?;
        }
        Ok(m)
    }

    /// The norm after the last block, of the `m` vectors that it left.
    fn norm(&self, m: usize, scratch: &mut Scratch, out: &mut [f32]) {
        let (Scratch { x, y, .. }, len) = (scratch, m * self.config.width);
        if m > 0 {
            self.output_norm.add_forward(self.cpu.pool(), grow(x, len), grow(y, len), out);
        }
    }

    fn check(&self, tokens: &[u32]) -> Result<()> {
        if tokens.is_empty() {
            return Err(ModelError::Compute("a row without tokens".to_owned()));
        }
        match tokens.iter().find(|&&id| id as usize >= self.config.vocabulary) {
            Some(id) => {
                Err(ModelError::Compute(format!("token {id} is not in the vocabulary of {}", self.config.vocabulary)))
            }
            None => Ok(()),
        }
    }

    /// What follows the `m` tokens that are left in `x`.
    fn logits(&self, m: usize, scratch: &mut Scratch, counts: Vec<usize>) -> Result<Logits> {
        let DecoderConfig { width, vocabulary, logit_soft_cap, .. } = self.config;
        let mut numbers = std::mem::take(&mut scratch.logits);
        grow(&mut numbers, m * vocabulary);
        numbers.truncate(m * vocabulary);
        if m > 0 {
            let mut normed = std::mem::take(&mut scratch.normed);
            let input = grow(&mut normed, m * width);
            self.norm(m, scratch, input);
            self.output.forward(self.cpu.pool(), input, m, &mut numbers)?;
            scratch.normed = normed;
        }
        if let Some(cap) = logit_soft_cap {
            numbers.iter_mut().for_each(|logit| *logit = (*logit / cap).tanh() * cap);
        }
        Ok(Logits { values: numbers, vocabulary, counts })
    }

    /// Turns queries and keys by their positions' angles.
    fn rotate(&self, m: usize, scratch: &mut Scratch, layer: &LayerConfig, angles: &[Angles]) {
        let DecoderConfig { heads, kv_heads, head_width, rope_style, .. } = self.config;
        let pool = self.cpu.pool();
        if let Some(angles) = layer.rope.and_then(|rope| angles.get(rope)) {
            angles.rotate(pool, grow(&mut scratch.q, m * heads * head_width), heads, head_width, rope_style);
            angles.rotate(pool, grow(&mut scratch.k, m * kv_heads * head_width), kv_heads, head_width, rope_style);
        }
    }

    /// Attention of all rows in one layer: from `q` to `mixed`.
    fn attend(
        &self,
        m: usize,
        scratch: &mut Scratch,
        (index, layer): (usize, &LayerConfig),
        spans: &[SequenceSlice<'_>],
        arena: &KvArena,
    ) -> Result<()> {
        let (Scratch { q, mixed, .. }, len) = (scratch, m * self.config.heads * self.config.head_width);
        let shape = attention::decoder_shape(&self.config, layer.window);
        attention::forward(self.cpu.pool(), arena, index, &shape, spans, grow(q, len), grow(mixed, len))
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

/// What all blocks need to know of a step.
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

/// Places in the batch of the tokens whose distributions are wanted, upwards, and how many of each row.
fn logit_rows(rows: &[BatchRow<'_>], spans: &[SequenceSlice<'_>]) -> (Vec<usize>, Vec<usize>) {
    let of = |(row, span): (&BatchRow<'_>, &SequenceSlice<'_>)| match row.logits {
        LogitsAt::None => 0..0,
        LogitsAt::Last => span.offset + span.count - 1..span.offset + span.count,
        LogitsAt::All => span.offset..span.offset + span.count,
    };
    let ranges = rows.iter().zip(spans).map(of);
    (ranges.clone().flatten().collect(), ranges.map(|range| range.len()).collect())
}

/// Moves these rows of `width` numbers, named upwards, to the beginning.
fn gather(buffer: &mut [f32], width: usize, rows: &[usize]) {
    for (to, from) in rows.iter().enumerate() {
        buffer.copy_within(from * width..(from + 1) * width, to * width);
    }
}

/// The embedding, or a matrix of its own.
fn output(loader: &Loader<'_>, config: &DecoderConfig, token_embd: &Linear) -> Result<Linear> {
    if config.tied_embeddings == Some(true) {
        loader.ignore("output");
        return Ok(token_embd.clone());
    }
    match loader.optional_matrix("output", config.vocabulary, config.width)? {
        Some(own) => Ok(own),
        None if config.tied_embeddings.is_none() => Ok(token_embd.clone()),
        None => Err(loader.missing("output")),
    }
}
