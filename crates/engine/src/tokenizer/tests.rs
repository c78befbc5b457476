//! Compares token IDs with those of `sentencepiece` and `tokenizers` in `tests/fixtures/tokenizers`, written by
//! `make_tokenizers_reference.py`.

use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use super::fill_in_the_middle::{FimTokens, RepositoryTokens};
use super::{ChatTokenizer, InfillTexts, Position, SpecialTokenOptions, TokenizeLimits, Vocabulary};
use crate::tokenizer::files::TextFiles;
use outpost_models::gguf::GgufFile;
use outpost_testing::fixtures::fixture;

/// A template with the prompts' special tokens.
const TEMPLATE: &str = "[INST] [/INST]";

#[derive(Deserialize)]
struct Expected {
    texts: Vec<Vec<u32>>,
    prompts: Vec<(String, Vec<u32>)>,
}

fn root() -> PathBuf {
    fixture("tokenizers")
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
    for name in ["smollm", "llama3", "qwen2", "tekken", "gpt2", "seed-coder", "deepseek-v3", "tiny-aya", "gpt-4o"] {
        check(name, &gguf(name).0);
    }
}

#[test]
fn bpe_of_characters_in_gguf_matches_tokenizer_json() {
    let (tokens, vocabulary) = gguf("gemma4");
    check("gemma4", &tokens);
    for text in ["hello  world\n\n", "🦀 Grüße\t1234", "\u{1F469}\u{200D}\u{1F52C}    y"] {
        assert_eq!(String::from_utf8(bytes(&vocabulary, &tokens.encode(text))).unwrap(), text);
    }
    assert!(vocabulary.is_control(1) && vocabulary.visible(1).is_empty());
}

