//! A batch of sequences, and the plan of their attention over the KV cache.
//!
//! Sequences of similar sizes are computed together, as one batch that is padded to the largest. The padding repeats the
//! sequence's own last query or last position, so that no sequence reads the memory of another one. Groups, indices and
//! masks are the same in all layers with the same window. They are computed for the first one.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{DType as ArrayType, Tensor as Array};

use super::device::Candle;
use super::kv_writes::{DeviceWrites, Writes};
use crate::models::backend::cpu::types::AttentionShape;
use crate::models::error::{ModelError, Result};
use crate::models::kv::{BLOCK, BlockId, SequenceSlice};

/// The cost of reading a position, in queries that attend to it.
const READ_COST: usize = 32;
/// The cost of padding that is always accepted, because a group of its own costs more: 256 positions for one query.
const FREE_PADDING: usize = 256 * (READ_COST + 1);
/// The score of a masked position. It is finite, so that a query without visible positions has no NaN.
pub const MASKED: f32 = -1e30;

/// A batch of sequences whose keys and values are in an arena.
#[derive(Debug)]
pub struct CandleBatch<'a> {
    sequences: Vec<SequenceSlice<'a>>,
    /// Tokens of all sequences.
    tokens: usize,
    /// One more than the largest block.
    block_end: usize,
    writes: Writes,
    /// The indices of `writes`, for rows of this length.
    device_writes: Mutex<Option<(usize, Arc<DeviceWrites>)>>,
    plans: Mutex<Vec<(PlanKey, Arc<Plan>)>>,
}

/// What a plan depends on, besides the sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PlanKey {
    causal: bool,
    window: Option<usize>,
    heads: usize,
    kv_heads: usize,
    width: usize,
}

/// How the attention of a batch is computed.
#[derive(Debug)]
pub struct Plan {
    pub groups: Vec<DeviceGroup>,
    /// Of each token, the row in the concatenated results of the groups; `None`: they are in order.
    pub order: Option<Array>,
}

/// A group of rows on the device. All have `queries` queries and `positions` positions.
#[derive(Debug)]
pub struct DeviceGroup {
    pub rows: usize,
    pub queries: usize,
    pub positions: usize,
    /// The token of each query, `[rows · queries]`; `None`: all tokens in order.
    pub query_tokens: Option<Array>,
    /// Slot and head of each position: `[rows · kv_heads · positions]`, as indices of `[slots · kv_heads]`.
    pub kv_rows: Array,
    /// Added to scores: `[rows, 1, 1, queries, positions]`. `None`: all positions are visible.
    pub mask: Option<Array>,
}

impl<'a> CandleBatch<'a> {
    pub fn new(sequences: Vec<SequenceSlice<'a>>) -> Result<Self> {
        let mut tokens = 0;
        for sequence in &sequences {
            if sequence.offset != tokens {
                return Err(ModelError::Compute("the sequences of a batch are not in order".to_owned()));
            }
            tokens += sequence.count;
            let positions = sequence.start + sequence.count;
            if sequence.count == 0 || sequence.visible == Some(0) || sequence.blocks.len() * BLOCK < positions {
                return Err(ModelError::Compute(format!(
                    "{} KV blocks do not hold {positions} positions, or none is visible",
                    sequence.blocks.len()
                )));
            }
        }
        let writes = Writes::new(&sequences)?;
        let used = sequences.iter().flat_map(used_blocks);
        let block_end = used.max().map_or(0, |block| block as usize + 1);
        Ok(Self { sequences, tokens, block_end, writes, device_writes: Mutex::default(), plans: Mutex::default() })
    }

    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// The blocks of all positions.
    pub fn blocks(&self) -> impl Iterator<Item = BlockId> {
        self.sequences.iter().flat_map(used_blocks)
    }

    pub fn block_end(&self) -> usize {
        self.block_end
    }

    pub fn writes(&self) -> &Writes {
        &self.writes
    }

    /// The indices of the writes for rows of `row_len` elements.
    pub fn device_writes(&self, candle: &Candle, row_len: usize) -> Result<Arc<DeviceWrites>> {
        let mut cached = self.device_writes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, writes)) = cached.as_ref().filter(|(len, _)| *len == row_len) {
            return Ok(Arc::clone(writes));
        }
        let writes = Arc::new(self.writes.upload(candle, self.tokens, row_len)?);
        *cached = Some((row_len, Arc::clone(&writes)));
        Ok(writes)
    }

    /// The plan for layers of this shape.
    pub fn plan(&self, candle: &Candle, shape: &AttentionShape) -> Result<Arc<Plan>> {
        let AttentionShape { causal, window, heads, kv_heads, width, .. } = *shape;
        let key = PlanKey { causal, window, heads, kv_heads, width };
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, plan)) = plans.iter().find(|(other, _)| *other == key) {
            return Ok(Arc::clone(plan));
        }
        let plan = Arc::new(upload(candle, &groups(&self.sequences, shape, candle.max_elements()), kv_heads)?);
        plans.push((key, Arc::clone(&plan)));
        Ok(plan)
    }
}

fn used_blocks<'a>(sequence: &SequenceSlice<'a>) -> impl Iterator<Item = BlockId> + use<'a> {
    let count = (sequence.start + sequence.count).div_ceil(BLOCK);
    sequence.blocks.iter().take(count).copied()
}

/// Some queries of a sequence, and the positions that they read.
#[derive(Clone, Debug)]
struct Row<'a> {
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
struct Group<'a> {
    rows: Vec<Row<'a>>,
    /// Maximum queries and positions of a row.
    queries: usize,
    positions: usize,
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
fn rows<'a>(sequence: &SequenceSlice<'a>, shape: &AttentionShape, max_elements: usize) -> Vec<Row<'a>> {
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
        Row { token: sequence.offset + first - sequence.start, visible, positions, blocks: sequence.blocks }
    };
    (sequence.start..end).step_by(queries).map(row).collect()
}

