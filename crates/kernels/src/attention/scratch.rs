//! The memory that each thread keeps between tasks.

use std::cell::RefCell;

use super::inputs::{AttentionShape, MAX_QUERY_TILE, SCORE_STRIDE};

/// One query: a head of a row.
#[derive(Clone, Copy)]
pub(super) struct Query {
    /// `[width]`; bf16 if the keys are bf16.
    pub data: *const f32,
    /// The range of visible positions.
    pub visible: (usize, usize),
}

/// Per-thread scratch.
pub(super) struct Scratch {
    pub floats: Vec<f32>,
    pub queries: Vec<Query>,
    /// Queries rounded to bf16, for bf16 keys.
    pub pairs: Vec<u16>,
}

thread_local! {
    pub(super) static SCRATCH: RefCell<Scratch> =
        const { RefCell::new(Scratch { floats: Vec::new(), queries: Vec::new(), pairs: Vec::new() }) };
}

/// Floats of the per-thread scratch: scores of a chunk, and two states for each query.
pub(super) fn scratch_size(shape: &AttentionShape, queries: usize) -> usize {
    MAX_QUERY_TILE * SCORE_STRIDE + queries * 2 * shape.state_size()
}
