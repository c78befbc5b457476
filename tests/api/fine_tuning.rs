use outpost_testing::needs_postgres;
use reqwest::Method;
use serde_json::{Value, json};

use crate::nodes::Nodes;
use crate::server::{MODEL, Server};
use crate::tiny_model::TinyModel;
use crate::upload::{file, pages, quota_usage_of, records, upload};
use crate::wait::until;

fn job(server: &Server, key: &str, more: Value) -> Value {
    let mut body = json!({ "model": MODEL, "training_file": file(server, key) });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.call(Method::POST, "/v1/fine_tuning/jobs", Some(key), Some(&body)).ok()
}

fn path(job: &Value) -> String {
    format!("/v1/fine_tuning/jobs/{}", job["id"].as_str().unwrap())
}

/// Waits until a job is in a state, and returns it.
pub fn wait_for(server: &Server, job: &str, state: &str) -> Value {
    let path = format!("/v1/fine_tuning/jobs/{job}");
    let mut found = Value::Null;
    until(
        || format!("the job is {state}"),
        || {
            found = server.get(&path).ok();
            let ended = ["succeeded", "failed", "cancelled"].iter().any(|end| found["state"] == *end);
            assert!(found["state"] == state || !ended, "the job shall be {state}: {found}");
            found["state"] == state
        },
    );
    found
}

/// A file with this many examples.
fn many_examples(server: &Server, key: &str, count: usize) -> String {
    let line = |index: usize| {
        json!({ "messages": [
            { "role": "user", "content": format!("question {index}") },
            { "role": "assistant", "content": format!("answer {index}") },
        ] })
    };
    let lines: Vec<String> = (0..count).map(|index| line(index).to_string()).collect();
    upload(server, key, lines.join("\n").as_bytes()).ok()["id"].as_str().unwrap().to_owned()
}

/// A job that takes minutes.
fn long_job(server: &Server) -> Value {
    let file = many_examples(server, &server.admin, 500);
    let hyperparameters = json!({ "n_epochs": 50, "batch_size": 1 });
    let new = json!({ "model": MODEL, "training_file": file, "hyperparameters": hyperparameters });
    server.post("/v1/fine_tuning/jobs", &new).ok()
}

fn id(job: &Value) -> &str {
    job["id"].as_str().unwrap()
}

