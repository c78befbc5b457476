//! The vocabulary: the bytes of each token, and the control tokens.

use std::collections::HashSet;

use serde::{Deserialize, Serialize, Serializer};

/// A model's tokens by ID. It decodes tokens but does not encode text.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Vocabulary {
    /// The bytes of each token; of a special token its text.
    pub(super) bytes: Vec<Vec<u8>>,
    #[serde(serialize_with = "sorted")]
    pub(super) control: HashSet<u32>,
    #[serde(serialize_with = "sorted")]
    pub(super) eos_ids: HashSet<u32>,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
}

/// Sorts the IDs, so that equal vocabularies serialize to equal bytes.
fn sorted<S: Serializer>(ids: &HashSet<u32>, serializer: S) -> Result<S::Ok, S::Error> {
    let mut ids: Vec<u32> = ids.iter().copied().collect();
    ids.sort_unstable();
    ids.serialize(serializer)
}

impl Vocabulary {
    /// True for control tokens, which have no visible text.
    pub fn is_control(&self, id: u32) -> bool {
        self.control.contains(&id)
    }

    /// The ID of the control token with this text.
    pub fn control_id(&self, text: &str) -> Option<u32> {
        self.control.iter().copied().filter(|id| self.bytes(*id) == text.as_bytes()).min()
    }

    /// The ID of the token with this text.
    pub fn id_of(&self, text: &str) -> Option<u32> {
        self.bytes.iter().position(|bytes| bytes == text.as_bytes()).and_then(|id| u32::try_from(id).ok())
    }

    /// The bytes of a token; empty for an unknown ID.
    pub fn bytes(&self, id: u32) -> &[u8] {
        self.bytes.get(id as usize).map_or(&[], Vec::as_slice)
    }

    /// The bytes that a token adds to the output; control tokens add none.
    pub fn visible(&self, id: u32) -> &[u8] {
        if self.control.contains(&id) { &[] } else { self.bytes(id) }
    }

    pub fn text(&self, id: Option<u32>) -> String {
        id.map(|id| String::from_utf8_lossy(self.bytes(id)).into_owned()).unwrap_or_default()
    }

    /// The tokens that end generation.
    pub fn eos_ids(&self) -> &HashSet<u32> {
        &self.eos_ids
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes of the longest token, at least 1. Text of `n` bytes has at least `n / max_token_bytes` tokens.
    pub fn max_token_bytes(&self) -> usize {
        self.bytes.iter().map(Vec::len).max().unwrap_or_default().max(1)
    }

    /// True if all token IDs that both have are equal, as a draft model requires. Vocabularies of a family can differ
    /// in padding.
    pub fn is_compatible_with(&self, other: &Self) -> bool {
        self.bytes.iter().zip(&other.bytes).all(|(one, other)| one == other)
    }
}

#[cfg(test)]
impl Vocabulary {
    /// Tokens in the order of their IDs. Those that begin with `<|` are control tokens.
    pub fn of(tokens: &[&str]) -> Self {
        let control = (0..).zip(tokens).filter(|(_, text)| text.starts_with("<|")).map(|(id, _)| id).collect();
        Self { bytes: tokens.iter().map(|text| text.as_bytes().to_vec()).collect(), control, ..Self::default() }
    }
}
