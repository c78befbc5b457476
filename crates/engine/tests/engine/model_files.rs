//! Files that operating systems, hubs and tools leave beside models: models work as without them, and what is ignored is said.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use outpost_engine::{
    Engine, InputType, ModelInfo, ModelKind, Settings, SpeechModel, TokenizeLimits, TranscriptionModel, ignored_files,
    installed_models,
};
use outpost_models::model_files::IgnoredFile;
use outpost_testing::fixtures::{copy_folder, fixture};
use outpost_testing::huggingface_folder;
use serde_json::json;

use crate::external_components::in_one_file;
use crate::harness::{TestClock, greedy, outputs, pieces};
use crate::image_generation::Rig;
use crate::tiny_adapter::TinyAdapter;
use crate::tiny_model::{self, TinyModel};
use crate::{encoder_families, tiny_kokoro, tiny_whisper};

/// What macOS writes beside a file, on a disk without its attributes. The first eight bytes, as the length of a header, are
/// 2,199,142,139,136.
fn apple_double() -> Vec<u8> {
    let mut bytes = b"\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X        ".to_vec();
    bytes.resize(100, 0);
    bytes
}

/// Adds what macOS, Synology's storage and Windows write beside the files of a folder, and in the folders below.
fn litter(folder: &Path) {
    let entries: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap()).collect();
    for entry in entries {
        let name = entry.file_name().into_string().unwrap();
        fs::write(folder.join(format!("._{name}")), apple_double()).unwrap();
        if entry.path().is_dir() {
            litter(&entry.path());
        }
    }
    fs::write(folder.join(".DS_Store"), b"\0\0\0\x01Bud1").unwrap();
    fs::write(folder.join("Thumbs.db"), "").unwrap();
    // Downloads that failed.
    for name in ["failed.gguf", "failed.safetensors", "failed.bin", "ggml-failed.bin"] {
        fs::write(folder.join(name), "").unwrap();
    }
    let thumbnails = folder.join("@eaDir");
    fs::create_dir(&thumbnails).unwrap();
    for name in ["model.gguf", "model.safetensors", "af_heart.bin", "model_index.json"] {
        fs::write(thumbnails.join(name), apple_double()).unwrap();
    }
}

fn start(models: &Path) -> Engine {
    Engine::start(Settings::new(models, 1 << 30), Arc::new(TestClock::default())).unwrap()
}

fn of_fixtures(name: &str) -> PathBuf {
    fixture(name)
}

/// A model of each kind that has no test of its own below.
fn write_models(models: &Path) {
    tiny_model::write(models, "tiny", &TinyModel::default());
    TinyAdapter::of_tiny(3).write(models, "adapter");
    huggingface_folder::model(models, "shards", "llama-tied");
    for encoder in ["bert-mean", "rank-xlm-roberta", "bert-mean-gguf"] {
        copy_folder(&encoder_families::root().join(encoder), &models.join(encoder));
    }
    tiny_whisper::write(models, "whisper", true);
    fs::create_dir(models.join("ggml")).unwrap();
    fs::copy(of_fixtures("whisper/ggml-q5_0.bin"), models.join("ggml/ggml-q5_0.bin")).unwrap();
    tiny_kokoro::write(models, "kokoro");
    fs::write(models.join("single.gguf"), tiny_model::bytes(&TinyModel::default())).unwrap();
}

/// Loads all of them; returns what some of them answer.
async fn answers(models: &Path) -> (Vec<String>, Vec<Vec<f32>>) {
    let engine = start(models);
    let (mut texts, mut vectors) = (Vec::new(), Vec::new());
    for id in ["tiny", "adapter", "shards", "single"] {
        let model = engine.models().load(id).unwrap();
        let ticket = engine.submit(&model, greedy(vec![1, 2, 3], 8)).unwrap();
        texts.push(outputs(&pieces(ticket.deltas).await.unwrap(), 1).remove(0).text);
    }
    for id in ["bert-mean", "bert-mean-gguf"] {
        let model = engine.models().load_encoder(id, ModelKind::Embedding).unwrap();
        let text =
            model.encode(&["hello"], InputType::Unspecified, true, &TokenizeLimits::default()).unwrap().remove(0);
        vectors.extend(engine.embed(&model, 1, vec![text.0]).unwrap().await.unwrap().unwrap());
    }
    engine.models().load_encoder("rank-xlm-roberta", ModelKind::Reranker).unwrap();
    engine.models().load_model::<TranscriptionModel>("whisper").unwrap();
    engine.models().load_model::<SpeechModel>("kokoro").unwrap();
    (texts, vectors)
}

