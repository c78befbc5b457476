//! What each token stands for.

use std::collections::HashSet;

use serde::{Deserialize, Serialize, Serializer};

/// A model's tokens by their ids: plain data, without anything that encodes text.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Vocabulary {
    /// The bytes of each token; a special token's own text.
    pub(super) bytes: Vec<Vec<u8>>,
    #[serde(serialize_with = "sorted")]
    pub(super) control: HashSet<u32>,
    #[serde(serialize_with = "sorted")]
    pub(super) ends: HashSet<u32>,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
}

/// Equal vocabularies become equal bytes.
fn sorted<S: Serializer>(ids: &HashSet<u32>, serializer: S) -> Result<S::Ok, S::Error> {
    let mut ids: Vec<u32> = ids.iter().copied().collect();
    ids.sort_unstable();
    ids.serialize(serializer)
}

impl Vocabulary {
    /// Whether a token stands for no text of its own.
    pub fn is_control(&self, id: u32) -> bool {
        self.control.contains(&id)
    }

    /// The control token that is written so.
    pub fn control_id(&self, text: &str) -> Option<u32> {
        self.control.iter().copied().filter(|id| self.bytes(*id) == text.as_bytes()).min()
    }

    /// The bytes that a token stands for; empty for an id without a token.
    pub fn bytes(&self, id: u32) -> &[u8] {
        self.bytes.get(id as usize).map_or(&[], Vec::as_slice)
    }

    /// What a token adds to an answer: control tokens add nothing.
    pub fn visible(&self, id: u32) -> &[u8] {
        if self.control.contains(&id) { &[] } else { self.bytes(id) }
    }

    pub fn text(&self, id: Option<u32>) -> String {
        id.map(|id| String::from_utf8_lossy(self.bytes(id)).into_owned()).unwrap_or_default()
    }

    /// ChatTokenizer that end an answer.
    pub fn ends(&self) -> &HashSet<u32> {
        &self.ends
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes of the longest token, at least 1: `n` bytes of text are at least `n` divided by this many tokens.
    pub fn longest(&self) -> usize {
        self.bytes.iter().map(Vec::len).max().unwrap_or_default().max(1)
    }

    /// Whether every id that both have stands for the same. Vocabularies of one family differ by what
    /// pads them.
    pub fn agree(&self, other: &Self) -> bool {
        self.bytes.iter().zip(&other.bytes).all(|(one, other)| one == other)
    }
}
