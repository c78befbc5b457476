use std::collections::HashSet;
use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};

use crate::process::{ServerProcess, folder, mode, output_text, run};
use crate::tiny_model::TinyModel;
use crate::wait::until;

fn create_project(serving: &ServerProcess, name: &str) -> String {
    let body: Value =
        serving.request(reqwest::Method::POST, "/v1/projects", Some(&json!({ "name": name }))).json().unwrap();
    body["id"].as_str().unwrap().to_owned()
}

#[test]
fn a_restored_backup_accepts_the_same_keys() {
    let origin = folder(&TinyModel::default());
    let serving = ServerProcess::start(origin.path(), &[]);
    let before = create_project(&serving, "before");
    let output = run(origin.path(), &["backup", "saved.backup"]);
    assert!(output.status.success(), "{}", output_text(&output));
    let after = create_project(&serving, "after");
    assert_eq!(mode(&origin.path().join("saved.backup")), 0o600);
    let again = run(origin.path(), &["backup", "saved.backup"]);
    assert!(!again.status.success() && output_text(&again).contains("exists"), "{}", output_text(&again));

    let copy = folder(&TinyModel::default());
    let saved = origin.path().join("saved.backup");
    let output = run(copy.path(), &["restore", saved.to_str().unwrap()]);
    assert!(output.status.success(), "{}", output_text(&output));
    fs::copy(origin.path().join("data/admin.key"), copy.path().join("data/admin.key")).unwrap();
    let restored = ServerProcess::start(copy.path(), &[]);
    assert!(!restored.startup_output.contains("opk_"), "no new key is created");
    let status =
        |id: &str| restored.request(reqwest::Method::GET, &format!("/v1/projects/{id}"), None).status().as_u16();
    assert_eq!((status(&before), status(&after)), (200, 404), "the backup is a snapshot");

    let over = run(copy.path(), &["restore", saved.to_str().unwrap()]);
    assert!(!over.status.success(), "an existing store is not overwritten: {}", output_text(&over));
}

/// A project that a client created, with the times of the request and of the response.
struct Acknowledged {
    id: String,
    requested_at: Instant,
    acknowledged_at: Instant,
}

/// Creates projects one after the other and logs each response, until `stop` is set.
fn create_projects_until_stopped(serving: &ServerProcess, log: &Mutex<Vec<Acknowledged>>, stop: &AtomicBool) {
    let client = reqwest::blocking::Client::builder().timeout(Duration::from_secs(60)).build().unwrap();
    let (url, key) = (format!("{}/v1/projects", serving.url), serving.key());
    while !stop.load(Ordering::Relaxed) {
        let requested_at = Instant::now();
        let request = client.post(&url).bearer_auth(&key).header("content-type", "application/json");
        let response = request.body(json!({ "name": "written" }).to_string()).send().unwrap();
        assert_eq!(response.status(), 200);
        let body: Value = response.json().unwrap();
        let id = body["id"].as_str().unwrap().to_owned();
        log.lock().unwrap().push(Acknowledged { id, requested_at, acknowledged_at: Instant::now() });
    }
}

/// The IDs of all projects of a running server.
fn projects(serving: &ServerProcess) -> HashSet<String> {
    let (mut ids, mut cursor) = (HashSet::new(), String::new());
    loop {
        let page: Value =
            serving.request(Method::GET, &format!("/v1/projects?limit=100{cursor}"), None).json().unwrap();
        let data = page["data"].as_array().unwrap_or_else(|| panic!("{page}"));
        ids.extend(data.iter().map(|project| project["id"].as_str().unwrap().to_owned()));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return ids,
        }
    }
}

