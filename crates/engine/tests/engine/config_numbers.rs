//! Numbers in the files of models are untrusted: whatever they are, a model loads and computes, or its error says what is
//! wrong. Nothing panics, and memory stays bounded.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use outpost_engine::{
    Engine, ImageModel, ImageRequest, InputType, LoadError, Message, ModelKind, Settings, SpeechModel, SpeechRequest,
    SpeechWindow, TokenizeLimits, TranscriptionModel, TranscriptionRequest, TranscriptionTask,
};
use outpost_testing::fixtures::copy_folder;
use outpost_testing::huggingface_folder;
use serde_json::{Value, json};

use crate::harness::{TestClock, greedy, pieces};
use crate::image_generation::fixtures;
use crate::tiny_model::{self, TinyModel};
use crate::{classifier_families, encoder_families, tiny_kokoro, tiny_whisper};

/// What each number is replaced by.
const VALUES: [&str; 10] = [
    "0",
    "1",
    "16777216",
    "2147483648",
    "4294967295",
    "9223372036854775808",
    "18446744073709551615",
    "-1",
    "1e308",
    "1e-308",
];
/// Of longer lists and objects, only the first numbers are replaced.
const MAX_ITEMS: usize = 4;

/// JSON pointers to the numbers of a file.
fn numbers(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Number(_) => found.push(path.to_owned()),
        Value::Array(items) => {
            let items = items.iter().take(MAX_ITEMS).enumerate();
            items.for_each(|(index, item)| numbers(item, &format!("{path}/{index}"), found));
        }
        Value::Object(fields) => {
            let count = if fields.len() > 100 { MAX_ITEMS } else { fields.len() };
            fields.iter().take(count).for_each(|(key, item)| numbers(item, &format!("{path}/{key}"), found));
        }
        _ => {}
    }
}

/// The JSON files of a folder whose numbers a model reads, except for tokenizers and lists of tensors.
fn configs(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            found.extend(configs(&path));
        } else if name.ends_with(".json") && !["tokenizer.json", "vocab.json", "expected.json"].contains(&name) {
            found.push(path);
        }
    }
    found.retain(|path| {
        !path.to_string_lossy().ends_with(".index.json") && !path.components().any(|part| part.as_os_str() == "lexicon")
    });
    found.sort();
    found
}

fn start(models: &Path) -> Engine {
    let settings = Settings { speculate: false, ..Settings::new(models, 1 << 30) };
    Engine::start(settings, Arc::new(TestClock::default())).unwrap()
}

/// Uses the model `m`. The error is that of the listing, of loading it, or of a short request.
async fn outcome(models: &Path) -> Result<(), String> {
    let engine = start(models);
    let info = engine.models().list().into_iter().find(|info| info.id == "m").ok_or("not listed")?;
    info.problem.map_or(Ok(()), Err)?;
    let reason = |error: LoadError| error.to_string();
    match info.kind {
        ModelKind::Text => {
            let model = engine.models().load("m").map_err(reason)?;
            let prompt = model.prompt(&[Message::new("user", "ab")]).map_err(|error| error.to_string())?;
            let generation = engine.submit(&model, greedy(prompt, 2)).map_err(|error| error.to_string())?;
            pieces(generation.deltas).await.map(drop).map_err(|error| error.to_string())
        }
        kind @ (ModelKind::Embedding | ModelKind::Reranker | ModelKind::Classifier) => {
            let model = engine.models().load_encoder("m", kind).map_err(reason)?;
            let limits = TokenizeLimits::default();
            let texts = model.encode(&["ab"], InputType::Unspecified, true, &limits);
            let texts = texts.map_err(|error| error.to_string())?.into_iter().map(|(text, _)| text).collect();
            let vectors = engine.embed(&model, 1, texts).map_err(|error| error.to_string())?.await;
            vectors.map_err(|error| error.to_string())?.map(drop).map_err(|error| error.to_string())
        }
        ModelKind::Transcription => transcribe(&engine).await,
        ModelKind::Speech => speak(&engine).await,
        ModelKind::Image => paint(&engine).await,
        ModelKind::Unknown => Err("unknown".to_owned()),
    }
}

async fn transcribe(engine: &Engine) -> Result<(), String> {
    let model = engine.models().load_model::<TranscriptionModel>("m").map_err(|error| error.to_string())?;
    let request = TranscriptionRequest {
        task: TranscriptionTask::Transcribe,
        language: Some("en".to_owned()),
        prompt: None,
        temperature: 0.0,
        words: true,
        seed: 0,
        tenant: 1,
    };
    let (windows, mut events) = engine.transcribe(&model, &request).map_err(|error| error.to_string())?;
    let speech = std::iter::once(0..1600).collect();
    assert!(windows.send(SpeechWindow { start: 0, samples: vec![0.1; 1600], speech }));
    drop(windows);
    while let Some(event) = events.next().await {
        event.map_err(|error| error.to_string())?;
    }
    Ok(())
}

