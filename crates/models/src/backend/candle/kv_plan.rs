//! The plan of a batch's attention: groups of sequences, indices and masks on the device.

use std::ops::Range;

use candle_core::{DType as ArrayType, Tensor as Array};

use super::device::Candle;
use super::kv_groups::{self, Group};
use crate::error::Result;
use crate::kv::BLOCK;

/// The score of a masked position. It is finite, so that a query without visible positions has no NaN.
pub const MASKED: f32 = -1e30;

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

/// Uploads the indices of all groups at once, and computes what follows from them on the device.
pub fn upload(candle: &Candle, groups: &[Group<'_>], kv_heads: usize) -> Result<Plan> {
    let tokens: Vec<usize> = groups.iter().flat_map(Group::query_tokens).collect();
    let order = kv_groups::order(groups);
    let mut upload = Upload::default();
    let parts: Vec<_> = groups
        .iter()
        .map(|group| {
            // Slots are multiplied by the heads here, because not every device multiplies integers.
            let by_heads = |slots: [u32; 2]| slots.map(|slot| slot.wrapping_mul(kv_heads as u32));
            let [first_slots, last_slots] = split(group.block_slots().map(by_heads));
            let [starts, ends] = split(group.bounds());
            let bounds = (!group.is_unmasked()).then(|| [upload.push(starts), upload.push(ends)]);
            let tokens = upload.push(group.query_tokens().map(|token| token as u32).collect());
            (tokens, [upload.push(first_slots), upload.push(last_slots)], bounds)
        })
        .collect();
    let order = upload.push(order);
    let slots = upload.push((0..BLOCK * kv_heads).step_by(kv_heads).map(|slot| slot as u32).collect());
    let max_positions = groups.iter().map(|group| group.positions).max().unwrap_or(0);
    let all_positions = upload.push((0..max_positions as u32).collect());
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
        let kv_rows = slots.broadcast_add(&heads)?.flatten_all()?;
        let mask = match bounds {
            None => None,
            Some(bounds) => {
                let bounds = bounds.each_ref().map(part);
                let [starts, ends] = bounds.map(|part| part?.reshape((rows, queries, 1)));
                let at = part(&all_positions)?.narrow(0, 0, positions)?.reshape((1, 1, positions))?;
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
