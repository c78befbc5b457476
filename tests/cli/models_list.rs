//! `outpost models list`, and which models keep a start from pulling the starter models.

use std::fs;
use std::io::pipe;
use std::process::Stdio;

use crate::process::{ServerProcess, command, folder, output_text, run};
use crate::tiny_model::{self, TinyModel};

#[test]
fn files_and_upstream_models_are_listed() {
    let folder = tempfile::tempdir().unwrap();
    let models = folder.path().join("models");
    fs::create_dir_all(models.join("far")).unwrap();
    fs::write(models.join("far/upstream.toml"), "").unwrap();
    fs::write(models.join("tiny Q4.gguf"), tiny_model::bytes(&TinyModel::default())).unwrap();
    fs::write(models.join("catalog.toml"), "").unwrap();
    fs::write(models.join(".hidden.gguf"), "").unwrap();
    // A folder hides a file of its name.
    fs::write(models.join("far.gguf"), tiny_model::bytes(&TinyModel::default())).unwrap();
    // Files that are not models.
    fs::write(models.join("mmproj-tiny.gguf"), "GGUF").unwrap();
    fs::write(models.join("upper.GGUF"), "GGUF").unwrap();
    fs::write(models.join("failed.gguf"), "").unwrap();
    fs::create_dir(models.join("linked")).unwrap();
    std::os::unix::fs::symlink("../tiny Q4.gguf", models.join("linked/model.gguf")).unwrap();
    let listed = output_text(&run(folder.path(), &["models", "list"]));
    let row = |name: &str| listed.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
    assert!(row("tiny Q4 ").contains("other on disk"), "{listed}");
    assert!(row("far ").contains("upstream") && row("far ").contains("upstream.toml"), "{listed}");
    assert!(row("linked ").contains("other on disk"), "{listed}");
    assert!(row("upper ").contains("other on disk") && row("catalog").is_empty(), "{listed}");
    assert_eq!(row("mmproj-tiny.gguf  "), "mmproj-tiny.gguf  a vision projector", "{listed}");
    assert_eq!(row(".hidden.gguf  "), ".hidden.gguf      hidden file", "{listed}");
    assert_eq!(row("failed.gguf  "), "failed.gguf       the file is empty", "{listed}");
    assert_eq!(listed.lines().filter(|line| line.starts_with("far ")).count(), 1, "{listed}");
    let removed = run(folder.path(), &["models", "remove", "tiny Q4"]);
    assert!(removed.status.success() && !models.join("tiny Q4.gguf").exists(), "{}", output_text(&removed));
}

#[test]
fn a_start_with_a_model_file_pulls_nothing() {
    let folder = folder(&TinyModel::default());
    let models = folder.path().join("models");
    let model = fs::read_dir(&models).unwrap().next().unwrap().unwrap().path();
    let file = fs::read_dir(&model).unwrap().next().unwrap().unwrap().path();
    fs::rename(file, models.join("mine.gguf")).unwrap();
    fs::remove_dir_all(model).unwrap();
    let mut start = command(folder.path(), &["serve", "--listen", "127.0.0.1:0"]);
    // Otherwise, nothing is pulled at all.
    start.env_remove("OUTPOST_NO_PULL").env("OUTPOST_PIP", "/nonexistent").env("OUTPOST_NPM", "/nonexistent");
    let server = ServerProcess::start_command(folder.path(), start);
    assert!(server.startup_output.contains(" with 1 model "), "{}", server.startup_output);
}

#[test]
fn an_output_that_nobody_reads_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    let output = command(folder.path(), &["models", "list"]).stdout(writer).stderr(Stdio::piped()).output().unwrap();
    assert_eq!((output.status.code(), output_text(&output).as_str()), (Some(141), ""));
}
