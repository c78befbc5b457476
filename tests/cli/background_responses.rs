//! Responses in the background outlive the process.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::process::{MODEL, ServerProcess, folder, output_text, run};
use crate::tiny_model::TinyModel;
use crate::wait::until;

const KILLS: u64 = 3;
const RESPONSES_BEFORE_A_KILL: u64 = 4;
const RESPONSES: u64 = KILLS * RESPONSES_BEFORE_A_KILL;
/// So many that a response is still generated when the process is killed.
const OUTPUT_TOKENS: u64 = 1900;
const PATH: &str = "/v1/responses";

fn get(serving: &ServerProcess, path: &str) -> Value {
    serving.request(Method::GET, path, None).json().unwrap()
}

fn request(index: u64) -> Value {
    json!({
        "model": MODEL, "input": format!("text {index}"), "max_output_tokens": OUTPUT_TOKENS, "ignore_eos": true,
        "background": true, "temperature": 1,
    })
}

/// Responses that have ended, in the order of `ids`.
fn ended(serving: &ServerProcess, ids: &[String]) -> Vec<Value> {
    let all = ids.iter().map(|id| get(serving, &format!("{PATH}/{id}")));
    all.filter(|response| !["queued", "in_progress"].contains(&response["status"].as_str().unwrap())).collect()
}

#[test]
fn responses_are_generated_once_although_the_process_is_killed() {
    let folder = folder(&TinyModel { blocks: 4, width: 256, context: 2048, ..TinyModel::default() });
    let mut serving = ServerProcess::start(folder.path(), &[]);
    let create = |serving: &ServerProcess, index| {
        let created: Value = serving.request(Method::POST, PATH, Some(&request(index))).json().unwrap();
        assert_eq!(created["status"], "queued", "{created}");
        created["id"].as_str().unwrap().to_owned()
    };
    let mut ids = Vec::new();
    for _ in 0..KILLS {
        let created: Vec<String> = (0..RESPONSES_BEFORE_A_KILL).map(|index| create(&serving, index)).collect();
        let is_running = || created.iter().any(|id| get(&serving, &format!("{PATH}/{id}"))["status"] == "in_progress");
        until(|| "a response is generated", is_running);
        ids.extend(created);
        std::thread::sleep(Duration::from_millis(50));
        serving.signal("KILL");
        serving.wait(Duration::from_secs(10));
        serving = ServerProcess::start(folder.path(), &[]);
    }
    // A stop in order leaves them for the next start, too.
    until(|| "a response is generated", || !ended(&serving, &ids).is_empty());
    serving.signal("TERM");
    serving.wait(Duration::from_secs(20));
    serving = ServerProcess::start(folder.path(), &[]);
    until(|| "all have ended", || ended(&serving, &ids).len() as u64 == RESPONSES);
    let responses = ended(&serving, &ids);
    for (response, id) in responses.iter().zip(&ids) {
        let found = (&response["id"], &response["status"], &response["usage"]["output_tokens"]);
        assert_eq!(found, (&json!(id), &json!("incomplete"), &json!(OUTPUT_TOKENS)));
    }
    let used = |name: &str| responses.iter().map(|response| response["usage"][name].as_u64().unwrap()).sum::<u64>();
    let projects = get(&serving, "/v1/projects");
    let project = projects["data"][0]["id"].as_str().unwrap();
    let report = get(&serving, &format!("/v1/projects/{project}/usage?group_by=endpoint"));
    let groups = report["groups"].as_array().unwrap();
    let metered = groups.iter().find(|group| group["endpoint"] == "BACKGROUND /responses").unwrap();
    let expected = json!({ "succeeded": RESPONSES, "refused": 0, "limited": 0, "failed": 0, "abandoned": 0 });
    for (outcome, count) in expected.as_object().unwrap() {
        assert_eq!(&metered["requests_by_outcome"][outcome], count, "{outcome}: {metered}");
    }
    assert_eq!(metered["tokens"]["input"], used("input_tokens"), "{metered}");
    assert_eq!(metered["tokens"]["output"], used("output_tokens"), "{metered}");
    drop(serving);
    let check = run(folder.path(), &["check"]);
    assert!(check.status.success(), "{}", output_text(&check));
}
