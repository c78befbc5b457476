//! The decoders in `tests/fixtures/families`: tiny random models, with logits that transformers has computed.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::fixtures::fixture;

#[derive(Deserialize)]
pub struct Cases {
    pub vocabulary: usize,
    pub cases: Vec<Case>,
}

#[derive(Deserialize)]
pub struct Case {
    pub name: String,
    pub prompt: Vec<u32>,
    /// Whether there is a Hugging Face folder, and a GGUF file.
    pub folder: bool,
    pub gguf: bool,
    pub runs: Vec<Run>,
    /// The file of the logits of its layer for multi-token prediction, if it has one: `[positions, 2, vocabulary]`. At each position, they are
    /// those after its token, and those after the most likely one of these.
    pub mtp: Option<String>,
}

/// The logits at the first positions.
#[derive(Deserialize)]
pub struct Run {
    pub positions: usize,
    pub file: String,
}

pub fn root() -> PathBuf {
    fixture("families")
}

pub fn cases() -> Cases {
    serde_json::from_slice(&std::fs::read(root().join("cases.json")).unwrap()).unwrap()
}

/// The logits of a run, position by position: `[vocabulary]` each.
pub fn expected(case: &Case, run: &Run, vocabulary: usize) -> Vec<Vec<f32>> {
    let expected = read_logits(&root().join(&case.name).join(&run.file), vocabulary);
    assert_eq!(expected.len(), run.positions);
    expected
}

/// The logits in a file, position by position.
pub fn read_logits(path: &Path, vocabulary: usize) -> Vec<Vec<f32>> {
    let bytes = std::fs::read(path).unwrap();
    let numbers: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    numbers.chunks(vocabulary).map(<[f32]>::to_vec).collect()
}
