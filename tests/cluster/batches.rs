//! A batch is run by one server, and by another one after that has died.

use std::time::Duration;

use outpost::ids::BatchId;
use outpost::storage::WriteTx;
use outpost::storage::work_leases::{self, Work};
use outpost_testing::needs_postgres;
use reqwest::Method;
use serde_json::{Value, json};

use crate::database::Database;
use crate::nodes::{ask, slow_model, upload};
use crate::server::{MODEL, Server};
use crate::tiny_model::TinyModel;
use crate::wait::until;

/// Lines of text completions with this many tokens.
fn lines(count: usize, tokens: usize) -> String {
    let line = |index| {
        let body = json!({
            "model": MODEL, "prompt": format!("text {index}"), "max_tokens": tokens, "temperature": 0, "ignore_eos": true,
        });
        json!({ "custom_id": format!("request-{index}"), "method": "POST", "url": "/v1/completions", "body": body })
            .to_string()
    };
    (0..count).map(line).collect::<Vec<_>>().join("\n")
}

fn batch_of(file: &Value) -> Value {
    json!({ "input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h" })
}

fn path(batch: &Value) -> String {
    format!("/openai/v1/batches/{}", batch["id"].as_str().unwrap())
}

fn completed(batch: &Value) -> u64 {
    batch["request_counts"]["completed"].as_u64().unwrap()
}

/// Requests of batches of a project by outcome.
fn outcomes(server: &Server, project: &str) -> Value {
    let report = server.get(&format!("/v1/projects/{project}/usage?group_by=endpoint")).ok();
    let groups = report["groups"].as_array().unwrap();
    let found = groups.iter().find(|group| group["endpoint"] == "BATCH /completions");
    found.map_or(Value::Null, |group| group["requests_by_outcome"].clone())
}

#[test]
fn a_batch_of_a_killed_server_is_finished_by_another_with_every_request_once() {
    needs_postgres!();
    let (database, model) = (Database::new(), TinyModel::default());
    let a = database.serve("a", &model);
    let (project, _, key) = a.tenant("batches");
    let file = upload(&a, &key, "batch", &lines(30, 3));
    let limits = format!("/v1/projects/{project}/rate-limits");
    a.patch(&limits, &json!({ "token_budget": 60 })).ok();
    let folder = a.stop();
    let mut a = database.spawn("a", folder.path());
    let batch = ask(
        &a,
        Method::POST,
        "/openai/v1/batches",
        Some(&{
            let mut new = batch_of(&file);
            new["project_id"] = json!(project);
            new
        }),
    );
    let before = || ask(&a, Method::GET, &path(&batch), None);
    until(|| "some requests fit into the budget", || completed(&before()) > 1);
    let b = database.serve("b", &model);
    a.child.kill().unwrap();
    a.child.wait().unwrap();
    assert!(completed(&b.get(&path(&batch)).ok()) < 30, "the budget is exhausted");
    b.patch(&limits, &json!({ "token_budget": 100_000 })).ok();
    until(|| "the batch is complete", || b.get(&path(&batch)).ok()["status"] == "completed");
    let ended = b.get(&path(&batch)).ok();
    assert_eq!(ended["request_counts"], json!({ "total": 30, "completed": 30, "failed": 0 }));
    let output = b.get(&format!("/v1/files/{}/content", ended["output_file_id"].as_str().unwrap()));
    let ids: Vec<Value> =
        output.text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["custom_id"].clone()).collect();
    assert_eq!(ids, (0..30).map(|index| json!(format!("request-{index}"))).collect::<Vec<_>>());
    let outcomes = outcomes(&b, &project);
    assert_eq!((&outcomes["succeeded"], &outcomes["abandoned"]), (&json!(30), &json!(0)), "{outcomes}");
    // The dead process has nothing left, either.
    database.wait_for_no_leases();
}

#[test]
fn a_server_that_has_lost_a_batch_drops_it_without_a_trace() {
    needs_postgres!();
    let database = Database::new();
    let a = database.serve("a", &slow_model());
    let (project, _, key) = a.tenant("batches");
    let file = upload(&a, &key, "batch", &lines(2, 7000));
    let batch = a.call(Method::POST, "/openai/v1/batches", Some(&key), Some(&batch_of(&file))).ok();
    until(|| "both requests run", || a.engine.load().running == 2);
    let id: BatchId = batch["id"].as_str().unwrap().parse().unwrap();
    let (thief, _folder) = database.open("thief");
    // As if the server were dead.
    let steal = move |tx: &WriteTx| work_leases::claim(tx, Work::Batch(id), |_| false);
    assert!(thief.enqueue(steal).unwrap().blocking_recv().unwrap().unwrap());
    a.wait_idle(Duration::from_secs(60));
    let outcomes = outcomes(&a, &project);
    assert!(outcomes.is_null() || outcomes["abandoned"] == 0, "the work that was lost is not metered: {outcomes}");
    let seen = a.get(&path(&batch)).ok();
    assert_eq!((&seen["status"], completed(&seen)), (&json!("in_progress"), 0));
    // The server takes the batch when the other process stops.
    thief.shutdown();
    until(|| "both requests run again", || a.engine.load().running == 2);
    a.post(&format!("{}/cancel", path(&batch)), &json!({})).ok();
    until(|| "the batch is cancelled", || a.get(&path(&batch)).ok()["status"] == "cancelled");
}

#[test]
fn a_batch_that_another_server_runs_can_be_cancelled() {
    needs_postgres!();
    let (database, model) = (Database::new(), slow_model());
    let a = database.serve("a", &model);
    let file = upload(&a, &a.admin, "batch", &lines(2, 7000));
    let batch = a.post("/openai/v1/batches", &batch_of(&file)).ok();
    until(|| "both requests run", || a.engine.load().running == 2);
    let b = database.serve("b", &model);
    b.post(&format!("{}/cancel", path(&batch)), &json!({})).ok();
    until(|| "the batch is cancelled", || b.get(&path(&batch)).ok()["status"] == "cancelled");
    a.wait_idle(Duration::from_secs(60));
    database.wait_for_no_leases();
}
