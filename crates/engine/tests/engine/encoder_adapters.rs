//! LoRA adapters of embedding models: compared with peft and sentence-transformers, and served beside their bases. The
//! vectors are written by `tests/fixtures/make_encoder_adapters_reference.py`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use outpost_engine::{
    Devices, EncoderModel, Engine, InUse, InputType, LoadError, ModelKind, Settings, TokenizeLimits, Tokenized,
};
use outpost_testing::fixtures::{copy_folder, fixture};
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::encoder_families::{read, root as bases};
use crate::harness::TestClock;

#[derive(Deserialize)]
struct Cases {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    base: String,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    prompt: Option<String>,
    text: String,
    vector: Vec<f32>,
}

fn fixtures() -> PathBuf {
    fixture("encoder_adapters")
}

fn cases() -> Vec<Case> {
    read::<Cases>(&fixtures().join("cases.json")).cases
}

/// Adds an adapter of the fixtures to the models folder, with another base.
fn add_adapter(models: &Path, name: &str, id: &str, base: &str) {
    copy_folder(&fixtures().join(name), &models.join(id));
    let path = models.join(id).join("adapter_config.json");
    let mut config: Value = read(&path);
    config["base_model_name_or_path"] = json!(base);
    fs::write(path, config.to_string()).unwrap();
}

/// A models folder with these bases.
fn folder(names: &[&str]) -> TempDir {
    let models = tempfile::tempdir().unwrap();
    names.iter().for_each(|name| copy_folder(&bases().join(name), &models.path().join(name)));
    models
}

fn start(models: &Path, device: &str) -> Engine {
    let devices = Devices::select([(None, device.parse().unwrap())]).unwrap();
    Engine::start(Settings { devices, ..Settings::new(models, 1 << 30) }, Arc::new(TestClock::default())).unwrap()
}

fn load(engine: &Engine, id: &str) -> Arc<EncoderModel> {
    engine.models().load_encoder(id, ModelKind::Embedding).unwrap_or_else(|error| panic!("{id}: {error}"))
}

fn tokens(model: &EncoderModel, prompt: Option<&str>, text: &str) -> Tokenized {
    let input = match prompt {
        None => InputType::Unspecified,
        Some("query") => InputType::Query,
        Some(_) => InputType::Document,
    };
    model.encode(&[text], input, true, &TokenizeLimits::default()).unwrap().remove(0).0
}

fn embed(engine: &Engine, model: &Arc<EncoderModel>, texts: Vec<Tokenized>) -> Vec<Vec<f32>> {
    engine.embed(model, 1, texts).unwrap().blocking_recv().unwrap().unwrap()
}

fn difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0., f32::max)
}

/// Compares every adapter with the reference, over bases in both formats.
fn check(device: &str, tolerance: impl Fn(&Case, bool) -> f32) {
    let mut wrong = Vec::new();
    for case in cases() {
        let gguf = format!("{}-gguf", case.base);
        let files: Vec<_> = [(&case.base, false), (&gguf, true)].into_iter().collect();
        for (base, is_gguf) in files.into_iter().filter(|(base, _)| bases().join(base).is_dir()) {
            let models = folder(&[base]);
            add_adapter(models.path(), &case.name, "adapted", base);
            let engine = start(models.path(), device);
            let (model, plain) = (load(&engine, "adapted"), load(&engine, base));
            for Row { prompt, text, vector } in &case.rows {
                let text = tokens(&model, prompt.as_deref(), text);
                let found = difference(&embed(&engine, &model, vec![text.clone()])[0], vector);
                let without = difference(&embed(&engine, &plain, vec![text])[0], vector);
                println!("{:<18} {base:<14} {device}: {found:.1e}, base {without:.1e}", case.name);
                assert!(without > 0.03, "{}: the adapter changes the vectors", case.name);
                if found.is_nan() || found > tolerance(&case, is_gguf) {
                    wrong.push(format!("{} over {base}: {found}", case.name));
                }
            }
        }
    }
    assert_eq!(wrong, [""; 0]);
}

#[test]
fn adapters_match_peft() {
    // Inputs of BF16 weights are rounded to bf16 if the CPU multiplies such numbers. The matrices of an adapter are kept in
    // bf16 if those of its base are not floats of 32 bits; their fixtures have no more digits.
    check("cpu", |case, is_gguf| match case.base.as_str() {
        "nomic" | "qwen3" if !is_gguf => 0.03,
        _ => 1e-5,
    });
}

#[test]
fn adapters_match_peft_on_candle() {
    check("candle", |_, _| 1e-5);
}

