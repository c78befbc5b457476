//! Batches outlive the process.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::process::{MODEL, ServerProcess, folder, output_text, run};
use crate::tiny_model::TinyModel;
use crate::wait::until;

const REQUESTS: u64 = 300;
const ENDPOINT: &str = "/v1/completions";

/// Uploads the input of a batch and returns the file's ID.
fn upload(serving: &ServerProcess) -> String {
    let line = |index: u64| {
        // Every tenth request is refused.
        let model = if index.is_multiple_of(10) { "none" } else { MODEL };
        let body = json!({ "model": model, "prompt": format!("text {index}"), "max_tokens": 40, "ignore_eos": true });
        json!({ "custom_id": format!("request-{index}"), "method": "POST", "url": ENDPOINT, "body": body }).to_string()
    };
    let content = (0..REQUESTS).map(line).collect::<Vec<_>>().join("\n");
    let part =
        |head: &str, content: &str| format!("--xYzZY\r\nContent-Disposition: form-data; {head}\r\n\r\n{content}\r\n");
    let body = part("name=\"purpose\"", "batch")
        + &part("name=\"file\"; filename=\"requests.jsonl\"", &content)
        + "--xYzZY--\r\n";
    let request = reqwest::blocking::Client::new().post(format!("{}/v1/files", serving.url)).bearer_auth(serving.key());
    let reply = request.header("content-type", "multipart/form-data; boundary=xYzZY").body(body).send().unwrap();
    let reply: Value = reply.json().unwrap();
    reply["id"].as_str().unwrap_or_else(|| panic!("{reply}")).to_owned()
}

fn get(serving: &ServerProcess, path: &str) -> Value {
    serving.request(Method::GET, path, None).json().unwrap()
}

fn done(batch: &Value) -> u64 {
    ["completed", "failed"].iter().map(|name| batch["request_counts"][name].as_u64().unwrap()).sum()
}

/// The lines of one of the batch's files.
fn lines(serving: &ServerProcess, file: &Value) -> Vec<Value> {
    let path = format!("/v1/files/{}/content", file.as_str().unwrap());
    let text = serving.request(Method::GET, &path, None).text().unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn ids(of: impl Iterator<Item = u64>) -> Vec<Value> {
    of.map(|index| json!(format!("request-{index}"))).collect()
}

#[test]
fn a_batch_that_is_killed_three_times_has_each_result_and_its_usage_once() {
    let folder = folder(&TinyModel { blocks: 4, width: 256, ..TinyModel::default() });
    let mut serving = ServerProcess::start(folder.path(), &[]);
    let new = json!({ "input_file_id": upload(&serving), "endpoint": ENDPOINT, "completion_window": "24h" });
    let batch: Value = serving.request(Method::POST, "/v1/batches", Some(&new)).json().unwrap();
    let path = format!("/v1/batches/{}", batch["id"].as_str().unwrap_or_else(|| panic!("{batch}")));
    for kill in 1..4 {
        let mut found = Value::Null;
        let is_ahead = || {
            found = get(&serving, &path);
            done(&found) > 60 * kill
        };
        until(|| "the batch is ahead", is_ahead);
        std::thread::sleep(Duration::from_millis(7 * kill));
        serving.signal("KILL");
        serving.wait(Duration::from_secs(10));
        assert!(done(&found) < REQUESTS && found["state"] == "in_progress", "it is killed before its end: {found}");
        serving = ServerProcess::start(folder.path(), &[]);
        assert!(done(&get(&serving, &path)) >= done(&found), "what was complete still is");
    }
    until(|| "the batch is complete", || get(&serving, &path)["state"] == "completed");
    let ended = get(&serving, &path);
    let counts = &ended["request_counts"];
    assert_eq!([&counts["total"], &counts["completed"], &counts["failed"]], [300, 270, 30], "{ended}");

    let output = lines(&serving, &ended["output_file_id"]);
    let errors = lines(&serving, &ended["error_file_id"]);
    let custom_ids = |lines: &[Value]| lines.iter().map(|line| line["custom_id"].clone()).collect::<Vec<_>>();
    assert_eq!(custom_ids(&output), ids((0..REQUESTS).filter(|index| !index.is_multiple_of(10))));
    assert_eq!(custom_ids(&errors), ids((0..REQUESTS).step_by(10)));
    let used =
        |name: &str| output.iter().map(|line| line["response"]["body"]["usage"][name].as_u64().unwrap()).sum::<u64>();

    let project = ended["project_id"].as_str().unwrap();
    let report = get(&serving, &format!("/v1/projects/{project}/usage?group_by=endpoint"));
    let groups = report["groups"].as_array().unwrap();
    let metered = groups.iter().find(|group| group["endpoint"] == "BATCH /completions").unwrap();
    let expected = json!({ "succeeded": 270, "refused": 30, "limited": 0, "failed": 0, "abandoned": 0 });
    for (outcome, count) in expected.as_object().unwrap() {
        assert_eq!(&metered["requests_by_outcome"][outcome], count, "{outcome}: {metered}");
    }
    assert_eq!(metered["tokens"]["input"], used("prompt_tokens"), "{metered}");
    assert_eq!(metered["tokens"]["output"], used("completion_tokens"), "{metered}");
    drop(serving);
    let check = run(folder.path(), &["check"]);
    assert!(check.status.success(), "{}", output_text(&check));
}