#[tokio::test]
async fn models_of_all_kinds_work_beside_files_of_operating_systems() {
    let dir = tempfile::tempdir().unwrap();
    write_models(dir.path());
    let (listed, answered) = (installed_models(dir.path()), answers(dir.path()).await);
    // The windows of the file for whisper.cpp are too short to load it.
    assert!(listed.len() == 10 && listed.iter().all(|model| model.problem.is_none()), "{listed:?}");
    litter(dir.path());
    assert_eq!(installed_models(dir.path()), listed);
    assert_eq!(answers(dir.path()).await, answered);
}

#[test]
fn hidden_files_do_not_count_as_a_change() {
    let dir = tempfile::tempdir().unwrap();
    write_models(dir.path());
    let engine = start(dir.path());
    let before = engine.models().load("shards").unwrap();
    litter(dir.path());
    assert!(Arc::ptr_eq(&before, &engine.models().load("shards").unwrap()), "it is not loaded again");
}

#[test]
fn pipelines_work_beside_files_of_operating_systems() {
    let whole: fn(&Path) = |_| ();
    let one_file: fn(&Path) = |pipeline| in_one_file(pipeline, "sd1");
    let gguf: fn(&Path) = |pipeline| {
        let transformer = pipeline.join("transformer");
        fs::remove_file(transformer.join("diffusion_pytorch_model.safetensors")).unwrap();
        fs::copy(of_fixtures("pipelines/flux.gguf"), transformer.join("flux.gguf")).unwrap();
        fs::write(transformer.join("mmproj.gguf"), apple_double()).unwrap();
    };
    for (name, change) in [("sd1", whole), ("sd1", one_file), ("flux", gguf)] {
        let rig = Rig::with_files(name, |pipeline| {
            change(pipeline);
            litter(pipeline.parent().unwrap());
        });
        let listed = rig.engine.models().find("diffusion").unwrap();
        assert!(listed.problem.is_none() && listed.parameters > 10_000, "{listed:?}");
        let case = rig.facts["cases"]
            .as_array()
            .unwrap()
            .iter()
            .find(|case| case["transformer"].is_string() || (name == "sd1" && case["image"].is_null()));
        rig.check(name, case.unwrap(), 1., 8);
    }
}

#[test]
fn adapters_of_pipelines_work_beside_files_of_operating_systems() {
    let rig = Rig::with_files("sd1-lora", |pipeline| {
        let shared = pipeline.with_file_name("loras");
        fs::create_dir(&shared).unwrap();
        fs::copy(of_fixtures("pipelines/sd1.lora-peft.safetensors"), shared.join("Style.SAFETENSORS")).unwrap();
        litter(&shared);
    });
    let request = |name: &str| outpost_engine::ImageRequest {
        lora: vec![(name.to_owned(), 1.)],
        steps: 1,
        size: [16, 16],
        ..rig.request(&rig.facts["cases"][0])
    };
    assert_eq!(rig.generate(request("Style")).len(), 1);
    assert_eq!(rig.refusal(request("none")), "there is no adapter none; available: Style");
}

#[test]
fn an_adapter_works_beside_other_weights() {
    let dir = tempfile::tempdir().unwrap();
    tiny_model::write(dir.path(), "tiny", &TinyModel::default());
    TinyAdapter::of_tiny(3).write(dir.path(), "adapter");
    let adapter = dir.path().join("adapter");
    let copy = adapter.join("adapter_model (1).safetensors");
    fs::copy(adapter.join("adapter_model.safetensors"), &copy).unwrap();
    let other = ("adapter/adapter_model (1).safetensors", "adapter_model.safetensors is used");
    assert_eq!(as_text(&ignored(dir.path())), [other]);
    assert!(installed_models(dir.path()).iter().all(|model| model.problem.is_none()));
    start(dir.path()).models().load("adapter").unwrap();
}

