//! Compares token IDs with those of `sentencepiece` and `tokenizers` in `tests/fixtures/tokenizers`, written by
//! `make_tokenizers_reference.py`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{ChatTokenizer, Position, TokenizeLimits, Vocabulary};
use crate::engine::tokenizer::files::TextFiles;
use crate::models::gguf::GgufFile;

/// A template with the prompts' special tokens.
const TEMPLATE: &str = "[INST] [/INST]";

#[derive(Deserialize)]
struct Expected {
    texts: Vec<Vec<u32>>,
    prompts: Vec<(String, Vec<u32>)>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers")
}

fn read<T: for<'a> Deserialize<'a>>(path: PathBuf) -> T {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn gguf(name: &str) -> (ChatTokenizer, Vocabulary) {
    let file = GgufFile::open(&root().join(name).join("tokenizer.gguf")).unwrap();
    ChatTokenizer::from_gguf(&file.header.metadata, 1 << 20, TEMPLATE).unwrap()
}

fn hub(name: &str) -> (ChatTokenizer, Vocabulary) {
    ChatTokenizer::from_hugging_face(&TextFiles::read(&root().join(name)).unwrap(), 1 << 20, TEMPLATE).unwrap()
}

fn check(name: &str, tokens: &ChatTokenizer) {
    let texts: Vec<String> = read(root().join("texts.json"));
    let Expected { texts: expected, prompts } = read(root().join(name).join("expected.json"));
    assert!(texts.len() >= 300 && texts.len() == expected.len());
    for (text, expected) in texts.iter().zip(expected) {
        assert_eq!(tokens.encode(text), expected, "{name}: {text:?}");
    }
    for (text, expected) in prompts {
        assert_eq!(tokens.encode_prompt(&text, &TokenizeLimits::default()).ids, expected, "{name}: {text:?}");
    }
}

fn bytes(vocabulary: &Vocabulary, ids: &[u32]) -> Vec<u8> {
    ids.iter().flat_map(|id| vocabulary.bytes(*id)).copied().collect()
}

#[test]
fn sentencepiece_in_gguf_matches_sentencepiece() {
    for (name, prefix) in [("spm-llama", " "), ("spm-gemma", "")] {
        let (tokens, vocabulary) = gguf(name);
        check(name, &tokens);
        for text in ["hello  world\n\n", "🦀 Grüße\t1234", "▁x", "<table>    y"] {
            let back = String::from_utf8(bytes(&vocabulary, &tokens.encode(text))).unwrap();
            assert_eq!(back, format!("{prefix}{}", text.replace('▁', " ")), "{name}");
        }
    }
}

#[test]
fn byte_level_bpe_in_gguf_matches_tokenizer_json() {
    for name in ["smollm", "llama3", "qwen2", "tekken", "gpt2"] {
        check(name, &gguf(name).0);
    }
}

#[test]
fn tokenizer_json_matches_the_tokenizers_library() {
    for name in ["smollm", "llama3", "qwen2", "qwen2-nfc", "tekken", "gpt2", "hub-legacy", "hub-first", "hub-strips"] {
        let (tokens, vocabulary) = hub(name);
        check(name, &tokens);
        if name != "qwen2-nfc" {
            let text = "🦀 x\n\n<|end|> 12";
            let back = String::from_utf8(bytes(&vocabulary, &tokens.encode(text))).unwrap();
            assert_eq!(back.trim_start(), text, "{name}");
        }
    }
}

#[test]
fn all_files_of_a_folder_contribute_eos_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, value: Value| std::fs::write(dir.path().join(name), value.to_string()).unwrap();
    std::fs::copy(root().join("hub-first/tokenizer.json"), dir.path().join("tokenizer.json")).unwrap();
    write("generation_config.json", json!({"eos_token_id": [7, 9]}));
    write("tokenizer_config.json", json!({"bos_token": "<s>", "eos_token": {"content": "</s>"}}));
    write("config.json", json!({"eos_token_id": 11}));
    let (_, tokens) = ChatTokenizer::from_hugging_face(&TextFiles::read(dir.path()).unwrap(), 1 << 20, "").unwrap();
    let end = tokens.eos.unwrap();
    assert_eq!((tokens.text(tokens.bos), tokens.text(tokens.eos)), ("<s>".to_owned(), "</s>".to_owned()));
    assert!([7, 9, 11, end].iter().all(|id| tokens.eos_ids().contains(id)));
    assert!(tokens.visible(end).is_empty() && !tokens.visible(100).is_empty());
}

