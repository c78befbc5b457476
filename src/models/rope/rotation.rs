//! The angles of a step, and the rotation of queries and keys.

use std::ops::Range;

use outpost_kernels::{Pool, RopeLayout, rope};

use super::Rope;

/// Cosines and sines for the tokens of a step, `[tokens, pairs]` each.
#[derive(Debug)]
pub(in crate::models) struct Angles {
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Angles {
    /// Angles for tokens at these positions; the flag selects the frequencies for long contexts.
    pub fn new(rope: &Rope, positions: impl Iterator<Item = (usize, bool)>) -> Self {
        let angles = |(position, long)| rope.frequencies(long).iter().map(move |frequency| position as f32 * frequency);
        let scale = |(sin, cos): (f32, f32)| (sin * rope.magnitude, cos * rope.magnitude);
        let (sin, cos) = positions.flat_map(angles).map(f32::sin_cos).map(scale).unzip();
        Self { cos, sin }
    }

    /// The angles of a range of the `total` tokens.
    pub fn slice(&self, tokens: &Range<usize>, total: usize) -> Self {
        let pairs = self.cos.len() / total.max(1);
        let range = tokens.start * pairs..tokens.end * pairs;
        let [cos, sin] = [&self.cos, &self.sin].map(|table| table[range.clone()].to_vec());
        Self { cos, sin }
    }

    /// Rotates every head of `x`, `[tokens, heads * head_width]`. Elements of a head without angles do not change.
    pub fn rotate(&self, pool: &Pool, x: &mut [f32], heads: usize, head_width: usize, layout: RopeLayout) {
        rope(pool, x, heads, head_width, layout, &self.cos, &self.sin);
    }
}
