//! The decoder of Llama and its relatives (Touvron et al. 2023, <https://arxiv.org/abs/2302.13971>;
//! grouped queries: Ainslie et al. 2023, <https://arxiv.org/abs/2305.13245>), from any checkpoint.
//!
//! A step takes a ragged batch: rows of different lengths and positions share each weight read,
//! and only attention looks at them one by one. Tensor names mirror the checkpoint's.

use std::sync::Arc;

use candle_core::{Device, Result, Tensor};
use outpost_kernels::Pool;

use super::ModelError;
use super::attention::{self, Span};
use super::block::{Block, Norm};
use super::hyper::{Hyper, Layer};
use super::kv::{BLOCK, BlockId, KvArena, KvCache, KvShape, KvType};
use super::linear::Linear;
use super::ops::numbers;
use super::rope::{Angles, Rope};
use super::weights::{Loader, Weights};

/// One sequence's part of a step: its next tokens, where they stand, and where its past is.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    pub tokens: &'a [u32],
    /// Position of the first of them: so many are in the blocks already.
    pub start: usize,
    /// Blocks of all positions up to the last of `tokens`. Those that the tokens fall into belong to
    /// this row alone.
    pub blocks: &'a [BlockId],
    pub logits: Wanted,
    /// Whether its sequence is a long one, from its first token to its last: see [`Llama::is_long`].
    pub long: bool,
}

/// Which distributions of a row are wanted: each is the one after a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    Nothing,
    Last,
    All,
}

/// A loaded decoder; shared by all sequences.
#[derive(Debug)]
pub struct Llama {
    hyper: Hyper,
    token_embd: Linear,
    blocks: Vec<Block>,
    output_norm: Norm,
    output: Linear,
    ropes: Vec<Rope>,
    pool: Arc<Pool>,
}

impl Llama {
    /// Reads the weights; `pool` computes with them.
    pub fn load(source: &dyn Weights, pool: Arc<Pool>) -> std::result::Result<Self, ModelError> {
        let (hyper, loader) = (source.hyper()?, Loader::new(source));
        let (vocabulary, width) = (hyper.vocabulary, hyper.width);
        let token_embd = Linear::new(loader.matrix("token_embd", vocabulary, width)?, None)?;
        let output = output(&loader, &hyper, &token_embd)?;
        let blocks = (0..hyper.blocks).map(|index| Block::load(&loader, &hyper, index));
        let blocks = blocks.collect::<std::result::Result<_, _>>()?;
        let output_norm = Norm::load(&loader, &hyper, "output_norm", width)?;
        let ropes = hyper.ropes.iter().map(|spec| Rope::load(&loader, spec)).collect::<std::result::Result<_, _>>()?;
        loader.finish()?;
        Ok(Self { hyper, token_embd, blocks, output_norm, output, ropes, pool })
    }

    pub fn hyper(&self) -> &Hyper {
        &self.hyper
    }

    /// The sizes of its keys and values.
    pub fn kv_shape(&self, kind: KvType) -> KvShape {
        let Hyper { blocks, kv_heads, head_width, .. } = self.hyper;
        KvShape { layers: blocks, kv_heads, head_width, kind }
    }

    /// Whether a sequence of at most `limit` positions is computed as a long one. LongRoPE has other
    /// frequencies for those, so a sequence keeps to one kind, and blocks of one kind are of no use
    /// to the other.
    pub fn is_long(&self, limit: usize) -> bool {
        self.ropes.iter().any(|rope| rope.is_long(limit))
    }

    /// Logits (`[vocabulary]`) after the last of `tokens`, which follow what `cache` holds; it then
    /// holds them too.
    pub fn extend(&self, tokens: &[u32], cache: &mut KvCache) -> Result<Vec<f32>> {
        cache.reserve(tokens.len());
        let row = Row { tokens, start: cache.length, blocks: &cache.blocks, logits: Wanted::Last, long: cache.long };
        let logits = self.forward(&[row], &mut cache.arena)?.pop().and_then(|mut row| row.pop());
        cache.length += tokens.len();
        logits.ok_or_else(|| candle_core::Error::Msg("a step gave no logits".to_owned()))
    }

