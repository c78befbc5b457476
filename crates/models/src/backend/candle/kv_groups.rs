//! Groups the sequences of a batch for attention.
//!
//! Sequences of similar sizes are computed together, as one batch that is padded to the largest. The padding repeats the
//! sequence's own last query or last position, so that no sequence reads the memory of another one.

use std::ops::Range;

use crate::backend::types::AttentionShape;
use crate::kv::{BLOCK, BlockId, SequenceSlice};

/// The cost of reading a position, in queries that attend to it.
const READ_COST: usize = 32;
/// The cost of padding that is always accepted, because a group of its own costs more: 256 positions for one query.
const FREE_PADDING: usize = 256 * (READ_COST + 1);

/// Some queries of a sequence, and the positions that they read.
#[derive(Clone, Debug)]
pub struct Row<'a> {
    /// The token of the first query.
    token: usize,
    /// The positions that each query sees.
    visible: Vec<Range<usize>>,
    /// The positions that any query sees, from the start of a block on.
    positions: Range<usize>,
    blocks: &'a [BlockId],
}

impl Row<'_> {
    fn cost(&self) -> usize {
        cost(self.visible.len(), self.positions.len())
    }
}

/// Rows that are computed together.
#[derive(Debug, Default)]
pub struct Group<'a> {
    pub rows: Vec<Row<'a>>,
    /// Maximum queries and positions of a row.
    pub queries: usize,
    pub positions: usize,
}

/// The cost of a row's attention, in scores.
fn cost(queries: usize, positions: usize) -> usize {
    positions * (queries + READ_COST)
}

/// Upper bounds of the scores of a head, and of the positions that are gathered, of a batch with padding.
pub fn padded_elements(tokens: usize, positions: usize) -> [usize; 2] {
    let padded_cost = tokens * (2 * cost(1, positions.next_multiple_of(BLOCK)) + FREE_PADDING);
    [padded_cost, padded_cost / (1 + READ_COST)]
}

/// The rows of a sequence: all its queries, or some if there are too many scores.
fn rows<'a>(sequence: &'a SequenceSlice, shape: &AttentionShape, max_elements: usize) -> Vec<Row<'a>> {
    let end = sequence.start + sequence.count;
    let total = sequence.visible.unwrap_or(usize::MAX).min(end);
    let window = shape.window.unwrap_or(usize::MAX);
    let visible = |position: usize| {
        let end = if shape.causal { position + 1 } else { position.saturating_add(window) }.min(total);
        (position + 1).saturating_sub(window).min(end)..end
    };
    let max_queries = (max_elements / (shape.heads * total).max(1)).max(1);
    // Rows of equal sizes.
    let row_count = sequence.count.div_ceil(max_queries);
    let queries = sequence.count.div_ceil(row_count.max(1)).max(1);
    let row = |first: usize| {
        let visible: Vec<_> = (first..end.min(first + queries)).map(visible).collect();
        let (start, end) =
            visible.iter().fold((total - 1, 0), |(start, end), range| (start.min(range.start), end.max(range.end)));
        let positions = start / BLOCK * BLOCK..end.max(start + 1);
        Row { token: sequence.offset + first - sequence.start, visible, positions, blocks: &sequence.blocks }
    };
    (sequence.start..end).step_by(queries).map(row).collect()
}

/// Groups the rows of a batch, so that padding at most doubles the cost of a row, besides [`FREE_PADDING`].
pub fn groups<'a>(sequences: &'a [SequenceSlice], shape: &AttentionShape, max_elements: usize) -> Vec<Group<'a>> {
    let mut rows: Vec<Row<'a>> = sequences.iter().flat_map(|sequence| rows(sequence, shape, max_elements)).collect();
    // The sort is stable, so a batch of equal rows keeps its order.
    rows.sort_by_key(|row| std::cmp::Reverse(row.cost()));
    let mut groups: Vec<Group<'a>> = Vec::new();
    for row in rows {
        match groups.iter_mut().find(|group| group.accepts(&row, shape, max_elements)) {
            Some(group) => group.push(row),
            None => {
                let mut group = Group::default();
                group.push(row);
                groups.push(group);
            }
        }
    }
    groups
}

impl<'a> Group<'a> {
    fn accepts(&self, row: &Row<'_>, shape: &AttentionShape, max_elements: usize) -> bool {
        let (queries, positions) = (self.queries.max(row.visible.len()), self.positions.max(row.positions.len()));
        let padded = cost(queries, positions);
        let count = self.rows.len() + 1;
        let elements = count * positions * (shape.heads * queries).max(shape.kv_heads * shape.width);
        // Rows come in descending order of cost, so the new one has the smallest.
        padded <= 2 * row.cost() + FREE_PADDING && elements <= max_elements
    }

    fn push(&mut self, row: Row<'a>) {
        self.queries = self.queries.max(row.visible.len());
        self.positions = self.positions.max(row.positions.len());
        self.rows.push(row);
    }

    /// Blocks of each row.
    pub fn blocks(&self) -> usize {
        self.positions.div_ceil(BLOCK)
    }

    /// True if every query sees all positions, so that no mask is needed.
    pub fn is_unmasked(&self) -> bool {
        let sees_all = |row: &Row<'_>, range: &Range<usize>| *range == row.positions && range.len() == self.positions;
        self.rows.iter().all(|row| row.visible.iter().all(|range| sees_all(row, range)))
    }

    /// The token of each query.
    pub fn query_tokens(&self) -> impl Iterator<Item = usize> {
        self.rows.iter().flat_map(|row| (0..self.queries).map(|query| row.token + query.min(row.visible.len() - 1)))
    }

    /// The first visible position of each query, and the first after them, from the row's first position on.
    pub fn bounds(&self) -> impl Iterator<Item = [u32; 2]> {
        self.rows.iter().flat_map(|row| {
            let last = row.visible.len() - 1;
            (0..self.queries).filter_map(move |query| row.visible.get(query.min(last))).map(|range| {
                [range.start, range.end].map(|position| position.saturating_sub(row.positions.start) as u32)
            })
        })
    }

    /// The first slot of each block, and its last slot that is read. The last block is repeated.
    pub fn block_slots(&self) -> impl Iterator<Item = [u32; 2]> {
        self.rows.iter().flat_map(|row| {
            let (first, last) = (row.positions.start / BLOCK, (row.positions.end - 1) / BLOCK);
            (first..first + self.blocks()).map(move |index| {
                let block = row.blocks.get(index.min(last)).copied().unwrap_or_default();
                let first_slot = block * BLOCK as u32;
                let last_slot = match index < last {
                    true => first_slot + BLOCK as u32 - 1,
                    false => first_slot + ((row.positions.end - 1) % BLOCK) as u32,
                };
                [first_slot, last_slot]
            })
        })
    }
}

/// Of each token, its row in the concatenated results of the groups.
pub fn order(groups: &[Group<'_>]) -> Vec<u32> {
    let mut order = Vec::new();
    let mut first = 0;
    for (group, row) in groups.iter().flat_map(|group| group.rows.iter().map(move |row| (group, row))) {
        let end = row.token + row.visible.len();
        if order.len() < end {
            order.resize(end, 0);
        }
        for (query, place) in order.iter_mut().skip(row.token).take(row.visible.len()).enumerate() {
            *place = (first + query) as u32;
        }
        first += group.queries;
    }
    order
}