fn messages(server: &Server, job: &Value) -> Vec<String> {
    let events = server.get(&format!("{}/events?limit=100", path(job))).ok();
    events["data"].as_array().unwrap().iter().map(|event| event["message"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn trained_tokens_count_against_the_budget_at_once() {
    let server = Server::start();
    let (project, _, key) = server.tenant("t");
    let chat = || {
        let body = json!({ "model": MODEL, "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 1 });
        server.call(Method::POST, "/v1/chat/completions", Some(&key), Some(&body))
    };
    let used = chat().ok()["usage"]["total_tokens"].as_u64().unwrap();
    let job = job(&server, &key, json!({ "hyperparameters": { "n_epochs": 2 } }));
    let trained = wait_for(&server, id(&job), "succeeded")["trained_tokens"].as_u64().unwrap();
    assert!(trained > 0);
    server.patch(&format!("/v1/projects/{project}/rate-limits"), &json!({ "token_budget": used + trained })).ok();
    assert_eq!(chat().error_fields().1, "insufficient_quota");
}

#[test]
fn a_job_trains_a_model_that_its_project_can_call() {
    let server = Server::start();
    let (project, _, key) = server.tenant("tuning team");
    let (_, _, stranger) = server.tenant("other");
    let files = [many_examples(&server, &key, 8), file(&server, &key)];
    let new = json!({
        "model": MODEL, "training_file": files[0], "validation_file": files[1], "suffix": "mine", "seed": 7, "name": "n",
        "metadata": { "team": "a" }, "integrations": null,
        "method": { "type": "supervised", "supervised": { "hyperparameters": { "n_epochs": 4, "batch_size": "auto" } } },
    });
    let created = server.call(Method::POST, "/v1/fine_tuning/jobs", Some(&key), Some(&new)).ok();
    assert_eq!((&created["object"], &created["status"]), (&json!("service.resource"), &json!("succeeded")));
    assert!(id(&created).starts_with("ftjob-"));
    let expected = json!({
        "name": "n", "project_id": project, "organization_id": project, "model": MODEL, "fine_tuned_model": null,
        "training_file": files[0], "validation_file": files[1], "result_files": [], "suffix": "mine", "seed": 7,
        "metadata": { "team": "a" }, "integrations": [], "state": "queued", "error": null, "finished_at": null,
    });
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(created[field], *value, "{field}");
    }

    let job = wait_for(&server, id(&created), "succeeded");
    let model = job["fine_tuned_model"].as_str().unwrap();
    assert!(model.starts_with(&format!("ft:{MODEL}:tuning-team:mine:")), "{model}");
    assert_eq!(job["hyperparameters"]["n_epochs"], 4);
    assert_eq!(job["hyperparameters"]["batch_size"], 1, "chosen for 8 examples");
    assert_eq!(job["method"]["supervised"]["hyperparameters"], job["hyperparameters"]);
    assert!(job["trained_tokens"].as_u64().unwrap() > 0 && job["finished_at"].is_i64());
    let progress = &job["progress"];
    assert_eq!((&progress["step"], &progress["steps"]), (&json!(32), &json!(32)));
    assert!(progress["train_loss"].is_f64() && progress["valid_loss"].is_f64());
    let theirs = server.get(&path(&job).replace("/v1", "/openai/v1")).ok();
    assert_eq!((&theirs["object"], &theirs["status"]), (&json!("fine_tuning.job"), &json!("succeeded")));

    let events = server.get(&format!("{}/events?limit=100", path(&job).replace("/v1", "/openai/v1"))).ok();
    let events = events["data"].as_array().unwrap();
    let losses: Vec<f64> = events
        .iter()
        .filter(|event| event["type"] == "metrics")
        .filter_map(|event| event["data"]["train_loss"].as_f64())
        .collect();
    assert_eq!(losses.len(), 32);
    assert!(losses[0] < losses[31], "the loss falls, and the newest event is first: {losses:?}");
    assert!(events[0]["message"].as_str().unwrap().contains(model));

    let call = |path: &str| server.call(Method::GET, path, Some(&key), None).ok();
    let checkpoints = call(&format!("{}/checkpoints", path(&job)));
    let checkpoints = checkpoints["data"].as_array().unwrap();
    let steps: Vec<_> = checkpoints.iter().map(|checkpoint| checkpoint["step_number"].as_u64().unwrap()).collect();
    assert_eq!(steps, [32, 24, 16], "the last three epochs");
    let checkpoint = checkpoints[2]["fine_tuned_model_checkpoint"].as_str().unwrap();
    assert_eq!(checkpoint, format!("{model}:ckpt-step-16"));

    let listed = call("/v1/models");
    let ids: Vec<_> = listed["data"].as_array().unwrap().iter().map(|model| id(model).to_owned()).collect();
    assert!(ids.contains(&model.to_owned()) && ids.contains(&checkpoint.to_owned()), "{ids:?}");
    assert_eq!(call(&format!("/v1/models/{model}"))["base_model"], MODEL);
    let chat = |key: &str, model: &str| {
        let body = json!({
            "model": model, "max_tokens": 8, "temperature": 0,
            "messages": [{ "role": "user", "content": "question 3" }],
        });
        server.call(Method::POST, "/v1/chat/completions", Some(key), Some(&body))
    };
    let [base, tuned] = [MODEL, model].map(|model| chat(&key, model).ok()["choices"][0]["message"]["content"].clone());
    assert_ne!(base, tuned);
    chat(&key, checkpoint).ok();
    assert_eq!(chat(&stranger, model).error_fields().0, 404, "it belongs to another project");
    assert_eq!(server.call(Method::GET, &format!("/v1/models/{model}"), Some(&stranger), None).status, 404);

    let deleted = server.call(Method::DELETE, &format!("/v1/models/{model}"), Some(&key), None).ok();
    assert_eq!((&deleted["id"], &deleted["deleted"]), (&json!(model), &json!(true)));
    assert_eq!(chat(&key, model).error_fields().0, 404);
    chat(&key, checkpoint).ok();

    let folder = server.stop();
    let usage = quota_usage_of(folder.path(), &project);
    assert_eq!((usage.jobs, usage.files), (1, 2));
    std::fs::write(folder.path().join("models/models.toml"), format!("[aliases]\nmine = '{checkpoint}'")).unwrap();
    let server = Server::start_in(folder);
    let chat = |key: &str, model: &str| {
        let messages = json!([{ "role": "user", "content": "question 3" }]);
        let body = json!({ "model": model, "messages": messages, "max_tokens": 1 });
        server.call(Method::POST, "/v1/chat/completions", Some(key), Some(&body))
    };
    chat(&key, checkpoint).ok();
    assert_eq!(chat(&key, "mine").ok()["model"], checkpoint);
    let refused = chat(&stranger, "mine");
    assert_eq!(refused.error_fields().0, 404);
    assert!(refused.text.contains("'mine'") && !refused.text.contains("ft:"), "{}", refused.text);
}

#[test]
fn a_tuned_model_that_one_node_deletes_is_gone_on_the_other() {
    needs_postgres!();
    let nodes = Nodes::start(&TinyModel::default());
    let [one, two] = &nodes.servers[..] else { panic!() };
    let created = job(one, &one.admin, json!({ "hyperparameters": { "n_epochs": 2 } }));
    let job = wait_for(one, id(&created), "succeeded");
    let model = job["fine_tuned_model"].as_str().unwrap();
    let call = |server: &Server| {
        let messages = json!([{ "role": "user", "content": "question 3" }]);
        server.post("/v1/chat/completions", &json!({ "model": model, "max_tokens": 4, "messages": messages }))
    };
    for server in [two, one] {
        call(server).ok();
        assert!(server.engine.models().is_registered(model));
    }
    one.delete(&format!("/v1/models/{model}")).ok();
    assert_eq!(call(one).error_fields().0, 404);
    // Without a request that asks for it.
    until(|| "the other node has removed it", || !two.engine.models().is_registered(model));
    assert_eq!(call(two).error_fields().0, 404);
    nodes.stop();
}

#[test]
fn preferences_are_trained_with_dpo() {
    let server = Server::start();
    let line = json!({
        "input": { "messages": [{ "role": "user", "content": "hello" }] },
        "preferred_output": [{ "role": "assistant", "content": "good" }],
        "non_preferred_output": [{ "role": "assistant", "content": "bad" }],
    });
    let file = upload(&server, &server.admin, line.to_string().as_bytes()).ok()["id"].clone();
    let supervised = server.post("/v1/fine_tuning/jobs", &json!({ "model": MODEL, "training_file": file }));
    assert_eq!(supervised.error_fields().2.as_deref(), Some("training_file"));
    let method = json!({ "type": "dpo", "dpo": { "hyperparameters": {
        "n_epochs": 10, "beta": 0.5, "learning_rate_multiplier": 100,
    } } });
    let new = json!({ "model": MODEL, "training_file": file, "method": method });
    let created = server.post("/v1/fine_tuning/jobs", &new).ok();
    let job = wait_for(&server, id(&created), "succeeded");
    assert_eq!(job["method"]["dpo"]["hyperparameters"]["beta"], 0.5);
    let loss = job["progress"]["train_loss"].as_f64().unwrap();
    assert!(loss < 0.6, "it begins at ln 2 and falls: {loss}");
}

#[test]
fn a_job_is_paused_resumed_and_cancelled() {
    let server = Server::start();
    let created = long_job(&server);
    wait_for(&server, id(&created), "running");
    until(|| "it has taken a step", || server.get(&path(&created)).ok()["progress"].is_object());
    let act = |act: &str| server.post(&format!("{}/{act}", path(&created)), &json!({}));
    assert_eq!(act("resume").error_fields().1, "conflict");
    assert_eq!(act("pause").ok()["state"], "paused");
    assert_eq!(act("pause").error_fields().1, "conflict");
    let other = job(&server, &server.admin, json!({}));
    wait_for(&server, id(&other), "succeeded");
    assert_eq!(server.get(&path(&created)).ok()["state"], "paused");
    let paused_at = server.get(&path(&created)).ok()["progress"]["step"].as_u64().unwrap();
    assert_eq!(act("resume").ok()["state"], "queued");
    wait_for(&server, id(&created), "running");
    let on = "The training goes on after step ";
    let resumed = messages(&server, &created).iter().find_map(|text| text.strip_prefix(on).map(str::to_owned)).unwrap();
    assert!(resumed.trim_end_matches('.').parse::<u64>().unwrap() >= paused_at);
    assert_eq!(act("cancel").ok()["state"], "cancelled");
    assert!(act("cancel").text.contains("been cancelled"));
    assert_eq!(act("resume").error_fields().1, "conflict");
    let next = job(&server, &server.admin, json!({}));
    wait_for(&server, id(&next), "succeeded");
    let folder = server.stop();
    assert_eq!(records(folder.path())["open_jobs"], 0);
}

#[test]
fn the_training_of_an_archived_project_stops() {
    let server = Server::start();
    let (project, _, key) = server.tenant("archived");
    let file = many_examples(&server, &key, 500);
    let new = json!({ "model": MODEL, "training_file": file, "hyperparameters": { "n_epochs": 50, "batch_size": 1 } });
    let created = server.call(Method::POST, "/v1/fine_tuning/jobs", Some(&key), Some(&new)).ok();
    wait_for(&server, id(&created), "running");
    server.post(&format!("/v1/projects/{project}/archive"), &json!({})).ok();
    // The trainer is free for others.
    let other = job(&server, &server.admin, json!({}));
    wait_for(&server, id(&other), "succeeded");
    let step = || server.get(&path(&created)).ok()["progress"]["step"].as_u64().unwrap();
    let stopped_at = step();
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert_eq!(step(), stopped_at);
}

#[test]
fn a_stopped_server_goes_on_with_a_job() {
    let server = Server::start();
    let created = long_job(&server);
    until(|| "it has taken a step", || server.get(&path(&created)).ok()["progress"].is_object());
    let server = Server::start_in(server.stop());
    wait_for(&server, id(&created), "running");
    until(
        || "it goes on",
        || messages(&server, &created).iter().any(|text| text.starts_with("The training goes on after step")),
    );
    server.post(&format!("{}/cancel", path(&created)), &json!({})).ok();
}

#[test]
fn a_job_that_cannot_be_trained_fails_with_the_reason() {
    let server = Server::start();
    let fails = |more: Value, code: &str, reason: &str| {
        let created = job(&server, &server.admin, more);
        let failed = wait_for(&server, id(&created), "failed");
        assert_eq!(failed["error"]["code"], code);
        let message = failed["error"]["message"].as_str().unwrap();
        assert!(message.contains(reason), "{message}");
        assert_eq!(messages(&server, &created)[0], message);
        assert!(failed["finished_at"].is_i64() && failed["fine_tuned_model"].is_null());
    };
    let long = json!({ "messages": [
        { "role": "user", "content": "hi" }, { "role": "assistant", "content": "word ".repeat(2000) },
    ] });
    let long_file = upload(&server, &server.admin, long.to_string().as_bytes()).ok()["id"].clone();
    fails(json!({ "training_file": long_file }), "invalid_training_file", "line 1 has");
    let lora = json!({ "hyperparameters": { "target_modules": ["nothing"] } });
    fails(lora, "model_unavailable", "nothing");

    let server_path = server.folder.path().join("models");
    let file = many_examples(&server, &server.admin, 2);
    let hold = long_job(&server);
    wait_for(&server, id(&hold), "running");
    let waiting = job(&server, &server.admin, json!({ "training_file": file }));
    server.delete(&format!("/v1/files/{file}")).ok();
    let gone = job(&server, &server.admin, json!({}));
    std::fs::remove_dir_all(server_path.join(MODEL)).unwrap();
    server.post(&format!("{}/cancel", path(&hold)), &json!({})).ok();
    let failed = wait_for(&server, id(&waiting), "failed");
    assert_eq!(
        (&failed["error"]["code"], &failed["error"]["param"]),
        (&json!("invalid_training_file"), &json!("training_file"))
    );
    let failed = wait_for(&server, id(&gone), "failed");
    assert_eq!(failed["error"]["code"], "model_not_found");
}

#[test]
fn omitted_fields_get_defaults() {
    let server = Server::start();
    let created = job(&server, &server.admin, json!({ "hyperparameters": { "learning_rate_multiplier": 0.5 } }));
    assert_eq!(created["hyperparameters"]["learning_rate_multiplier"], 0.5);
    for name in
        ["n_epochs", "batch_size", "lora_rank", "lora_alpha", "lora_dropout", "target_modules", "max_length", "packing"]
    {
        assert_eq!(created["hyperparameters"][name], "auto", "{name}");
    }
    assert!(created["seed"].is_u64() && created["name"].is_null() && created["metadata"].is_null());
}

#[test]
fn each_invalid_field_is_named() {
    let server = Server::start();
    let id = file(&server, &server.admin);
    let cases = [
        (json!({ "training_file": id }), 400, "model"),
        (json!({ "model": MODEL }), 400, "training_file"),
        (json!({ "model": "gpt-4o", "training_file": id }), 404, "model"),
        (json!({ "training_file": "file-1" }), 404, "training_file"),
        (json!({ "training_file": format!("file-{}", "0".repeat(32)) }), 404, "training_file"),
        (json!({ "validation_file": "x" }), 404, "validation_file"),
        (json!({ "project_id": "proj_1" }), 404, "project_id"),
        (json!({ "suffix": "" }), 400, "suffix"),
        (json!({ "suffix": "x".repeat(65) }), 400, "suffix"),
        (json!({ "name": " " }), 400, "name"),
        (json!({ "metadata": [] }), 400, "metadata"),
        (json!({ "metadata": { "k": "x".repeat(17_000) } }), 400, "metadata"),
        (json!({ "seed": -1 }), 400, "seed"),
        (json!({ "seed": 1_u64 << 31 }), 400, "seed"),
        (json!({ "integrations": [{ "type": "wandb" }] }), 400, "integrations"),
        (json!({ "method": { "type": "x" } }), 400, "method.type"),
        (json!({ "method": { "type": "dpo" } }), 400, "training_file"),
        (json!({ "hyperparameters": { "beta": 0.1 } }), 400, "hyperparameters.beta"),
        (json!({ "hyperparameters": { "lora_rank": 257 } }), 400, "hyperparameters.lora_rank"),
        (json!({ "hyperparameters": { "lora_dropout": 1 } }), 400, "hyperparameters.lora_dropout"),
        (json!({ "hyperparameters": { "lora_alpha": 0 } }), 400, "hyperparameters.lora_alpha"),
        (json!({ "hyperparameters": { "target_modules": [] } }), 400, "hyperparameters.target_modules"),
        (json!({ "hyperparameters": { "packing": "yes" } }), 400, "hyperparameters.packing"),
        (json!({ "method": { "type": "supervised", "dpo": {} } }), 400, "method.dpo"),
        (json!({ "hyperparameters": { "n_epochs": 0 } }), 400, "hyperparameters.n_epochs"),
        (json!({ "hyperparameters": { "n_epochs": "many" } }), 400, "hyperparameters.n_epochs"),
        (json!({ "hyperparameters": { "batch_size": 257 } }), 400, "hyperparameters.batch_size"),
        (
            json!({ "hyperparameters": { "learning_rate_multiplier": 0 } }),
            400,
            "hyperparameters.learning_rate_multiplier",
        ),
        (
            json!({ "method": { "type": "supervised", "supervised": { "hyperparameters": { "n_epochs": 51 } } } }),
            400,
            "method.supervised.hyperparameters.n_epochs",
        ),
        (
            json!({ "hyperparameters": {}, "method": { "type": "supervised", "supervised": { "hyperparameters": {} } } }),
            400,
            "hyperparameters",
        ),
        (json!({ "epochs": 3 }), 400, "epochs"),
    ];
    for (change, status, param) in cases {
        let mut body = json!({ "model": MODEL, "training_file": id });
        if matches!(param, "model" | "training_file")
            && change.get("model").is_none() != change.get("training_file").is_none()
            && status == 400
        {
            body = json!({});
        }
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        for mount in ["/v1", "/openai/v1"] {
            let response = server.post(&format!("{mount}/fine_tuning/jobs"), &body);
            let (got, _, named) = response.error_fields();
            assert_eq!((got, named.as_deref()), (status, Some(param)), "{body}: {}", response.text);
        }
    }
    assert_eq!(server.get("/v1/fine_tuning/jobs").ok()["data"], json!([]));
}

#[test]
fn the_model_and_files_must_be_accessible_to_the_key() {
    let server = Server::start();
    let (project, _, key) = server.tenant("mine");
    let (_, _, other) = server.tenant("theirs");
    let (own, foreign) = (file(&server, &key), file(&server, &other));
    let create = |key: &str, body: Value| {
        server.call(Method::POST, "/v1/fine_tuning/jobs", Some(key), Some(&body)).error_fields()
    };
    let narrow = json!({ "name": "k", "project_id": project, "models": ["another"] });
    let narrow = server.post("/v1/api-keys", &narrow).ok()["secret"].as_str().unwrap().to_owned();
    let cases = [
        (&key, json!({ "model": MODEL, "training_file": foreign }), 403, "project_mismatch", Some("training_file")),
        (&narrow, json!({ "model": MODEL, "training_file": own }), 403, "model_not_allowed", Some("model")),
        (
            &server.admin,
            json!({ "model": MODEL, "training_file": own }),
            400,
            "invalid_parameter",
            Some("training_file"),
        ),
        (
            &server.admin,
            json!({ "model": MODEL, "training_file": own, "validation_file": foreign, "project_id": project }),
            400,
            "invalid_parameter",
            Some("validation_file"),
        ),
    ];
    for (key, body, status, code, param) in cases {
        assert_eq!(create(key, body.clone()), (status, code.to_owned(), param.map(str::to_owned)), "{body}");
    }
    let created =
        server.post("/v1/fine_tuning/jobs", &json!({ "model": MODEL, "training_file": own, "project_id": project }));
    assert_eq!(created.ok()["project_id"], project);
}

#[test]
fn only_metadata_can_be_changed() {
    let server = Server::start();
    let created = job(&server, &server.admin, json!({ "name": "a", "metadata": { "k": 1 } }));
    let created = wait_for(&server, id(&created), "succeeded");
    let path = path(&created);
    let steps = [
        (json!({}), json!("a"), json!({ "k": 1 })),
        (json!({ "name": "b" }), json!("b"), json!({ "k": 1 })),
        (json!({ "metadata": { "z": [1, 2] } }), json!("b"), json!({ "z": [1, 2] })),
        (json!({ "name": null }), Value::Null, json!({ "z": [1, 2] })),
        (json!({ "name": "c", "metadata": null }), json!("c"), Value::Null),
    ];
    for (change, name, metadata) in steps {
        let mut changed = server.patch(&path, &change).ok();
        assert_eq!((&changed["name"], &changed["metadata"]), (&name, &metadata), "{change}");
        assert_eq!(server.get(&path).ok(), changed);
        for field in ["name", "metadata", "updated_at"] {
            changed[field] = created[field].clone();
        }
        assert_eq!(changed, created, "{change}");
    }
    for (change, param) in [
        (json!({ "name": "" }), "name"),
        (json!({ "metadata": "x" }), "metadata"),
        (json!({ "model": MODEL }), "model"),
    ] {
        let refused = server.patch(&path, &change).error_fields();
        assert_eq!((refused.0, refused.2.as_deref()), (400, Some(param)), "{change}");
    }
    let theirs = server.patch(&path.replace("/v1", "/openai/v1"), &json!({ "name": "d" })).ok();
    assert_eq!((&theirs["object"], &theirs["name"]), (&json!("fine_tuning.job"), &json!("d")));
}

#[test]
fn a_finished_job_cannot_be_cancelled() {
    let server = Server::start();
    let created = job(&server, &server.admin, json!({}));
    wait_for(&server, id(&created), "succeeded");
    for mount in ["/v1", "/openai/v1"] {
        let response = server.post(&format!("{}/cancel", path(&created).replace("/v1", mount)), &json!({}));
        assert_eq!(response.error_fields(), (409, "conflict".to_owned(), None));
        assert!(response.text.contains("succeeded"), "{}", response.text);
    }
}

#[test]
fn an_idempotency_key_creates_one_job() {
    let server = Server::start();
    let body = json!({ "model": MODEL, "training_file": file(&server, &server.admin) });
    let headers = [("content-type", "application/json"), ("idempotency-key", "once")];
    let send = |body: &Value| {
        server.raw(
            Method::POST,
            "/v1/fine_tuning/jobs",
            Some(&server.admin),
            &headers,
            Some(body.to_string().into_bytes()),
        )
    };
    let (first, second) = (send(&body), send(&body));
    assert_eq!(first.ok(), second.ok(), "the answer of the first request");
    assert_eq!(second.headers["idempotent-replayed"], "true");
    let mut other = body.clone();
    other["seed"] = json!(1);
    assert_eq!(send(&other).error_fields().1, "idempotency_conflict");
    assert_eq!(server.get("/v1/fine_tuning/jobs").ok()["data"].as_array().unwrap().len(), 1);
}

#[test]
fn pagination_returns_each_job_and_event_once() {
    let server = Server::start();
    let created: Vec<Value> = (0..5).map(|_| job(&server, &server.admin, json!({}))["id"].clone()).collect();
    let listed: Vec<Value> =
        pages(&server, "/v1/fine_tuning/jobs", 2).into_iter().map(|job| job["id"].clone()).collect();
    assert_eq!(listed, created.iter().rev().cloned().collect::<Vec<_>>());
    let events = |job: &Value| format!("/v1/fine_tuning/jobs/{}/events", job.as_str().unwrap());
    wait_for(&server, created[0].as_str().unwrap(), "succeeded");
    let all = pages(&server, &events(&created[0]), 3);
    let ids: std::collections::BTreeSet<_> = all.iter().map(|event| event["id"].as_str().unwrap()).collect();
    assert!(all.len() > 10 && ids.len() == all.len());
    let cursor =
        server.get(&format!("{}?limit=1", events(&created[0]))).ok()["next_cursor"].as_str().unwrap().to_owned();
    let foreign = server.get(&format!("{}?cursor={cursor}", events(&created[1]))).error_fields();
    assert_eq!((foreign.0, foreign.2.as_deref()), (400, Some("cursor")));
}

#[test]
fn a_job_is_private_to_its_project_and_survives_the_deletion_of_its_file() {
    let server = Server::start();
    let (project, _, owner) = server.tenant("owner");
    let (_, _, other) = server.tenant("other");
    let created = job(&server, &owner, json!({}));
    for mount in ["/v1", "/openai/v1"] {
        let path = path(&created).replace("/v1", mount);
        for (method, path, body) in [
            (Method::GET, path.clone(), None),
            (Method::GET, format!("{path}/events"), None),
            (Method::POST, format!("{path}/cancel"), Some(json!({}))),
            (Method::PATCH, path.clone(), Some(json!({ "name": "taken" }))),
            (Method::GET, format!("{mount}/fine_tuning/jobs?project_id={project}"), None),
        ] {
            let refused = server.call(method.clone(), &path, Some(&other), body.as_ref()).error_fields();
            assert_eq!((refused.0, refused.1.as_str()), (403, "project_mismatch"), "{method} {path}");
        }
    }
    let file = format!("/v1/files/{}", created["training_file"].as_str().unwrap());
    server.delete(&file).ok();
    assert_eq!(server.get(&path(&created)).ok()["training_file"], created["training_file"]);
    server.post(&format!("/v1/projects/{project}/archive"), &json!({})).ok();
    assert_eq!(server.patch(&path(&created), &json!({ "name": "late" })).error_fields().1, "conflict");
    for missing in ["ftjob-1", "ftjob-00000000000000000000000000000000"] {
        let path = format!("/v1/fine_tuning/jobs/{missing}");
        assert_eq!(server.get(&path).error_fields().0, 404);
        assert_eq!(server.get(&format!("{path}/events")).error_fields().0, 404);
        assert_eq!(server.patch(&path, &json!({})).error_fields().0, 404);
        assert_eq!(server.post(&format!("{path}/cancel"), &json!({})).error_fields().0, 404);
    }
}
