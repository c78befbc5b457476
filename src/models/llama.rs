//! The decoder of Llama and its relatives (Touvron et al. 2023, <https://arxiv.org/abs/2302.13971>;
//! grouped queries: Ainslie et al. 2023, <https://arxiv.org/abs/2305.13245>), from GGUF weights.
//!
//! A step takes a ragged batch: rows of different lengths and positions share each weight read,
//! and only attention looks at them one by one. Tensor names mirror the checkpoint's.

use std::sync::Arc;

use candle_core::quantized::{QMatMul, QTensor};
use candle_core::{Device, Module, Result, Tensor};
use candle_nn::ops::{rms_norm, silu, softmax_last_dim};
use candle_nn::rotary_emb::{rope, rope_i};

use super::ModelError;
use super::family::RopeStyle;
use super::gguf::GgufFile;
use super::hyper::Hyper;
use super::kv::KvCache;

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
    token_embd: Arc<QTensor>,
    blocks: Vec<Block>,
    output_norm: Tensor,
    output: QMatMul,
    /// Angle per position of each rotated pair, `head_width / 2` numbers.
    frequencies: Vec<f32>,
}

#[derive(Debug)]
struct Block {
    attn_norm: Tensor,
    attn_q: Projection,
    attn_k: Projection,
    attn_v: Projection,
    attn_output: Projection,
    ffn_norm: Tensor,
    ffn_gate: Projection,
    ffn_up: Projection,
    ffn_down: Projection,
}

#[derive(Debug)]
struct Projection {
    weight: QMatMul,
    bias: Option<Tensor>,
}

/// From this many rows on it is faster to widen a quantised weight to f32, once for all rows, and
/// multiply in f32 than to take candle's quantised dot products, which are scalar for most types.
const WIDEN_FROM: usize = 8;

impl Projection {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = match &self.weight {
            QMatMul::QTensor(weight) if x.dim(0)? >= WIDEN_FROM => x.matmul(&weight.dequantize(&Device::Cpu)?.t()?)?,
            weight => weight.forward(x)?,
        };
        match &self.bias {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }
}

/// Cosines and sines of a row's positions (`[t, head_width / 2]`), and its causal mask.
struct Place {
    start: usize,
    count: usize,
    cos: Tensor,
    sin: Tensor,
    mask: Option<Tensor>,
}

