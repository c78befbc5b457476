//! What a step needs to know of its rows: their tokens with logits, their blocks, and their recurrent states.

use std::ops::Range;

use crate::backend::RecurrentRow;
use crate::causal_lm::{BatchRow, LogitsAt};
use crate::error::{ModelError, Result};
use crate::kv::SequenceSlice;

/// The recurrent states of the rows.
pub(super) fn sequence_states(rows: &[BatchRow<'_>]) -> Result<Vec<RecurrentRow>> {
    let mut offset = 0;
    let states = rows.iter().map(|BatchRow { tokens, start, state, .. }| {
        let count = tokens.len();
        offset += count;
        match state {
            Some(update) if update.read.is_some() == (*start > 0) => {
                Ok(RecurrentRow { offset: offset - count, count, update: *update })
            }
            _ => Err(ModelError::Compute(format!(
                "the recurrent state of a row at position {start} is missing or unexpected"
            ))),
        }
    });
    states.collect()
}

/// The rows as sequences with their block tables of a group.
pub(super) fn sequence_slices(rows: &[BatchRow<'_>], group: usize) -> Result<Vec<SequenceSlice>> {
    let mut sequences = Vec::with_capacity(rows.len());
    let mut offset = 0;
    for BatchRow { tokens, start, tables, .. } in rows {
        let table = if let [table] = tables { Some(table) } else { tables.get(group) };
        let Some(table) = table else {
            return Err(ModelError::Compute(format!("a row has no table of the KV blocks of group {group}")));
        };
        let (count, blocks) = (tokens.len(), table.clone());
        sequences.push(SequenceSlice { offset, count, start: *start, visible: None, blocks });
        offset += count;
    }
    Ok(sequences)
}

/// The tokens with logits as sequences with their block tables of a group. They follow each other in the order of the rows.
pub(super) fn logit_slices(rows: &[BatchRow<'_>], group: usize) -> Result<Vec<SequenceSlice>> {
    let mut offset = 0;
    let mut slices = Vec::new();
    for (row, slice) in rows.iter().zip(sequence_slices(rows, group)?) {
        let count = match row.logits {
            LogitsAt::None => continue,
            LogitsAt::Last => 1,
            LogitsAt::All => slice.count,
        };
        slices.push(SequenceSlice { offset, count, start: slice.start + slice.count - count, ..slice });
        offset += count;
    }
    Ok(slices)
}

/// The tokens as per-layer embeddings have them: those with embeddings of their own have that of the first token, which is for padding.
pub(super) fn per_layer_tokens(rows: &[BatchRow<'_>]) -> Vec<u32> {
    let tokens = rows.iter().flat_map(|row| {
        let is_embedded =
            |index: usize| row.embedded.iter().any(|own| (own.first..own.first + own.count).contains(&index));
        row.tokens.iter().enumerate().map(move |(index, token)| if is_embedded(index) { 0 } else { *token })
    });
    tokens.collect()
}

/// The tokens with logits as indices into the batch, in ascending order, and their number in each row.
pub(super) fn logit_tokens(rows: &[BatchRow<'_>]) -> (Vec<usize>, Vec<usize>) {
    let mut offset = 0;
    let ranges: Vec<Range<usize>> = (rows.iter())
        .map(|row| {
            let (start, end) = (offset, offset + row.tokens.len());
            offset = end;
            match row.logits {
                LogitsAt::None => end..end,
                LogitsAt::Last => end - 1..end,
                LogitsAt::All => start..end,
            }
        })
        .collect();
    (ranges.iter().cloned().flatten().collect(), ranges.iter().map(Range::len).collect())
}
