//! Pipelines with components outside their own folder, compared with diffusers.

use std::fs;
use std::path::Path;

use outpost_engine::{ImageModel, LoadError, Precision};
use outpost_testing::fixtures::copy_folder;
use serde_json::{Value, json};

use crate::image_generation::{Rig, engine, fixtures};

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn write(path: &Path, json: &Value) {
    fs::write(path, json.to_string()).unwrap();
}

/// Changes a JSON file.
fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut changed = json(path);
    change(&mut changed);
    write(path, &changed);
}

/// Why the model `diffusion` cannot be used.
fn problem(models: &Path) -> String {
    let engine = engine(models, Precision::Full);
    let listed = engine.models().find("diffusion").unwrap().problem;
    match engine.models().load_model::<ImageModel>("diffusion").unwrap_err() {
        LoadError::Unusable { reason, .. } => {
            assert!(listed.is_none_or(|listed| listed == reason), "the listing gives another reason");
            reason
        }
        other => panic!("{other}"),
    }
}

/// The text encoder is an installed model.
fn with_installed_text_encoder(models: &Path) {
    let (pipeline, reader) = (models.join("diffusion"), models.join("reader"));
    copy_folder(&pipeline.join("tokenizer"), &reader);
    copy_folder(&pipeline.join("text_encoder"), &reader);
    ["tokenizer", "text_encoder"].iter().for_each(|component| fs::remove_dir_all(pipeline.join(component)).unwrap());
    edit(&reader.join("config.json"), |config| {
        config.as_object_mut().unwrap().remove("use_attention_mask");
    });
    edit(&reader.join("tokenizer_config.json"), |config| config["model_max_length"] = json!(64));
    edit(&pipeline.join("model_index.json"), |index| {
        index["text_encoder"] = json!(["outpost", "reader"]);
        index["tokenizer"] = json!(["outpost", "reader"]);
        index["_use_attention_mask"] = json!(true);
        index["_max_length"] = json!(32);
    });
}

#[test]
fn a_pipeline_with_bert_as_text_encoder_matches_diffusers() {
    let rig = Rig::with_files("bert", |_| {});
    rig.facts["cases"].as_array().unwrap().iter().for_each(|case| rig.check("bert", case, 1., 8));
}

#[test]
fn an_installed_model_can_be_the_text_encoder() {
    let rig = Rig::with_files("bert", |pipeline| with_installed_text_encoder(pipeline.parent().unwrap()));
    assert!(rig.engine.models().find("reader").unwrap().problem.is_none(), "it is a model of its own, too");
    for case in rig.facts["cases"].as_array().unwrap().iter().take(3) {
        rig.check("bert", case, 1., 8);
    }
}

#[test]
fn a_missing_text_encoder_is_named() {
    let dir = tempfile::tempdir().unwrap();
    copy_folder(&fixtures().join("bert"), &dir.path().join("diffusion"));
    with_installed_text_encoder(dir.path());
    fs::rename(dir.path().join("reader"), dir.path().join("other")).unwrap();
    let missing = problem(dir.path());
    assert!(missing.contains("text encoder is the model reader, which is not installed"), "{missing}");
    let index = dir.path().join("diffusion/model_index.json");
    for path in ["../reader", "/reader", "", ".", "a\\b"] {
        edit(&index, |index| index["text_encoder"] = json!(["outpost", path]));
        let odd = problem(dir.path());
        assert!(odd.contains("not a valid model name"), "{odd}");
    }
    edit(&index, |index| index["text_encoder"] = json!(["transformers", "T5EncoderModel"]));
    let other = problem(dir.path());
    assert!(other.contains("T5EncoderModel; supported: CLIPTextModel, BertModel"), "{other}");
}

