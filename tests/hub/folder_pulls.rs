//! Models of several files: transformers, sentence-transformers, adapters and diffusers.

use outpost_testing::fixtures::fixture;
use serde_json::json;

use crate::hub_server::Fault;
use crate::process::{ServerProcess, output_text};
use crate::repository::*;

/// A repository with the files of a fixture, and others that must not be downloaded.
fn repository(path: &str) -> Repository {
    let mut repository = Repository::new();
    repository.add_folder(&fixture(path));
    for name in
        ["modeling.py", "pytorch_model.bin", "upstream.toml", "model.toml", "source.toml", ".env", "onnx/model.onnx"]
    {
        repository.add_small(name, b"never");
    }
    repository.add_small("LICENSE", b"do what you want");
    repository
}

#[test]
fn a_sentence_transformers_folder_makes_embeddings() {
    let repository = repository("encoders/nomic-old");
    let text = repository.pull_ok(&["hf:u/tiny-GGUF", "--name", "nomic"]);
    assert!(text.contains("model.safetensors") && text.contains("1_Pooling/config.json"), "{text}");
    assert!(text.contains("files have the expected hashes"), "{text}");
    let folder = repository.models().join("nomic");
    for name in ["1_Pooling/config.json", "model.safetensors", "tokenizer.json", "modules.json"] {
        assert_eq!(read(&folder.join(name)), read(&fixture("encoders/nomic-old").join(name)), "{name}");
    }
    assert_eq!(read(&folder.join("LICENSE")), b"do what you want");
    assert!(String::from_utf8(read(&folder.join("source.toml"))).unwrap().contains("hf:u/tiny-GGUF"));
    for name in ["modeling.py", "pytorch_model.bin", "upstream.toml", "model.toml", ".env", "onnx", "expected.json"] {
        assert!(!folder.join(name).exists(), "{name}");
    }
    assert!(repository.pull_ok(&["hf:u/tiny-GGUF", "--name", "nomic"]).contains("installed already"));
    let server = ServerProcess::start(repository.folder.path(), &["--no-pull"]);
    let response =
        server.request(reqwest::Method::POST, "/v1/embeddings", Some(&json!({ "model": "nomic", "input": "hello" })));
    assert_eq!(response.status(), 200, "{}", response.text().unwrap());
}

#[test]
fn all_modules_of_a_sentence_transformers_folder_are_installed() {
    let repository = repository("encoders/gemma-embedding");
    repository.pull_ok(&["hf:u/tiny-GGUF", "--name", "gemma"]);
    let folder = repository.models().join("gemma");
    for name in ["2_Dense/config.json", "2_Dense/model.safetensors", "3_Dense/model.safetensors"] {
        assert_eq!(read(&folder.join(name)), read(&fixture("encoders/gemma-embedding").join(name)), "{name}");
    }
    let server = ServerProcess::start(repository.folder.path(), &["--no-pull"]);
    let response =
        server.request(reqwest::Method::POST, "/v1/embeddings", Some(&json!({ "model": "gemma", "input": "hello" })));
    assert_eq!(response.status(), 200, "{}", response.text().unwrap());
}

#[test]
fn a_diffusers_folder_is_installed_with_its_components() {
    let mut repository = repository("pipelines/sd1");
    repository.add_small("unet/diffusion_pytorch_model.bin", b"never");
    repository.add("other.safetensors", b"never");
    repository.pull_ok(&["hf:u/tiny-GGUF"]);
    let folder = repository.models().join("tiny-gguf");
    for name in ["model_index.json", "unet/diffusion_pytorch_model.safetensors", "tokenizer/merges.txt"] {
        assert_eq!(read(&folder.join(name)), read(&fixture("pipelines/sd1").join(name)), "{name}");
    }
    assert!(!folder.join("other.safetensors").exists() && !folder.join("unet/diffusion_pytorch_model.bin").exists());
    let server = ServerProcess::start(repository.folder.path(), &["--no-pull"]);
    let body = json!({ "model": "tiny-gguf", "prompt": "a red apple", "steps": 1 });
    let response = server.request(reqwest::Method::POST, "/v1/images/generations", Some(&body));
    assert_eq!(response.status(), 200, "{}", response.text().unwrap());
}

#[test]
fn a_folder_that_cannot_be_served_is_refused_by_its_headers() {
    let mut repository = repository("encoders/nomic-old");
    repository.add_small("config.json", br#"{"architectures": ["StrangeModel"], "model_type": "strange"}"#);
    repository.siblings.retain(|it| it["rfilename"] != "config.json" || it["size"] == 60);
    repository.publish();
    let error = repository.pull_error(&["hf:u/tiny-GGUF"]);
    assert!(error.contains("hf:u/tiny-GGUF cannot be served") && error.contains("strange"), "{error}");
    assert!(repository.installed().is_empty());
}

#[test]
fn finished_files_of_an_interrupted_pull_are_kept() {
    let repository = repository("encoders/nomic-old");
    // The probe and the header succeed.
    let path = "/blobs/model.safetensors";
    repository.cdn.fail_next(path, [Fault::CutAfter(1), Fault::CutAfter(1 << 30)]);
    repository.cdn.fail_always(path, Some(Fault::Status(404, Vec::new())));
    let output = repository.pull(&["hf:u/tiny-GGUF"]);
    assert!(!output.status.success(), "{}", output_text(&output));
    assert!(repository.installed().is_empty());
    repository.cdn.fail_always(path, None);
    let (hub, file) = (&repository.hub, file_path("tokenizer.json"));
    hub.forget_requests();
    let json: serde_json::Value = serde_json::from_str(&repository.pull_ok(&["hf:u/tiny-GGUF", "--json"])).unwrap();
    assert!(json["resumed_bytes"].as_u64().unwrap() > 0, "{json}");
    // Once for the plan, and not again for the download.
    assert_eq!(hub.requests_for(&file).len(), 1);
}

#[test]
fn a_damaged_small_file_is_refused() {
    let mut repository = repository("encoders/nomic-old");
    let path = file_path("tokenizer.json");
    let mut changed = read(&fixture("encoders/nomic-old/tokenizer.json"));
    changed.push(b' ');
    // The list gives the hash of another file of the same length.
    let sibling = repository.siblings.iter_mut().find(|it| it["rfilename"] == "tokenizer.json").unwrap();
    sibling["size"] = json!(changed.len());
    repository.hub.add(&path, changed);
    repository.publish();
    let error = repository.pull_error(&["hf:u/tiny-GGUF"]);
    assert!(error.contains("tokenizer.json has the hash"), "{error}");
    assert!(repository.installed().is_empty());
}
