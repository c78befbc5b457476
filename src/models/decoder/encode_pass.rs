//! Encodes whole texts with a decoder, for the hidden states of their last tokens.
//!
//! All texts pass one block before the next, so only one block's keys and values are stored, and weights are read once.
//! A block takes [`CHUNK`] tokens at a time, so that other work can run in between.

use std::ops::Range;

use super::{Decoder, Step};
use crate::models::causal_lm::CausalLm;
use crate::models::decoder_config::DecoderConfig;
use crate::models::error::Result;
use crate::models::kv::KvArena;
use crate::models::rope::Angles;
use crate::models::scratch::{StepLimits, grow, scratch_bytes};
use crate::models::text_batch::{TextBatch, arena_bytes};

/// Tokens of a chunk.
const CHUNK: usize = 128;

/// A batch in progress.
#[derive(Debug)]
pub struct EncodePass {
    texts: TextBatch,
    angles: Vec<Angles>,
    /// `[tokens, width]`: the residual stream, and the last block's output that is not added to it yet.
    x: Vec<f32>,
    y: Vec<f32>,
    /// Keys and values of one block.
    arena: KvArena,
    /// The next block, and its first token that is not computed yet.
    block: usize,
    at: usize,
}

/// An upper bound of the bytes that a batch of `tokens` tokens in `texts` texts takes.
pub fn encode_pass_bytes(config: &DecoderConfig, tokens: usize, texts: usize, threads: usize) -> u64 {
    let DecoderConfig { width, kv_heads, head_width, .. } = *config;
    let step = StepLimits { tokens: CHUNK, rows: CHUNK, logits: 0, threads };
    // Two streams, and angles in vectors that grow by doubling.
    let floats = tokens * (2 * width + 2 * head_width * config.ropes.len());
    scratch_bytes(config, &step)
        + (floats * size_of::<f32>()) as u64
        + arena_bytes([kv_heads, head_width], tokens, texts)
}

impl Decoder {
    /// Starts a pass; no text may be empty.
    pub fn begin_encode(&self, texts: &[&[u32]]) -> Result<EncodePass> {
        for tokens in texts {
            self.check(tokens)?;
        }
        let counts = || texts.iter().map(|tokens| tokens.len());
        let angles = self.angles(|| counts().map(|count| (0..count, self.is_long(count))));
        let places = TextBatch::new(counts());
        let arena = places.arena([self.config.kv_heads, self.config.head_width]);
        let mut x = vec![0.; places.tokens() * self.config.width];
        self.embed(&texts.concat(), &mut x)?;
        let y = vec![0.; x.len()];
        Ok(EncodePass { texts: places, angles, x, y, arena, block: 0, at: 0 })
    }

    /// Computes the next chunk. `true`: it was the last chunk of the last block.
    pub fn advance(&self, pass: &mut EncodePass) -> Result<bool> {
        let EncodePass { texts, angles, x, y, arena, block, at } = pass;
        if *block >= self.layers.len() {
            return Ok(true);
        }
        let (width, tokens) = (self.config.width, texts.tokens());
        let part = *at..(*at + CHUNK).min(tokens);
        let step = Step::new(texts.slices(&part), angles.iter().map(|all| all.part(&part, tokens)).collect())?;
        // In the last block, only the last tokens' outputs are needed.
        let last = *block + 1 == self.layers.len();
        let ends =
            || texts.ranges().map(|text| text.end - 1).filter(|end| part.contains(end)).map(|end| end - part.start);
        let wanted: Vec<usize> = if last { ends().collect() } else { (0..part.len()).collect() };
        let scratch = &mut *self.cpu.scratch();
        for (from, to) in [(&*x, &mut scratch.x), (&*y, &mut scratch.y)] {
            let from = &from[part.start * width..part.end * width];
            grow(to, from.len()).copy_from_slice(from);
        }
        self.run_layer((*block, 0), part.len(), &step, last.then_some(&wanted), arena, scratch)?;
        for (from, to) in [(&scratch.x, x), (&scratch.y, y)] {
            for (row, place) in from.chunks_exact(width).zip(wanted.iter().map(|place| part.start + place)) {
                to[place * width..(place + 1) * width].copy_from_slice(row);
            }
        }
        *at = part.end;
        if *at == tokens {
            (*at, *block) = (0, *block + 1);
        }
        Ok(*block == self.layers.len())
    }

    /// The last hidden state of each text, normalised, `[width]` each.
    pub fn last_hidden_states(&self, pass: &EncodePass) -> Vec<Vec<f32>> {
        let width = self.config.width;
        let one = |text: Range<usize>| {
            let place = (text.end - 1) * width..text.end * width;
            let [mut x, y] = [&pass.x, &pass.y].map(|all| all[place.clone()].to_vec());
            let mut out = vec![0.; width];
            self.output_norm.add_forward(self.cpu.pool(), &mut x, &y, &mut out);
            out
        };
        pass.texts.ranges().map(one).collect()
    }
}
