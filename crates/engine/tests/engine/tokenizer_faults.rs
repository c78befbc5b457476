//! Faults of tokenizers are errors that name the file's field and entry.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use outpost_engine::{Engine, ImageModel, ModelKind, Settings};
use outpost_testing::fixtures::copy_folder;
use outpost_testing::huggingface_folder;
use serde_json::{Value, json};

use crate::encoder_families;
use crate::harness::TestClock;
use crate::image_generation::fixtures;
use crate::tiny_model::{self, TinyModel};

fn start(models: &Path) -> Engine {
    Engine::start(Settings::new(models, 1 << 30), Arc::new(TestClock::default())).unwrap()
}

/// Why a GGUF file cannot be loaded.
fn gguf_problem(bytes: &[u8]) -> String {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("m.gguf"), bytes).unwrap();
    start(dir.path()).models().load("m").unwrap_err().to_string()
}

#[test]
fn a_merge_of_a_gguf_file_that_makes_no_token_is_named() {
    let cases: [(&'static [&'static str], &str); 4] = [
        (
            &["hello Ġthe"],
            "tokenizer.ggml.merges: entry 18 merges 'hello' and 'Ġthe', but 'helloĠthe' is not in the vocabulary",
        ),
        (&["a b"], "entry 18 merges 'a' and 'b', but 'ab' is not in the vocabulary"),
        (&["a b", "nothing b"], "entry 18 merges"),
        (&["ab"], "tokenizer.ggml.merges: entry 18 is 'ab', which does not have two parts"),
    ];
    for (merges, words) in cases {
        let problem = gguf_problem(&tiny_model::bytes(&TinyModel { merges, ..TinyModel::default() }));
        assert!(problem.contains(words) && !problem.contains("panicked"), "{problem:?} does not say {words:?}");
    }
}

/// The tiny model's file, with a number after the name of a metadata key. The number is at an offset after the key's end.
fn edited(key: &str, offset: usize, value: u64) -> Vec<u8> {
    let mut bytes = tiny_model::bytes(&TinyModel::default());
    let at = bytes.windows(key.len()).position(|window| window == key.as_bytes()).unwrap() + key.len() + offset;
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    bytes
}

#[test]
fn lists_of_another_length_than_the_vocabulary_are_named() {
    // A key's value type is followed by the type of the entries, and their number. The rest is moved into the next list.
    let whole = tiny_model::bytes(&TinyModel::default());
    let key = b"tokenizer.ggml.token_type";
    let at = whole.windows(key.len()).position(|window| window == key).unwrap() + key.len() + 8;
    let count = u64::from_le_bytes(whole[at..at + 8].try_into().unwrap());
    // The entries become bytes, four times as many.
    let mut bytes = edited("tokenizer.ggml.token_type", 8, 4 * count);
    bytes[at - 4..at].copy_from_slice(&0u32.to_le_bytes());
    let problem = gguf_problem(&bytes);
    let words = format!("tokenizer.ggml.token_type has {} entries, but tokenizer.ggml.tokens has {count}", 4 * count);
    assert!(problem.contains(&words), "{problem}");
}

fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut json: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    change(&mut json);
    fs::write(path, json.to_string()).unwrap();
}

#[test]
fn a_merge_of_a_tokenizer_json_that_makes_no_token_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let chat = huggingface_folder::model(dir.path(), "chat", "llama");
    copy_folder(&encoder_families::root().join("modernbert-mean"), &dir.path().join("encoder"));
    let merges = [
        (
            json!([["Ġ", "Ġ"]]),
            "tokenizer.json: model.merges: entry 1 merges 'Ġ' and 'Ġ', but 'ĠĠ' is not in the vocabulary",
        ),
        (json!(["#version: 0.2", "a none"]), "entry 1 merges 'a' and 'none', but 'none' is not in the vocabulary"),
    ];
    for (merges, words) in merges {
        edit(&chat.join("tokenizer.json"), |json| json["model"]["merges"] = merges);
        let problem = start(dir.path()).models().load("chat").unwrap_err().to_string();
        assert!(problem.contains(words), "{problem:?} does not say {words:?}");
    }
    edit(&chat.join("tokenizer.json"), |json| {
        json["model"]["merges"] = json!([["a", "b"]]);
        json["model"]["vocab"]["ab"] = json!(40);
        json["model"]["continuing_subword_prefix"] = json!("##");
    });
    let problem = start(dir.path()).models().load("chat").unwrap_err().to_string();
    assert!(problem.contains("shorter than the model's continuing_subword_prefix"), "{problem}");
    edit(&dir.path().join("encoder/tokenizer.json"), |json| {
        let longest = json["model"]["vocab"].as_object().unwrap().keys().max_by_key(|text| text.len()).unwrap().clone();
        json["model"]["merges"] = json!([[longest, longest]]);
    });
    let problem = start(dir.path()).models().load_encoder("encoder", ModelKind::Embedding).unwrap_err().to_string();
    assert!(problem.contains("tokenizer.json: model.merges: entry 1"), "{problem}");
}

#[test]
fn a_template_of_special_tokens_that_cannot_be_filled_in_is_named() {
    let dir = tempfile::tempdir().unwrap();
    copy_folder(&encoder_families::root().join("bert-mean"), &dir.path().join("encoder"));
    let path = dir.path().join("encoder/tokenizer.json");
    let cases: [(Value, &str); 2] = [
        (
            json!({ "SpecialToken": { "id": "[NO]", "type_id": 0 } }),
            "post_processor.single has '[NO]', which is not in special_tokens",
        ),
        (json!({ "Sequence": { "id": "B", "type_id": 0 } }), "post_processor.single has a second text"),
    ];
    for (piece, words) in cases {
        edit(&path, |json| {
            json["post_processor"] = json!({
                "type": "TemplateProcessing", "special_tokens": {}, "pair": [],
                "single": [{ "Sequence": { "id": "A", "type_id": 0 } }, piece],
            });
        });
        let problem = start(dir.path()).models().load_encoder("encoder", ModelKind::Embedding).unwrap_err().to_string();
        assert!(problem.contains(words), "{problem:?} does not say {words:?}");
    }
}

#[test]
fn a_merge_of_an_image_model_that_makes_no_token_is_named() {
    let dir = tempfile::tempdir().unwrap();
    copy_folder(&fixtures().join("sd1"), &dir.path().join("m"));
    let path = dir.path().join("m/tokenizer/merges.txt");
    let vocabulary: Value =
        serde_json::from_slice(&fs::read(dir.path().join("m/tokenizer/vocab.json")).unwrap()).unwrap();
    let longest = vocabulary.as_object().unwrap().keys().max_by_key(|text| text.len()).unwrap();
    fs::write(&path, format!("#version: 0.2\n{longest} {longest}\n")).unwrap();
    let problem = start(dir.path()).models().load_model::<ImageModel>("m").unwrap_err().to_string();
    assert!(problem.contains("merges.txt: entry 1 merges"), "{problem}");
}
