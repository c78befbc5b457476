//! `outpost models pull ollama:…` and `oci:…`.

use std::fs;

use outpost_testing::fixtures::fixture;
use serde_json::{Value, json};

use crate::hub_server::{Fault, HubServer};
use crate::registry::*;
use crate::repository::{read, succeeded, tiny};
use crate::support::sha256;
use crate::tiny_model::{self, TinyModel};

const BASIC: &str = "Basic dXNlcjpzM2NyZXQ=";

/// A model of Ollama's registry.
fn ollama(repository: &'static str, tag: &str) -> Registry {
    let mut registry = Registry::new(repository);
    for (kind, content) in [
        ("model", tiny().as_slice()),
        ("template", b"{{ .Prompt }}"),
        ("params", b"{\"stop\":[\"x\"]}"),
        ("license", b"\n  Apache License\nVersion 2.0"),
        ("license", b"Another one"),
    ] {
        registry.layer(&format!("{OLLAMA}.{kind}"), None, content);
    }
    registry.publish(tag);
    registry
}

#[test]
fn a_model_of_ollamas_registry_is_installed_with_its_license() {
    let registry = ollama("library/tiny", "1b-q8_0");
    let text = registry.pull_ok(&["ollama:tiny:1b-q8_0"]);
    for part in [
        "ollama:tiny:1b-q8_0, digest",
        "license Apache License; llama",
        "* Q8_0",
        "Not used: the registry's template, the default parameters.",
        "tiny-1b-q8_0",
        "its 3 files have the expected hashes",
    ] {
        assert!(text.contains(part), "'{part}' is not in: {text}");
    }
    assert_eq!(registry.installed(), ["tiny-1b-q8_0"]);
    let folder = registry.folder.path().join("models/tiny-1b-q8_0");
    assert_eq!(read(&folder.join("tiny-1b-q8_0.gguf")), tiny());
    assert_eq!(read(&folder.join("LICENSE")), b"\n  Apache License\nVersion 2.0");
    assert_eq!(read(&folder.join("LICENSE-2")), b"Another one");
    let source = fs::read_to_string(folder.join("source.toml")).unwrap();
    for part in
        ["reference = \"ollama:tiny:1b-q8_0\"", "revision = \"sha256:", "integrity = \"verified\"", &sha256(&tiny())]
    {
        assert!(source.contains(part), "{source}");
    }
    assert!(registry.pull_ok(&["ollama:tiny:1b-q8_0"]).contains("installed already"));
    // The default tag, and the model of a user.
    let registry = ollama("u/m", "latest");
    registry.pull_ok(&["ollama:u/m"]);
    assert_eq!(registry.installed(), ["m"]);
    assert_eq!(registry.hub.requests()[0].path(), "/v2/u/m/manifests/latest");
}

#[test]
fn a_host_is_named_before_the_user() {
    let registry = ollama("u/m", "latest");
    let host = registry.hub.address.to_string();
    let mut command = registry.command(&[&format!("ollama:{host}/u/m")]);
    succeeded(command.env("OUTPOST_OLLAMA_REGISTRY", "https://registry.invalid").output().unwrap());
    assert_eq!(registry.installed(), ["m"]);
}

/// Guards a registry by tokens of a third server. Returns that server.
fn with_tokens(registry: &Registry, scope: &str) -> HubServer {
    let auth = HubServer::start();
    auth.add("/token", json!({ "token": "t1", "expires_in": 60 }).to_string());
    auth.guard("/token", BASIC, (401, Vec::new()));
    for path in [registry.manifest_path("v1"), registry.blob_path(&sha256(&tiny()))] {
        registry.hub.guard(&path, "Bearer t1", challenge(&auth, scope));
    }
    auth
}

fn challenge(auth: &HubServer, scope: &str) -> (u16, Vec<(&'static str, String)>) {
    let text = format!("Bearer realm=\"{}\",service=\"the registry\",{scope}", auth.url("/token"));
    (401, vec![("WWW-Authenticate", text)])
}

fn docker() -> Registry {
    let mut registry = Registry::new("u/m");
    registry.layer(GGUF, None, &tiny());
    registry.publish("v1");
    registry
}

fn pull_with_password(registry: &Registry, auth: &HubServer) -> std::process::Output {
    let hosts = format!("{},{}", registry.cdn.address, auth.address);
    let mut command = registry.command(&[&registry.oci(":v1")]);
    command.env("OUTPOST_OCI_USERNAME", "user").env("OUTPOST_OCI_PASSWORD", "s3cret");
    command.env("OUTPOST_PULL_ALLOWED_HOSTS", hosts).output().unwrap()
}

#[test]
fn a_registry_with_tokens_is_asked_with_one() {
    let registry = docker();
    let auth = with_tokens(&registry, "scope=\"repository:u/m:pull\"");
    succeeded(pull_with_password(&registry, &auth));
    assert_eq!(registry.installed(), ["m-v1"]);
    // One token for the manifest and all blobs.
    let asked: Vec<_> = auth.requests();
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].target, "/token?service=the%20registry&scope=repository%3Au%2Fm%3Apull");
    // The password goes to the realm, the token to the registry, and neither to the server behind the redirect.
    assert_eq!(asked[0].header("authorization"), Some(BASIC));
    let to_registry = registry.hub.requests();
    assert!(to_registry.iter().all(|it| matches!(it.header("authorization"), None | Some("Bearer t1"))));
    assert!(registry.cdn.requests().iter().all(|it| it.header("authorization").is_none()));
    assert!(!registry.cdn.requests().is_empty());
}

