use std::fs;

use serde_json::{Value, json};

use crate::process::{Serving, folder, mode, run, said};
use crate::tiny_model::TinyModel;

fn make_project(serving: &Serving, name: &str) -> String {
    let body: Value =
        serving.request(reqwest::Method::POST, "/v1/projects", Some(&json!({ "name": name }))).json().unwrap();
    body["id"].as_str().unwrap().to_owned()
}

#[test]
fn a_backup_of_a_running_server_restores_to_one_that_accepts_the_same_keys() {
    let origin = folder(&TinyModel::default());
    let serving = Serving::start(origin.path(), &[]);
    let before = make_project(&serving, "before");
    let output = run(origin.path(), &["backup", "saved.backup"]);
    assert!(output.status.success(), "{}", said(&output));
    let after = make_project(&serving, "after");
    assert_eq!(mode(&origin.path().join("saved.backup")), 0o600);
    let again = run(origin.path(), &["backup", "saved.backup"]);
    assert!(!again.status.success() && said(&again).contains("exists"), "{}", said(&again));

    let copy = folder(&TinyModel::default());
    let saved = origin.path().join("saved.backup");
    let output = run(copy.path(), &["restore", saved.to_str().unwrap()]);
    assert!(output.status.success(), "{}", said(&output));
    fs::copy(origin.path().join("data/admin.key"), copy.path().join("data/admin.key")).unwrap();
    let restored = Serving::start(copy.path(), &[]);
    assert!(!restored.greeting.contains("opk_"), "no new key is made");
    let status =
        |id: &str| restored.request(reqwest::Method::GET, &format!("/v1/projects/{id}"), None).status().as_u16();
    assert_eq!((status(&before), status(&after)), (200, 404), "one point in time");

    let over = run(copy.path(), &["restore", saved.to_str().unwrap()]);
    assert!(!over.status.success(), "a store that is there is not overwritten: {}", said(&over));
}

#[test]
fn check_works_with_and_without_a_server_and_finds_damage() {
    let folder = folder(&TinyModel::default());
    let mut serving = Serving::start(folder.path(), &[]);
    make_project(&serving, "checked");
    let online = run(folder.path(), &["check"]);
    assert!(online.status.success() && said(&online).contains("running"), "{}", said(&online));
    serving.signal("TERM");
    serving.wait(std::time::Duration::from_secs(10));
    let offline = run(folder.path(), &["check"]);
    assert!(offline.status.success(), "{}", said(&offline));

    let path = folder.path().join("data/outpost.redb");
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(7).position(|window| window == b"checked").unwrap();
    bytes[at] ^= 1;
    fs::write(&path, bytes).unwrap();
    let damaged = run(folder.path(), &["check"]);
    assert_eq!(damaged.status.code(), Some(1), "{}", said(&damaged));
}

#[test]
fn commands_on_a_folder_without_a_store_say_so() {
    let folder = tempfile::tempdir().unwrap();
    for arguments in [&["check"][..], &["backup", "x"]] {
        let output = run(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(1));
        assert!(said(&output).contains("no store"), "{}", said(&output));
    }
    let output = run(folder.path(), &["restore", "missing.backup"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("missing.backup"), "{}", said(&output));
}

#[test]
fn whoever_owns_the_folder_can_make_another_admin_key() {
    let folder = folder(&TinyModel::default());
    let mut serving = Serving::start(folder.path(), &[]);
    let refused = run(folder.path(), &["admin-key"]);
    assert!(!refused.status.success() && said(&refused).contains("Another outpost process"), "{}", said(&refused));
    serving.signal("TERM");
    serving.wait(std::time::Duration::from_secs(10));
    let made = run(folder.path(), &["admin-key"]);
    assert!(made.status.success(), "{}", said(&made));
    let secret = String::from_utf8(made.stdout).unwrap();
    fs::write(folder.path().join("data/admin.key"), &secret).unwrap();
    let serving = Serving::start(folder.path(), &[]);
    make_project(&serving, "made with the new key");
}
