//! Split GGUF files: they are served like the whole ones.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use outpost_engine::{
    Engine, GenerationRequest, InputType, ModelInfo, ModelKind, Settings, TokenInfo, TokenizeLimits, ignored_files,
    installed_models, model_entries,
};
use outpost_testing::split_gguf::{self, names};

use crate::encoder_families;
use crate::harness::{TestClock, greedy, pieces, prompt};
use crate::tiny_model::{self, TinyModel};

/// With the tokens to fill in the middle, and a layer that drafts.
const DRAFTING: TinyModel = TinyModel {
    architecture: "qwen35",
    mtp: true,
    markers: &[("<|fim_prefix|>", 3), ("<|fim_suffix|>", 3), ("<|fim_middle|>", 3)],
    ..tiny_model::DEFAULT
};

/// An engine without speculative decoding.
fn start(models: &Path) -> Engine {
    let settings = Settings { speculate: false, ..Settings::new(models, 1 << 30) };
    Engine::start(settings, Arc::new(TestClock::default())).unwrap()
}

/// The only model of a folder.
fn only(models: &Path) -> ModelInfo {
    let mut listed = installed_models(models);
    assert_eq!(listed.len(), 1, "{listed:?}");
    listed.remove(0)
}

/// Writes a model in three parts to the folder `tiny`. The first part has no tensors.
fn write(models: &Path) -> Vec<PathBuf> {
    split_gguf::write(&models.join("tiny"), "tiny", &tiny_model::bytes(&TinyModel::default()), &[0, 5])
}

/// The tokens of a text, with the likeliest ones at each place.
async fn answer(engine: &Engine, id: &str) -> Vec<TokenInfo> {
    let model = engine.models().load(id).unwrap();
    let request = GenerationRequest { logprobs: Some(5), ..greedy(prompt(1, 40), 30) };
    let deltas = pieces(engine.submit(&model, request).unwrap().deltas).await.unwrap();
    deltas.into_iter().flat_map(|delta| delta.tokens).collect()
}

async fn vectors(engine: &Engine, id: &str) -> Vec<Vec<f32>> {
    let model = engine.models().load_encoder(id, ModelKind::Embedding).unwrap();
    let texts = model.encode(&["hello", "a longer text"], InputType::Unspecified, true, &TokenizeLimits::default());
    let texts = texts.unwrap().into_iter().map(|text| text.0).collect();
    engine.embed(&model, 1, texts).unwrap().await.unwrap().unwrap()
}

/// Writes a model whole, and in two and in three parts. Returns the IDs of the latter.
fn write_variants(models: &Path, id: &str, model: &TinyModel) -> [String; 2] {
    tiny_model::write(models, id, model);
    [&[7][..], &[0, 5]].map(|counts| {
        let split = format!("{id}-{}", counts.len() + 1);
        split_gguf::write(&models.join(&split), "Tiny-Q8_0", &tiny_model::bytes(model), counts);
        split
    })
}

#[tokio::test]
async fn a_split_chat_model_answers_like_the_whole_one() {
    let dir = tempfile::tempdir().unwrap();
    let splits = write_variants(dir.path(), "tiny", &TinyModel::default());
    let engine = start(dir.path());
    let fingerprint = |id: &str| engine.system_fingerprint(&engine.models().load(id).unwrap());
    let (whole, expected) = (engine.models().find("tiny").unwrap(), answer(&engine, "tiny").await);
    assert!(!expected.is_empty());
    for split in splits {
        assert_eq!(answer(&engine, &split).await, expected, "{split}");
        // It has the hash of the weights, which also identifies the prefix cache on disk.
        assert_eq!(fingerprint(&split), fingerprint("tiny"));
        let listed = engine.models().find(&split).unwrap();
        assert_eq!((listed.problem, listed.parameters), (None, whole.parameters));
        assert!(listed.bytes > whole.bytes, "the headers of all parts count");
    }
    assert!(ignored_files(dir.path()).is_empty());
}

#[tokio::test]
async fn a_split_model_drafts_and_fills_in_the_middle() {
    let dir = tempfile::tempdir().unwrap();
    let splits = write_variants(dir.path(), "tiny", &DRAFTING);
    let engine = Engine::start(Settings::new(dir.path(), 1 << 30), Arc::new(TestClock::default())).unwrap();
    let ids = |tokens: Vec<TokenInfo>| tokens.into_iter().map(|info| info.token.id).collect::<Vec<_>>();
    let expected = ids(answer(&engine, "tiny").await);
    for split in splits {
        assert_eq!(ids(answer(&engine, &split).await), expected, "{split}");
        let listed = engine.models().find(&split).unwrap();
        assert!(listed.problem.is_none() && listed.infills, "{listed:?}");
    }
}

