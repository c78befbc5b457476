//! Splits attention into tasks: ranges of rows, and also chunks of positions if there are few tasks.

use super::inputs::{AttentionSequence, AttentionShape, CHUNK};
use super::scratch::Query;
use crate::Pool;

/// Approximate number of queries of a task.
const TASK_QUERIES: usize = 64;
/// Maximum floats of partial states (64 MiB). Beyond that, sequences are not split into chunks.
pub(super) const MAX_PARTIAL_FLOATS: usize = 16 << 20;

/// Some rows of a sequence, for one key-value head.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task {
    pub sequence: usize,
    pub kv_head: usize,
    pub first_row: usize,
    pub rows: usize,
    /// Offset of the first row's outputs for the first head of the group.
    pub out: usize,
    /// A chunk, and the offset of its states in the partial states. `None`: the task processes all chunks and writes the
    /// outputs.
    pub chunk: Option<(usize, usize)>,
}

/// Merges the states of several chunks into outputs.
#[derive(Debug)]
pub(super) struct MergeTask {
    pub kv_head: usize,
    /// Offset of the first chunk's states in the partial states.
    pub states: usize,
    pub chunks: usize,
    pub rows: usize,
    pub out: usize,
}

#[derive(Debug)]
pub(super) struct Plan {
    pub tasks: Vec<Task>,
    pub merges: Vec<MergeTask>,
    /// Floats of the partial states of all chunks.
    pub partial_floats: usize,
}

impl Plan {
    pub fn new(pool: &Pool, sequences: &[AttentionSequence<'_>], shape: &AttentionShape) -> Self {
        let mut plan = Self { tasks: Vec::new(), merges: Vec::new(), partial_floats: 0 };
        let (group, task_rows) = (shape.group(), rows_per_task(shape.group()));
        let tasks = |sequence: &AttentionSequence<'_>| sequence.rows.div_ceil(task_rows) * shape.kv_heads;
        // Many tasks balance the load. If there are few, long contexts are split.
        let task_count = sequences.iter().map(tasks).sum();
        plan.tasks.reserve(task_count);
        let has_few_tasks = task_count < 6 * pool.threads();
        let mut sequence_row = 0;
        for (index, sequence) in sequences.iter().enumerate() {
            let total = sequence.positions;
            let states = sequence.rows * shape.heads * total.div_ceil(CHUNK) * shape.state_size();
            let split = pool.threads() > 1
                && has_few_tasks
                && total > 2 * CHUNK
                && sequence.rows <= task_rows
                && plan.partial_floats + states <= MAX_PARTIAL_FLOATS;
            // The last rows see the most positions, so their tasks come first.
            for first_row in (0..sequence.rows).step_by(task_rows).rev() {
                let rows = task_rows.min(sequence.rows - first_row);
                for kv_head in 0..shape.kv_heads {
                    let out = ((sequence_row + first_row) * shape.heads + kv_head * group) * shape.width;
                    let task = Task { sequence: index, kv_head, first_row, rows, out, chunk: None };
                    if split { plan.split(task, sequence, shape) } else { plan.tasks.push(task) }
                }
            }
            sequence_row += sequence.rows;
        }
        plan
    }

    /// Adds one task for each chunk of `task`, and their merge.
    fn split(&mut self, task: Task, sequence: &AttentionSequence<'_>, shape: &AttentionShape) {
        let (start, end) = task.visible(sequence, shape);
        let chunks = start / CHUNK..end.div_ceil(CHUNK);
        let Task { kv_head, rows, out, .. } = task;
        let merge = MergeTask { kv_head, states: self.partial_floats, chunks: chunks.len(), rows, out };
        for chunk in chunks {
            self.tasks.push(Task { chunk: Some((chunk, self.partial_floats)), ..task });
            self.partial_floats += task.rows * shape.group() * shape.state_size();
        }
        self.merges.push(merge);
    }
}

impl Task {
    /// The range of positions that any of the rows sees.
    pub fn visible(&self, sequence: &AttentionSequence<'_>, shape: &AttentionShape) -> (usize, usize) {
        let visible = |row: usize| shape.visible(sequence.start + self.first_row + row, sequence.positions);
        (visible(0).0, visible(self.rows - 1).1)
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
        (0..group).map(move |index| Query { data: head.wrapping_add(index * width), visible })
    }

    /// The first position that the task reads.
    pub fn first_position(&self, sequence: &AttentionSequence<'_>, shape: &AttentionShape) -> usize {
        self.chunk.map_or(0, |(chunk, _)| chunk * CHUNK).max(self.visible(sequence, shape).0)
    }
}

/// Rows of a task; `group` query heads share a key-value head.
pub(super) fn rows_per_task(group: usize) -> usize {
    (TASK_QUERIES / group).max(8)
}
