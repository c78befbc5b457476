//! `--verify`, `--max-size`, `--token-file`, and models of Whisper.

use std::fs;

use outpost_testing::fixtures::fixture;
use serde_json::Value;

use crate::process;
use crate::repository::*;
use crate::tiny_model::{self, TinyModel};

fn folder_of(repository: &Repository, name: &str) -> std::path::PathBuf {
    repository.models().join(name)
}

#[test]
fn installed_files_are_verified_on_demand() {
    let repository = Repository::with(&[("tiny-F32.gguf", &tiny())]);
    repository.pull_ok(&["hf:u/tiny-GGUF"]);
    let text = repository.pull_ok(&["hf:u/tiny-GGUF", "--verify"]);
    assert!(text.contains("installed already, and every file has the recorded hash"), "{text}");
    let requests = repository.hub.requests().len();
    assert!(repository.pull_ok(&["tiny-f32", "--verify"]).contains("every file has the recorded hash"));
    assert_eq!(repository.hub.requests().len(), requests, "the name alone needs no network");

    let file = folder_of(&repository, "tiny-f32").join("tiny-f32.gguf");
    let mut damaged = read(&file);
    *damaged.last_mut().unwrap() ^= 1;
    fs::write(&file, damaged).unwrap();
    for name in ["tiny-f32", "hf:u/tiny-GGUF"] {
        let error = repository.pull_error(&[name, "--verify"]);
        assert!(error.contains("tiny-f32.gguf of tiny-f32 has the sha256") && error.contains("--force"), "{error}");
    }
    assert!(repository.pull_ok(&["hf:u/tiny-GGUF"]).contains("installed already"));
    repository.pull_ok(&["hf:u/tiny-GGUF", "--force", "--name", "again"]);
}

#[test]
fn a_download_larger_than_the_limit_is_refused() {
    let repository = Repository::with(&[("tiny-F32.gguf", &tiny())]);
    let error = repository.pull_error(&["hf:u/tiny-GGUF", "--max-size", "1KB"]);
    assert!(error.contains("to download, more than --max-size, 1 kB"), "{error}");
    assert!(repository.installed().is_empty());
    assert!(repository.pull_ok(&["hf:u/tiny-GGUF", "--max-size", "1KB", "--list"]).contains("* F32"));
    repository.pull_ok(&["hf:u/tiny-GGUF", "--max-size", "1GB"]);
}

#[test]
fn a_token_is_read_from_a_file() {
    let repository = Repository::with(&[("tiny-F32.gguf", &tiny())]);
    let code = vec![("X-Error-Code", GATED.to_owned())];
    repository.hub.guard(&file_path("tiny-F32.gguf"), "Bearer hf_good", (401, code));
    let file = repository.folder.path().join("token");
    let file_name = file.to_str().unwrap();
    assert!(repository.pull_error(&["hf:u/tiny-GGUF", "--token-file", file_name]).contains("--token-file"));
    fs::write(&file, "\n").unwrap();
    assert!(repository.pull_error(&["hf:u/tiny-GGUF", "--token-file", file_name]).contains("it has no token"));
    fs::write(&file, "hf_good\n").unwrap();
    let output = repository.command(&["hf:u/tiny-GGUF", "--token-file", file_name]).env("HF_TOKEN", "hf_bad").output();
    succeeded(output.unwrap());
    assert!(repository.cdn.requests().iter().all(|it| it.header("authorization").is_none()));
}

/// A model of whisper.cpp for windows of 30 seconds: the fixture with more positions, which are zero.
fn whisper() -> Vec<u8> {
    const POSITIONS: usize = 1500;
    let mut file = read(&fixture("whisper/ggml-q5_0.bin"));
    let number = |file: &[u8], at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    let name = b"encoder.positional_embedding";
    let at = file.windows(name.len()).position(|window| window == name).unwrap();
    let (width, positions) = (number(&file, at - 8), number(&file, at - 4));
    let more = vec![0; (POSITIONS - positions) * width * size_of::<f32>()];
    file.splice(at + name.len()..at + name.len(), more);
    // The number of positions, in the tensor's shape and in the header.
    for place in [at - 4, 8] {
        file[place..place + 4].copy_from_slice(&u32::try_from(POSITIONS).unwrap().to_le_bytes());
    }
    file
}