#[test]
fn an_empty_file_alone_is_shown_as_a_damaged_model() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("failed.gguf"), "").unwrap();
    assert!(only(dir.path()).problem.is_some());
    fs::write(dir.path().join("mmproj.gguf"), "GGUF").unwrap();
    assert!(only(dir.path()).id == "failed", "beside a vision projector, too");
    fs::remove_file(dir.path().join("mmproj.gguf")).unwrap();
    fs::write(dir.path().join("whole.gguf"), tiny_model::bytes(&TinyModel::default())).unwrap();
    assert_eq!((only(dir.path()).id.as_str(), only(dir.path()).problem), ("whole", None));
    assert_eq!(as_text(&ignored(dir.path())), [("failed.gguf", "the file is empty")]);
}

#[test]
fn damaged_settings_of_generation_are_not_used() {
    let dir = tempfile::tempdir().unwrap();
    huggingface_folder::model(dir.path(), "folder", "llama-tied");
    tiny_whisper::write(dir.path(), "whisper", true);
    for name in ["folder", "whisper"] {
        fs::write(dir.path().join(name).join("generation_config.json"), "{").unwrap();
    }
    let engine = start(dir.path());
    assert!(installed_models(dir.path()).iter().all(|model| model.problem.is_none()));
    engine.models().load("folder").unwrap();
    engine.models().load_model::<TranscriptionModel>("whisper").unwrap();
}

#[test]
fn the_type_of_a_model_is_enough_without_its_architecture() {
    let dir = tempfile::tempdir().unwrap();
    huggingface_folder::model(dir.path(), "folder", "llama-tied");
    let config = dir.path().join("folder/config.json");
    let mut written: serde_json::Value = serde_json::from_slice(&fs::read(&config).unwrap()).unwrap();
    written.as_object_mut().unwrap().remove("architectures").unwrap();
    fs::write(&config, written.to_string()).unwrap();
    let listed = only(dir.path());
    assert_eq!((listed.problem, listed.architecture.as_str()), (None, "llama"));
    start(dir.path()).models().load("folder").unwrap();
}

#[test]
fn a_damaged_component_that_is_not_used_does_not_matter() {
    let rig = Rig::with_files("sd1", |pipeline| {
        for unused in ["safety_checker", "original"] {
            let folder = pipeline.join(unused);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("model.safetensors"), "version https://git-lfs").unwrap();
        }
    });
    let listed = rig.engine.models().find("diffusion").unwrap();
    assert!(listed.problem.is_none() && listed.parameters > 10_000, "{listed:?}");
}

/// The only model of a folder.
fn only(models: &Path) -> ModelInfo {
    let mut listed = installed_models(models);
    assert_eq!(listed.len(), 1, "{listed:?}");
    listed.remove(0)
}

/// The ignored files, as paths in the models folder with the reasons.
fn ignored(models: &Path) -> Vec<(String, String)> {
    let relative = |IgnoredFile { path, why }| (path.strip_prefix(models).unwrap().display().to_string(), why);
    let mut all: Vec<_> = ignored_files(models).into_iter().map(relative).collect();
    all.sort();
    all
}

fn as_text(rows: &[(String, String)]) -> Vec<(&str, &str)> {
    rows.iter().map(|(path, why)| (path.as_str(), why.as_str())).collect()
}

#[test]
fn a_vision_projector_is_no_second_model() {
    let dir = tempfile::tempdir().unwrap();
    tiny_model::write(dir.path(), "tiny", &TinyModel::default());
    let other = tiny_model::bytes(&TinyModel { blocks: 1, ..TinyModel::default() });
    for name in
        ["tiny/mmproj-tiny-f16.gguf", "tiny/Tiny.mmproj-Q8_0.GGUF", "mmproj-tiny.gguf", "tiny/tiny.imatrix.gguf"]
    {
        fs::write(dir.path().join(name), &other).unwrap();
    }
    assert_eq!((only(dir.path()).id.as_str(), only(dir.path()).problem), ("tiny", None));
    start(dir.path()).models().load("tiny").unwrap();
    let found = ignored(dir.path());
    let projector = "a vision projector";
    let expected = [
        ("mmproj-tiny.gguf", projector),
        ("tiny/Tiny.mmproj-Q8_0.GGUF", projector),
        ("tiny/mmproj-tiny-f16.gguf", projector),
        ("tiny/tiny.imatrix.gguf", "an importance matrix"),
    ];
    assert_eq!(as_text(&found), expected);
    // Without a model beside it, the folder says what it lacks.
    fs::remove_file(dir.path().join("tiny/tiny.gguf")).unwrap();
    fs::remove_file(dir.path().join("tiny/tiny.imatrix.gguf")).unwrap();
    let problem = only(dir.path()).problem.unwrap();
    assert!(problem.contains("mmproj") && problem.contains("no model beside it"), "{problem}");
}

