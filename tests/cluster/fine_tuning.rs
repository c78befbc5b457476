//! A job is trained by a server that has its model.

use outpost_testing::needs_postgres;
use serde_json::{Value, json};

use crate::database::Database;
use crate::nodes::upload;
use crate::server::{MODEL, Server};
use crate::tiny_model::TinyModel;
use crate::wait::until;

/// Creates a job on this many examples.
fn create(server: &Server, examples: usize, epochs: usize) -> Value {
    let line = |index| {
        let content = [("user", "question"), ("assistant", "answer")];
        let messages = content.map(|(role, text)| json!({ "role": role, "content": format!("{text} {index}") }));
        json!({ "messages": messages }).to_string()
    };
    let content = (0..examples).map(line).collect::<Vec<_>>().join("\n");
    let hyperparameters = json!({ "n_epochs": epochs, "batch_size": 1 });
    let new = json!({
        "model": MODEL, "training_file": upload(server, &server.admin, "fine-tune", &content),
        "hyperparameters": hyperparameters,
    });
    server.post("/v1/fine_tuning/jobs", &new).ok()
}

fn path(job: &Value) -> String {
    format!("/v1/fine_tuning/jobs/{}", job["id"].as_str().unwrap())
}

fn wait_for(server: &Server, job: &Value, state: &str) {
    until(|| format!("the job is {state}"), || server.get(&path(job)).ok()["state"] == state);
}

fn messages(server: &Server, job: &Value) -> Vec<String> {
    let events = server.get(&format!("{}/events?limit=100", path(job))).ok();
    events["data"].as_array().unwrap().iter().map(|event| event["message"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_server_without_the_model_leaves_a_job_to_one_that_has_it() {
    needs_postgres!();
    let (database, model) = (Database::new(), TinyModel::default());
    let a = database.serve("a", &model);
    let job = create(&a, 500, 50);
    wait_for(&a, &job, "running");
    a.post(&format!("{}/pause", path(&job)), &json!({})).ok();
    database.wait_for_no_leases();
    let without_models = tempfile::tempdir().unwrap();
    std::fs::create_dir(without_models.path().join("models")).unwrap();
    let b = database.serve_in("b", without_models);
    let folder = a.stop();
    b.post(&format!("{}/resume", path(&job)), &json!({})).ok();
    let left = |messages: &[String]| messages.iter().filter(|text| text.contains("cannot train the job")).count();
    until(|| "the server says that it cannot train the job", || left(&messages(&b, &job)) == 1);
    assert_eq!(b.get(&path(&job)).ok()["state"], "queued");
    let a = database.serve_in("a", folder);
    wait_for(&b, &job, "running");
    assert!(messages(&b, &job)[0].contains("goes on") || messages(&b, &job).len() > 2);
    // The other server stops it.
    b.post(&format!("{}/cancel", path(&job)), &json!({})).ok();
    database.wait_for_no_leases();
    assert_eq!((a.get(&path(&job)).ok()["state"].clone(), left(&messages(&b, &job))), (json!("cancelled"), 1));
}

#[test]
fn a_job_goes_on_where_another_server_has_stopped() {
    needs_postgres!();
    let (database, model) = (Database::new(), TinyModel::default());
    let a = database.serve("a", &model);
    let job = create(&a, 500, 50);
    let step = |server: &Server| server.get(&path(&job)).ok()["progress"]["step"].as_u64().unwrap_or(0);
    until(|| "some steps are done", || step(&a) > 0);
    let b = database.serve("b", &model);
    drop(a);
    until(|| "the other server goes on", || messages(&b, &job).iter().any(|text| text.contains("goes on after step")));
    b.post(&format!("{}/cancel", path(&job)), &json!({})).ok();
    let trained = b.get(&path(&job)).ok()["trained_tokens"].as_u64().unwrap();
    assert!(trained > 0);
    database.wait_for_no_leases();
}
