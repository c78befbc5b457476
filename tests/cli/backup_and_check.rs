use std::collections::HashSet;
use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};

use crate::process::{Serving, folder, mode, run, said};
use crate::tiny_model::TinyModel;
use crate::wait::until;

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

/// A project that a client made: when it asked, and when it had the answer.
struct Acknowledged {
    id: String,
    asked: Instant,
    answered: Instant,
}

/// Makes projects, one after the other, and logs each answer, until told to stop.
fn keep_writing(serving: &Serving, log: &Mutex<Vec<Acknowledged>>, stop: &AtomicBool) {
    let client = reqwest::blocking::Client::builder().timeout(Duration::from_secs(60)).build().unwrap();
    let (url, key) = (format!("{}/v1/projects", serving.url), serving.key());
    while !stop.load(Ordering::Relaxed) {
        let asked = Instant::now();
        let request = client.post(&url).bearer_auth(&key).header("content-type", "application/json");
        let response = request.body(json!({ "name": "written" }).to_string()).send().unwrap();
        assert_eq!(response.status(), 200);
        let body: Value = response.json().unwrap();
        let id = body["id"].as_str().unwrap().to_owned();
        log.lock().unwrap().push(Acknowledged { id, asked, answered: Instant::now() });
    }
}

/// The ids of all projects of a running server.
fn projects(serving: &Serving) -> HashSet<String> {
    let (mut ids, mut cursor) = (HashSet::new(), String::new());
    loop {
        let page: Value =
            serving.request(Method::GET, &format!("/v1/projects?limit=100{cursor}"), None).json().unwrap();
        let data = page["data"].as_array().unwrap_or_else(|| panic!("{page}"));
        ids.extend(data.iter().map(|one| one["id"].as_str().unwrap().to_owned()));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return ids,
        }
    }
}

/// T14: whatever was acknowledged before the backup began is in it, and nothing is in it without what was acknowledged
/// before it was asked for.
#[test]
fn a_backup_made_while_clients_write_holds_all_up_to_one_point_in_time() {
    let origin = folder(&TinyModel::default());
    let serving = Serving::start(origin.path(), &[]);
    let (log, stop) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    let wait_for_more = || {
        let had = log.lock().unwrap().len();
        until(|| "the clients write more", || log.lock().unwrap().len() >= had + 40);
    };
    let backups: Vec<(String, Instant, Instant)> = std::thread::scope(|scope| {
        (0..8).for_each(|_| drop(scope.spawn(|| keep_writing(&serving, &log, &stop))));
        let back_up = |number: usize| {
            wait_for_more();
            let (name, begun) = (format!("{number}.backup"), Instant::now());
            let output = run(origin.path(), &["backup", &name]);
            assert!(output.status.success(), "{}", said(&output));
            (name, begun, Instant::now())
        };
        let backups = (0..3).map(back_up).collect();
        wait_for_more();
        stop.store(true, Ordering::Relaxed);
        backups
    });
    let log = log.into_inner().unwrap();
    let mut sizes = Vec::new();
    for (name, begun, ended) in backups {
        let copy = folder(&TinyModel::default());
        let output = run(copy.path(), &["restore", origin.path().join(name).to_str().unwrap()]);
        assert!(output.status.success(), "{}", said(&output));
        let checked = run(copy.path(), &["check"]);
        assert!(checked.status.success(), "{}", said(&checked));
        fs::copy(origin.path().join("data/admin.key"), copy.path().join("data/admin.key")).unwrap();
        let restored = Serving::start(copy.path(), &[]);
        let held = projects(&restored);
        let (inside, outside): (Vec<_>, Vec<_>) = log.iter().partition(|one| held.contains(&one.id));
        let newest = inside.iter().map(|one| one.asked).max().expect("the backup holds some of them");
        assert!(newest < ended, "a project that was asked for after the backup");
        for missing in outside {
            assert!(missing.answered > begun, "a project that was acknowledged before the backup is missing");
            assert!(missing.answered > newest, "one is missing that was acknowledged before another was asked for");
        }
        make_project(&restored, "after the restore");
        sizes.push(held.len());
    }
    assert!(sizes.is_sorted() && sizes[0] < sizes[2], "{sizes:?}");
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
