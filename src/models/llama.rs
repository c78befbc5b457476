//! The decoder of Llama and its relatives (Touvron et al. 2023, <https://arxiv.org/abs/2302.13971>;
//! grouped queries: Ainslie et al. 2023, <https://arxiv.org/abs/2305.13245>), from any checkpoint.
//!
//! A step takes a ragged batch: rows of different lengths and positions share each weight read,
//! and only attention looks at them one by one. Tensor names mirror the checkpoint's.

use candle_core::{Device, Result, Tensor};
use candle_nn::ops::softmax_last_dim;

use super::ModelError;
use super::block::{Block, Norm};
use super::hyper::{Hyper, Layer};
use super::kv::KvCache;
use super::linear::Linear;
use super::rope::{Rope, rotate};
use super::weights::{Loader, Weights};

/// One sequence's part of a step: its next tokens, where its past is, and whether the
/// distribution after the last of them is wanted.
#[derive(Debug)]
pub struct Row<'a> {
    pub tokens: &'a [u32],
    pub kv: &'a mut KvCache,
    pub wants_logits: bool,
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
    /// The different windows of the blocks.
    windows: Vec<Option<usize>>,
}

/// A row's share of a step: the angles of its positions for each way of rotating, and a mask for
/// each window.
struct Place {
    start: usize,
    count: usize,
    angles: Vec<(Tensor, Tensor)>,
    masks: Vec<(Option<usize>, Option<Tensor>)>,
}

impl Llama {
    pub fn load(source: &dyn Weights) -> std::result::Result<Self, ModelError> {
        let (hyper, loader) = (source.hyper()?, Loader::new(source));
        let (vocabulary, width) = (hyper.vocabulary, hyper.width);
        let token_embd = Linear::new(loader.matrix("token_embd", vocabulary, width)?, None)?;
        let output = output(&loader, &hyper, &token_embd)?;
        let blocks = (0..hyper.blocks).map(|index| Block::load(&loader, &hyper, index));
        let blocks = blocks.collect::<std::result::Result<_, _>>()?;
        let output_norm = Norm::load(&loader, &hyper, "output_norm", width)?;
        let ropes = hyper.ropes.iter().map(|spec| Rope::load(&loader, spec)).collect::<std::result::Result<_, _>>()?;
        loader.finish()?;
        let mut windows: Vec<_> = hyper.layers.iter().map(|layer| layer.window).collect();
        windows.sort_unstable();
        windows.dedup();
        Ok(Self { hyper, token_embd, blocks, output_norm, output, ropes, windows })
    }

    pub fn hyper(&self) -> &Hyper {
        &self.hyper
    }

    /// An empty cache for a sequence of at most `limit` positions.
    pub fn cache(&self, limit: usize) -> Result<KvCache> {
        KvCache::new(&self.hyper, limit)
    }

    /// Logits after the last of `tokens`, which follow what `kv` holds; `kv` then holds them too.
    pub fn forward(&self, tokens: &[u32], kv: &mut KvCache) -> Result<Vec<f32>> {
        let mut rows = [Row { tokens, kv, wants_logits: true }];
        match self.forward_rows(&mut rows)?.pop().flatten() {
            Some(logits) => Ok(logits),
            None => candle_core::bail!("a step gave no logits"),
        }
    }

