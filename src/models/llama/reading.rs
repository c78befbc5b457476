//! Whole texts through a decoder, of which only the last tokens' vectors are wanted.
//!
//! All texts go through one block before the next: so keys and values of a single block are kept, and weights
//! are read once for all. A block takes [`CHUNK`] tokens at a time, so that others may compute in between.

use candle_core::Result;
use outpost_kernels::attend_bytes;

use super::{Llama, Step};
use crate::models::attention::{self, Span};
use crate::models::hyper::Hyper;
use crate::models::kv::{BLOCK, BlockId, KvArena, KvShape, KvType, blocks_for};
use crate::models::scratch::{Largest, room, scratch_bytes};

/// Tokens that a block takes at a time.
const CHUNK: usize = 128;

/// A batch of texts on its way.
#[derive(Debug)]
pub struct Reading {
    texts: Vec<Text>,
    /// `[tokens, width]`: the stream between blocks, and what the last block has added to it but not yet summed.
    x: Vec<f32>,
    y: Vec<f32>,
    /// Keys and values of one block.
    arena: KvArena,
    /// The block that is next, and the first of the tokens that it has not taken yet.
    block: usize,
    at: usize,
}

#[derive(Debug)]
struct Text {
    /// Its first token's place in the batch.
    first: usize,
    count: usize,
    blocks: Vec<BlockId>,
    long: bool,
}

fn kv_shape(hyper: &Hyper) -> KvShape {
    let Hyper { kv_heads, head_width, .. } = *hyper;
    KvShape { layers: 1, kv_heads, head_width, kind: KvType::F32 }
}

/// An upper bound of the bytes that a batch of so many tokens in so many texts takes.
pub fn reading_bytes(hyper: &Hyper, tokens: usize, texts: usize, threads: usize) -> u64 {
    let step = Largest { tokens: CHUNK, rows: CHUNK, logits: 0, threads };
    let streams = 2 * tokens * hyper.width * size_of::<f32>();
    let attention = attend_bytes(threads, &attention::shape(hyper, None), CHUNK, tokens);
    let blocks = tokens.div_ceil(BLOCK) + texts;
    scratch_bytes(hyper, &step) + (streams + attention) as u64 + blocks as u64 * kv_shape(hyper).block_bytes()
}

impl Llama {
    /// Begins with these texts, of which none is empty.
    pub fn read(&self, texts: &[&[u32]]) -> Result<Reading> {
        let (mut first, mut next, mut arena) = (0, 0, KvArena::new(kv_shape(&self.hyper)));
        let mut places = Vec::with_capacity(texts.len());
        for tokens in texts {
            self.check(tokens)?;
            let (count, end) = (tokens.len(), next + blocks_for(tokens.len()) as BlockId);
            places.push(Text { first, count, blocks: (next..end).collect(), long: self.is_long(count) });
            (first, next) = (first + count, end);
        }
        (0..next).for_each(|id| arena.ensure(id));
        let mut x = vec![0.; first * self.hyper.width];
        self.embed(&texts.concat(), &mut x)?;
        let y = vec![0.; x.len()];
        Ok(Reading { texts: places, x, y, arena, block: 0, at: 0 })
    }

    /// Takes the next tokens through a block. `true`: they were the last ones of the last block.
    pub fn advance(&self, reading: &mut Reading) -> Result<bool> {
        let Reading { texts, x, y, arena, block, at } = reading;
        if *block >= self.blocks.len() {
            return Ok(true);
        }
        let (from, to) = (*at, (*at + CHUNK).min(x.len() / self.hyper.width));
        let parts = texts.iter().filter(|text| text.first < to && text.first + text.count > from);
        let (mut spans, mut long, mut last) = (Vec::new(), Vec::new(), Vec::new());
        for Text { first, count, blocks, long: far } in parts {
            let (begin, end) = (from.max(*first), to.min(first + count));
            spans.push(Span { offset: begin - from, count: end - begin, start: begin - first, blocks });
            long.push(*far);
            if end == first + count {
                last.push(end - 1 - from);
            }
        }
        let step = Step::new(self, spans, &long)?;
        let range = from * self.hyper.width..to * self.hyper.width;
        let (mut scratch, m) = (self.cpu.scratch(), to - from);
        if let (Some(x), Some(y)) = (x.get(range.clone()), y.get(range.clone())) {
            room(&mut scratch.x, x.len()).copy_from_slice(x);
            room(&mut scratch.y, y.len()).copy_from_slice(y);
        }
        // Of the last block, only what follows the last tokens is wanted.
        let wanted = (*block + 1 == self.blocks.len()).then_some(last.as_slice());
        let left = self.through((*block, 0), m, &step, wanted, arena, &mut scratch)?;
        let rows = wanted.map_or_else(|| (0..left).collect(), <[usize]>::to_vec);
        let width = self.hyper.width;
        for (row, place) in rows.into_iter().enumerate() {
            let (row, place) = (row * width..(row + 1) * width, (from + place) * width..(from + place + 1) * width);
            for (to, from) in [(&mut *x, &scratch.x), (&mut *y, &scratch.y)] {
                if let (Some(to), Some(from)) = (to.get_mut(place.clone()), from.get(row.clone())) {
                    to.copy_from_slice(from);
                }
            }
        }
        *at = to;
        if *at * width == x.len() {
            (*at, *block) = (0, *block + 1);
        }
        Ok(*block == self.blocks.len())
    }

    /// The texts' last tokens' vectors, normed, `[width]` each.
    pub fn last(&self, reading: &Reading) -> Vec<Vec<f32>> {
        let width = self.hyper.width;
        let one = |text: &Text| {
            let place = (text.first + text.count - 1) * width..(text.first + text.count) * width;
            let [mut x, y] = [&reading.x, &reading.y].map(|all| all.get(place.clone()).unwrap_or_default().to_vec());
            let mut out = vec![0.; width];
            self.output_norm.add_forward(self.cpu.pool(), &mut x, &y, &mut out);
            out
        };
        reading.texts.iter().map(one).collect()
    }
}