/// A folder with two encoders, adapters of one of them, and adapters that cannot be used.
fn mixed() -> TempDir {
    let models = folder(&["bert-mean", "xlm-roberta", "rank-bert"]);
    for (name, id, base) in [
        ("bert-all", "all", "bert-mean"),
        ("bert-own-pooling", "own", "bert-mean"),
        ("bert-all", "misfit", "xlm-roberta"),
        ("bert-all", "of-reranker", "rank-bert"),
        ("modernbert-all", "other-family", "bert-mean"),
    ] {
        add_adapter(models.path(), name, id, base);
    }
    models
}

#[test]
fn an_adapter_is_an_embedding_model() {
    let models = mixed();
    let engine = start(models.path(), "cpu");
    let info = |id: &str| engine.models().find(id).unwrap();
    let (base, own) = (info("bert-mean"), info("own"));
    assert_eq!(
        (own.kind, own.base.as_deref(), own.problem.as_deref()),
        (ModelKind::Embedding, Some("bert-mean"), None)
    );
    assert_eq!(own.embedding_dimensions, base.embedding_dimensions);
    assert!(own.embedding_dimensions.is_some() && own.parameters > 0);
    let problem = info("of-reranker").problem.unwrap();
    assert!(problem.contains("rank-bert is not a chat or embedding model"), "{problem}");
    assert!(matches!(engine.models().load("own"), Err(LoadError::WrongKind { .. })));
    for (id, expected) in [
        ("misfit", "which does not fit the base model's"),
        ("other-family", "is for a module that the base model does not have"),
    ] {
        let Err(LoadError::Unusable { reason, .. }) = engine.models().load_encoder(id, ModelKind::Embedding) else {
            panic!("{id} is usable");
        };
        assert!(reason.contains(expected), "{reason}");
        assert_eq!(info(id).problem, Some(reason));
    }
}

#[test]
fn adapters_and_their_base_compute_together_what_each_computes_alone() {
    let models = mixed();
    let engine = start(models.path(), "cpu");
    let loaded = ["bert-mean", "all", "own", "xlm-roberta"].map(|id| load(&engine, id));
    let texts = ["Supplies for the outpost", "ice", "The ship leaves at dawn, and returns at night."];
    let requests: Vec<_> =
        loaded.iter().flat_map(|model| texts.map(|text| (model, tokens(model, None, text)))).collect();
    let alone = requests.iter().map(|(model, text)| embed(&engine, model, vec![text.clone()]).remove(0));
    let alone: Vec<_> = alone.collect();
    let together = requests.iter().map(|(model, text)| engine.embed(model, 1, vec![text.clone()]).unwrap());
    let together: Vec<_> = together.collect();
    let together = together.into_iter().map(|receiver| receiver.blocking_recv().unwrap().unwrap().remove(0));
    assert_eq!(together.collect::<Vec<_>>(), alone);
    let mut different = alone[..9].to_vec();
    different.sort_by(|one, other| one.partial_cmp(other).unwrap());
    different.dedup();
    assert_eq!(different.len(), 9, "the base and each adapter compute other vectors");
    let metrics = engine.metrics();
    let count = |id: &str| {
        let line = format!("outpost_prompt_tokens_total{{model=\"{id}\"}} ");
        metrics.lines().find_map(|metric| metric.strip_prefix(&line)).unwrap().parse::<u64>().unwrap()
    };
    let lengths = |model: &Arc<EncoderModel>| {
        requests
            .iter()
            .filter(|(one, _)| Arc::ptr_eq(one, model))
            .map(|(_, text)| 2 * text.ids.len() as u64)
            .sum::<u64>()
    };
    assert!(loaded.iter().all(|model| count(model.id()) == lengths(model)), "{metrics}");
}

#[test]
fn a_base_is_unloaded_after_its_adapters() {
    let models = mixed();
    let engine = start(models.path(), "cpu");
    let is_loaded = |id: &str| engine.models().find(id).unwrap().loaded;
    let used = load(&engine, "all");
    assert!(is_loaded("all") && is_loaded("bert-mean"));
    assert_eq!(engine.models().unload("bert-mean"), Err(InUse));
    drop(used);
    assert_eq!(engine.models().unload("all"), Ok(()));
    assert!(!is_loaded("all") && is_loaded("bert-mean"));
    drop(load(&engine, "own"));
    assert_eq!(engine.models().unload("bert-mean"), Ok(()));
    assert!(!is_loaded("own") && !is_loaded("bert-mean"));
    // A changed file is read again.
    let before = embed(&engine, &load(&engine, "all"), vec![Tokenized::new(vec![2, 5, 3])]);
    let path = models.path().join("all/adapter_config.json");
    let mut config: Value = read(&path);
    config["lora_alpha"] = json!(1);
    fs::write(&path, config.to_string()).unwrap();
    let after = embed(&engine, &load(&engine, "all"), vec![Tokenized::new(vec![2, 5, 3])]);
    assert_ne!(before, after);
}
