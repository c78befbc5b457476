//! A first start that fails or is killed: the next one works, and finds or creates one admin key.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use outpost_testing::needs_postgres;
use reqwest::Method;
use serde_json::Value;
use tempfile::TempDir;

use crate::postgres::shared;
use crate::process::{ServerProcess, command, folder, output_text, run};
use crate::tiny_model::TinyModel;

/// The names in a folder, sorted.
fn entries(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn assert_fails(folder: &Path, arguments: &[&str], words: &str) {
    assert_failed(&run(folder, &[&["serve"], arguments].concat()), words);
}

fn assert_failed(output: &Output, words: &str) {
    let text = output_text(output);
    assert!(!output.status.success() && text.contains(words), "{text}");
}

/// A folder for a server, and the arguments for its store: none for a file, or the URL of a new database.
fn new_place(in_database: bool) -> (TempDir, Vec<String>) {
    let arguments = match in_database {
        true => vec!["--store".to_owned(), shared().socket_url(&shared().new_database())],
        false => Vec::new(),
    };
    (folder(&TinyModel::default()), arguments)
}

fn texts(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}

/// Starts the server without what made the first start fail.
fn assert_starts(folder: &Path, store: &[&str]) {
    let server = ServerProcess::start(folder, store);
    let get = |path: &str| -> Value { server.request(Method::GET, path, None).json().unwrap() };
    let project = get("/v1/me")["project_id"].as_str().unwrap_or_else(|| panic!("its key does not work")).to_owned();
    assert_eq!(get("/v1/projects")["data"].as_array().unwrap().len(), 1);
    assert_eq!(get(&format!("/v1/api-keys?project_id={project}"))["data"].as_array().unwrap().len(), 1);
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
    let mut serving = ServerProcess::start(folder.path(), &[]);
    serving.signal("TERM");
    serving.wait(Duration::from_secs(10));
    let data = folder.path().join("data");
    let before = entries(&data);
    fs::create_dir(data.join("tls-cert.pem")).unwrap();
    assert_fails(folder.path(), &["--listen", "127.0.0.1:0", "--tls-self-signed"], "self-signed certificate");
    fs::remove_dir(data.join("tls-cert.pem")).unwrap();
    assert!(before.iter().all(|name| entries(&data).contains(name)), "{before:?}");
}

/// Requires that a corrected start works after a first one that failed with each of these arguments.
fn assert_options_can_be_corrected(in_database: bool) {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let taken_address = ["--listen", &address];
    let mut cases: Vec<(&[&str], &str)> = vec![
        (&["--keyless-project", "nope"], "there is no project 'nope'"),
        (&taken_address, "cannot listen on"),
        (&["--tls-cert", "no.pem", "--tls-key", "no.pem"], "no.pem"),
        (&["--models", "file"], "the models folder"),
        (&["--memory", "much"], "--memory"),
    ];
    if in_database {
        cases.push((&["--node-name", ""], "The node name '' cannot be used"));
    }
    for (wrong, words) in cases {
        let (folder, store) = new_place(in_database);
        fs::write(folder.path().join("file"), "").unwrap();
        let listen: &[&str] = if wrong[0] == "--listen" { &[] } else { &["--listen", "127.0.0.1:0"] };
        assert_fails(folder.path(), &[listen, &texts(&store), wrong].concat(), words);
        assert_starts(folder.path(), &texts(&store));
    }
}

#[test]
fn wrong_options_of_a_first_start_can_be_corrected() {
    assert_options_can_be_corrected(false);
}

#[test]
fn wrong_options_of_a_first_start_with_a_database_can_be_corrected() {
    needs_postgres!();
    assert_options_can_be_corrected(true);
}

/// Requires that a corrected start works after a first one that could not write its files.
fn assert_files_can_be_corrected(in_database: bool) {
    let listen = ["--listen", "127.0.0.1:0", "--tls-self-signed"];
    let new_files = ["pepper", "admin.key", "tls-key.pem", "tls-cert.pem", "control.sock"];
    for name in new_files.into_iter().chain((!in_database).then_some("outpost.redb")) {
        let (folder, store) = new_place(in_database);
        let taken = folder.path().join("data").join(name);
        fs::create_dir_all(&taken).unwrap();
        let output = run(folder.path(), &[&["serve"], &listen[..], &texts(&store)].concat());
        assert!(!output.status.success(), "{name}: {}", output_text(&output));
        fs::remove_dir(&taken).unwrap();
        assert_starts(folder.path(), &texts(&store));
    }
    // Files cannot be longer than this; the unit of `ulimit` is 512 bytes. It is not the signal that ends the program.
    for blocks in ["0", "1", "64"] {
        let (folder, store) = new_place(in_database);
        let serve = command(folder.path(), &[&["serve", "--no-pull"], &listen[..2], &texts(&store)].concat());
        let mut full = Command::new("sh");
        full.args(["-c", "trap '' XFSZ; ulimit -f \"$0\"; exec \"$@\"", blocks]).arg(serve.get_program());
        full.args(serve.get_args()).current_dir(folder.path()).env("OUTPOST_CONFIG", "none");
        match in_database && blocks != "0" {
            // Its files fit.
            true => continue,
            false => assert_failed(&full.output().unwrap(), "Check that the disk has free space"),
        }
        assert_starts(folder.path(), &texts(&store));
    }
    // The server has started, but cannot say so.
    let (folder, store) = new_place(in_database);
    let mut mute = command(folder.path(), &[&["serve"], &listen[..2], &texts(&store)].concat());
    mute.stdout(fs::OpenOptions::new().write(true).open("/dev/full").unwrap()).stderr(Stdio::piped());
    assert_failed(&mute.output().unwrap(), "");
    assert_starts(folder.path(), &texts(&store));
}

#[test]
fn a_first_start_that_could_not_write_its_files_can_be_repeated() {
    assert_files_can_be_corrected(false);
}

#[test]
fn a_first_start_with_a_database_that_could_not_write_its_files_can_be_repeated() {
    needs_postgres!();
    assert_files_can_be_corrected(true);
}

#[test]
fn a_folder_keeps_the_secrets_of_a_database_whose_first_start_failed() {
    needs_postgres!();
    let (folder, store) = new_place(true);
    let arguments = [&["--listen", "127.0.0.1:0", "--keyless-project", "nope"], &texts(&store)[..]].concat();
    assert_fails(folder.path(), &arguments, "the first start creates the project 'default'");
    assert_eq!(entries(&folder.path().join("data")), ["pepper"]);
    let server = ServerProcess::start(folder.path(), &[&["--keyless-project", "default"], &texts(&store)[..]].concat());
    assert!(server.request(Method::GET, "/v1/me", None).status().is_success());
}

/// Kills first starts as soon as they have created a file, and some time later.
fn assert_kills_do_no_harm(in_database: bool) {
    let files =
        ["data", "data/pepper", "data/outpost.redb", "data/admin.key.partial", "data/admin.key", "data/control.sock"];
    for file in files.into_iter().filter(|file| !(in_database && file.ends_with(".redb"))) {
        let (folder, store) = new_place(in_database);
        let arguments = [&["serve", "--listen", "127.0.0.1:0"], &texts(&store)[..]].concat();
        let mut starting =
            command(folder.path(), &arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // No pause, because some files are there for less than a millisecond. The last ones come soon after.
        let is_late = || folder.path().join("data/running.json").exists();
        while !folder.path().join(file).exists() && !is_late() {
            assert_eq!(starting.try_wait().unwrap(), None, "it ends by itself");
        }
        starting.kill().unwrap();
        starting.wait().unwrap();
        assert_starts(folder.path(), &texts(&store));
    }
}

#[test]
fn a_first_start_that_was_killed_can_be_repeated() {
    assert_kills_do_no_harm(false);
}

#[test]
fn a_first_start_with_a_database_that_was_killed_can_be_repeated() {
    needs_postgres!();
    assert_kills_do_no_harm(true);
}
