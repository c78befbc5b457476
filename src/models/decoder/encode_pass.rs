//! Encodes whole texts with a decoder and returns the hidden states of their last tokens.
//!
//! All texts pass through a layer before the next one. The cache therefore holds the keys and values of one layer, and
//! weights are read once. A layer processes [`CHUNK`] tokens at a time, so that other work can run in between.

use std::ops::Range;

use super::{Decoder, Step};
use crate::models::causal_lm::CausalLm;
use crate::models::decoder_config::DecoderConfig;
use crate::models::error::Result;
use crate::models::kv::KvArena;
use crate::models::rope::Angles;
use crate::models::scratch_buffers::{StepLimits, grow, scratch_bytes};
use crate::models::text_batch::{TextBatch, arena_bytes};

/// Tokens of a chunk.
const CHUNK: usize = 128;

/// A batch in progress.
#[derive(Debug)]
pub struct EncodePass {
    texts: TextBatch,
    angles: Vec<Angles>,
    /// The residual stream: `[tokens, width]`.
    x: Vec<f32>,
    /// Output of the last layer, which the next norm adds to `x`: `[tokens, width]`.
    y: Vec<f32>,
    /// Keys and values of one layer.
    arena: KvArena,
    layer: usize,
    /// The layer's first token that is not computed yet.
    token: usize,
}

/// An upper bound of the bytes that a pass over `tokens` tokens in `texts` texts takes.
pub fn encode_pass_bytes(config: &DecoderConfig, tokens: usize, texts: usize, threads: usize) -> u64 {
    let DecoderConfig { width, kv_heads, head_width, .. } = *config;
    let step = StepLimits { tokens: CHUNK, rows: CHUNK, logits: 0, threads };
    // `x` and `y`, and angles in vectors that grow by doubling.
    let floats = tokens * (2 * width + 2 * head_width * config.ropes.len());
    scratch_bytes(config, &step)
        + (floats * size_of::<f32>()) as u64
        + arena_bytes([kv_heads, head_width], tokens, texts)
}

impl Decoder {
    /// Starts a pass; no text may be empty.
    pub fn begin_encode(&self, texts: &[&[u32]]) -> Result<EncodePass> {
        for tokens in texts {
            self.check_tokens(tokens)?;
        }
        let counts = || texts.iter().map(|tokens| tokens.len());
        let angles = self.angles(|| counts().map(|count| (0..count, self.is_long(count))));
        let batch = TextBatch::new(counts());
        let arena = batch.arena([self.config.kv_heads, self.config.head_width]);
        let mut x = vec![0.; batch.tokens() * self.config.width];
        self.embed(&texts.concat(), &mut x)?;
        let y = vec![0.; x.len()];
        Ok(EncodePass { texts: batch, angles, x, y, arena, layer: 0, token: 0 })
    }

    /// Computes the next chunk. Returns whether it was the last chunk of the last layer.
    pub fn advance(&self, pass: &mut EncodePass) -> Result<bool> {
        let EncodePass { texts, angles, x, y, arena, layer, token } = pass;
        if *layer >= self.layers.len() {
            return Ok(true);
        }
        let (width, tokens) = (self.config.width, texts.tokens());
        let chunk = *token..(*token + CHUNK).min(tokens);
        let chunk_angles = angles.iter().map(|angles| angles.slice(&chunk, tokens)).collect();
        let step = Step::new(texts.slices(&chunk), chunk_angles)?;
        // In the last layer, only the outputs of the last tokens are needed.
        let is_last = *layer + 1 == self.layers.len();
        let ends =
            || texts.ranges().map(|text| text.end - 1).filter(|end| chunk.contains(end)).map(|end| end - chunk.start);
        let output_tokens: Vec<usize> = if is_last { ends().collect() } else { (0..chunk.len()).collect() };
        let scratch = &mut *self.cpu.scratch();
        for (src, dst) in [(&*x, &mut scratch.x), (&*y, &mut scratch.y)] {
            let src = &src[chunk.start * width..chunk.end * width];
            grow(dst, src.len()).copy_from_slice(src);
        }
        self.run_layer((*layer, 0), chunk.len(), &step, is_last.then_some(&output_tokens), arena, scratch)?;
        for (src, dst) in [(&scratch.x, x), (&scratch.y, y)] {
            for (row, token) in src.chunks_exact(width).zip(output_tokens.iter().map(|token| chunk.start + token)) {
                dst[token * width..(token + 1) * width].copy_from_slice(row);
            }
        }
        *token = chunk.end;
        if *token == tokens {
            (*token, *layer) = (0, *layer + 1);
        }
        Ok(*layer == self.layers.len())
    }

    /// The hidden state of each text's last token after the output norm, `[width]` each.
    pub fn last_hidden_states(&self, pass: &EncodePass) -> Vec<Vec<f32>> {
        let width = self.config.width;
        let last_token = |text: Range<usize>| {
            let range = (text.end - 1) * width..text.end * width;
            let [mut x, y] = [&pass.x, &pass.y].map(|stream| stream[range.clone()].to_vec());
            let mut out = vec![0.; width];
            self.output_norm.add_forward(self.cpu.pool(), &mut x, &y, &mut out);
            out
        };
        pass.texts.ranges().map(last_token).collect()
    }
}
