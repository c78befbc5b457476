//! The decoder of Llama and its relatives (Touvron et al. 2023, <https://arxiv.org/abs/2302.13971>;
//! grouped queries: Ainslie et al. 2023, <https://arxiv.org/abs/2305.13245>), from GGUF weights.
//!
//! A step takes a ragged batch: rows of different lengths and positions share each weight read,
//! and only attention looks at them one by one. Tensor names mirror the checkpoint's.

use std::sync::Arc;

use candle_core::quantized::{QMatMul, QTensor};
use candle_core::{Device, Module, Result, Tensor};
use candle_nn::ops::{rms_norm, silu};

use super::ModelError;
use super::attention::{self, Attention, Span};
use super::gguf::GgufFile;
use super::hyper::Hyper;
use super::kv::{BlockId, KvArena, KvCache, KvShape, KvType};
use super::rope::Angles;

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

    /// The sizes of its keys and values.
    pub fn kv_shape(&self, kind: KvType) -> KvShape {
        let Hyper { blocks, kv_heads, head_width, .. } = self.hyper;
        KvShape { layers: blocks, kv_heads, head_width, kind }
    }

    /// Logits (`[vocabulary]`) after the last of `tokens`, which follow what `cache` holds; it then
    /// holds them too.
    pub fn extend(&self, tokens: &[u32], cache: &mut KvCache) -> Result<Vec<f32>> {
        cache.reserve(tokens.len());
        let row = Row { tokens, start: cache.length, blocks: &cache.blocks, logits: Wanted::Last };
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
        let positions = spans.iter().flat_map(|span| span.start..span.start + span.count);
        let angles = Angles::new(&self.frequencies, positions);
        let tokens: Vec<u32> = rows.iter().flat_map(|row| row.tokens).copied().collect();
        let mut x = self.token_embd.embedding(&Tensor::new(tokens, &Device::Cpu)?)?;
        for (index, block) in self.blocks.iter().enumerate() {
            x = block.forward(&x, index, &self.hyper, &spans, &angles, arena)?;
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
        let x = rms_norm(&x, &self.output_norm, self.hyper.epsilon)?;
        let mut logits = self.output.forward(&x)?.to_vec2::<f32>()?.into_iter();
        Ok(wanted.into_iter().map(|range| logits.by_ref().take(range.len()).collect()).collect())
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

    /// `x`: `[tokens of all rows, width]`.
    fn forward(
        &self,
        x: &Tensor,
        index: usize,
        hyper: &Hyper,
        spans: &[Span<'_>],
        angles: &Angles,
        arena: &mut KvArena,
    ) -> Result<Tensor> {
        let normed = rms_norm(x, &self.attn_norm, hyper.epsilon)?;
        let mixed = self.attend(&normed, index, hyper, spans, angles, arena)?;
        let x = (x + self.attn_output.forward(&mixed)?)?;
        let normed = rms_norm(&x, &self.ffn_norm, hyper.epsilon)?;
        let gated = (silu(&self.ffn_gate.forward(&normed)?)? * self.ffn_up.forward(&normed)?)?;
        x + self.ffn_down.forward(&gated)?
    }

    /// `[tokens, width]` in, `[tokens, heads * head_width]` out.
    fn attend(
        &self,
        x: &Tensor,
        index: usize,
        hyper: &Hyper,
        spans: &[Span<'_>],
        angles: &Angles,
        arena: &mut KvArena,
    ) -> Result<Tensor> {
        let Hyper { heads, kv_heads, head_width, .. } = *hyper;
        let numbers = |x: Tensor| x.flatten_all()?.to_vec1::<f32>();
        let mut queries = numbers(self.attn_q.forward(x)?)?;
        let mut keys = numbers(self.attn_k.forward(x)?)?;
        let values = numbers(self.attn_v.forward(x)?)?;
        angles.rotate(&mut queries, heads, head_width, hyper.family.rope);
        angles.rotate(&mut keys, kv_heads, head_width, hyper.family.rope);
        attention::keep(arena, index, spans, &keys, &values)?;
        let scale = (head_width as f32).sqrt().recip();
        let attention = Attention { layer: index, heads, scale, window: None, softcap: None };
        let mixed = attention.over(arena, spans, &queries)?;
        Tensor::from_vec(mixed, (x.dim(0)?, heads * head_width), &Device::Cpu)
    }
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
