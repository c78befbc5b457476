//! Compares images of small Stable Diffusion 3 and FLUX pipelines with diffusers.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use outpost_engine::{Engine, ImageModel, ImageRequest, Settings};
use outpost_testing::fixtures::copy_folder;
use serde_json::{Value, json};

use crate::harness::TestClock;
use crate::image_generation::{Rig, fixtures};

fn change(path: &Path, edit: impl Fn(&mut Value)) {
    let mut json: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    edit(&mut json);
    fs::write(path, json.to_string()).unwrap();
}

/// Applies a case's settings that belong to the model rather than to a request.
fn apply_case_settings(folder: &Path, case: &Value, long: &str) {
    let mut scheduler = case["scheduler_config"].clone();
    scheduler["_class_name"] = case["scheduler_class"].clone();
    fs::write(folder.join("scheduler/scheduler_config.json"), scheduler.to_string()).unwrap();
    if let Some(length) = case["max_sequence_length"].as_u64() {
        change(&folder.join(long).join("tokenizer_config.json"), |config| config["model_max_length"] = length.into());
    }
    for component in case["without"].as_array().into_iter().flatten() {
        let component = component.as_str().unwrap();
        fs::remove_dir_all(folder.join(component)).unwrap();
        change(&folder.join("model_index.json"), |index| index[component] = json!([null, null]));
    }
    if let Some(file) = case["transformer"].as_str() {
        let transformer = folder.join("transformer");
        fs::remove_file(transformer.join("diffusion_pytorch_model.safetensors")).unwrap();
        fs::copy(fixtures().join(file), transformer.join(file)).unwrap();
    }
}

/// `long`: the folder of the T5 tokenizer.
fn check(name: &str, long: &str) {
    let facts = Rig::with_files(name, |_| {}).facts;
    let cases = facts["cases"].as_array().unwrap();
    assert!(cases.len() > 1);
    // FLUX's true CFG is not part of a request.
    for case in cases.iter().filter(|case| name != "flux" || case["name"] != "negative") {
        let rig = Rig::with_files(name, |folder| apply_case_settings(folder, case, long));
        let size: Vec<usize> = serde_json::from_value(facts["default_size"].clone()).unwrap();
        assert_eq!(rig.model.default_size().to_vec(), size, "{name}");
        rig.check(name, case, 1., 8);
    }
}

#[test]
fn stable_diffusion_3_matches_diffusers() {
    check("sd3", "tokenizer_3");
}

#[test]
fn stable_diffusion_35_matches_diffusers() {
    check("sd35", "tokenizer_3");
}

#[test]
fn flux_matches_diffusers() {
    check("flux", "tokenizer_2");
}

#[test]
fn a_distilled_flux_matches_diffusers() {
    check("flux-schnell", "tokenizer_2");
}

#[test]
fn defaults_depend_on_the_family() {
    let defaults = |name: &str| {
        let model = Rig::with_files(name, |_| {}).model;
        (model.default_steps(), model.default_guidance())
    };
    assert_eq!(defaults("sd3"), (28, 7.));
    assert_eq!(defaults("flux"), (28, 3.5));
    assert_eq!(defaults("flux-schnell"), (4, 0.));
}

/// Why FLUX refuses a request after this change.
fn refused(change: impl Fn(&mut ImageRequest)) -> String {
    let rig = Rig::with_files("flux", |_| {});
    let mut request = rig.request(&rig.facts["cases"][0]);
    change(&mut request);
    rig.refusal(request)
}

#[test]
fn parameters_that_flux_does_not_support_are_refused() {
    let negative = refused(|request| request.negative_prompt = Some("blurry".to_owned()));
    assert!(negative.contains("does not support a negative prompt"), "{negative}");
    let odd = refused(|request| request.size = [52, 48]);
    assert!(odd.contains("multiples of 8"), "{odd}");
    let scheduler = refused(|request| request.scheduler = Some("euler".parse().unwrap()));
    assert!(scheduler.contains("flow-matching"), "{scheduler}");
}

/// Why a FLUX folder is not opened after this change.
fn broken(change: impl FnOnce(&Path)) -> String {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("diffusion");
    copy_folder(&fixtures().join("flux"), &folder);
    change(&folder);
    let engine = Engine::start(Settings::new(dir.path(), 1 << 30), Arc::new(TestClock::default())).unwrap();
    engine.models().load_model::<ImageModel>("diffusion").unwrap_err().to_string()
}

#[test]
fn incompatible_components_are_named() {
    let index = |folder: &Path, key: &'static str, value: Value| {
        change(&folder.join("model_index.json"), |index| index[key] = value.clone());
    };
    let t5 = broken(|folder| index(folder, "text_encoder_2", json!([null, null])));
    assert!(t5.contains("names no text_encoder_2"), "{t5}");
    let class = broken(|folder| index(folder, "_class_name", json!("FluxFillPipeline")));
    assert!(class.contains("FluxFillPipeline") && class.contains("FluxInpaintPipeline"), "{class}");
    let scheduler = broken(|folder| {
        change(&folder.join("scheduler/scheduler_config.json"), |config| {
            config["_class_name"] = json!("DDIMScheduler")
        });
    });
    assert!(scheduler.contains("ddim") && scheduler.contains("FluxPipeline"), "{scheduler}");
    let words = broken(|folder| {
        change(&folder.join("transformer/config.json"), |config| config["joint_attention_dim"] = json!(65));
    });
    assert!(words.contains("width 65"), "{words}");
    let files = broken(|folder| {
        for name in ["one.gguf", "two.gguf"] {
            fs::copy(fixtures().join("flux.gguf"), folder.join("transformer").join(name)).unwrap();
        }
    });
    assert!(
        files.contains("transformer/: the folder has 2 .gguf files") && files.contains("one.gguf, two.gguf"),
        "{files}"
    );
}