/// The backup contains every project that was acknowledged before it began. If it contains a project, it contains all
/// projects that were acknowledged before the request for it.
#[test]
fn a_backup_during_writes_is_a_consistent_snapshot() {
    let origin = folder(&TinyModel::default());
    let serving = ServerProcess::start(origin.path(), &[]);
    let (log, stop) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    let wait_for_more = || {
        let had = log.lock().unwrap().len();
        until(|| "the clients write more", || log.lock().unwrap().len() >= had + 40);
    };
    let backups: Vec<(String, Instant, Instant)> = std::thread::scope(|scope| {
        (0..8).for_each(|_| drop(scope.spawn(|| create_projects_until_stopped(&serving, &log, &stop))));
        let back_up = |number: usize| {
            wait_for_more();
            let (name, begun) = (format!("{number}.backup"), Instant::now());
            let output = run(origin.path(), &["backup", &name]);
            assert!(output.status.success(), "{}", output_text(&output));
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
        assert!(output.status.success(), "{}", output_text(&output));
        let checked = run(copy.path(), &["check"]);
        assert!(checked.status.success(), "{}", output_text(&checked));
        fs::copy(origin.path().join("data/admin.key"), copy.path().join("data/admin.key")).unwrap();
        let restored = ServerProcess::start(copy.path(), &[]);
        let held = projects(&restored);
        let (inside, outside): (Vec<_>, Vec<_>) = log.iter().partition(|project| held.contains(&project.id));
        let newest = inside.iter().map(|project| project.requested_at).max().expect("projects in the backup");
        assert!(newest < ended, "the backup contains a project that was requested after it ended");
        for missing in outside {
            assert!(missing.acknowledged_at > begun, "a project that was acknowledged before the backup is missing");
            assert!(
                missing.acknowledged_at > newest,
                "a project is missing that was acknowledged before the request for another one"
            );
        }
        create_project(&restored, "after the restore");
        sizes.push(held.len());
    }
    assert!(sizes.is_sorted() && sizes[0] < sizes[2], "{sizes:?}");
}

#[test]
fn check_works_with_and_without_a_server_and_finds_damage() {
    let folder = folder(&TinyModel::default());
    let mut serving = ServerProcess::start(folder.path(), &[]);
    create_project(&serving, "checked");
    let online = run(folder.path(), &["check"]);
    assert!(online.status.success() && output_text(&online).contains("running"), "{}", output_text(&online));
    let saved = run(folder.path(), &["backup", "saved.backup"]);
    let sentence = String::from_utf8(saved.stdout).unwrap();
    assert!(sentence.contains(" records (") && sentence.lines().count() == 1, "{sentence}");
    serving.signal("TERM");
    serving.wait(std::time::Duration::from_secs(10));
    let offline = run(folder.path(), &["check"]);
    assert!(offline.status.success(), "{}", output_text(&offline));
    let verbose = String::from_utf8(run(folder.path(), &["check", "--verbose"]).stdout).unwrap();
    let (table, sentence) = verbose.trim_end().rsplit_once('\n').unwrap();
    assert!(table.lines().any(|line| line == "projects: 2"), "{table}");
    let count: u64 = table.lines().map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum();
    assert_eq!(sentence, format!("All {count} records are intact."));
    assert_eq!(String::from_utf8_lossy(&offline.stdout), format!("{sentence}\n"));

    let path = folder.path().join("data/outpost.redb");
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(7).position(|window| window == b"checked").unwrap();
    bytes[at] ^= 1;
    fs::write(&path, bytes).unwrap();
    let damaged = run(folder.path(), &["check"]);
    assert_eq!(damaged.status.code(), Some(1), "{}", output_text(&damaged));
}

#[test]
fn commands_report_a_folder_without_a_store() {
    let folder = tempfile::tempdir().unwrap();
    for arguments in [&["check"][..], &["backup", "x"]] {
        let output = run(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(1));
        assert!(output_text(&output).contains("no store"), "{}", output_text(&output));
    }
    let output = run(folder.path(), &["restore", "missing.backup"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output_text(&output).contains("missing.backup"), "{}", output_text(&output));
}

#[test]
fn the_owner_of_the_folder_can_create_another_admin_key() {
    let folder = folder(&TinyModel::default());
    let mut serving = ServerProcess::start(folder.path(), &[]);
    let refused = run(folder.path(), &["admin-key"]);
    assert!(
        !refused.status.success() && output_text(&refused).contains("Another outpost process"),
        "{}",
        output_text(&refused)
    );
    serving.signal("TERM");
    serving.wait(std::time::Duration::from_secs(10));
    let new_key = run(folder.path(), &["admin-key"]);
    assert!(new_key.status.success(), "{}", output_text(&new_key));
    let secret = String::from_utf8(new_key.stdout).unwrap();
    fs::write(folder.path().join("data/admin.key"), &secret).unwrap();
    let serving = ServerProcess::start(folder.path(), &[]);
    create_project(&serving, "made with the new key");
}
