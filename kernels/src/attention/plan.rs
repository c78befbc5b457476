//! Splits attention into tasks: rows of sequences, and chunks of them where tasks are few.

use super::state::state_size;
use super::{AttentionSequence, AttentionShape, CHUNK, Query};
use crate::Pool;

/// Approximate queries of a task.
const QUERIES: usize = 64;
/// Maximum floats of states that wait to be joined: 64 MiB. Beyond that, sequences are not split.
pub(super) const MAX_STATES: usize = 16 << 20;

/// Some rows of a sequence, for one key-value head.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task {
    pub sequence: usize,
    pub kv_head: usize,
    pub first_row: usize,
    pub rows: usize,
    /// Offset of the first row's outputs for the first head of the group.
    pub out: usize,
    /// `None`: all chunks, with the result in the outputs; else one chunk, and the offset of its states.
    pub chunk: Option<(usize, usize)>,
}

/// Joins the states of several chunks into outputs.
#[derive(Debug)]
pub(super) struct JoinTask {
    pub states: usize,
    pub chunks: usize,
    pub rows: usize,
    pub out: usize,
}

#[derive(Debug)]
pub(super) struct Plan {
    pub tasks: Vec<Task>,
    pub joins: Vec<JoinTask>,
    /// Floats of all states.
    pub partials: usize,
}

impl Plan {
    pub fn new(pool: &Pool, sequences: &[AttentionSequence<'_>], shape: &AttentionShape) -> Self {
        let mut plan = Self { tasks: Vec::new(), joins: Vec::new(), partials: 0 };
        let (group, rows_each) = (shape.group(), rows_each(shape.group()));
        let pieces = |sequence: &AttentionSequence<'_>| sequence.rows.div_ceil(rows_each) * shape.kv_heads;
        // Many tasks balance themselves; with few, long contexts are split.
        let all = sequences.iter().map(pieces).sum();
        plan.tasks.reserve(all);
        let few = all < 6 * pool.threads();
        let mut before = 0;
        for (index, sequence) in sequences.iter().enumerate() {
            let total = sequence.positions;
            let states = sequence.rows * shape.heads * total.div_ceil(CHUNK) * state_size(shape);
            let cut = pool.threads() > 1
                && few
                && total > 2 * CHUNK
                && sequence.rows <= rows_each
                && plan.partials + states <= MAX_STATES;
            // The last rows see most positions, so they go first.
            for first_row in (0..sequence.rows).step_by(rows_each).rev() {
                let rows = rows_each.min(sequence.rows - first_row);
                for kv_head in 0..shape.kv_heads {
                    let out = ((before + first_row) * shape.heads + kv_head * group) * shape.width;
                    let task = Task { sequence: index, kv_head, first_row, rows, out, chunk: None };
                    if cut { plan.cut(task, sequence, shape) } else { plan.tasks.push(task) }
                }
            }
            before += sequence.rows;
        }
        plan
    }

    fn cut(&mut self, task: Task, sequence: &AttentionSequence<'_>, shape: &AttentionShape) {
        let (from, to) = task.visible(sequence, shape);
        let chunks = from / CHUNK..to.div_ceil(CHUNK);
        let join = JoinTask { states: self.partials, chunks: chunks.len(), rows: task.rows, out: task.out };
        for chunk in chunks {
            self.tasks.push(Task { chunk: Some((chunk, self.partials)), ..task });
            self.partials += task.rows * shape.group() * state_size(shape);
        }
        self.joins.push(join);
    }
}

impl Task {
    /// Positions that any of the rows sees.
    pub fn visible(&self, sequence: &AttentionSequence<'_>, shape: &AttentionShape) -> (usize, usize) {
        let at = |row: usize| shape.visible(sequence.start + self.first_row + row, sequence.positions);
        (at(0).0, at(self.rows - 1).1)
    }

    /// The queries of a row, one for each head.
    pub fn queries(
        &self,
        row: usize,
        sequence: &AttentionSequence<'_>,
        shape: &AttentionShape,
    ) -> impl Iterator<Item = Query> {
        let (row, group, width) = (self.first_row + row, shape.group(), shape.width);
        let visible = shape.visible(sequence.start + row, sequence.positions);
        let heads = &sequence.queries[(row * shape.heads + self.kv_head * group) * width..][..group * width];
        let head = heads.as_ptr();
        (0..group).map(move |index| Query { numbers: head.wrapping_add(index * width), visible })
    }

    /// The first position that is read.
    pub fn begin(&self, sequence: &AttentionSequence<'_>, shape: &AttentionShape) -> usize {
        self.chunk.map_or(0, |(chunk, _)| chunk * CHUNK).max(self.visible(sequence, shape).0)
    }
}

/// Rows of a task, where `group` heads share keys and values.
pub(super) fn rows_each(group: usize) -> usize {
    (QUERIES / group).max(8)
}