/// Groups the rows of a batch, so that padding at most doubles the cost of a row, besides [`FREE_PADDING`].
fn groups<'a>(sequences: &[SequenceSlice<'a>], shape: &AttentionShape, max_elements: usize) -> Vec<Group<'a>> {
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
    fn blocks(&self) -> usize {
        self.positions.div_ceil(BLOCK)
    }

    /// Whether every query sees all positions.
    fn is_unmasked(&self) -> bool {
        let sees_all = |row: &Row<'_>, range: &Range<usize>| *range == row.positions && range.len() == self.positions;
        self.rows.iter().all(|row| row.visible.iter().all(|range| sees_all(row, range)))
    }

    /// The token of each query.
    fn query_tokens(&self) -> impl Iterator<Item = usize> {
        self.rows.iter().flat_map(|row| (0..self.queries).map(|query| row.token + query.min(row.visible.len() - 1)))
    }

    /// The first visible position of each query, and the first after them, from the row's first position on.
    fn bounds(&self) -> impl Iterator<Item = [u32; 2]> {
        self.rows.iter().flat_map(|row| {
            let last = row.visible.len() - 1;
            (0..self.queries).filter_map(move |query| row.visible.get(query.min(last))).map(|range| {
                [range.start, range.end].map(|position| position.saturating_sub(row.positions.start) as u32)
            })
        })
    }

    /// The first slot of each block, and its last slot that is read. The last block is repeated.
    fn block_slots(&self) -> impl Iterator<Item = [u32; 2]> {
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

/// Uploads the indices of all groups at once, and computes what follows from them on the device.
fn upload(candle: &Candle, groups: &[Group<'_>], kv_heads: usize) -> Result<Plan> {
    let tokens: Vec<usize> = groups.iter().flat_map(Group::query_tokens).collect();
    let order = order(groups);
    let mut upload = Upload::default();
    let parts: Vec<_> = groups
        .iter()
        .map(|group| {
            let [first_slots, last_slots] = split(group.block_slots());
            let [starts, ends] = split(group.bounds());
            let bounds = (!group.is_unmasked()).then(|| [upload.push(starts), upload.push(ends)]);
            let tokens = upload.push(group.query_tokens().map(|token| token as u32).collect());
            (tokens, [upload.push(first_slots), upload.push(last_slots)], bounds)
        })
        .collect();
    let order = upload.push(order);
    let slots = upload.push((0..BLOCK as u32).collect());
    let heads = upload.push((0..kv_heads as u32).collect());
    let data = candle.indices(upload.0)?;
    let part = |range: &Range<usize>| data.narrow(0, range.start, range.len());
    let (slots, heads) = (part(&slots)?.reshape((1, BLOCK))?, part(&heads)?.reshape((1, kv_heads, 1))?);
    let in_order = tokens.len() == order.len() && tokens.iter().enumerate().all(|(index, token)| index == *token);
    let is_whole_batch = in_order && groups.len() == 1;
    let mut device_groups = Vec::with_capacity(groups.len());
    for (group, (tokens, block_slots, bounds)) in groups.iter().zip(&parts) {
        let (rows, queries, positions, blocks) = (group.rows.len(), group.queries, group.positions, group.blocks());
        let block_slots = block_slots.each_ref().map(part);
        let [first_slots, last_slots] = block_slots.map(|part| part?.reshape((rows * blocks, 1)));
        let slots = first_slots?.broadcast_add(&slots)?.broadcast_minimum(&last_slots?)?;
        let slots = slots.reshape((rows, 1, blocks * BLOCK))?.narrow(2, 0, positions)?;
        let kv_rows = (slots.contiguous()? * kv_heads as f64)?.broadcast_add(&heads)?.flatten_all()?;
        let mask = match bounds {
            None => None,
            Some(bounds) => {
                let bounds = bounds.each_ref().map(part);
                let [starts, ends] = bounds.map(|part| part?.reshape((rows, queries, 1)));
                let at = Array::arange(0u32, positions as u32, candle.device())?.reshape((1, 1, positions))?;
                let visible = at.broadcast_ge(&starts?)?.mul(&at.broadcast_lt(&ends?)?)?;
                let mask = (visible.to_dtype(ArrayType::F32)? - 1.)?.affine(-f64::from(MASKED), 0.)?;
                Some(mask.reshape((rows, 1, 1, queries, positions))?)
            }
        };
        let query_tokens = if is_whole_batch { None } else { Some(part(tokens)?) };
        device_groups.push(DeviceGroup { rows, queries, positions, query_tokens, kv_rows, mask });
    }
    let order = if in_order { None } else { Some(part(&order)?) };
    Ok(Plan { groups: device_groups, order })
}

/// Numbers that are uploaded together.
#[derive(Default)]
struct Upload(Vec<u32>);

impl Upload {
    /// Appends numbers, and returns their range.
    fn push(&mut self, numbers: Vec<u32>) -> Range<usize> {
        let start = self.0.len();
        self.0.extend(numbers);
        start..self.0.len()
    }
}

fn split(pairs: impl Iterator<Item = [u32; 2]>) -> [Vec<u32>; 2] {
    let (first, second) = pairs.map(|[first, second]| (first, second)).unzip();
    [first, second]
}

/// Of each token, its row in the concatenated results of the groups.
fn order(groups: &[Group<'_>]) -> Vec<u32> {
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