    /// One step for all rows at once; logits for those that want them, in the rows' order.
    /// After an error no cache has advanced.
    pub fn forward_rows(&self, rows: &mut [Row<'_>]) -> Result<Vec<Option<Vec<f32>>>> {
        let mut places = Vec::with_capacity(rows.len());
        let mut start = 0;
        for row in rows.iter_mut() {
            self.check(row.tokens)?;
            row.kv.reserve(row.tokens.len())?;
            places.push(self.place(start, row)?);
            start += row.tokens.len();
        }
        let tokens: Vec<u32> = rows.iter().flat_map(|row| row.tokens).copied().collect();
        let mut x = self.token_embd.embedding(&Tensor::new(tokens, &Device::Cpu)?)?;
        if self.hyper.embedding_scale != 1. {
            x = (x * f64::from(self.hyper.embedding_scale))?;
        }
        for (index, (block, layer)) in self.blocks.iter().zip(&self.hyper.layers).enumerate() {
            let mixed = self.attention(block.project(&x)?, (index, *layer), rows, &places)?;
            x = block.finish(&x, &mixed)?;
        }
        let logits = self.logits(&x, rows, &places)?;
        for row in rows.iter_mut() {
            row.kv.advance(row.tokens.len());
        }
        Ok(logits)
    }

    fn check(&self, tokens: &[u32]) -> Result<()> {
        if tokens.is_empty() {
            candle_core::bail!("a row without tokens");
        }
        match tokens.iter().find(|&&id| id as usize >= self.hyper.vocabulary) {
            Some(id) => candle_core::bail!("token {id} is not in the vocabulary of {}", self.hyper.vocabulary),
            None => Ok(()),
        }
    }

    fn place(&self, start: usize, row: &Row<'_>) -> Result<Place> {
        let (count, past) = (row.tokens.len(), row.kv.len());
        let long = |rope: &Rope| rope.is_long(row.kv.limit());
        let angles = self.ropes.iter().map(|rope| rope.angles(past, count, long(rope))).collect::<Result<_>>()?;
        let masks = self.windows.iter().map(|window| Ok((*window, mask(count, past, *window)?))).collect::<Result<_>>()?;
        Ok(Place { start, count, angles, masks })
    }

    /// Attention of all rows: `[rows' tokens, heads * head_width]`, given as much of queries, keys and values.
    fn attention(
        &self,
        (q, k, v): (Tensor, Tensor, Tensor),
        (index, layer): (usize, Layer),
        rows: &[Row<'_>],
        places: &[Place],
    ) -> Result<Tensor> {
        let mut mixed = Vec::with_capacity(rows.len());
        for (row, place) in rows.iter().zip(places) {
            let part = |all: &Tensor| all.narrow(0, place.start, place.count);
            mixed.push(attend((part(&q)?, part(&k)?, part(&v)?), (index, layer), &self.hyper, row.kv, place)?);
        }
        if let [one] = mixed.as_slice() { Ok(one.clone()) } else { Tensor::cat(&mixed, 0) }
    }

    fn logits(&self, x: &Tensor, rows: &[Row<'_>], places: &[Place]) -> Result<Vec<Option<Vec<f32>>>> {
        let wanted = rows.iter().zip(places).filter(|(row, _)| row.wants_logits);
        let last: Vec<u32> = wanted.map(|(_, place)| (place.start + place.count - 1) as u32).collect();
        if last.is_empty() {
            return Ok(rows.iter().map(|_| None).collect());
        }
        let x = x.index_select(&Tensor::new(last, &Device::Cpu)?, 0)?;
        let logits = self.output.forward(&self.output_norm.forward(&x)?)?;
        let mut logits = cap(logits, self.hyper.output_cap)?.to_vec2::<f32>()?.into_iter();
        Ok(rows.iter().map(|row| if row.wants_logits { logits.next() } else { None }).collect())
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

/// Attention of one row over its whole past: `[t, heads * head_width]` in and out.
fn attend(
    (q, k, v): (Tensor, Tensor, Tensor),
    (index, layer): (usize, Layer),
    hyper: &Hyper,
    kv: &KvCache,
    place: &Place,
) -> Result<Tensor> {
    let Hyper { heads, kv_heads, head_width, .. } = *hyper;
    let count = place.count;
    let split = |x: &Tensor, heads: usize| x.reshape((1, count, heads, head_width))?.transpose(1, 2)?.contiguous();
    let angles = layer.rope.and_then(|rope| place.angles.get(rope));
    let turn = |x: Tensor| match angles {
        Some(angles) => rotate(&x, hyper.rope_style, angles),
        None => Ok(x),
    };
    let (keys, values) = kv.append(index, &turn(split(&k, kv_heads)?)?.squeeze(0)?, &split(&v, kv_heads)?.squeeze(0)?)?;
    let past = keys.dim(1)?;
    // Queries of the heads that share a key-value head stand below each other: nothing is repeated.
    let queries = turn(split(&q, heads)?)?.reshape((kv_heads, heads / kv_heads * count, head_width))?;
    let queries = (queries * f64::from(hyper.attention_scale))?;
    let mut scores = cap(queries.matmul(&keys.transpose(1, 2)?)?, hyper.attention_cap)?;
    if let Some((_, Some(mask))) = place.masks.iter().find(|(window, _)| *window == layer.window) {
        scores = scores.reshape((heads, count, past))?.broadcast_add(mask)?.reshape(scores.shape())?;
    }
    let mixed = softmax_last_dim(&scores)?.matmul(&values)?;
    mixed.reshape((heads, count, head_width))?.transpose(0, 1)?.contiguous()?.reshape((count, heads * head_width))
}

/// `cap * tanh(x / cap)`.
fn cap(x: Tensor, cap: Option<f32>) -> Result<Tensor> {
    match cap.map(f64::from) {
        Some(cap) => (x / cap)?.tanh()? * cap,
        None => Ok(x),
    }
}

/// `[count, past + count]`: minus infinity where a token would see a later one, or one before its
/// window; `None` where it would see all.
fn mask(count: usize, past: usize, window: Option<usize>) -> Result<Option<Tensor>> {
    let total = past + count;
    let window = window.unwrap_or(usize::MAX);
    if count == 1 && total <= window {
        return Ok(None);
    }
    let hidden = |row: usize, column: usize| column > past + row || past + row - column >= window;
    let cell = |row: usize, column: usize| if hidden(row, column) { f32::NEG_INFINITY } else { 0. };
    let cells: Vec<f32> = (0..count).flat_map(|row| (0..total).map(move |column| cell(row, column))).collect();
    Tensor::from_vec(cells, (count, total), &Device::Cpu).map(Some)
}
