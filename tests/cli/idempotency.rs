//! Retries after a crash between the commit of a write and its response.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::Method;
use reqwest::blocking::Client;
use serde_json::{Value, json};

use crate::process::{ServerProcess, folder, run};
use crate::tiny_model::TinyModel;

const CLIENTS: usize = 8;

/// Creates the project `name` with an idempotency key of the same name. Returns its ID if there is a response.
fn create(serving: &ServerProcess, client: &Client, name: &str) -> Option<String> {
    let sent = client
        .post(format!("{}/v1/projects", serving.url))
        .bearer_auth(serving.key())
        .header("content-type", "application/json")
        .header("idempotency-key", name)
        .body(json!({ "name": name }).to_string())
        .send();
    let body: Value = serde_json::from_str(&sent.ok()?.text().ok()?).ok()?;
    Some(body["id"].as_str().unwrap_or_else(|| panic!("{body}")).to_owned())
}

/// The number of projects of each name.
fn counts(serving: &ServerProcess) -> BTreeMap<String, usize> {
    let (mut found, mut path) = (BTreeMap::new(), "/v1/projects?limit=100".to_owned());
    loop {
        let page: Value = serde_json::from_str(&serving.request(Method::GET, &path, None).text().unwrap()).unwrap();
        for project in page["data"].as_array().unwrap() {
            *found.entry(project["name"].as_str().unwrap().to_owned()).or_default() += 1;
        }
        match page["next_cursor"].as_str() {
            Some(cursor) => path = format!("/v1/projects?limit=100&cursor={cursor}"),
            None => return found,
        }
    }
}

#[test]
fn a_retry_after_a_crash_has_no_second_effect_and_the_same_response() {
    let folder = folder(&TinyModel::default());
    let mut serving = ServerProcess::start(folder.path(), &[]);
    let mut acknowledged: BTreeMap<String, String> = BTreeMap::new();
    for round in 0..4_u64 {
        let (done, open): (Vec<_>, Vec<_>) = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS)
                .map(|index| {
                    let serving = &serving;
                    scope.spawn(move || {
                        let (client, mut done) = (Client::new(), Vec::new());
                        for number in 0.. {
                            let name = format!("r{round} c{index} n{number}");
                            match create(serving, &client, &name) {
                                Some(id) => done.push((name, id)),
                                None => return (done, name),
                            }
                        }
                        unreachable!()
                    })
                })
                .collect();
            std::thread::sleep(Duration::from_millis(200 + 97 * round));
            serving.signal("KILL");
            clients.into_iter().map(|client| client.join().unwrap()).unzip()
        });
        serving.wait(Duration::from_secs(5));
        serving = ServerProcess::start(folder.path(), &[]);
        acknowledged.extend(done.into_iter().flatten());
        // The requests in flight and the last acknowledged one are sent again.
        let client = Client::new();
        for name in open {
            acknowledged.insert(name.clone(), create(&serving, &client, &name).unwrap());
        }
        for (name, id) in acknowledged.iter().rev().take(20) {
            assert_eq!(create(&serving, &client, name).as_ref(), Some(id));
        }
    }
    let counts = counts(&serving);
    assert!(acknowledged.len() > 100, "{}", acknowledged.len());
    for name in acknowledged.keys() {
        assert_eq!(counts.get(name), Some(&1), "{name}");
    }
    assert_eq!(counts.len(), acknowledged.len() + 1, "one more: the default project");
    drop(serving);
    assert!(run(folder.path(), &["check"]).status.success());
}
