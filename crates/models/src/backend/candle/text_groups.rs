//! Texts of a batch in groups of equal length, so that few operations compute many of them.

use std::collections::BTreeMap;
use std::ops::Range;

use candle_core::Tensor as Array;

use super::device::Candle;
use crate::error::Result;

/// Texts of the same number of tokens, which are computed at once.
pub struct TextGroup {
    /// Tokens of each text.
    pub length: usize,
    /// Indices of the texts.
    pub texts: Vec<usize>,
    /// The rows of all their tokens.
    pub rows: Vec<usize>,
}

/// Groups texts, given as their rows, by their lengths.
pub fn text_groups(texts: &[Range<usize>]) -> Vec<TextGroup> {
    let mut by_length: BTreeMap<usize, TextGroup> = BTreeMap::new();
    for (index, rows) in texts.iter().enumerate() {
        let length = rows.len();
        let new = || TextGroup { length, texts: Vec::new(), rows: Vec::new() };
        let group = by_length.entry(length).or_insert_with(new);
        group.texts.push(index);
        group.rows.extend(rows.clone());
    }
    by_length.into_values().collect()
}

/// The rows of groups, one group after another, in the order of all rows.
pub fn ungrouped(candle: &Candle, groups: &[TextGroup], outputs: &[Array]) -> Result<Array> {
    let outputs = Array::cat(outputs, 0)?;
    let order: Vec<usize> = groups.iter().flat_map(|group| &group.rows).copied().collect();
    if order.is_sorted() {
        return Ok(outputs);
    }
    let mut places: Vec<usize> = (0..order.len()).collect();
    places.sort_by_key(|place| order.get(*place));
    Ok(outputs.index_select(&candle.row_indices(places.into_iter())?, 0)?)
}

/// The states of a group's texts: `[texts, elements]`.
pub fn stacked(states: &[Array], group: &TextGroup) -> Result<Array> {
    let states: Vec<&Array> = group.texts.iter().filter_map(|text| states.get(*text)).collect();
    Ok(Array::stack(&states, 0)?)
}
