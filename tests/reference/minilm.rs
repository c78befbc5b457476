//! Compares all-MiniLM-L6-v2 with sentence-transformers on 200 texts of many lengths and languages, which
//! `tests/fixtures/make_minilm_reference.py` wrote.

use std::sync::Arc;

use half::f16;
use outpost::app::SystemClockRng;
use outpost::engine::{EncoderModel, Engine, InputType, ModelKind, Precision, Settings, TokenizeLimits, Tokenized};
use serde::Deserialize;

use crate::starter;

const MODEL: &str = "all-minilm-l6-v2";

#[derive(Deserialize)]
struct Reference {
    dimensions: usize,
    texts: Vec<String>,
    /// The maximum number of tokens per text in the reference.
    tokens: Vec<usize>,
    /// Of short texts.
    ids: Vec<Option<Vec<u32>>>,
}

fn reference() -> (Reference, Vec<Vec<f64>>) {
    let reference: Reference = serde_json::from_str(include_str!("../fixtures/minilm_reference.json")).unwrap();
    let bytes = include_bytes!("../fixtures/minilm_reference.f16").as_chunks::<2>().0;
    let numbers: Vec<f64> = bytes.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f64()).collect();
    let vectors = numbers.chunks(reference.dimensions).map(<[f64]>::to_vec).collect();
    (reference, vectors)
}

fn load(precision: Precision) -> (Engine, Arc<EncoderModel>) {
    let mut settings = Settings::new(starter::models(), 2 << 30);
    settings.threads = 2;
    settings.precisions.models.insert(MODEL.to_owned(), precision);
    let engine = Engine::start(settings, Arc::new(SystemClockRng::new())).unwrap();
    let model = engine.models().load_encoder(MODEL, ModelKind::Embedding).unwrap();
    (engine, model)
}

fn cosine(vector: &[f32], reference_vector: &[f64]) -> f64 {
    let dot: f64 = vector.iter().zip(reference_vector).map(|(a, b)| f64::from(*a) * b).sum();
    let length = |sum: f64| sum.sqrt();
    dot / length(vector.iter().map(|x| f64::from(*x).powi(2)).sum())
        / length(reference_vector.iter().map(|x| x * x).sum())
}

#[test]
fn minilm_vectors_match_the_reference() {
    let (reference, expected) = reference();
    // The bounds of bf16 and int8 are slightly below the measured minimum, and at least the required one.
    for (precision, least) in [(Precision::Full, 0.9999), (Precision::Bf16, 0.9998), (Precision::Int8, 0.997)] {
        let (engine, model) = load(precision);
        let tokenise = |text: &String| {
            let mut text =
                model.encode(&[text], InputType::Unspecified, true, &TokenizeLimits::default()).unwrap().remove(0).0;
            model.truncate(&mut text, model.limit());
            text
        };
        let texts: Vec<Tokenized> = reference.texts.iter().map(tokenise).collect();
        for ((text, count), ids) in texts.iter().zip(&reference.tokens).zip(&reference.ids) {
            assert_eq!(text.ids.len(), *count);
            assert!(ids.as_ref().is_none_or(|ids| *ids == text.ids), "{text:?} instead of {ids:?}");
        }
        let found = engine.embed(&model, 1, texts).unwrap().blocking_recv().unwrap().unwrap();
        let cosines = found.iter().zip(&expected).map(|(found, expected)| cosine(found, expected));
        let smallest = cosines.fold(f64::INFINITY, f64::min);
        eprintln!("{precision:?}: the minimum cosine is {smallest}");
        assert!(smallest >= least, "{precision:?}: {smallest}");
    }
}
