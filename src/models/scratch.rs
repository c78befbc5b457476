//! Memory that a step computes in, kept from one step to the next: fresh pages would cost more than some
//! of the work.

/// What goes through a block, by row of the step. Contents are of no meaning between steps.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// `[rows, width]`: the stream that blocks add to.
    pub x: Vec<f32>,
    /// `[rows, width]`: the stream as a sublayer takes it.
    pub normed: Vec<f32>,
    /// `[rows, heads * head_width]`
    pub q: Vec<f32>,
    /// `[rows, kv_heads * head_width]`
    pub k: Vec<f32>,
    pub v: Vec<f32>,
    /// What attention mixed, as much as `q`.
    pub mixed: Vec<f32>,
    /// What a sublayer gives, before it is added.
    pub y: Vec<f32>,
    /// `[rows, inner]`
    pub gate: Vec<f32>,
    pub up: Vec<f32>,
    /// `[wanted rows, vocabulary]`
    pub logits: Vec<f32>,
}

/// The first `len` places of a buffer, which grows if it must.
pub(super) fn room(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if buffer.len() < len {
        buffer.resize(len, 0.);
    }
    buffer.get_mut(..len).unwrap_or_default()
}
