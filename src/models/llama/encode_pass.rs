//! Whole texts through a decoder, of which only the last tokens' vectors are wanted.
//!
//! All texts go through one block before the next: so keys and values of a single block are kept, and weights
//! are read once for all. A block takes [`CHUNK`] tokens at a time, so that others may compute in between.

use std::ops::Range;

use candle_core::Result;

use super::{Llama, Step};
use crate::models::hyper::Hyper;
use crate::models::kv::KvArena;
use crate::models::rope::Angles;
use crate::models::scratch::{Largest, grow, scratch_bytes};
use crate::models::texts::{Texts, arena_bytes};

/// Tokens that a block takes at a time.
const CHUNK: usize = 128;

/// A batch of texts on its way.
#[derive(Debug)]
pub struct EncodePass {
    texts: Texts,
    angles: Vec<Angles>,
    /// `[tokens, width]`: the stream between blocks, and what the last block has added to it but not yet summed.
    x: Vec<f32>,
    y: Vec<f32>,
    /// Keys and values of one block.
    arena: KvArena,
    /// The block that is next, and the first of the tokens that it has not taken yet.
    block: usize,
    at: usize,
}

/// An upper bound of the bytes that a batch of so many tokens in so many texts takes.
pub fn encode_pass_bytes(hyper: &Hyper, tokens: usize, texts: usize, threads: usize) -> u64 {
    let Hyper { width, kv_heads, head_width, .. } = *hyper;
    let step = Largest { tokens: CHUNK, rows: CHUNK, logits: 0, threads };
    // Two streams, and angles in vectors that grew by doubling.
    let floats = tokens * (2 * width + 2 * head_width * hyper.ropes.len());
    scratch_bytes(hyper, &step)
        + (floats * size_of::<f32>()) as u64
        + arena_bytes([kv_heads, head_width], tokens, texts)
}

impl Llama {
    /// Begins with these texts, of which none is empty.
    pub fn begin_encode(&self, texts: &[&[u32]]) -> Result<EncodePass> {
        for tokens in texts {
            self.check(tokens)?;
        }
        let counts = || texts.iter().map(|tokens| tokens.len());
        let angles = self.angles(|| counts().map(|count| (0..count, self.is_long(count))));
        let places = Texts::new(counts());
        let arena = places.arena([self.hyper.kv_heads, self.hyper.head_width]);
        let mut x = vec![0.; places.tokens() * self.hyper.width];
        self.embed(&texts.concat(), &mut x)?;
        let y = vec![0.; x.len()];
        Ok(EncodePass { texts: places, angles, x, y, arena, block: 0, at: 0 })
    }

    /// Takes the next tokens through a block. `true`: they were the last ones of the last block.
    pub fn advance(&self, pass: &mut EncodePass) -> Result<bool> {
        let EncodePass { texts, angles, x, y, arena, block, at } = pass;
        if *block >= self.blocks.len() {
            return Ok(true);
        }
        let (width, tokens) = (self.hyper.width, texts.tokens());
        let part = *at..(*at + CHUNK).min(tokens);
        let step = Step::new(texts.spans(&part), angles.iter().map(|all| all.part(&part, tokens)).collect())?;
        // Of the last block, only what follows the last tokens is wanted.
        let last = *block + 1 == self.blocks.len();
        let ends =
            || texts.ranges().map(|text| text.end - 1).filter(|end| part.contains(end)).map(|end| end - part.start);
        let wanted: Vec<usize> = if last { ends().collect() } else { (0..part.len()).collect() };
        let scratch = &mut *self.cpu.scratch();
        for (from, to) in [(&*x, &mut scratch.x), (&*y, &mut scratch.y)] {
            let from = from.get(part.start * width..part.end * width).unwrap_or_default();
            grow(to, from.len()).copy_from_slice(from);
        }
        self.through((*block, 0), part.len(), &step, last.then_some(&wanted), arena, scratch)?;
        for (from, to) in [(&scratch.x, x), (&scratch.y, y)] {
            for (row, place) in from.chunks_exact(width).zip(wanted.iter().map(|place| part.start + place)) {
                to.get_mut(place * width..(place + 1) * width).unwrap_or_default().copy_from_slice(row);
            }
        }
        *at = part.end;
        if *at == tokens {
            (*at, *block) = (0, *block + 1);
        }
        Ok(*block == self.blocks.len())
    }

    /// The texts' last tokens' vectors, normed, `[width]` each.
    pub fn last(&self, pass: &EncodePass) -> Vec<Vec<f32>> {
        let width = self.hyper.width;
        let one = |text: Range<usize>| {
            let place = (text.end - 1) * width..text.end * width;
            let [mut x, y] = [&pass.x, &pass.y].map(|all| all.get(place.clone()).unwrap_or_default().to_vec());
            let mut out = vec![0.; width];
            self.output_norm.add_forward(self.cpu.pool(), &mut x, &y, &mut out);
            out
        };
        pass.texts.ranges().map(one).collect()
    }
}
