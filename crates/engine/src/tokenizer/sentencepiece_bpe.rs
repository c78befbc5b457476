//! SentencePiece's BPE (Kudo and Richardson 2018, <https://arxiv.org/abs/1808.06226>): of all adjacent symbols whose
//! concatenation is a piece, the pair with the best score is merged first, the leftmost on ties. Symbols that are not
//! pieces in the end become bytes.
//!
//! The `tokenizers` crate cannot do this: it ranks merges, while a vocabulary with scores ranks pieces.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use aho_corasick::{AhoCorasick, MatchKind};

use super::byte_alphabet::META_SPACE;

pub struct SentencePieceBpe {
    /// The ID and score of each normal piece.
    normal: HashMap<String, (u32, f32)>,
    /// The IDs of user-defined pieces, which are matched before merging.
    defined: Vec<u32>,
    finder: AhoCorasick,
    /// The piece ID of each byte. Without one, the unknown piece replaces the character.
    bytes: HashMap<u8, u32>,
    unknown: Option<u32>,
    /// Prepends a space to text.
    adds_space: bool,
}

/// Adjacent symbols that can be merged.
struct Pair {
    score: f32,
    left: usize,
    /// The length of both in bytes, to detect that one of them has changed since.
    bytes: usize,
}

/// A part of the text in a linked list. Symbols merged into their left neighbour have no bytes.
struct Symbol {
    start: usize,
    bytes: usize,
    before: Option<usize>,
    after: Option<usize>,
}

impl SentencePieceBpe {
    /// Texts are as in SentencePiece, with spaces as `▁`.
    pub fn new(
        normal: HashMap<String, (u32, f32)>,
        defined: Vec<(String, u32)>,
        bytes: HashMap<u8, u32>,
        unknown: Option<u32>,
        adds_space: bool,
    ) -> Result<Self, String> {
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(defined.iter().map(|(text, _)| text))
            .map_err(|error| format!("the user-defined tokens cannot be indexed: {error}"))?;
        let defined = defined.into_iter().map(|(_, id)| id).collect();
        Ok(Self { normal, defined, finder, bytes, unknown, adds_space })
    }

    /// `is_first`: the text does not continue another.
    pub fn encode(&self, text: &str, is_first: bool) -> Vec<u32> {
        if text.is_empty() {
            return Vec::new();
        }
        let adds_space = if self.adds_space && is_first { META_SPACE } else { "" };
        let text = format!("{adds_space}{}", text.replace(' ', META_SPACE));
        let (mut ids, mut done) = (Vec::new(), 0);
        for found in self.finder.find_iter(&text) {
            self.encode_segment(text.get(done..found.start()).unwrap_or_default(), &mut ids);
            ids.extend(self.defined.get(found.pattern().as_usize()));
            done = found.end();
        }
        self.encode_segment(text.get(done..).unwrap_or_default(), &mut ids);
        ids
    }

    fn encode_segment(&self, text: &str, ids: &mut Vec<u32>) {
        for symbol in self.merge_all(text).iter().filter(|symbol| symbol.bytes > 0) {
            self.push_ids(symbol.text(text), ids);
        }
    }

    fn push_ids(&self, part: &str, ids: &mut Vec<u32>) {
        if let Some((id, _)) = self.normal.get(part) {
            return ids.push(*id);
        }
        let bytes: Option<Vec<u32>> = part.bytes().map(|byte| self.bytes.get(&byte).copied()).collect();
        match bytes {
            Some(bytes) => ids.extend(bytes),
            None => ids.extend(self.unknown),
        }
    }

    /// The text's characters, merged as far as possible.
    fn merge_all(&self, text: &str) -> Vec<Symbol> {
        let mut symbols = Symbol::each(text);
        let mut heap = BinaryHeap::new();
        for left in 0..symbols.len().saturating_sub(1) {
            heap.extend(self.pair(text, &symbols, Some(left)));
        }
        while let Some(pair) = heap.pop() {
            if !merge(&mut symbols, &pair) {
                continue;
            }
            let before = symbols.get(pair.left).and_then(|symbol| symbol.before);
            heap.extend(self.pair(text, &symbols, before));
            heap.extend(self.pair(text, &symbols, Some(pair.left)));
        }
        symbols
    }

    /// The pair of this symbol and the next, if it is a piece.
    fn pair(&self, text: &str, symbols: &[Symbol], left: Option<usize>) -> Option<Pair> {
        let left = left?;
        let one = symbols.get(left)?;
        let bytes = one.bytes + symbols.get(one.after?)?.bytes;
        let (_, score) = self.normal.get(text.get(one.start..one.start + bytes)?)?;
        Some(Pair { score: *score, left, bytes })
    }
}

/// Merges a pair if neither symbol has changed since it was found.
fn merge(symbols: &mut [Symbol], pair: &Pair) -> bool {
    let Some(left) = symbols.get(pair.left).filter(|left| left.bytes > 0) else { return false };
    let (Some(right), left_bytes) = (left.after, left.bytes) else { return false };
    let Some(gone) = symbols.get_mut(right).filter(|gone| left_bytes + gone.bytes == pair.bytes) else { return false };
    gone.bytes = 0;
    let after = gone.after;
    if let Some(left) = symbols.get_mut(pair.left) {
        left.bytes = pair.bytes;
        left.after = after;
    }
    if let Some(after) = after.and_then(|after| symbols.get_mut(after)) {
        after.before = Some(pair.left);
    }
    true
}

impl Symbol {
    fn each(text: &str) -> Vec<Self> {
        let count = text.chars().count();
        let symbol = |(index, (start, letter)): (usize, (usize, char))| Self {
            start,
            bytes: letter.len_utf8(),
            before: index.checked_sub(1),
            after: (index + 1 < count).then_some(index + 1),
        };
        text.char_indices().enumerate().map(symbol).collect()
    }

    fn text<'a>(&self, text: &'a str) -> &'a str {
        text.get(self.start..self.start + self.bytes).unwrap_or_default()
    }
}

impl Ord for Pair {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then_with(|| other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pair {}
