//! A repository on a hub that redirects to another server, and the command that pulls from it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use outpost::display::hex;
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::hub_server::HubServer;
use crate::process;
use crate::support::sha256;
use crate::tiny_model::{self, TinyModel};

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
pub const GATED: &str = "GatedRepo";

/// A tiny model that can chat.
pub fn tiny() -> Vec<u8> {
    tiny_model::bytes(&TinyModel::default())
}

/// A hub, and the server to which it redirects.
pub struct Repository {
    pub hub: HubServer,
    pub cdn: HubServer,
    pub folder: TempDir,
    /// The hub's list of files.
    pub siblings: Vec<Value>,
    /// Fields of the hub's answer about the repository.
    pub fields: Value,
}

impl Repository {
    /// `u/tiny-GGUF` without files.
    pub fn new() -> Self {
        let (hub, cdn, folder) = (HubServer::start(), HubServer::start(), tempfile::tempdir().unwrap());
        let fields = json!({ "sha": COMMIT, "gated": false, "cardData": { "license": "apache-2.0" } });
        Self { hub, cdn, folder, siblings: Vec::new(), fields }
    }

    /// With these files.
    pub fn with(files: &[(&str, &[u8])]) -> Self {
        let mut repository = Self::new();
        files.iter().for_each(|(name, content)| repository.add(name, content));
        repository
    }

    pub fn add(&mut self, name: &str, content: &[u8]) {
        self.add_linked(name, content, &sha256(content));
    }

    /// Adds a file that the hub says has this hash.
    pub fn add_linked(&mut self, name: &str, content: &[u8], hash: &str) {
        let size = content.len();
        let lfs = json!({ "sha256": hash, "size": size });
        self.list(json!({ "rfilename": name, "size": size, "blobId": "0".repeat(40), "lfs": lfs }));
        let headers = vec![("X-Linked-Size", size.to_string()), ("X-Linked-Etag", format!("\"{hash}\""))];
        let blob = format!("/blobs/{name}");
        self.cdn.add(&blob, content);
        self.hub.redirect(&file_path(name), self.cdn.url(&format!("{blob}?Signature=secret")), headers);
    }

    /// Adds the files below a folder: weights are linked, and others are stored in git.
    pub fn add_folder(&mut self, folder: &Path) {
        let mut folders = vec![folder.to_owned()];
        while let Some(current) = folders.pop() {
            for entry in fs::read_dir(current).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let name = path.strip_prefix(folder).unwrap().to_str().unwrap();
                match name.ends_with(".safetensors") {
                    true => self.add(name, &read(&path)),
                    false => self.add_small(name, &read(&path)),
                }
            }
        }
    }

    /// Adds a file that the hub keeps in git itself.
    pub fn add_small(&mut self, name: &str, content: &[u8]) {
        let blob = [format!("blob {}\0", content.len()).as_bytes(), content].concat();
        let id = hex(digest(&SHA1_FOR_LEGACY_USE_ONLY, &blob).as_ref());
        self.hub.add(&file_path(name), content);
        self.list(json!({ "rfilename": name, "size": content.len(), "blobId": id }));
    }

    /// Adds a file to the hub's list only.
    pub fn list(&mut self, sibling: Value) {
        self.siblings.push(sibling);
        self.publish();
    }

    /// Makes the hub answer with the current list and fields.
    pub fn publish(&self) {
        let mut answer = self.fields.clone();
        answer["siblings"] = json!(self.siblings);
        self.hub.add("/api/models/u/tiny-GGUF/revision/main", answer.to_string());
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = pull_command(self.folder.path(), arguments);
        self.configure(&mut command);
        command
    }

    /// `outpost ARGUMENTS` with this hub.
    pub fn outpost(&self, arguments: &[&str]) -> Command {
        let mut command = hermetic(self.folder.path(), arguments);
        self.configure(&mut command);
        command
    }

    fn configure(&self, command: &mut Command) {
        command.env("HF_ENDPOINT", self.hub.url("")).env("OUTPOST_PULL_ALLOWED_HOSTS", self.cdn.address.to_string());
    }

    pub fn pull(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Pulls. Returns standard output.
    pub fn pull_ok(&self, arguments: &[&str]) -> String {
        succeeded(self.pull(arguments))
    }

    /// Pulls. Returns the error.
    pub fn pull_error(&self, arguments: &[&str]) -> String {
        failed(self.pull(arguments))
    }

    pub fn models(&self) -> PathBuf {
        self.folder.path().join("models")
    }

    /// The installed models.
    pub fn installed(&self) -> Vec<String> {
        installed(self.folder.path())
    }
}

/// `outpost models pull` in a folder, without the settings of this machine.
pub fn pull_command(folder: &Path, arguments: &[&str]) -> Command {
    hermetic(folder, &[&["models", "pull"], arguments].concat())
}

/// `outpost ARGUMENTS` in a folder, without the settings of this machine.
fn hermetic(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = process::command(folder, arguments);
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"] {
        command.env_remove(name);
    }
    for name in ["HF_TOKEN", "HF_TOKEN_PATH", "HF_HOME", "XDG_CACHE_HOME", "HF_HUB_OFFLINE", "OUTPOST_MODELS"] {
        command.env_remove(name);
    }
    command.env_remove("OUTPOST_ALLOW_PULL").env("HOME", folder);
    command
}

/// The standard output of a command that succeeds.
pub fn succeeded(output: Output) -> String {
    assert!(output.status.success(), "{}", process::output_text(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// The error of a command that fails.
pub fn failed(output: Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{}", process::output_text(&output));
    String::from_utf8(output.stderr).unwrap()
}

/// The entries of the models folder.
pub fn installed(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder.join("models")).into_iter().flatten().flatten();
    let names = names.map(|entry| entry.file_name().into_string().unwrap());
    names.filter(|name| !name.starts_with('.')).collect()
}

/// The settings of a server with this certificate.
pub fn server_config(certified: &rcgen::CertifiedKey<rcgen::KeyPair>) -> Arc<rustls::ServerConfig> {
    let key = rustls::pki_types::PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key);
    Arc::new(config.unwrap())
}

/// The hub's path of a file.
pub fn file_path(name: &str) -> String {
    format!("/u/tiny-GGUF/resolve/{COMMIT}/{name}")
}

pub fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap()
}
