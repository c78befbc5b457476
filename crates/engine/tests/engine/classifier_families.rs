//! Compares the classifiers of every family with transformers: tiny random models, with logits and scores written by
//! `tests/fixtures/make_classifiers_reference.py`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use outpost_engine::{Engine, ModelKind, Settings, TokenizeLimits, Tokenized};
use outpost_testing::fixtures::fixture;
use serde::Deserialize;

use crate::encoder_families::read;
use crate::harness::TestClock;

const TOLERANCE: f32 = 3e-6;

#[derive(Deserialize)]
struct Expected {
    labels: Vec<String>,
    limit: usize,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Row {
    Short {
        text: String,
        ids: Vec<u32>,
        logits: Vec<f32>,
        scores: Vec<f32>,
    },
    /// A text beyond the limit: the highest scores of its windows.
    Long {
        text: String,
        windows: Vec<Vec<u32>>,
        scores: Vec<f32>,
    },
}

pub fn root() -> PathBuf {
    fixture("classifiers")
}

fn assert_close(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= TOLERANCE * expected.abs().max(1.), "{what}: {found}, not {expected}");
    }
}

#[test]
fn every_family_matches_the_logits_and_scores_of_transformers() {
    let engine = Engine::start(Settings::new(root(), 1 << 30), Arc::new(TestClock::default())).unwrap();
    let names = ["toxic-bert", "text-moderation", "nsfw-distilbert", "hate-modernbert", "moods"];
    for name in names {
        let Expected { labels, limit, rows } = read(&root().join(name).join("expected.json"));
        let model = engine.models().load_encoder(name, ModelKind::Classifier).unwrap();
        let of_model = model.labels().unwrap();
        assert_eq!((&of_model.names, model.limit()), (&labels, limit), "{name}");
        let compute = |texts: Vec<Tokenized>| engine.embed(&model, 1, texts).unwrap().blocking_recv().unwrap().unwrap();
        for row in rows {
            let (Row::Short { text, .. } | Row::Long { text, .. }) = &row;
            let what = format!("{name}, {text:?}");
            let (tokens, complete) = model.encode_long(&[text], &TokenizeLimits::default()).unwrap().remove(0);
            assert!(complete, "{what}");
            let windows = model.windows(tokens);
            let ids: Vec<Vec<u32>> = windows.iter().map(|window| window.ids.clone()).collect();
            let logits = compute(windows);
            let scores = logits.iter().map(|logits| of_model.scores(logits));
            match row {
                Row::Short { ids: expected, logits: of_label, scores: expected_scores, .. } => {
                    assert_eq!(ids, [expected], "{what}");
                    assert_close(&logits[0], &of_label, &what);
                    scores.for_each(|scores| assert_close(&scores, &expected_scores, &what));
                }
                Row::Long { windows: expected, scores: highest, .. } => {
                    assert_eq!(ids, expected, "{what}");
                    let all: Vec<Vec<f32>> = scores.collect();
                    let found = (0..labels.len()).map(|at| all.iter().map(|scores| scores[at]).fold(0., f32::max));
                    assert_close(&found.collect::<Vec<_>>(), &highest, &what);
                }
            }
        }
    }
}

/// A copy of a fixture with a changed `config.json`; returns why it cannot be used.
fn problem(change: impl Fn(&mut serde_json::Value)) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("changed");
    std::fs::create_dir(&copy).unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(root().join("toxic-bert").join(file), copy.join(file)).unwrap();
    }
    let mut config: serde_json::Value = read(&copy.join("config.json"));
    change(&mut config);
    std::fs::write(copy.join("config.json"), config.to_string()).unwrap();
    let engine =
        Engine::start(Settings::new(folder.path().to_owned(), 1 << 30), Arc::new(TestClock::default())).unwrap();
    let info = engine.models().find("changed").unwrap();
    info.problem.or_else(|| engine.models().load_encoder("changed", info.kind).err().map(|error| error.to_string()))
}

#[test]
fn heads_that_are_not_supported_are_refused_with_the_reason() {
    assert_eq!(problem(|_| ()), None);
    let refused = problem(|config| config["problem_type"] = "regression".into()).unwrap();
    assert!(refused.contains("regression"), "{refused}");
    let refused = problem(|config| config["num_labels"] = 4000.into()).unwrap();
    assert!(refused.contains("4000 labels"), "{refused}");
    // The weights have six rows.
    let refused = problem(|config| config["num_labels"] = 7.into()).unwrap();
    assert!(refused.contains("classifier"), "{refused}");
}

/// Copies a fixture with the vocabulary of its tokenizer instead of `tokenizer.json`.
fn with_vocabulary(models: &Path, name: &str) {
    let copy = models.join(name);
    std::fs::create_dir(&copy).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(root().join(name).join(file), copy.join(file)).unwrap();
    }
    let tokenizer: serde_json::Value = read(&root().join(name).join("tokenizer.json"));
    let vocabulary = &tokenizer["model"]["vocab"];
    let Some(merges) = tokenizer["model"]["merges"].as_array() else {
        let mut words: Vec<(&String, u64)> =
            vocabulary.as_object().unwrap().iter().map(|(word, id)| (word, id.as_u64().unwrap())).collect();
        words.sort_by_key(|(_, id)| *id);
        let lines: Vec<&str> = words.iter().map(|(word, _)| word.as_str()).collect();
        return std::fs::write(copy.join("vocab.txt"), lines.join("\n")).unwrap();
    };
    let lines: Vec<String> =
        merges.iter().map(|pair| format!("{} {}\n", pair[0].as_str().unwrap(), pair[1].as_str().unwrap())).collect();
    std::fs::write(copy.join("vocab.json"), vocabulary.to_string()).unwrap();
    std::fs::write(copy.join("merges.txt"), format!("#version: 0.2\n{}", lines.concat())).unwrap();
}

#[test]
fn folders_with_a_vocabulary_instead_of_a_tokenizer_json_give_the_same_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["toxic-bert", "nsfw-distilbert", "text-moderation"];
    names.iter().for_each(|name| with_vocabulary(folder.path(), name));
    let start =
        || Engine::start(Settings::new(folder.path().to_owned(), 1 << 30), Arc::new(TestClock::default())).unwrap();
    let engine = start();
    for name in names {
        let Expected { rows, .. } = read(&root().join(name).join("expected.json"));
        let model = engine.models().load_encoder(name, ModelKind::Classifier).unwrap();
        for row in rows {
            let Row::Short { text, ids, .. } = row else { continue };
            let (tokens, _) = model.encode_long(&[&text], &TokenizeLimits::default()).unwrap().remove(0);
            assert_eq!(tokens.ids, ids, "{name}, {text:?}");
        }
    }
    let japanese = r#"{"tokenizer_class": "BertJapaneseTokenizer"}"#;
    std::fs::write(folder.path().join("toxic-bert/tokenizer_config.json"), japanese).unwrap();
    let refused = start().models().load_encoder("toxic-bert", ModelKind::Classifier).unwrap_err().to_string();
    assert!(refused.contains("BertJapaneseTokenizer is supported only with a tokenizer.json"), "{refused}");
}
