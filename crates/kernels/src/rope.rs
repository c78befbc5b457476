//! Rotary position embeddings.

use crate::Pool;
use crate::buffer::SharedSlice;
use crate::rows::by_rows;
use crate::simd::{Kernel, Simd, run};

/// Which elements of a head form the pairs that are rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeLayout {
    /// Neighbouring elements, 2i and 2i + 1: the original layout, also of Llama weights in GGUF files.
    Interleaved,
    /// Elements i and i + pairs: the layout of GPT-NeoX and of Hugging Face checkpoints.
    Halves,
}

/// Applies rotary position embeddings (Su et al. 2021, <https://arxiv.org/abs/2104.09864>) in place. `x` is `[rows,
/// heads, width]`; `cos` and `sin` are `[rows, pairs]`. Elements after the first `2 · pairs` of a head do not change.
///
/// # Panics
/// If lengths do not match.
pub fn rope(pool: &Pool, x: &mut [f32], heads: usize, width: usize, layout: RopeLayout, cos: &[f32], sin: &[f32]) {
    let row_len = heads * width;
    assert!(row_len > 0 && x.len().is_multiple_of(row_len), "x is [rows, heads, width]");
    assert_eq!(cos.len(), sin.len(), "cosines and sines have different lengths");
    let rows = x.len() / row_len;
    assert!(rows == 0 || cos.len().is_multiple_of(rows) && cos.len() / rows * 2 <= width, "cosines are [rows, pairs]");
    let pairs = cos.len() / rows.max(1);
    let shared = SharedSlice::new(x);
    by_rows(pool, rows, row_len, |first, count| {
        // SAFETY: no other task accesses these rows.
        let x = unsafe { shared.get(first * row_len, count * row_len) };
        let angles = first * pairs..(first + count) * pairs;
        let (cos, sin) = (&cos[angles.clone()], &sin[angles]);
        run(pool.isa(), RopeKernel { x, row_len, width, layout, pairs, cos, sin });
    });
}

struct RopeKernel<'a> {
    x: &'a mut [f32],
    row_len: usize,
    width: usize,
    layout: RopeLayout,
    pairs: usize,
    cos: &'a [f32],
    sin: &'a [f32],
}

impl Kernel for RopeKernel<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let pairs = self.pairs;
        if pairs == 0 {
            return;
        }
        let angles = self.cos.chunks_exact(pairs).zip(self.sin.chunks_exact(pairs));
        for (row, (cos, sin)) in self.x.chunks_exact_mut(self.row_len).zip(angles) {
            for head in row.chunks_exact_mut(self.width) {
                // The compiler vectorises these loops.
                match self.layout {
                    RopeLayout::Halves => {
                        let (first, second) = head[..2 * pairs].split_at_mut(pairs);
                        for i in 0..pairs {
                            let (a, b) = (first[i], second[i]);
                            first[i] = a * cos[i] - b * sin[i];
                            second[i] = a * sin[i] + b * cos[i];
                        }
                    }
                    RopeLayout::Interleaved => {
                        for (i, pair) in head[..2 * pairs].chunks_exact_mut(2).enumerate() {
                            let (a, b) = (pair[0], pair[1]);
                            pair[0] = a * cos[i] - b * sin[i];
                            pair[1] = a * sin[i] + b * cos[i];
                        }
                    }
                }
            }
        }
    }
}
