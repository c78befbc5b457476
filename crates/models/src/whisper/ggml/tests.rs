//! Damaged files.

use outpost_testing::fixtures::fixture;
use std::fs;
use std::path::Path;

use super::file::GgmlFile;
use crate::backend::Cpu;
use crate::error::ModelError;
use crate::whisper::model::WhisperModel;
use crate::whisper::weights::WhisperWeights;

/// Opens and loads a file of these bytes.
fn load(path: &Path, bytes: &[u8]) -> Result<(), ModelError> {
    fs::write(path, bytes).unwrap();
    let file = GgmlFile::open(path)?;
    WhisperModel::load(&WhisperWeights::from_ggml(&file), *file.config(), None, &Cpu::new(1)).map(|_| ())
}

fn original() -> Vec<u8> {
    fs::read(fixture("whisper/ggml-q5_0.bin")).unwrap()
}

#[test]
fn truncated_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (path, bytes) = (folder.path().join("ggml.bin"), original());
    load(&path, &bytes).unwrap();
    for length in (0..60).chain((60..bytes.len()).step_by(997)) {
        assert!(matches!(load(&path, &bytes[..length]), Err(ModelError::Checkpoint(_))), "{length} bytes");
    }
    let longer = [bytes.as_slice(), &[0; 7]].concat();
    assert!(load(&path, &longer).is_err(), "bytes after the last tensor");
}

/// Offsets of the numbers of the header, and of the first tensor's description.
fn header_offsets(bytes: &[u8]) -> Vec<usize> {
    let name = b"encoder.positional_embedding";
    let found = bytes.windows(name.len()).position(|window| window == name);
    let first_tensor = found.into_iter().flat_map(|at| (at - 20..at).step_by(4));
    let vocabulary = 4 + 11 * 4 + 8 + 80 * 201 * 4;
    (0..14).map(|index| 4 * index).chain([vocabulary, vocabulary + 4]).chain(first_tensor).collect()
}

#[test]
fn impossible_numbers_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (path, bytes) = (folder.path().join("ggml.bin"), original());
    for offset in header_offsets(&bytes) {
        for number in [u32::MAX, i32::MAX as u32, 1 << 24, 4_097] {
            let mut damaged = bytes.clone();
            damaged[offset..offset + 4].copy_from_slice(&number.to_le_bytes());
            // The type of the file is only information, apart from the version.
            let result = load(&path, &damaged);
            assert!(matches!(result, Err(ModelError::Checkpoint(_))), "{number} at byte {offset}: {result:?}");
        }
    }
}

#[test]
fn old_versions_of_quantised_blocks_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (path, mut bytes) = (folder.path().join("ggml.bin"), original());
    bytes[44..48].copy_from_slice(&1_008u32.to_le_bytes());
    let error = load(&path, &bytes).unwrap_err().to_string();
    assert!(error.contains("newer whisper.cpp"), "{error}");
}