#[test]
fn a_model_whose_name_ends_like_an_importance_matrix_is_one() {
    let dir = tempfile::tempdir().unwrap();
    tiny_model::write(dir.path(), "tiny-imatrix", &TinyModel::default());
    assert_eq!(only(dir.path()).problem, None);
}

#[test]
fn several_models_in_a_folder_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = tiny_model::write(dir.path(), "tiny", &TinyModel::default());
    fs::copy(&path, dir.path().join("tiny/copy.gguf")).unwrap();
    let problem = only(dir.path()).problem.unwrap();
    assert_eq!(problem, "the folder has 2 .gguf files; a model's folder must have exactly one: copy.gguf, tiny.gguf");
}

#[test]
fn a_single_file_is_used_rather_than_a_stale_index() {
    let dir = tempfile::tempdir().unwrap();
    let folder = huggingface_folder::model(dir.path(), "m", "llama");
    let whole = only(dir.path());
    let stale = json!({ "weight_map": { "model.embed_tokens.weight": "model-00001-of-00002.safetensors" } });
    fs::write(folder.join("model.safetensors.index.json"), stale.to_string()).unwrap();
    // Weights that are not this model's, and not readable.
    for name in ["consolidated.safetensors", "adapter_model.safetensors", "model-00002-of-00002.safetensors"] {
        fs::write(folder.join(name), apple_double()).unwrap();
    }
    fs::write(folder.join("pytorch_model.bin"), "").unwrap();
    fs::create_dir(folder.join("z.safetensors")).unwrap();
    let found = only(dir.path());
    assert_eq!((found.problem, found.bytes, found.parameters), (None, whole.bytes, whole.parameters));
    start(dir.path()).models().load("m").unwrap();
    let found = ignored(dir.path());
    let used = "model.safetensors is used";
    let expected = [
        ("m/adapter_model.safetensors", used),
        ("m/consolidated.safetensors", used),
        ("m/model-00002-of-00002.safetensors", used),
        ("m/z.safetensors", "a folder"),
    ];
    assert_eq!(as_text(&found), expected);
    // Any other name will do if no other file can be meant.
    fs::rename(folder.join("model.safetensors"), folder.join("Weights.SAFETENSORS")).unwrap();
    ["model.safetensors.index.json", "model-00002-of-00002.safetensors"]
        .iter()
        .for_each(|name| fs::remove_file(folder.join(name)).unwrap());
    assert_eq!(only(dir.path()).problem, None);
    start(dir.path()).models().load("m").unwrap();
}

#[test]
fn endings_in_upper_case_are_those_of_models() {
    let dir = tempfile::tempdir().unwrap();
    let path = tiny_model::write(dir.path(), "tiny", &TinyModel::default());
    fs::copy(&path, dir.path().join("Single.GGUF")).unwrap();
    fs::rename(&path, path.with_extension("GGUF")).unwrap();
    let ids: Vec<String> = installed_models(dir.path()).into_iter().map(|model| model.id).collect();
    assert_eq!(ids, ["Single", "tiny"]);
    let engine = start(dir.path());
    ids.iter().for_each(|id| drop(engine.models().load(id).unwrap()));
}

#[test]
fn a_pointer_of_git_lfs_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
    let folder = huggingface_folder::model(dir.path(), "folder", "llama");
    fs::write(folder.join("model.safetensors"), pointer).unwrap();
    fs::write(dir.path().join("file.gguf"), pointer).unwrap();
    for model in installed_models(dir.path()) {
        let problem = model.problem.unwrap();
        assert!(problem.contains("git lfs pull"), "{problem}");
    }
}
