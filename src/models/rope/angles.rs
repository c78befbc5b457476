//! Rotation in place.

use super::{Rope, RopeStyle};

/// Cosines and sines of a step's positions, `[tokens, pairs]` each.
#[derive(Debug)]
pub(in crate::models) struct Angles {
    cos: Vec<f32>,
    sin: Vec<f32>,
    pairs: usize,
}

impl Angles {
    /// For tokens at these positions, each in a sequence that is long or is not.
    pub fn new(rope: &Rope, positions: impl Iterator<Item = (usize, bool)>) -> Self {
        let of = |(position, long)| rope.frequencies(long).iter().map(move |one| position as f32 * one);
        let turn = |(sin, cos): (f32, f32)| (sin * rope.magnitude, cos * rope.magnitude);
        let (sin, cos) = positions.flat_map(of).map(f32::sin_cos).map(turn).unzip();
        Self { cos, sin, pairs: rope.frequencies(false).len() }
    }

    /// Rotates every head of `x`: `[tokens, heads * head_width]`. Where fewer pairs than half a head
    /// have angles, the rest of the head stays.
    pub fn rotate(&self, x: &mut [f32], heads: usize, head_width: usize, style: RopeStyle) {
        let tokens = self.cos.chunks_exact(self.pairs).zip(self.sin.chunks_exact(self.pairs));
        for (row, (cos, sin)) in x.chunks_exact_mut(heads * head_width).zip(tokens) {
            for head in row.chunks_exact_mut(head_width) {
                match style {
                    RopeStyle::Interleaved => {
                        for (pair, (cos, sin)) in head.chunks_exact_mut(2).zip(cos.iter().zip(sin)) {
                            if let [a, b] = pair {
                                (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
                            }
                        }
                    }
                    RopeStyle::Halves => {
                        let (first, second) = head.split_at_mut(self.pairs);
                        for ((a, b), (cos, sin)) in first.iter_mut().zip(second).zip(cos.iter().zip(sin)) {
                            (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
                        }
                    }
                }
            }
        }
    }
}