async fn speak(engine: &Engine) -> Result<(), String> {
    let model = engine.models().load_model::<SpeechModel>("m").map_err(|error| error.to_string())?;
    let voices = vec![("af_heart".to_owned(), 1.0)];
    let request = SpeechRequest { text: "Ba.".to_owned(), voices, speed: 1.0, seed: 0, tenant: 1 };
    let mut parts = engine.speak(&model, &request).map_err(|error| error.to_string())?;
    while let Some(part) = parts.next().await {
        part.map_err(|error| error.to_string())?;
    }
    Ok(())
}

async fn paint(engine: &Engine) -> Result<(), String> {
    let model = engine.models().load_model::<ImageModel>("m").map_err(|error| error.to_string())?;
    let request = ImageRequest {
        prompt: "a".to_owned(),
        negative_prompt: None,
        size: model.default_size().map(|size| size.min(64)),
        steps: 1,
        guidance: 2.0,
        scheduler: None,
        seeds: vec![1],
        init_image: None,
        lora: Vec::new(),
        previews: 0,
        tenant: 1,
    };
    let mut events = engine.generate_images(&model, request).map_err(|error| error.to_string())?;
    while let Some(event) = events.next().await {
        event.map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Replaces each number of the configurations of the model `m`, one at a time.
async fn check(models: &Path, configs: &[PathBuf], values: &[&str]) {
    assert_eq!(outcome(models).await, Ok(()), "{}", models.display());
    for path in configs {
        let original = fs::read_to_string(path).unwrap();
        let Ok(whole) = serde_json::from_str::<Value>(&original) else { continue };
        let mut pointers = Vec::new();
        numbers(&whole, "", &mut pointers);
        for pointer in pointers {
            for value in values {
                let mut changed = whole.clone();
                *changed.pointer_mut(&pointer).unwrap() = json!("REPLACED");
                fs::write(path, changed.to_string().replace("\"REPLACED\"", value)).unwrap();
                if let Err(reason) = outcome(models).await {
                    let case = format!("{}: {pointer} is {value}: {reason}", path.display());
                    assert!(!reason.contains("panicked"), "{case}");
                }
            }
        }
        fs::write(path, original).unwrap();
    }
}

fn whisper(models: &Path) -> PathBuf {
    tiny_whisper::write(models, "m", true);
    let generation = json!({
        "suppress_tokens": [1, 2], "begin_suppress_tokens": [220, 256], "max_initial_timestamp_index": 50,
        "alignment_heads": [[1, 0], [1, 1]], "is_multilingual": true,
    });
    let path = models.join("m/generation_config.json");
    fs::write(&path, generation.to_string()).unwrap();
    path
}

#[tokio::test]
async fn the_latest_first_timestamp_of_a_whisper_model_is_one_of_a_window() {
    let dir = tempfile::tempdir().unwrap();
    let path = whisper(dir.path());
    for (value, is_valid) in [
        ("null", true),
        ("0", true),
        ("1500", true),
        ("1501", false),
        ("4294967295", false),
        ("-1", false),
        ("1e308", false),
        ("\"50\"", false),
    ] {
        fs::write(&path, format!(r#"{{"max_initial_timestamp_index": {value}}}"#)).unwrap();
        let expected = match is_valid {
            true => Ok(()),
            false => Err(format!(
                "generation_config.json: max_initial_timestamp_index is {}, it must be a number from 0 to 1500",
                serde_json::from_str::<Value>(value).unwrap()
            )),
        };
        let found =
            outcome(dir.path()).await.map_err(|error| error[error.find("generation_config").unwrap_or(0)..].to_owned());
        assert_eq!(found, expected, "{value}");
    }
}

/// The whole table takes minutes; see the next tests.
#[tokio::test]
async fn numbers_in_the_files_of_a_model_never_panic() {
    let dir = tempfile::tempdir().unwrap();
    tiny_kokoro::write(dir.path(), "m");
    check(dir.path(), &configs(&dir.path().join("m")), &["0", "4294967295"]).await;
    let dir = tempfile::tempdir().unwrap();
    huggingface_folder::model(dir.path(), "m", "llama-tied");
    check(dir.path(), &configs(&dir.path().join("m")), &["0", "4294967295"]).await;
}

#[tokio::test]
#[ignore = "takes minutes"]
async fn every_number_in_the_files_of_other_models_never_panics() {
    let dir = tempfile::tempdir().unwrap();
    whisper(dir.path());
    check(dir.path(), &configs(&dir.path().join("m")), &VALUES).await;
    let dir = tempfile::tempdir().unwrap();
    tiny_kokoro::write(dir.path(), "m");
    check(dir.path(), &configs(&dir.path().join("m")), &VALUES).await;
    for family in [
        "llama-tied",
        "gemma2",
        "gemma3",
        "gpt-oss",
        "mistral",
        "mixtral",
        "phi3",
        "phi3-window",
        "qwen2-window",
        "qwen3moe",
        "smollm3-window",
    ] {
        let dir = tempfile::tempdir().unwrap();
        let folder = huggingface_folder::model(dir.path(), "m", family);
        fs::write(folder.join("generation_config.json"), r#"{"eos_token_id": [31, 30], "bos_token_id": 30}"#).unwrap();
        check(dir.path(), &configs(&folder), &VALUES).await;
    }
    for encoder in ["bert-cls", "modernbert-mean", "nomic", "nomic-old", "rank-modernbert", "xlm-roberta"] {
        let dir = tempfile::tempdir().unwrap();
        copy_folder(&encoder_families::root().join(encoder), &dir.path().join("m"));
        check(dir.path(), &configs(&dir.path().join("m")), &VALUES).await;
    }
    let dir = tempfile::tempdir().unwrap();
    copy_folder(&classifier_families::root().join("nsfw-distilbert"), &dir.path().join("m"));
    check(dir.path(), &configs(&dir.path().join("m")), &VALUES).await;
    check_peak_memory();
}

#[tokio::test]
#[ignore = "takes minutes"]
async fn every_number_in_the_files_of_image_models_never_panics() {
    // The second one has only the files that differ from those of the first one.
    for parts in [&["sd1"][..], &["sd1", "lcm"], &["sd3"], &["flux"]] {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("m");
        parts.iter().for_each(|part| copy_folder(&fixtures().join(part), &folder));
        check(dir.path(), &configs(&folder), &VALUES).await;
    }
    check_peak_memory();
}

fn check_peak_memory() {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kilobytes: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kilobytes < 3 << 20, "{kilobytes} kB");
}

/// The numbers of a GGUF file, in every type that they may have.
#[tokio::test]
async fn numbers_in_a_gguf_header_never_panic() {
    const KEYS: [&str; 10] = [
        "llama.context_length",
        "llama.block_count",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.attention.head_count",
        "llama.attention.head_count_kv",
        "llama.rope.dimension_count",
        "llama.attention.layer_norm_rms_epsilon",
        "tokenizer.ggml.bos_token_id",
        "tokenizer.ggml.eos_token_id",
    ];
    let number = |kind: u32, bytes: &[u8]| [&kind.to_le_bytes(), bytes].concat();
    let values = [
        number(4, &0_u32.to_le_bytes()),
        number(4, &(1_u32 << 31).to_le_bytes()),
        number(4, &u32::MAX.to_le_bytes()),
        number(5, &(-1_i32).to_le_bytes()),
        number(10, &(1_u64 << 63).to_le_bytes()),
        number(10, &u64::MAX.to_le_bytes()),
        number(11, &i64::MIN.to_le_bytes()),
        number(12, &1e308_f64.to_le_bytes()),
        number(6, &1e-45_f32.to_le_bytes()),
    ];
    let whole = tiny_model::bytes(&TinyModel::default());
    for key in KEYS {
        let at = whole.windows(key.len()).position(|window| window == key.as_bytes()).unwrap() + key.len();
        for value in &values {
            let dir = tempfile::tempdir().unwrap();
            // The number and its type have four bytes each.
            let file = [&whole[..at], value, &whole[at + 8..]].concat();
            fs::write(dir.path().join("m.gguf"), file).unwrap();
            if let Err(reason) = outcome(dir.path()).await {
                assert!(!reason.contains("panicked"), "{key} is {value:?}: {reason}");
            }
        }
    }
}

#[tokio::test]
async fn a_lexicon_that_is_too_large_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    tiny_kokoro::write(dir.path(), "m");
    let lexicon = dir.path().join("m/lexicon/us_silver.json");
    fs::write(&lexicon, format!("{{{}}}", " ".repeat(8 << 20))).unwrap();
    let refused = outcome(dir.path()).await.unwrap_err();
    assert_eq!(refused, "lexicon/us_silver.json: the file has 8388610 bytes; the limit is 8388608");
    let words: Vec<String> = (0..250_001).map(|number| format!(r#""w{number}":"A""#)).collect();
    fs::write(&lexicon, format!("{{{}}}", words.join(","))).unwrap();
    let refused = outcome(dir.path()).await.unwrap_err();
    assert!(refused.contains("lexicon/us_silver.json: the lexicon has 250001 words; the limit is 250000"), "{refused}");
}