    /// One step for all rows at once: for each row the logits (`[vocabulary]`) it wants, in the
    /// order of its tokens. Keys and values of the rows' tokens are in the arena afterwards, and
    /// nothing else in it has changed, error or not.
    pub fn forward(&self, rows: &[Row<'_>], arena: &mut KvArena) -> Result<Vec<Vec<Vec<f32>>>> {
        let mut spans = Vec::with_capacity(rows.len());
        let mut offset = 0;
        for row in rows {
            self.check(row)?;
            let Row { tokens, start, blocks, .. } = *row;
            spans.push(Span { offset, count: tokens.len(), start, blocks });
            offset += tokens.len();
        }
        let positions = || {
            let places = rows.iter().zip(&spans).map(|(row, span)| (span.start..span.start + span.count, row.long));
            places.flat_map(|(range, long)| range.map(move |position| (position, long)))
        };
        let angles: Vec<Angles> = self.ropes.iter().map(|rope| Angles::new(rope, positions())).collect();
        let tokens: Vec<u32> = rows.iter().flat_map(|row| row.tokens).copied().collect();
        let mut x = self.token_embd.embedding(&tokens)?;
        if self.hyper.embedding_scale != 1. {
            x = (x * f64::from(self.hyper.embedding_scale))?;
        }
        for (index, (block, layer)) in self.blocks.iter().zip(&self.hyper.layers).enumerate() {
            let mixed = self.attend(block.project(&self.pool, &x)?, (index, layer), &spans, &angles, arena)?;
            x = block.finish(&self.pool, x, &mixed)?;
        }
        self.logits(&x, rows, &spans)
    }

    fn check(&self, row: &Row<'_>) -> Result<()> {
        if row.tokens.is_empty() {
            candle_core::bail!("a row without tokens");
        }
        match row.tokens.iter().find(|&&id| id as usize >= self.hyper.vocabulary) {
            Some(id) => candle_core::bail!("token {id} is not in the vocabulary of {}", self.hyper.vocabulary),
            None => Ok(()),
        }
    }

    fn logits(&self, x: &Tensor, rows: &[Row<'_>], spans: &[Span<'_>]) -> Result<Vec<Vec<Vec<f32>>>> {
        let wanted = |(row, span): (&Row<'_>, &Span<'_>)| match row.logits {
            Wanted::Nothing => 0..0,
            Wanted::Last => span.offset + span.count - 1..span.offset + span.count,
            Wanted::All => span.offset..span.offset + span.count,
        };
        let wanted: Vec<_> = rows.iter().zip(spans).map(wanted).collect();
        let indices: Vec<u32> = wanted.iter().cloned().flatten().map(|index| index as u32).collect();
        if indices.is_empty() {
            return Ok(rows.iter().map(|_| Vec::new()).collect());
        }
        let x = x.index_select(&Tensor::new(indices, &Device::Cpu)?, 0)?;
        let mut logits = self.output.forward(&self.pool, &self.output_norm.forward(&self.pool, &x)?)?;
        if let Some(cap) = self.hyper.output_cap.map(f64::from) {
            logits = ((logits / cap)?.tanh()? * cap)?;
        }
        numbers(&logits, |logits| {
            let mut rows = logits.chunks_exact(self.hyper.vocabulary).map(<[f32]>::to_vec);
            wanted.into_iter().map(|range| rows.by_ref().take(range.len()).collect()).collect()
        })
    }

    /// Attention of all rows in one layer, given their queries, keys and values
    /// (`[tokens, heads * head_width]`): as much as the queries.
    fn attend(
        &self,
        [q, k, v]: [Tensor; 3],
        (index, layer): (usize, &Layer),
        spans: &[Span<'_>],
        angles: &[Angles],
        arena: &mut KvArena,
    ) -> Result<Tensor> {
        let Hyper { heads, kv_heads, head_width, rope_style, attention_scale: scale, attention_cap: soft_cap, .. } =
            self.hyper;
        let (shape, numbers) = (q.shape().clone(), |x: Tensor| x.flatten_all()?.to_vec1::<f32>());
        let (mut queries, mut keys, values) = (numbers(q)?, numbers(k)?, numbers(v)?);
        if let Some(angles) = layer.rope.and_then(|rope| angles.get(rope)) {
            angles.rotate(&self.pool, &mut queries, heads, head_width, rope_style);
            angles.rotate(&self.pool, &mut keys, kv_heads, head_width, rope_style);
        }
        attention::keep(arena, index, spans, &keys, &values)?;
        let kind = attention::Shape {
            heads,
            kv_heads,
            width: head_width,
            block: BLOCK,
            scale,
            causal: true,
            window: layer.window,
            soft_cap,
        };
        let mixed = attention::over(&self.pool, arena, index, &kind, spans, &queries)?;
        Tensor::from_vec(mixed, shape, &Device::Cpu)
    }
}

/// The embedding, or a matrix of its own.
fn output(loader: &Loader<'_>, hyper: &Hyper, token_embd: &Linear) -> std::result::Result<Linear, ModelError> {
    if hyper.tied == Some(true) {
        loader.pass("output");
        return Ok(token_embd.clone());
    }
    match loader.optional_matrix("output", hyper.vocabulary, hyper.width)? {
        Some(own) => Ok(Linear::new(own, loader.bias("output", hyper.vocabulary)?)?),
        None if hyper.tied.is_none() => Ok(token_embd.clone()),
        None => Err(loader.missing("output")),
    }
}
