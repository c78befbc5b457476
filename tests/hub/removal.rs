//! `outpost models remove`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use outpost_testing::fixtures::fixture;
use tempfile::TempDir;

use crate::process::{self, ServerProcess};
use crate::repository::{failed, installed, succeeded};
use crate::tiny_model::{self, TinyModel};

fn folder(names: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    names.iter().for_each(|name| drop(tiny_model::write(&folder.path().join("models"), name, &TinyModel::default())));
    folder
}

fn remove(folder: &Path, name: &str) -> std::process::Output {
    process::run(folder, &["models", "remove", name])
}

#[test]
fn a_model_is_removed_and_a_running_server_notices() {
    let folder = folder(&["one", "two"]);
    let server = ServerProcess::start(folder.path(), &["--no-pull"]);
    let listed = || server.request(reqwest::Method::GET, "/v1/models", None).text().unwrap();
    assert!(listed().contains("\"one\""));
    let text = succeeded(remove(folder.path(), "one"));
    assert!(text.starts_with("one (") && text.contains("is removed"), "{text}");
    assert_eq!(installed(folder.path()), ["two"]);
    assert_eq!(fs::read_dir(folder.path().join("models/.pull")).unwrap().count(), 1, "only the lock is left");
    crate::wait::until(|| "the server notices", || !listed().contains("\"one\""));
    let error = failed(remove(folder.path(), "one"));
    assert!(error.contains("has no model 'one', so there is nothing to remove"), "{error}");
    succeeded(process::run(folder.path(), &["models", "rm", "two"]));
}

#[test]
fn what_is_no_model_is_not_removed() {
    let folder = folder(&["one"]);
    let models = folder.path().join("models");
    fs::create_dir(models.join("notes")).unwrap();
    fs::write(models.join("notes/text"), "x").unwrap();
    fs::create_dir(models.join("loras")).unwrap();
    assert!(failed(remove(folder.path(), "notes")).contains("notes is not a model; remove it yourself"));
    for name in ["../models", "one/", ".", "..", "", "loras", "one\n", "/etc"] {
        let error = failed(remove(folder.path(), name));
        assert!(error.contains("cannot be the name of a model"), "{name}: {error}");
    }
    assert!(models.join("one").exists() && models.join("notes/text").exists());
}

#[test]
fn links_are_removed_and_not_followed_and_files_are_models_too() {
    let folder = folder(&["one"]);
    let (models, elsewhere) = (folder.path().join("models"), folder.path().join("elsewhere"));
    fs::rename(models.join("one"), &elsewhere).unwrap();
    symlink(&elsewhere, models.join("one")).unwrap();
    succeeded(remove(folder.path(), "one"));
    assert!(!models.join("one").exists() && fs::read_dir(&elsewhere).unwrap().count() > 0);
    fs::write(models.join("single.gguf"), tiny_model::bytes(&TinyModel::default())).unwrap();
    succeeded(remove(folder.path(), "single"));
    assert!(installed(folder.path()).is_empty());
}

#[test]
fn a_derived_model_is_removed_without_its_model() {
    let folder = folder(&["base"]);
    let derived = folder.path().join("models/mario");
    fs::create_dir(&derived).unwrap();
    fs::write(derived.join("model.toml"), "from = 'base'\nsystem = 'You are Mario.'").unwrap();
    let text = succeeded(remove(folder.path(), "mario"));
    assert!(text.contains("the derived model mario is removed"), "{text}");
    assert!(!derived.exists());
    assert_eq!(installed(folder.path()), ["base"]);
}

#[test]
fn what_depends_on_the_model_is_named() {
    let folder = folder(&["base"]);
    let adapter = folder.path().join("models/tuned");
    fs::create_dir(&adapter).unwrap();
    let fixture = fixture("adapters/llama");
    fs::copy(fixture.join("adapter_model.safetensors"), adapter.join("adapter_model.safetensors")).unwrap();
    let config = fs::read_to_string(fixture.join("adapter_config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
    config["base_model_name_or_path"] = "base".into();
    fs::write(adapter.join("adapter_config.json"), config.to_string()).unwrap();
    let settings = folder.path().join("config.toml");
    fs::write(&settings, "[compute]\ndraft_model = [\"large=base\"]\n").unwrap();
    let mut command = process::command(folder.path(), &["models", "remove", "base"]);
    let text = succeeded(command.env("OUTPOST_CONFIG", &settings).output().unwrap());
    assert!(text.contains("config.toml, line 2: compute.draft_model names it"), "{text}");
    assert!(text.contains("Adapters that need it as their base model: tuned"), "{text}");
}
