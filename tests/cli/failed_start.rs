//! A start that fails leaves no files behind.

use std::fs;
use std::net::TcpListener;
use std::path::Path;

use crate::process::{folder, output_text, run};
use crate::tiny_model::TinyModel;

/// The names in a folder, sorted.
fn entries(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn assert_fails(folder: &Path, arguments: &[&str], words: &str) {
    let output = run(folder, &[&["serve"], arguments].concat());
    assert!(!output.status.success() && output_text(&output).contains(words), "{}", output_text(&output));
}

#[test]
fn nothing_is_created_if_the_address_or_the_certificate_cannot_be_used() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("no.pem"), "no certificate").unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    // Without --no-pull, the starter models would be pulled first.
    assert_fails(folder.path(), &["--listen", &address], "cannot listen on");
    assert_fails(folder.path(), &["--listen", "127.0.0.1:0", "--tls-cert", "no.pem", "--tls-key", "no.pem"], "no.pem");
    assert_fails(folder.path(), &["--listen", "0.0.0.0:0"], "--insecure-http");
    assert_fails(folder.path(), &["--memory", "much"], "--memory");
    assert_eq!(entries(folder.path()), ["no.pem"]);
}

#[test]
fn a_later_failure_removes_the_new_data_folder_only() {
    let folder = folder(&TinyModel::default());
    // The certificate's file name is taken by a folder, so that the start fails after the database is created.
    let data = folder.path().join("data");
    fs::create_dir_all(data.join("tls-cert.pem")).unwrap();
    let listen = ["--listen", "127.0.0.1:0", "--tls-self-signed"];
    assert_fails(folder.path(), &listen, "self-signed certificate");
    assert_eq!(entries(&data), ["tls-cert.pem"]);
    assert_eq!(entries(folder.path()), ["data", "models"]);
}

#[test]
fn a_database_that_was_there_stays() {
    let folder = folder(&TinyModel::default());
    let mut serving = crate::process::ServerProcess::start(folder.path(), &[]);
    serving.signal("TERM");
    serving.wait(std::time::Duration::from_secs(10));
    let data = folder.path().join("data");
    let before = entries(&data);
    fs::create_dir(data.join("tls-cert.pem")).unwrap();
    assert_fails(folder.path(), &["--listen", "127.0.0.1:0", "--tls-self-signed"], "self-signed certificate");
    fs::remove_dir(data.join("tls-cert.pem")).unwrap();
    assert!(before.iter().all(|name| entries(&data).contains(name)), "{before:?}");
}
