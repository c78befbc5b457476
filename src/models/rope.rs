//! Rotary position embeddings (Su et al. 2021, <https://arxiv.org/abs/2104.09864>), in place.

/// How the numbers of a head are paired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// Neighbours, 2i with 2i+1: converters permute Llama's weights so.
    Interleaved,
    /// Halves, i with i+d/2: as GPT-NeoX has it.
    Halves,
}

/// Cosines and sines of a step's positions, `[tokens, pairs]` each.
#[derive(Debug)]
pub(super) struct Angles {
    cos: Vec<f32>,
    sin: Vec<f32>,
    pairs: usize,
}

impl Angles {
    /// `frequencies`: the angle per position of each pair.
    pub fn new(frequencies: &[f32], positions: impl Iterator<Item = usize>) -> Self {
        let angles = positions.flat_map(|position| frequencies.iter().map(move |one| position as f32 * one));
        let (sin, cos) = angles.map(f32::sin_cos).unzip();
        Self { cos, sin, pairs: frequencies.len() }
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
