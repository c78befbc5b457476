//! Compares every encoder family with sentence-transformers: tiny random models, with vectors and scores written by
//! `tests/fixtures/make_encoders_reference.py`. Some are also tested as GGUF files, written by `make_encoders_gguf.py`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use outpost_engine::{EncoderModel, Engine, InputType, ModelKind, PairOptions, Settings, TokenizeLimits, Tokenized};
use outpost_testing::fixtures::fixture;
use serde::Deserialize;

use crate::harness::TestClock;

#[derive(Deserialize)]
struct Cases {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    ranks: bool,
    dimensions: usize,
    #[serde(default)]
    limit: Option<usize>,
    #[serde(default)]
    dtype: Option<String>,
}

#[derive(Deserialize)]
struct Expected {
    rows: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Row {
    Text { prompt: Option<String>, text: String, ids: Vec<u32>, vector: Vec<f32> },
    Pair { query: String, document: String, instruction: Option<String>, ids: Vec<u32>, types: Vec<u32>, logit: f32 },
}

/// The tolerance. On CPUs with bf16 products, activations are rounded to bf16 as well.
fn tolerance(case: &Case) -> f32 {
    if case.dtype.as_deref() == Some("bfloat16") { 0.03 } else { 3e-6 }
}

pub fn root() -> PathBuf {
    fixture("encoders")
}

pub fn read<T: serde::de::DeserializeOwned>(path: &Path) -> T {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn cosine(one: &[f32], other: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(one, other) / (dot(one, one) * dot(other, other)).sqrt()
}

fn compute(engine: &Engine, model: &Arc<EncoderModel>, texts: Vec<Tokenized>) -> Vec<Vec<f32>> {
    engine.embed(model, 1, texts).unwrap().blocking_recv().unwrap().unwrap()
}

/// The tokens of a text with the prompt of this name, and whether the purpose of that name, if there is one, has the same prompt.
fn encode(model: &EncoderModel, prompt: Option<&str>, text: &str) -> (Tokenized, bool) {
    let input = match prompt {
        None => Some(InputType::Unspecified),
        Some("query") => Some(InputType::Query),
        Some("document" | "passage") => Some(InputType::Document),
        Some("Clustering") => Some(InputType::Clustering),
        Some(_) => None,
    };
    let limits = TokenizeLimits::default();
    let prompt = prompt.map_or("", |name| model.prompt(name).unwrap());
    let mut found = model.encode_with_prompt(&[text], prompt, true, &limits).unwrap().remove(0).0;
    let is_same = input.is_none_or(|input| model.encode(&[text], input, true, &limits).unwrap()[0].0 == found);
    model.truncate(&mut found, model.limit());
    (found, is_same)
}

/// Describes the differences from the expected values.
fn check(engine: &Engine, case: &Case) -> Vec<String> {
    let Expected { rows } = read(&root().join(&case.name).join("expected.json"));
    check_as(engine, &case.name, case, &rows)
}

/// The same for the model with this ID.
fn check_as(engine: &Engine, id: &str, case: &Case, rows: &[Row]) -> Vec<String> {
    let kind = if case.ranks { ModelKind::Reranker } else { ModelKind::Embedding };
    let model = match engine.models().load_encoder(id, kind) {
        Ok(model) => model,
        Err(error) => return vec![format!("{id}: {error}")],
    };
    let (mut wrong, mut texts) = (Vec::new(), Vec::new());
    if !case.ranks && model.dimensions() != case.dimensions || case.limit.is_some_and(|limit| model.limit() != limit) {
        wrong.push(format!("{id}: {} numbers, {} tokens", model.dimensions(), model.limit()));
    }
    for row in rows {
        let (name, expected, found) = match row {
            Row::Text { prompt, text, ids, .. } => {
                let (found, is_same) = encode(&model, prompt.as_deref(), text);
                if !is_same {
                    wrong.push(format!("{id}: the purpose {prompt:?} has another prompt"));
                }
                (text, Tokenized::new(ids.clone()), found)
            }
            Row::Pair { query, document, instruction, ids, types, .. } => {
                let options = PairOptions { instruction: instruction.as_deref(), truncate: true, max_document: None };
                let found = model
                    .encode_pairs(query, std::slice::from_ref(document), options, &TokenizeLimits::default())
                    .unwrap()
                    .remove(0)
                    .0;
                let second = types.iter().position(|kind| *kind == 1).unwrap_or(ids.len());
                (document, Tokenized { ids: ids.clone(), second }, found)
            }
        };
        if found != expected {
            wrong.push(format!("{id}, {name:?}: tokens {found:?} instead of {expected:?}"));
        }
        texts.push(expected);
    }
    let together = compute(engine, &model, texts.clone());
    for ((row, found), text) in rows.iter().zip(&together).zip(texts) {
        let (name, expected) = match row {
            Row::Text { text, vector, .. } => (text, vector.clone()),
            Row::Pair { document, logit, .. } => (document, vec![*logit]),
        };
        let alone = compute(engine, &model, vec![text]).remove(0);
        if alone != *found {
            wrong.push(format!("{id}, {name:?}: the vector depends on the other texts of the batch"));
        }
        // The engine normalizes vectors even if the model's files do not ask for it.
        let length = if case.ranks { 1. } else { expected.iter().map(|x| x * x).sum::<f32>().sqrt() };
        let far = |(a, b): (&f32, &f32)| (a - b / length).abs() / b.abs().max(1.);
        let far = found.iter().zip(&expected).map(far).fold(0., f32::max);
        if found.len() != expected.len() || far > tolerance(case) || far.is_nan() {
            let cosine = cosine(found, &expected);
            wrong.push(format!("{id}, {name:?}: {far} off, cosine {cosine}"));
        }
    }
    wrong
}

#[test]
fn every_family_matches_the_reference_vectors_and_scores() {
    let Cases { cases } = read(&root().join("cases.json"));
    let engine = Engine::start(Settings::new(root(), 1 << 30), Arc::new(TestClock::default())).unwrap();
    let wrong: Vec<String> = cases.iter().flat_map(|case| check(&engine, case)).collect();
    assert!(wrong.is_empty(), "{} differ\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn gguf_files_match_the_folders_they_were_converted_from() {
    let Cases { cases } = read(&root().join("cases.json"));
    let engine = Engine::start(Settings::new(root(), 1 << 30), Arc::new(TestClock::default())).unwrap();
    let (mut wrong, mut files) = (Vec::new(), 0);
    for case in cases {
        let id = format!("{}-gguf", case.name);
        if !root().join(&id).is_dir() {
            continue;
        }
        files += 1;
        // A GGUF file has no prompts and no limit besides the context.
        let limit = case.limit.unwrap_or(usize::MAX);
        let Expected { mut rows } = read(&root().join(&case.name).join("expected.json"));
        rows.retain(|row| match row {
            Row::Text { prompt, ids, .. } => prompt.is_none() && ids.len() < limit,
            Row::Pair { ids, .. } => ids.len() < limit,
        });
        assert!(rows.len() > 3, "{id}: {} rows", rows.len());
        // f16 matrices are multiplied without conversion.
        let case = Case { limit: None, dtype: None, ..case };
        wrong.extend(check_as(&engine, &id, &case, &rows));
    }
    assert_eq!(files, 7);
    assert!(wrong.is_empty(), "{} differ\n{}", wrong.len(), wrong.join("\n"));
}
