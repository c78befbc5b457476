//! `outpost models pull https:…`: one file by its address.

use std::fs;
use std::process::Output;

use tempfile::TempDir;

use crate::hub_server::{Fault, HubServer};
use crate::process;
use crate::repository::{failed, installed, pull_command, read, succeeded, tiny};
use crate::support::sha256;

const ETAG: &str = "\"v1\"";

struct Site {
    server: HubServer,
    folder: TempDir,
}

impl Site {
    fn new(headers: Vec<(&'static str, String)>) -> Self {
        let server = HubServer::start();
        server.add_with_headers("/f/Tiny-F32.gguf", tiny(), headers);
        Self { server, folder: tempfile::tempdir().unwrap() }
    }

    fn versioned() -> Self {
        Self::new(vec![("ETag", ETAG.to_owned())])
    }

    fn pull(&self, options: &[&str]) -> Output {
        let url = self.server.url("/f/Tiny-F32.gguf?Signature=secret");
        pull_command(self.folder.path(), &[&[url.as_str()], options].concat()).output().unwrap()
    }

    fn source(&self) -> String {
        fs::read_to_string(self.folder.path().join("models/tiny-f32/source.toml")).unwrap()
    }
}

#[test]
fn a_file_is_installed_and_its_hash_recorded() {
    let site = Site::versioned();
    let text = succeeded(site.pull(&[]));
    let note = format!("its sha256 is {}, which was not compared with anything; give --sha256", sha256(&tiny()));
    assert!(text.contains(&note) && !text.contains("Signature"), "{text}");
    assert_eq!(read(&site.folder.path().join("models/tiny-f32/tiny-f32.gguf")), tiny());
    let source = site.source();
    for part in ["integrity = \"recorded\"", &sha256(&tiny()), &site.server.url("/f/Tiny-F32.gguf")] {
        assert!(source.contains(part), "{source}");
    }
    assert!(!source.contains("Signature"), "{source}");
    assert!(succeeded(site.pull(&[])).contains("installed already"));
    // Another version at the same address.
    site.server.add_with_headers("/f/Tiny-F32.gguf", tiny(), vec![("ETag", "\"v2\"".to_owned())]);
    assert!(failed(site.pull(&[])).contains("exists already; use --force"));
}

#[test]
fn a_hash_that_is_given_is_verified() {
    let site = Site::new(Vec::new());
    let error = failed(site.pull(&["--sha256", &"1".repeat(64)]));
    assert!(error.contains("has the hash") && error.contains(&sha256(&tiny())), "{error}");
    assert!(installed(site.folder.path()).is_empty());
    let text = succeeded(site.pull(&["--sha256", &sha256(&tiny())]));
    assert!(text.contains("is the expected one"), "{text}");
    assert!(site.source().contains("integrity = \"verified\""));
}

#[test]
fn a_server_without_ranges_or_versions_will_do() {
    let site = Site::new(Vec::new());
    site.server.fail_always("/f/Tiny-F32.gguf", Some(Fault::IgnoreRange));
    succeeded(site.pull(&[]));
    assert!(site.source().contains("revision = \"\""));
    // Nothing says that it is the same file.
    assert!(failed(site.pull(&[])).contains("exists already; use --force"));
    succeeded(site.pull(&["--force"]));
}

#[test]
fn addresses_that_are_not_safe_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let pull = |url: &str| failed(pull_command(folder.path(), &[url]).output().unwrap());
    let error = pull("http://mirror.invalid/m.gguf");
    assert!(error.contains("is not encrypted; use https://, or allow this host with --allow-host"), "{error}");
    let error = pull("https://10.0.0.1/m.gguf");
    assert!(error.contains("10.0.0.1") && error.contains("--allow-host"), "{error}");
    for other in ["https://h.example/m.bin", "https://h.example/m.zip"] {
        assert!(pull(other).contains("is not the address of a .gguf file"), "{other}");
    }
    let server = HubServer::start();
    let output = pull_command(folder.path(), &[&server.url("/none.gguf")]).output().unwrap();
    assert!(failed(output).contains("answered with status 404"));
    server.add("/text.gguf", "no model");
    let output = pull_command(folder.path(), &[&server.url("/text.gguf")]).output().unwrap();
    assert!(process::output_text(&output).contains("not a GGUF file"));
    assert!(installed(folder.path()).is_empty());
}
