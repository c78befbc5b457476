//! A registry that speaks the OCI distribution API and redirects to another server, and the command that pulls from it.

use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::hub_server::HubServer;
use crate::repository::{failed, installed, pull_command, succeeded};
use crate::support::sha256;

pub const OLLAMA: &str = "application/vnd.ollama.image";
pub const GGUF: &str = "application/vnd.docker.ai.gguf.v3";
pub const TITLE: &str = "org.opencontainers.image.title";
pub const FILE_PATH: &str = "org.cncf.model.filepath";

/// A registry, and the server to which it redirects.
pub struct Registry {
    pub hub: HubServer,
    pub cdn: HubServer,
    pub folder: TempDir,
    repository: &'static str,
    layers: Vec<Value>,
}

impl Registry {
    pub fn new(repository: &'static str) -> Self {
        let (hub, cdn, folder) = (HubServer::start(), HubServer::start(), tempfile::tempdir().unwrap());
        Self { hub, cdn, folder, repository, layers: Vec::new() }
    }

    /// Adds a layer, with a name if its artifact names files.
    pub fn layer(&mut self, media_type: &str, name: Option<(&str, &str)>, content: &[u8]) {
        let digest = sha256(content);
        self.describe(media_type, name, &digest, content.len());
        self.cdn.add(&format!("/blobs/{digest}"), content);
        let to = self.cdn.url(&format!("/blobs/{digest}?Signature=secret"));
        self.hub.redirect(&self.blob_path(&digest), to, Vec::new());
    }

    /// Adds a layer to the manifest only.
    pub fn describe(&mut self, media_type: &str, name: Option<(&str, &str)>, digest: &str, size: usize) {
        let annotations = name.map(|(key, value)| json!({ key: value }));
        let digest = format!("sha256:{digest}");
        self.layers
            .push(json!({ "mediaType": media_type, "digest": digest, "size": size, "annotations": annotations }));
    }

    pub fn blob_path(&self, digest: &str) -> String {
        format!("/v2/{}/blobs/sha256:{digest}", self.repository)
    }

    pub fn manifest_path(&self, version: &str) -> String {
        format!("/v2/{}/manifests/{version}", self.repository)
    }

    /// Publishes the layers under a tag. Returns the digest of the manifest.
    pub fn publish(&self, tag: &str) -> String {
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": { "mediaType": "application/vnd.oci.empty.v1+json", "digest": "sha256:0", "size": 2 },
            "layers": self.layers,
        });
        self.publish_text(tag, manifest.to_string().as_bytes())
    }

    pub fn publish_text(&self, tag: &str, text: &[u8]) -> String {
        let digest = format!("sha256:{}", sha256(text));
        for version in [tag, &digest] {
            let headers = vec![("Docker-Content-Digest", digest.clone())];
            self.hub.add_with_headers(&self.manifest_path(version), text, headers);
        }
        digest
    }

    /// `oci:` and the rest, at this registry.
    pub fn oci(&self, rest: &str) -> String {
        format!("oci:{}/{}{rest}", self.hub.address, self.repository)
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = pull_command(self.folder.path(), arguments);
        command
            .env("OUTPOST_OLLAMA_REGISTRY", self.hub.url(""))
            .env("OUTPOST_PULL_ALLOWED_HOSTS", self.cdn.address.to_string());
        command
    }

    pub fn pull(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    pub fn pull_ok(&self, arguments: &[&str]) -> String {
        succeeded(self.pull(arguments))
    }

    pub fn pull_error(&self, arguments: &[&str]) -> String {
        let error = failed(self.pull(arguments));
        assert!(!error.contains("Signature"), "{error}");
        error
    }

    pub fn installed(&self) -> Vec<String> {
        installed(self.folder.path())
    }
}
