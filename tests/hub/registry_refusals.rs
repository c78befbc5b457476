//! Pulls from registries that end with an error.

use serde_json::json;

use crate::hub_server::Fault;
use crate::registry::*;
use crate::repository::{failed, tiny};
use crate::support::sha256;

fn docker() -> Registry {
    let mut registry = Registry::new("u/m");
    registry.layer(GGUF, None, &tiny());
    registry.publish("latest");
    registry
}

/// Pulls, expects the parts in the error, and nothing in the models folder.
fn refused(registry: &Registry, rest: &str, parts: &[&str]) {
    let error = registry.pull_error(&[&registry.oci(rest)]);
    parts.iter().for_each(|part| assert!(error.contains(part), "'{part}' is not in: {error}"));
    assert!(registry.installed().is_empty());
}

#[test]
fn missing_models_denied_access_and_rate_limits_are_told_apart() {
    let registry = docker();
    refused(&registry, ":other", &["127.0.0.1 has no oci:", "u/m:other; check the name and the tag"]);
    let path = registry.manifest_path("latest");
    let always = |status, headers| registry.hub.fail_always(&path, Some(Fault::Status(status, headers)));
    for status in [401, 403] {
        always(status, Vec::new());
        refused(&registry, "", &["127.0.0.1 gives no access to oci:", "set OUTPOST_OCI_USERNAME"]);
    }
    always(429, vec![("Retry-After", "1000".to_owned())]);
    refused(&registry, "", &["allows no more requests for now; try again later"]);
    registry.hub.fail_always(&path, None);
    registry.hub.fail_next(&path, [Fault::Status(429, vec![("Retry-After", "0".to_owned())])]);
    registry.pull_ok(&[&registry.oci("")]);
}

#[test]
fn a_realm_that_refuses_or_is_unsafe_ends_the_pull() {
    let registry = docker();
    let path = registry.manifest_path("latest");
    let challenge = |realm: &str| {
        let header = ("WWW-Authenticate", format!("Bearer realm=\"{realm}\""));
        registry.hub.fail_always(&path, Some(Fault::Status(401, vec![header])));
    };
    challenge(&registry.hub.url("/token"));
    registry.hub.add("/token", "no JSON");
    refused(&registry, "", &["it gives no token"]);
    registry.hub.fail_always("/token", Some(Fault::Status(401, Vec::new())));
    let mut command = registry.command(&[&registry.oci("")]);
    command.env("OUTPOST_OCI_USERNAME", "user").env("OUTPOST_OCI_PASSWORD", "s3cret");
    let error = failed(command.output().unwrap());
    assert!(error.contains("OUTPOST_OCI_PASSWORD is wrong") && !error.contains("s3cret"), "{error}");
    challenge("http://auth.example/token");
    refused(&registry, "", &["http://auth.example/token, is not encrypted"]);
    // The reference does not name this address of this machine.
    challenge("http://127.0.0.2:1/token");
    refused(&registry, "", &["127.0.0.2", "--allow-host"]);
}

#[test]
fn wrong_digests_are_refused() {
    let registry = docker();
    let zeros = format!("sha256:{}", "0".repeat(64));
    registry.hub.add(&registry.manifest_path(&zeros), b"{}".to_vec());
    refused(&registry, &format!("@{zeros}"), &["its manifest has the digest sha256:", "is expected"]);
    let headers = vec![("Docker-Content-Digest", zeros)];
    registry.hub.add_with_headers(&registry.manifest_path("latest"), b"{}".to_vec(), headers);
    refused(&registry, "", &["its manifest has the digest"]);
    let mut registry = docker();
    let blob = format!("/blobs/{}", sha256(&tiny()));
    let mut damaged = tiny();
    *damaged.last_mut().unwrap() ^= 1;
    registry.cdn.add(&blob, damaged);
    refused(&registry, "", &["has the hash", "It was removed"]);
    registry = Registry::new("u/m");
    registry.describe(GGUF, None, "../../../etc/passwd", 10);
    registry.publish("latest");
    refused(&registry, "", &["is not a sha256 digest"]);
}

#[test]
fn manifests_that_cannot_be_used_say_why() {
    let layers = |layers: &[(&str, Option<(&str, &str)>)]| {
        let mut registry = Registry::new("u/m");
        layers.iter().for_each(|(media_type, name)| registry.layer(media_type, *name, b"x"));
        registry.publish("latest");
        registry
    };
    let ollama = |kind: &str| format!("{OLLAMA}.{kind}");
    refused(&layers(&[("application/x-unknown", None)]), "", &["it has no GGUF and no safetensors files"]);
    refused(
        &layers(&[("application/vnd.cncf.model.weight.v1.tar+gzip", Some((FILE_PATH, "m.gguf")))]),
        "",
        &["they are compressed archives", "application/vnd.cncf.model.weight.v1.tar+gzip"],
    );
    refused(&layers(&[(&ollama("model"), None), (&ollama("adapter"), None)]), "", &["a model with an adapter"]);
    refused(&layers(&[(&ollama("tensor"), None)]), "", &["safetensors in Ollama's format"]);
    refused(&layers(&[(GGUF, None)]), "", &["m.gguf cannot be served"]);
    refused(&layers(&[("a", Some((TITLE, "../../m.gguf")))]), "", &["it has no GGUF"]);
    refused(&layers(&[("a", Some((TITLE, "M.gguf"))), ("a", Some((TITLE, "m.gguf")))]), "", &["apart from case"]);
    let registry = docker();
    for text in ["", "[", "{}"] {
        registry.publish_text("latest", text.as_bytes());
        refused(&registry, "", &["makes no sense"]);
    }
    registry.publish_text("latest", json!({ "manifests": [{ "digest": "md5:x" }] }).to_string().as_bytes());
    refused(&registry, "", &["'md5:x' is not a sha256 digest"]);
    registry.publish_text("latest", &vec![b' '; (4 << 20) + 1]);
    refused(&registry, "", &["larger than 4 MB"]);
}