#[test]
fn a_token_that_has_expired_is_renewed() {
    let registry = docker();
    let auth = with_tokens(&registry, "scope=x");
    let (status, headers) = challenge(&auth, "scope=x");
    let blob = registry.blob_path(&sha256(&tiny()));
    // The header is read with the first token, and then it is no longer valid.
    registry.hub.fail_next(&blob, [Fault::CutAfter(0), Fault::Status(status, headers)]);
    succeeded(pull_with_password(&registry, &auth));
    assert_eq!(auth.requests().len(), 2);
}

#[test]
fn credentials_stay_with_the_registry_that_they_are_for() {
    let registry = docker();
    let auth = with_tokens(&registry, "scope=x");
    let mut command = registry.command(&[&registry.oci(":v1")]);
    command.env("OUTPOST_OCI_USERNAME", "user").env("OUTPOST_OCI_PASSWORD", "s3cret");
    command.env("OUTPOST_OCI_REGISTRY", "ghcr.io");
    let hosts = format!("{},{}", registry.cdn.address, auth.address);
    let output = command.env("OUTPOST_PULL_ALLOWED_HOSTS", hosts).output().unwrap();
    assert!(!output.status.success());
    assert!(auth.requests().iter().all(|it| it.header("authorization").is_none()));
}

#[test]
fn an_index_and_a_digest_lead_to_an_artifact() {
    let registry = docker();
    let digest = registry.publish("v1");
    let index = json!({ "schemaVersion": 2, "manifests": [{ "digest": digest, "size": 1 }] });
    registry.publish_text("all", index.to_string().as_bytes());
    registry.pull_ok(&[&registry.oci(":all")]);
    assert_eq!(registry.installed(), ["m-all"]);
    registry.pull_ok(&[&registry.oci(&format!("@{digest}"))]);
    assert!(registry.installed().contains(&"m".to_owned()));
}

#[test]
fn one_of_several_gguf_layers_is_chosen() {
    let mut registry = Registry::new("u/m");
    let quantized = tiny_model::bytes(&TinyModel { quantized: true, width: 128, ..TinyModel::default() });
    registry.layer(GGUF, Some((FILE_PATH, "a-F32.gguf")), &tiny());
    registry.layer("application/vnd.cncf.model.weight.v1.gguf", Some((TITLE, "a-Q8_0.gguf")), &quantized);
    registry.layer("application/vnd.docker.ai.mmproj", None, b"x");
    registry.publish("latest");
    let json: Value = serde_json::from_str(&registry.pull_ok(&[&registry.oci(""), "--json"])).unwrap();
    assert_eq!((&json["name"], json["candidates"].as_array().unwrap().len()), (&json!("a-q8_0"), 2));
    assert_eq!(json["notes"][0].as_str().unwrap().find("Not used: the vision projector"), Some(0));
    assert_eq!(read(&registry.folder.path().join("models/a-q8_0/a-q8_0.gguf")), quantized);
}

#[test]
fn a_folder_of_safetensors_is_installed_from_its_layers() {
    let mut registry = Registry::new("u/encoder");
    let fixture = fixture("encoders/nomic-old");
    for name in ["config.json", "model.safetensors", "tokenizer.json", "modules.json", "1_Pooling/config.json"] {
        let media_type = "application/vnd.cncf.model.weight.v1.raw";
        registry.layer(media_type, Some((FILE_PATH, name)), &read(&fixture.join(name)));
    }
    registry.layer("text/x-python", Some((TITLE, "modeling.py")), b"never");
    registry.publish("1");
    let text = registry.pull_ok(&[&registry.oci(":1")]);
    assert!(text.contains("its 5 files have the expected hashes"), "{text}");
    let folder = registry.folder.path().join("models/encoder-1");
    assert_eq!(read(&folder.join("model.safetensors")), read(&fixture.join("model.safetensors")));
    assert!(!folder.join("modeling.py").exists());
}

#[test]
fn an_interrupted_layer_is_continued() {
    let registry = docker();
    let (model, blob) = (tiny(), format!("/blobs/{}", sha256(&tiny())));
    let half = model.len() / 2;
    registry.cdn.fail_next(&blob, [Fault::CutAfter(1 << 30), Fault::CutAfter(half)]);
    registry.pull_ok(&[&registry.oci(":v1")]);
    let ranges: Vec<_> = registry.cdn.requests().iter().filter_map(|it| it.range()).collect();
    assert!(ranges.contains(&(half, model.len() - 1)), "{ranges:?}");
}
