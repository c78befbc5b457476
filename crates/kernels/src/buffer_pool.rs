//! Buffers for quantised or rounded activations, which matrix products reuse.

/// Quantised activations. A tile of r rows that starts at row s has its codes at `s * k`, `[k / 32, r, 32]`, and its
/// block statistics at `s * k / 32 * 4`, `[k / 32, 4, r]`.
///
/// The four statistics are the scale; scale · sum of codes; and, with the bits of an `i32`, the negated sums of the first
/// and of the last sixteen codes.
#[derive(Debug, Default)]
pub(crate) struct Quantised {
    pub codes: Vec<i8>,
    pub block_stats: Vec<f32>,
}

/// Buffers of dropped activations for reuse, because new pages cost more than the work on them. The pool keeps the
/// largest buffer of each kind.
#[derive(Debug, Default)]
pub(crate) struct BufferPool {
    quantised: Quantised,
    pairs: Vec<u16>,
    floats: Vec<f32>,
}

impl BufferPool {
    pub fn take_quantised(&mut self) -> Quantised {
        std::mem::take(&mut self.quantised)
    }

    pub fn take_pairs(&mut self) -> Vec<u16> {
        std::mem::take(&mut self.pairs)
    }

    pub fn take_floats(&mut self) -> Vec<f32> {
        std::mem::take(&mut self.floats)
    }

    pub fn recycle_quantised(&mut self, quantised: Quantised) {
        if quantised.codes.capacity() > self.quantised.codes.capacity() {
            self.quantised = quantised;
        }
    }

    pub fn recycle_pairs(&mut self, pairs: Vec<u16>) {
        if pairs.capacity() > self.pairs.capacity() {
            self.pairs = pairs;
        }
    }

    pub fn recycle_floats(&mut self, floats: Vec<f32>) {
        if floats.capacity() > self.floats.capacity() {
            self.floats = floats;
        }
    }
}
