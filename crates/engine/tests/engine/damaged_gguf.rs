//! Damaged GGUF files are refused with a clear error, never with a panic or a huge allocation.

use outpost_models::causal_lm::CausalLm;
use outpost_models::decoder::Decoder;
use outpost_models::gguf::{GgufFile, parse_header};
use outpost_models::kv::KvType;
use outpost_models::sequence_state::SequenceState;
use proptest::prelude::*;

use crate::harness::cpu;
use crate::tiny_model::{self, TinyModel};

fn problem(bytes: &[u8]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    std::fs::write(&path, bytes).unwrap();
    match GgufFile::open(&path) {
        Ok(file) => Decoder::load(&file, &cpu()).unwrap_err().to_string(),
        Err(error) => error.to_string(),
    }
}

fn whole() -> Vec<u8> {
    tiny_model::bytes(&TinyModel::default())
}

/// Overwrites the bytes that follow a key's name and value type.
fn edit(key: &str, value: &[u8]) -> Vec<u8> {
    let mut bytes = whole();
    let at = bytes.windows(key.len()).position(|window| window == key.as_bytes()).unwrap() + key.len() + 4;
    bytes[at..at + value.len()].copy_from_slice(value);
    bytes
}

#[test]
fn a_truncated_file_reports_what_is_missing() {
    let bytes = whole();
    let length = bytes.len();
    let message = problem(&bytes[..length - 1]);
    assert_eq!(
        message,
        format!(
            "the file is truncated: tensor output_norm.weight ends at byte {length}, the file has {} bytes",
            length - 1
        )
    );
    for cut in [0, 3, 4, 7, 8, 20, 30, 100, 5_000, 9_000] {
        assert!(problem(&bytes[..cut]).contains("truncated") || problem(&bytes[..cut]).contains("space for"), "{cut}");
    }
}

#[test]
fn an_edited_file_reports_what_is_wrong() {
    let mut magic = whole();
    magic[0] = b'X';
    let mut version = whole();
    version[4] = 9;
    let mut count = whole();
    count[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    let number = |value: u32| value.to_le_bytes();
    let cases = [
        (magic, "not a GGUF file"),
        (version, "GGUF version 9"),
        (count, "the tensor count: 18446744073709551615 items do not fit"),
        (edit("llama.attention.head_count", &number(0)), "head_count"),
        (edit("llama.attention.head_count_kv", &number(3)), "4 heads cannot share 3 key-value heads"),
        (edit("llama.block_count", &number(0)), "llama.block_count is Unsigned(0)"),
        (edit("llama.feed_forward_length", &number(64)), "has the shape [128, 64], the metadata requires [64, 64]"),
        (edit("llama.block_count", &number(3)), "no tensor blk.2."),
        (edit("llama.block_count", &number(1)), "tensors that the model's family does not use"),
        (edit("llama.embedding_length", &number(128)), "of 32 elements of a head is not supported"),
        (edit("llama.context_length", &number(u32::MAX)), "llama.context_length"),
        (
            edit("general.architecture", b"\x05\0\0\0\0\0\0\0mamba"),
            "the architecture mamba is not supported. Supported are llama, mistral3, smollm3, qwen2, qwen3, ",
        ),
        (edit("output_norm.weight", &u64::MAX.to_le_bytes()), "impossible shape"),
        (edit("tokenizer.ggml.tokens", &number(99)), "unknown type 99"),
    ];
    for (bytes, words) in cases {
        let message = problem(&bytes);
        assert!(message.contains(words), "{message:?} does not say {words:?}");
    }
}

#[test]
fn a_directory_or_a_fifo_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    assert!(GgufFile::open(dir.path()).unwrap_err().to_string().contains("not a regular file"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    /// An accepted header points only inside the file; others give an error, not a panic.
    #[test]
    fn a_damaged_header_never_points_outside_the_file(flips in prop::collection::vec((0usize..9_000, any::<u8>()), 1..6), cut in any::<prop::sample::Index>(), cuts: bool) {
        let mut bytes = whole_once().to_vec();
        for (at, value) in flips {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        if cuts {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(header) = parse_header(&bytes, bytes.len() as u64) {
            for tensor in header.tensors {
                prop_assert!(tensor.start + tensor.bytes <= bytes.len() as u64);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn loading_a_damaged_file_never_panics(flips in prop::collection::vec((0usize..9_000, any::<u8>()), 1..4)) {
        let mut bytes = whole_once().to_vec();
        for (at, value) in flips {
            bytes[at] = value;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gguf");
        std::fs::write(&path, bytes).unwrap();
        if let Ok(file) = GgufFile::open(&path)
            && let Ok(model) = Decoder::load(&file, &cpu())
        {
            let _ = model.extend(&[1, 2, 3], &mut SequenceState::new(model.new_arenas(KvType::F16)));
        }
    }
}

fn whole_once() -> &'static [u8] {
    static BYTES: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    BYTES.get_or_init(whole)
}