#[test]
fn a_newly_installed_text_encoder_is_found() {
    let dir = tempfile::tempdir().unwrap();
    copy_folder(&fixtures().join("bert"), &dir.path().join("diffusion"));
    with_installed_text_encoder(dir.path());
    fs::rename(dir.path().join("reader"), dir.path().join("other")).unwrap();
    let clock = std::sync::Arc::new(crate::harness::TestClock::default());
    let settings = outpost_engine::Settings::new(dir.path(), 1 << 30);
    let engine = outpost_engine::Engine::start(settings, clock.clone()).unwrap();
    let problem = || engine.models().list().into_iter().find(|model| model.id == "diffusion").unwrap().problem;
    assert!(problem().is_some());
    fs::rename(dir.path().join("other"), dir.path().join("reader")).unwrap();
    clock.advance(std::time::Duration::from_secs(2));
    assert_eq!(problem(), None);
}

/// The pipeline is a single file, with component configs next to it.
pub fn in_one_file(pipeline: &Path, name: &str) {
    fs::remove_file(pipeline.join("model_index.json")).unwrap();
    for component in fs::read_dir(pipeline).unwrap() {
        for file in fs::read_dir(component.unwrap().path()).unwrap() {
            let path = file.unwrap().path();
            if path.extension().is_some_and(|one| one == "safetensors") {
                fs::remove_file(path).unwrap();
            }
        }
    }
    fs::copy(fixtures().join(format!("{name}.safetensors")), pipeline.join("any-name.safetensors")).unwrap();
}

#[test]
fn a_single_file_matches_the_folder() {
    for name in ["sd1", "sdxl"] {
        let rig = Rig::with_files(name, |pipeline| in_one_file(pipeline, name));
        let listed = rig.engine.models().find("diffusion").unwrap();
        assert_eq!((listed.format, listed.problem), ("safetensors", None));
        assert!(listed.parameters > 100_000 && listed.bytes > 300_000, "{} of {}", listed.parameters, listed.bytes);
        for case in rig.facts["cases"].as_array().unwrap() {
            rig.check(name, case, 1., 8);
        }
    }
}

#[test]
fn a_single_file_can_be_in_the_models_folder() {
    let rig = Rig::with_files("sd1", |pipeline| {
        in_one_file(pipeline, "sd1");
        fs::rename(pipeline.join("any-name.safetensors"), pipeline.with_extension("safetensors")).unwrap();
    });
    rig.check("sd1", &rig.facts["cases"][1], 1., 8);
}

#[test]
fn a_single_file_uses_the_tokenizer_of_another_pipeline() {
    let rig = Rig::with_files("sdxl", |pipeline| {
        in_one_file(pipeline, "sdxl");
        ["tokenizer", "tokenizer_2"].iter().for_each(|component| fs::remove_dir_all(pipeline.join(component)).unwrap());
        copy_folder(&fixtures().join("bert"), &pipeline.with_file_name("another"));
        copy_folder(&fixtures().join("sd1"), &pipeline.with_file_name("other"));
    });
    rig.check("sdxl", &rig.facts["cases"][0], 1., 8);
}

#[test]
fn a_single_file_without_a_tokenizer_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let pipeline = dir.path().join("diffusion");
    copy_folder(&fixtures().join("sd1"), &pipeline);
    in_one_file(&pipeline, "sd1");
    fs::remove_dir_all(pipeline.join("tokenizer")).unwrap();
    copy_folder(&fixtures().join("bert"), &dir.path().join("other"));
    let problem = problem(dir.path());
    assert!(problem.contains("put a CLIP tokenizer (vocab.json and merges.txt) into diffusion/tokenizer"), "{problem}");
}

#[test]
fn files_that_are_not_checkpoints_are_refused() {
    let refused = |name: &str| {
        let dir = tempfile::tempdir().unwrap();
        fs::copy(fixtures().join(name), dir.path().join("diffusion.safetensors")).unwrap();
        problem(dir.path())
    };
    let lora = refused("sd1.lora-kohya.safetensors");
    assert!(lora.contains("not a Stable Diffusion checkpoint"), "{lora}");
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("diffusion.safetensors"), b"nothing of that kind").unwrap();
    let junk = problem(dir.path());
    assert!(junk.contains("diffusion.safetensors"), "{junk}");
}