#[test]
fn tokenizer_json_matches_the_tokenizers_library() {
    let byte_level =
        ["smollm", "llama3", "qwen2", "qwen2-nfc", "tekken", "gpt2", "seed-coder", "deepseek-v3", "tiny-aya", "gpt-4o"];
    for name in byte_level.into_iter().chain(["hub-legacy", "hub-first", "hub-strips", "gemma4"]) {
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

/// The tokenizer of a fixture, whose file says that texts begin with BOS.
fn gguf_with_bos(name: &str) -> (ChatTokenizer, Vocabulary) {
    const KEY: &[u8] = b"tokenizer.ggml.add_bos_token";
    let mut bytes = std::fs::read(root().join(name).join("tokenizer.gguf")).unwrap();
    let value = bytes.windows(KEY.len()).position(|part| part == KEY).unwrap() + KEY.len() + size_of::<u32>();
    assert_eq!(std::mem::replace(&mut bytes[value], 1), 0);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokenizer.gguf");
    std::fs::write(&path, bytes).unwrap();
    let file = GgufFile::open(&path).unwrap();
    ChatTokenizer::from_gguf(&file.header.metadata, 1 << 20, TEMPLATE).unwrap()
}

#[test]
fn texts_without_a_template_have_a_bos_token_and_parse_special_tokens() {
    let encode = |tokens: &ChatTokenizer, text: &str, add: bool, parse: bool| {
        tokens.encode_text(text, SpecialTokenOptions { add, parse }, &TokenizeLimits::default()).ids
    };
    for (name, text) in [("spm-llama", "</s> hello"), ("smollm", "[INST] hello")] {
        let (tokens, vocabulary) = gguf_with_bos(name);
        let with_bos: Vec<u32> = tokens.document_bos.into_iter().chain(tokens.encode("hello")).collect();
        assert_eq!(tokens.document_bos.is_some(), name == "spm-llama");
        for parse in [false, true] {
            assert_eq!(encode(&tokens, "hello", true, parse), with_bos, "{name}");
            assert_eq!(encode(&tokens, "hello", false, parse), tokens.encode("hello"), "{name}");
        }
        assert_eq!(encode(&tokens, text, true, true), tokens.encode_prompt(text, &TokenizeLimits::default()).ids);
        assert_eq!(encode(&tokens, text, false, false), tokens.encode(text), "{name}");
        assert!(encode(&tokens, text, false, true).len() < tokens.encode(text).len(), "{name}");
        // Placeholders in a text are no placeholders, and a BOS token in it is not repeated.
        let forged = "\u{FDD0}\u{FDD3}\u{FDD1}";
        assert_eq!(encode(&tokens, forged, false, true), tokens.encode(forged), "{name}");
        if let Some(bos) = tokens.document_bos {
            let written = vocabulary.text(Some(bos)) + "hello";
            assert_eq!(encode(&tokens, &written, true, true), encode(&tokens, &written, false, true));
            assert_eq!(encode(&tokens, &written, true, true)[0], bos);
        }
    }
}

/// The tokenizer of the fixture `hub-first` with these additional tokens, which get the next IDs.
fn hub_with(added: &[&str]) -> (ChatTokenizer, Vocabulary) {
    let dir = tempfile::tempdir().unwrap();
    let mut json: Value = read(root().join("hub-first/tokenizer.json"));
    for (id, text) in (784..).zip(added) {
        let mut row = json["added_tokens"][1].clone();
        (row["id"], row["content"]) = (json!(id), json!(text));
        json["added_tokens"].as_array_mut().unwrap().push(row);
    }
    std::fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
    ChatTokenizer::from_hugging_face(&TextFiles::read(dir.path()).unwrap(), 1 << 20, TEMPLATE).unwrap()
}

fn between(prefix: &str, suffix: &str) -> InfillTexts {
    InfillTexts { prefix: prefix.to_owned(), suffix: suffix.to_owned(), ..InfillTexts::default() }
}

#[test]
fn a_middle_is_between_prefix_and_suffix_in_any_family() {
    let families = [
        ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
        ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
        ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
        ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
        ["▁<PRE>", "▁<SUF>", "▁<MID>"],
        ["<PRE>", "<SUF>", "<MID>"],
        ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"],
    ];
    for family in families {
        let (tokens, vocabulary) = hub_with(&family);
        let [prefix, suffix, middle] = family.map(|text| {
            let id = (0..vocabulary.len() as u32).find(|id| vocabulary.bytes(*id) == text.as_bytes());
            id.unwrap_or_else(|| panic!("{text}"))
        });
        let text = format!("a{}b", family[1]);
        let infill = tokens.encode_infill(&between(&text, "c d"), &TokenizeLimits::default()).unwrap();
        let plain = |text: &str, position| {
            let mut ids = Vec::new();
            assert!(tokens.encoder.append(text, position, &TokenizeLimits::default(), &mut ids));
            ids
        };
        let (before, after) = (plain(&text, Position::AfterSpecial), plain("c d", Position::Continuation));
        assert!(!before.contains(&suffix), "special tokens in the texts stay text");
        assert_eq!(infill.ids, [vec![prefix], before, vec![suffix], after, vec![middle]].concat());
        assert!(infill.complete);
        let long = "many words ".repeat(20_000);
        let limited =
            tokens.encode_infill(&between(&long, &long), &TokenizeLimits::default().with_max_tokens(100)).unwrap();
        assert!(!limited.complete && limited.ids.len() < 20_000);
    }
    let (incomplete, _) = hub_with(&["<fim_prefix>", "<fim_suffix>", "<MID>"]);
    assert_eq!(incomplete.encode_infill(&between("a", "b"), &TokenizeLimits::default()), None);
}

#[test]
fn a_file_may_name_the_tokens_of_a_middle() {
    let old = [
        ("tokenizer.ggml.prefix_token_id", 1),
        ("tokenizer.ggml.suffix_token_id", 2),
        ("tokenizer.ggml.middle_token_id", 3),
    ];
    let new = [
        ("tokenizer.ggml.fim_pre_token_id", 4),
        ("tokenizer.ggml.fim_suf_token_id", 5),
        ("tokenizer.ggml.fim_mid_token_id", 6),
    ];
    let named = |keys: &[(&str, u32)]| {
        FimTokens::of_gguf(|key| keys.iter().find(|(name, _)| *name == key).map(|(_, id)| *id), |_| None)
    };
    let repository = RepositoryTokens::default();
    assert_eq!(named(&old), Some(FimTokens { prefix: 1, suffix: 2, middle: 3, repository }));
    assert_eq!(named(&[&old[..], &new[..]].concat()), Some(FimTokens { prefix: 4, suffix: 5, middle: 6, repository }));
    assert_eq!(named(&new[..2]), None);
    let files = [("tokenizer.ggml.fim_rep_token_id", 7), ("tokenizer.ggml.fim_sep_token_id", 8)];
    let repository = RepositoryTokens { repository: Some(7), file: Some(8) };
    assert_eq!(named(&[&new[..], &files].concat()).unwrap().repository, repository);
}