#[tokio::test]
async fn split_embedding_and_reranking_models_give_the_same_numbers() {
    let dir = tempfile::tempdir().unwrap();
    for id in ["bert-mean-gguf", "rank-xlm-roberta-gguf"] {
        let whole = fs::read(encoder_families::root().join(id).join("model.gguf")).unwrap();
        fs::create_dir(dir.path().join(id)).unwrap();
        fs::write(dir.path().join(id).join("model.gguf"), &whole).unwrap();
        split_gguf::write(&dir.path().join(format!("{id}-split")), "model", &whole, &[4, 1]);
    }
    let engine = start(dir.path());
    assert_eq!(vectors(&engine, "bert-mean-gguf-split").await, vectors(&engine, "bert-mean-gguf").await);
    engine.models().load_encoder("rank-xlm-roberta-gguf-split", ModelKind::Reranker).unwrap();
}

#[tokio::test]
async fn parts_in_the_models_folder_are_a_model_without_their_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let whole = tiny_model::bytes(&TinyModel::default());
    let parts = split_gguf::write(dir.path(), "tiny", &whole, &[0, 5]);
    assert_eq!((only(dir.path()).id.as_str(), only(dir.path()).problem), ("tiny", None));
    assert_eq!(model_entries(dir.path(), "tiny"), parts);
    let engine = start(dir.path());
    let expected = answer(&engine, "tiny").await;
    let loaded = engine.models().load("tiny").unwrap();
    assert!(Arc::ptr_eq(&loaded, &engine.models().load("tiny").unwrap()), "it is not loaded again");
    // A whole file of the name takes precedence, and a folder over both.
    fs::write(dir.path().join("tiny.gguf"), &whole).unwrap();
    assert_eq!(model_entries(dir.path(), "tiny"), [dir.path().join("tiny.gguf")]);
    assert_eq!(only(dir.path()).bytes, whole.len() as u64);
    assert_eq!(answer(&engine, "tiny").await, expected);
    tiny_model::write(dir.path(), "tiny", &TinyModel::default());
    assert_eq!(model_entries(dir.path(), "tiny"), [dir.path().join("tiny")]);
    // Without the first part, the model says what it lacks.
    fs::remove_dir_all(dir.path().join("tiny")).unwrap();
    fs::remove_file(dir.path().join("tiny.gguf")).unwrap();
    fs::remove_file(&parts[0]).unwrap();
    let found = only(dir.path());
    assert_eq!(found.id, "tiny");
    assert!(found.problem.unwrap().contains("lacks 1 of its 3 parts (tiny-00001-of-00003.gguf)"));
}

#[test]
fn a_whole_file_is_used_rather_than_parts_and_parts_rather_than_an_importance_matrix() {
    let dir = tempfile::tempdir().unwrap();
    let parts = write(dir.path());
    let matrix = dir.path().join("tiny/tiny.imatrix.gguf");
    fs::copy(&parts[1], &matrix).unwrap();
    assert_eq!(only(dir.path()).problem, None);
    let reasons = || ignored_files(dir.path()).into_iter().map(|file| file.why).collect::<Vec<_>>();
    assert_eq!(reasons(), ["an importance matrix"]);
    fs::remove_file(&matrix).unwrap();
    tiny_model::write(dir.path(), "tiny", &TinyModel::default());
    assert_eq!(only(dir.path()).problem, None);
    assert_eq!(reasons(), ["part of a split file; tiny.gguf is used"; 3]);
}

#[test]
fn a_folder_without_exactly_one_complete_split_is_listed_with_the_problem() {
    let dir = tempfile::tempdir().unwrap();
    let parts = write(dir.path());
    for (missing, name) in parts.iter().zip(names("tiny", 3)) {
        let content = fs::read(missing).unwrap();
        fs::remove_file(missing).unwrap();
        let problem = only(dir.path()).problem.unwrap();
        assert!(problem.contains(&format!("parts ({name})")), "{problem}");
        assert!(start(dir.path()).models().load("tiny").is_err());
        fs::write(missing, content).unwrap();
    }
    assert_eq!(only(dir.path()).problem, None);
    split_gguf::write(&dir.path().join("tiny"), "other", &tiny_model::bytes(&TinyModel::default()), &[3]);
    let expected = "the folder has the parts of 2 split models; a model's folder must have those of exactly one: \
        other-00001-of-00002.gguf, tiny-00001-of-00003.gguf";
    assert_eq!(only(dir.path()).problem.unwrap(), expected);
}

#[tokio::test]
async fn a_replaced_part_loads_the_model_again() {
    let dir = tempfile::tempdir().unwrap();
    let parts = write(dir.path());
    let engine = start(dir.path());
    let (before, model) = (answer(&engine, "tiny").await, engine.models().load("tiny").unwrap());
    let fingerprint = engine.system_fingerprint(&model);
    let other = split_gguf::split(&tiny_model::bytes(&TinyModel { seed: 2, ..TinyModel::default() }), &[0, 5]);
    fs::write(&parts[2], &other[2]).unwrap();
    let file = fs::File::options().write(true).open(&parts[2]).unwrap();
    file.set_modified(file.metadata().unwrap().modified().unwrap() + Duration::from_secs(10)).unwrap();
    assert_ne!(answer(&engine, "tiny").await, before);
    // Blocks of the old weights in the prefix cache on disk are no longer found.
    assert_ne!(engine.system_fingerprint(&engine.models().load("tiny").unwrap()), fingerprint);
}