#[test]
fn files_of_whisper_cpp_are_pulled() {
    let whisper = whisper();
    let repository = Repository::with(&[("ggml-base.en.bin", &whisper), ("ggml-tiny.bin", &whisper)]);
    let error = repository.pull_error(&["hf:u/tiny-GGUF"]);
    assert!(error.contains("several models of Whisper; name one") && error.contains("ggml-tiny.bin"), "{error}");
    let text = repository.pull_ok(&["hf:u/tiny-GGUF:ggml-base.en.bin"]);
    assert!(text.contains("* ggml-base.en.bin") && text.contains("whisper"), "{text}");
    assert_eq!(read(&folder_of(&repository, "ggml-base.en").join("ggml-base.en.bin")), whisper);
    let repository = Repository::with(&[("ggml-cut.bin", &whisper[..whisper.len() - 7]), ("x.bin", b"x")]);
    let error = repository.pull_error(&["hf:u/tiny-GGUF"]);
    assert!(error.contains("cannot be served") && error.contains("truncated"), "{error}");
    assert!(repository.installed().is_empty());
    let repository = Repository::with(&[("ggml-old.bin", b"not a model")]);
    assert!(repository.pull_error(&["hf:u/tiny-GGUF"]).contains("cannot be served"));
}

/// candle on the CPU stands for a GPU: it keeps a second copy of quantized weights.
#[test]
fn the_memory_is_that_of_the_device() {
    let quantized = tiny_model::bytes(&TinyModel { quantized: true, width: 256, ..TinyModel::default() });
    let repository = Repository::with(&[("tiny-Q8_0.gguf", &quantized)]);
    let memory = |device: &str| {
        let listed = repository.pull_ok(&["hf:u/tiny-GGUF", "--list", "--json", "--device", device]);
        serde_json::from_str::<Value>(&listed).unwrap()["memory_bytes"].as_u64().unwrap()
    };
    assert_ne!(memory("cpu"), memory("candle"));
    let error = repository.pull_error(&["hf:u/tiny-GGUF", "--device", "cuda:99"]);
    assert!(error.contains("--device cuda:99: "), "{error}");
}

#[test]
fn the_origin_of_an_imported_folder_is_only_claimed() {
    let repository = Repository::with(&[("tiny-F32.gguf", &tiny())]);
    repository.pull_ok(&["hf:u/tiny-GGUF"]);
    let from = folder_of(&repository, "tiny-f32");
    let run = |arguments: &[&str]| succeeded(process::run(repository.folder.path(), arguments));
    run(&["models", "import", from.to_str().unwrap(), "--name", "tiny-copy"]);
    let listed = run(&["models", "list"]);
    let row = |name: &str| listed.lines().find(|line| line.starts_with(name)).unwrap();
    assert!(row("tiny-copy").contains("imported") && row("tiny-copy").contains("hf:u/tiny-GGUF (claimed)"), "{listed}");
    assert!(row("tiny-f32").contains("installed") && !row("tiny-f32").contains("claimed"), "{listed}");
    assert!(repository.pull_ok(&["tiny-copy", "--verify"]).contains("which came with the imported files"));
    assert!(repository.pull_error(&["hf:u/tiny-GGUF", "--name", "tiny-copy"]).contains("exists already"));
    // Also in an archive; and what is no origin is left out.
    run(&["models", "export", "tiny-f32", "out.tar"]);
    run(&["models", "import", "out.tar", "--name", "tiny-archive"]);
    let source = |name: &str| fs::read_to_string(folder_of(&repository, name).join("source.toml"));
    assert!(source("tiny-archive").unwrap().contains("integrity = \"claimed\""));
    fs::write(from.join("source.toml"), "nonsense").unwrap();
    run(&["models", "import", from.to_str().unwrap(), "--name", "tiny-other"]);
    assert!(source("tiny-other").is_err());
}