impl Llama {
    pub fn load(file: &GgufFile) -> std::result::Result<Self, ModelError> {
        let hyper = Hyper::read(&file.header)?;
        let (vocabulary, width) = (hyper.vocabulary, hyper.width);
        let token_embd = Arc::new(file.tensor("token_embd.weight", &[vocabulary, width])?);
        let output = match file.optional("output.weight", &[vocabulary, width])? {
            Some(own) => QMatMul::from_qtensor(own)?,
            None => QMatMul::from_arc(Arc::clone(&token_embd))?,
        };
        let blocks =
            (0..hyper.blocks).map(|index| Block::load(file, &hyper, index)).collect::<std::result::Result<_, _>>()?;
        let output_norm = vector(file, "output_norm.weight", width)?;
        let frequencies = frequencies(file, &hyper)?;
        Ok(Self { hyper, token_embd, blocks, output_norm, output, frequencies })
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
        for (index, block) in self.blocks.iter().enumerate() {
            x = block.forward(&x, index, &self.hyper, rows, &places)?;
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
        let angles: Vec<f32> = (past..past + count)
            .flat_map(|position| self.frequencies.iter().map(move |frequency| position as f32 * frequency))
            .collect();
        let angles = Tensor::from_vec(angles, (count, self.frequencies.len()), &Device::Cpu)?;
        let mask = if count > 1 { Some(causal_mask(count, past)?) } else { None };
        Ok(Place { start, count, cos: angles.cos()?, sin: angles.sin()?, mask })
    }

    fn logits(&self, x: &Tensor, rows: &[Row<'_>], places: &[Place]) -> Result<Vec<Option<Vec<f32>>>> {
        let wanted = rows.iter().zip(places).filter(|(row, _)| row.wants_logits);
        let last: Vec<u32> = wanted.map(|(_, place)| (place.start + place.count - 1) as u32).collect();
        if last.is_empty() {
            return Ok(rows.iter().map(|_| None).collect());
        }
        let x = x.index_select(&Tensor::new(last, &Device::Cpu)?, 0)?;
        let x = rms_norm(&x, &self.output_norm, self.hyper.epsilon)?;
        let mut logits = self.output.forward(&x)?.to_vec2::<f32>()?.into_iter();
        Ok(rows.iter().map(|row| if row.wants_logits { logits.next() } else { None }).collect())
    }
}

impl Block {
    fn load(file: &GgufFile, hyper: &Hyper, index: usize) -> std::result::Result<Self, ModelError> {
        let Hyper { width, inner, .. } = *hyper;
        let (queries, kv) = (hyper.heads * hyper.head_width, hyper.kv_heads * hyper.head_width);
        let projection = |name: &str, rows: usize, columns: usize, biased: bool| {
            let weight = QMatMul::from_qtensor(file.tensor(&format!("blk.{index}.{name}.weight"), &[rows, columns])?)?;
            let key = format!("blk.{index}.{name}.bias");
            let bias = match file.optional(&key, &[rows])? {
                Some(bias) => Some(bias.dequantize(&Device::Cpu)?),
                None if biased => return Err(ModelError::invalid(format!("the file has no tensor {key}"))),
                None => None,
            };
            Ok(Projection { weight, bias })
        };
        let biased = hyper.family.biases;
        Ok(Self {
            attn_norm: vector(file, &format!("blk.{index}.attn_norm.weight"), width)?,
            attn_q: projection("attn_q", queries, width, biased)?,
            attn_k: projection("attn_k", kv, width, biased)?,
            attn_v: projection("attn_v", kv, width, biased)?,
            attn_output: projection("attn_output", width, queries, false)?,
            ffn_norm: vector(file, &format!("blk.{index}.ffn_norm.weight"), width)?,
            ffn_gate: projection("ffn_gate", inner, width, false)?,
            ffn_up: projection("ffn_up", inner, width, false)?,
            ffn_down: projection("ffn_down", width, inner, false)?,
        })
    }

    /// `x`: `[rows' tokens, width]`.
    fn forward(&self, x: &Tensor, index: usize, hyper: &Hyper, rows: &[Row<'_>], places: &[Place]) -> Result<Tensor> {
        let normed = rms_norm(x, &self.attn_norm, hyper.epsilon)?;
        let (q, k, v) = (self.attn_q.forward(&normed)?, self.attn_k.forward(&normed)?, self.attn_v.forward(&normed)?);
        let mut mixed = Vec::with_capacity(rows.len());
        for (row, place) in rows.iter().zip(places) {
            let part = |all: &Tensor| all.narrow(0, place.start, place.count);
            mixed.push(attend(&part(&q)?, &part(&k)?, &part(&v)?, index, hyper, row.kv, place)?);
        }
        let mixed = if let [one] = mixed.as_slice() { one.clone() } else { Tensor::cat(&mixed, 0)? };
        let x = (x + self.attn_output.forward(&mixed)?)?;
        let normed = rms_norm(&x, &self.ffn_norm, hyper.epsilon)?;
        let gated = (silu(&self.ffn_gate.forward(&normed)?)? * self.ffn_up.forward(&normed)?)?;
        x + self.ffn_down.forward(&gated)?
    }
}

/// Attention of one row over its whole past: `[t, heads * head_width]` in and out.
fn attend(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    index: usize,
    hyper: &Hyper,
    kv: &KvCache,
    place: &Place,
) -> Result<Tensor> {
    let Hyper { heads, kv_heads, head_width, .. } = *hyper;
    let count = place.count;
    let split = |x: &Tensor, heads: usize| x.reshape((1, count, heads, head_width))?.transpose(1, 2)?.contiguous();
    let rotate = |x: &Tensor| match hyper.family.rope {
        RopeStyle::Interleaved => rope_i(x, &place.cos, &place.sin),
        RopeStyle::Halves => rope(x, &place.cos, &place.sin),
    };
    let (keys, values) =
        kv.append(index, &rotate(&split(k, kv_heads)?)?.squeeze(0)?, &split(v, kv_heads)?.squeeze(0)?)?;
    let past = keys.dim(1)?;
    // Queries of the heads that share a key-value head stand below each other: nothing is repeated.
    let queries = rotate(&split(q, heads)?)?.reshape((kv_heads, heads / kv_heads * count, head_width))?;
    let queries = (queries * (head_width as f64).sqrt().recip())?;
    let mut scores = queries.matmul(&keys.transpose(1, 2)?)?;
    if let Some(mask) = &place.mask {
        scores = scores.reshape((heads, count, past))?.broadcast_add(mask)?.reshape(scores.shape())?;
    }
    let mixed = softmax_last_dim(&scores)?.matmul(&values)?;
    mixed.reshape((heads, count, head_width))?.transpose(0, 1)?.contiguous()?.reshape((count, heads * head_width))
}

/// `[count, past + count]`: minus infinity where a token would see a later one.
fn causal_mask(count: usize, past: usize) -> Result<Tensor> {
    let total = past + count;
    let cell = |row: usize, column: usize| if column > past + row { f32::NEG_INFINITY } else { 0. };
    let cells: Vec<f32> = (0..count).flat_map(|row| (0..total).map(move |column| cell(row, column))).collect();
    Tensor::from_vec(cells, (count, total), &Device::Cpu)
}

fn vector(file: &GgufFile, name: &str, width: usize) -> std::result::Result<Tensor, ModelError> {
    Ok(file.tensor(name, &[width])?.dequantize(&Device::Cpu)?)
}

/// Angles per position; Llama 3 brings factors of its own in `rope_freqs.weight`.
fn frequencies(file: &GgufFile, hyper: &Hyper) -> std::result::Result<Vec<f32>, ModelError> {
    let pairs = hyper.head_width / 2;
    let factors = match file.optional("rope_freqs.weight", &[pairs])? {
        Some(factors) => factors.dequantize(&Device::Cpu)?.to_vec1()?,
        None => vec![1f32; pairs],
    };
    if factors.iter().any(|factor| !factor.is_normal()) {
        return Err(ModelError::invalid("tensor rope_freqs.weight has numbers that nothing can be divided by"));
    }
    let exponent = |pair: usize| (2 * pair) as f32 / hyper.head_width as f32;
    Ok(factors
        .iter()
        .enumerate()
        .map(|(pair, factor)| hyper.rope_base.powf(exponent(pair)).recip() / factor / hyper.rope_divisor)
        .collect())
}
