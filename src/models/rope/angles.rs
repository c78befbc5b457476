//! RopeLayout in place.

use std::ops::Range;

use outpost_kernels::{Pool, RopeLayout, rope};

use super::{Rope, RopeStyle};

/// Cosines and sines of a step's positions, `[tokens, pairs]` each.
#[derive(Debug)]
pub(in crate::models) struct Angles {
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Angles {
    /// For tokens at these positions, each in a sequence that is long or is not.
    pub fn new(rope: &Rope, positions: impl Iterator<Item = (usize, bool)>) -> Self {
        let of = |(position, long)| rope.frequencies(long).iter().map(move |one| position as f32 * one);
        let turn = |(sin, cos): (f32, f32)| (sin * rope.magnitude, cos * rope.magnitude);
        let (sin, cos) = positions.flat_map(of).map(f32::sin_cos).map(turn).unzip();
        Self { cos, sin }
    }

    /// Those of some of the tokens.
    pub fn part(&self, tokens: &Range<usize>, of: usize) -> Self {
        let pairs = self.cos.len() / of.max(1);
        let range = tokens.start * pairs..tokens.end * pairs;
        let [cos, sin] = [&self.cos, &self.sin].map(|all| all[range.clone()].to_vec());
        Self { cos, sin }
    }

    /// Rotates every head of `x`: `[tokens, heads * head_width]`. Where fewer pairs than half a head
    /// have angles, the rest of the head stays.
    pub fn rotate(&self, pool: &Pool, x: &mut [f32], heads: usize, head_width: usize, style: RopeStyle) {
        let style = match style {
            RopeStyle::Interleaved => RopeLayout::Interleaved,
            RopeStyle::Halves => RopeLayout::Halves,
        };
        rope(pool, x, heads, head_width, style, &self.cos, &self.sin);
    }
}