#[test]
fn unsupported_features_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let problem = |change: &dyn Fn(&mut Value)| {
        let mut json: Value = read(root().join("hub-first/tokenizer.json"));
        change(&mut json);
        std::fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
        let files = TextFiles::read(dir.path()).unwrap();
        let built = ChatTokenizer::from_hugging_face(&files, 1 << 20, "").err().unwrap_or_default();
        let listed = super::check_hugging_face(&files).err().unwrap_or_else(|| built.clone());
        assert_eq!(listed, built, "a listing gives the same error, or none");
        built
    };
    let none = ChatTokenizer::from_hugging_face(&TextFiles::default(), 1 << 20, "").err().unwrap();
    assert!(none.contains("no tokenizer.json"), "{none}");
    assert_eq!(
        problem(&|json| json["decoder"] = json!({"type": "WordPiece"})),
        "the tokenizer's decoder WordPiece is not supported"
    );
    assert!(problem(&|json| json["added_tokens"][0]["single_word"] = json!(true)).contains("single word"));
    assert!(problem(&|json| json["model"] = json!(3)).contains("tokenizer.json cannot be used"));
}

/// Splitting a long text into chunks does not change its tokens, with any tokenizer.
#[test]
fn chunks_do_not_change_tokens() {
    let texts: Vec<String> = read(root().join("texts.json"));
    let plain = |text: &&String| !["<", "[", "\u{2581}"].iter().any(|odd| text.contains(odd));
    let long: String = texts.iter().filter(plain).flat_map(|text| [text.as_str(), " a sentence of words. "]).collect();
    let long = long.repeat(120_000 / long.len() + 1);
    let folders = std::fs::read_dir(root()).unwrap().map(|entry| entry.unwrap().path());
    let mut checked = 0;
    for folder in folders.filter(|path| path.is_dir()) {
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        let (tokens, _) = if folder.join("tokenizer.gguf").exists() { gguf(&name) } else { hub(&name) };
        let whole = tokens.encoder.encode(&long, Position::Start);
        assert!(tokens.encode(&long) == whole, "{name}: {} and {} tokens", tokens.encode(&long).len(), whole.len());
        checked += 1;
    }
    assert!(checked >= 4, "{checked}");
}

#[test]
fn tokenizing_a_long_prompt_stops_at_its_limits() {
    let (tokens, _) = gguf("spm-llama");
    let long = "many words ".repeat(20_000);
    let whole = tokens.encode_prompt(&long, &TokenizeLimits::default());
    assert!(whole.complete);
    let some = tokens.encode_prompt(&long, &TokenizeLimits::default().with_max_tokens(100));
    assert!(!some.complete && some.ids.len() > 100 && some.ids.len() < whole.ids.len() / 2);
    assert!(whole.ids.starts_with(&some.ids));
    let just = tokens.encode_prompt(&long, &TokenizeLimits::default().with_max_tokens(whole.ids.len()));
    assert_eq!(just, whole);
    let request = Arc::new(());
    let limits = TokenizeLimits::default().with_request(&request);
    assert!(tokens.encode_prompt(&long, &limits).complete);
    drop(request);
    assert!(!tokens.encode_prompt(&long, &limits).complete);
}

/// A prompt and its continuation have the tokens of both together, if they meet at a special token or between words.
#[test]
fn continuations_continue_prompts() {
    let folders = std::fs::read_dir(root()).unwrap().map(|entry| entry.unwrap().path());
    for folder in folders.filter(|path| path.is_dir()) {
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        let (tokens, _) = if folder.join("tokenizer.gguf").exists() { gguf(&name) } else { hub(&name) };
        let whole = "[INST] hello [/INST]some words[INST]\nmore 12 words";
        let encode = |text: &str| tokens.encode_prompt(text, &TokenizeLimits::default()).ids;
        for prompt in
            ["[INST]", "[INST] hello [/INST]", "[INST] hello [/INST]some", "[INST] hello [/INST]some words[INST]"]
        {
            let rest = tokens.encode_continuation(prompt, &whole[prompt.len()..]);
            assert_eq!([encode(prompt), rest].concat(), encode(whole), "{name}: {prompt}");
        }
    }
}
