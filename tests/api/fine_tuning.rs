use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{MODEL, Server};
use crate::upload::{file, held, pages, queue_again, records};

fn job(server: &Server, key: &str, more: Value) -> Value {
    let mut body = json!({ "model": MODEL, "training_file": file(server, key) });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.call(Method::POST, "/v1/fine_tuning/jobs", Some(key), Some(&body)).ok()
}

fn path(job: &Value) -> String {
    format!("/v1/fine_tuning/jobs/{}", job["id"].as_str().unwrap())
}

#[test]
fn a_job_says_at_once_that_this_server_cannot_train() {
    let server = Server::start();
    let (project, _, key) = server.tenant("tuning");
    let files = [file(&server, &key), file(&server, &key)];
    let new = json!({
        "model": MODEL, "training_file": files[0], "validation_file": files[1], "suffix": "mine", "seed": 7, "name": "n",
        "metadata": { "team": "a" }, "integrations": null,
        "method": { "type": "supervised", "supervised": { "hyperparameters": { "n_epochs": 3, "batch_size": "auto" } } },
    });
    let made = server.call(Method::POST, "/v1/fine_tuning/jobs", Some(&key), Some(&new)).ok();
    assert_eq!((&made["object"], &made["status"]), (&json!("service.resource"), &json!("succeeded")));
    assert_eq!(made["state"], "failed");
    assert!(made["id"].as_str().unwrap().starts_with("ftjob-"));
    let parameters = json!({ "n_epochs": 3, "batch_size": "auto", "learning_rate_multiplier": "auto" });
    let wanted = json!({
        "name": "n", "project_id": project, "organization_id": project, "model": MODEL, "fine_tuned_model": null,
        "training_file": files[0], "validation_file": files[1], "result_files": [], "hyperparameters": parameters,
        "method": { "type": "supervised", "supervised": { "hyperparameters": parameters } }, "suffix": "mine", "seed": 7,
        "metadata": { "team": "a" }, "integrations": [], "trained_tokens": null, "estimated_finish": null,
    });
    for (field, value) in wanted.as_object().unwrap() {
        assert_eq!(made[field], *value, "{field}");
    }
    assert_eq!((&made["error"]["code"], &made["error"]["param"]), (&json!("training_unavailable"), &Value::Null));
    assert!(made["error"]["message"].as_str().unwrap().contains("cannot train"));
    assert!(made["finished_at"].as_str().unwrap().ends_with('Z'));

    let theirs = server.get(&path(&made).replace("/v1", "/openai/v1")).ok();
    assert_eq!((&theirs["object"], &theirs["status"]), (&json!("fine_tuning.job"), &json!("failed")));
    assert!(theirs["created_at"].is_i64() && theirs["finished_at"].is_i64() && theirs.get("state").is_none());

    let events = server.get(&format!("{}/events", path(&made).replace("/v1", "/openai/v1"))).ok();
    let events = events["data"].as_array().unwrap();
    assert_eq!(events.len(), 2);
    assert_eq!((&events[0]["object"], &events[0]["level"]), (&json!("fine_tuning.job.event"), &json!("error")));
    assert_eq!((&events[1]["level"], &events[1]["type"]), (&json!("info"), &json!("message")));
    assert_eq!(events[0]["message"], made["error"]["message"]);
    assert!(events[0]["created_at"].is_i64());

    let folder = server.stop();
    assert_eq!(held(folder.path(), &project).jobs, 1);
    assert_eq!(records(folder.path())["job_events"], 2);
}

#[test]
fn what_is_left_open_is_filled_in() {
    let server = Server::start();
    let made = job(&server, &server.admin, json!({ "hyperparameters": { "learning_rate_multiplier": 0.5 } }));
    assert_eq!(
        made["hyperparameters"],
        json!({ "n_epochs": "auto", "batch_size": "auto", "learning_rate_multiplier": 0.5 })
    );
    assert!(made["seed"].is_u64() && made["name"].is_null() && made["metadata"].is_null());
}

#[test]
fn each_wrong_field_is_named() {
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
        (json!({ "method": { "type": "dpo" } }), 400, "method.type"),
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
            let answer = server.post(&format!("{mount}/fine_tuning/jobs"), &body);
            let (got, _, named) = answer.refusal();
            assert_eq!((got, named.as_deref()), (status, Some(param)), "{body}: {}", answer.text);
        }
    }
    assert_eq!(server.get("/v1/fine_tuning/jobs").ok()["data"], json!([]));
}

#[test]
fn the_model_and_the_files_must_be_the_key_s_own() {
    let server = Server::start();
    let (project, _, key) = server.tenant("mine");
    let (_, _, other) = server.tenant("theirs");
    let (own, foreign) = (file(&server, &key), file(&server, &other));
    let create =
        |key: &str, body: Value| server.call(Method::POST, "/v1/fine_tuning/jobs", Some(key), Some(&body)).refusal();
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
    let made =
        server.post("/v1/fine_tuning/jobs", &json!({ "model": MODEL, "training_file": own, "project_id": project }));
    assert_eq!(made.ok()["project_id"], project);
}

#[test]
fn labels_change_and_nothing_else_does() {
    let server = Server::start();
    let made = job(&server, &server.admin, json!({ "name": "a", "metadata": { "k": 1 } }));
    let path = path(&made);
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
            changed[field] = made[field].clone();
        }
        assert_eq!(changed, made, "{change}");
    }
    for (change, param) in [
        (json!({ "name": "" }), "name"),
        (json!({ "metadata": "x" }), "metadata"),
        (json!({ "model": MODEL }), "model"),
    ] {
        let refused = server.patch(&path, &change).refusal();
        assert_eq!((refused.0, refused.2.as_deref()), (400, Some(param)), "{change}");
    }
    let theirs = server.patch(&path.replace("/v1", "/openai/v1"), &json!({ "name": "d" })).ok();
    assert_eq!((&theirs["object"], &theirs["name"]), (&json!("fine_tuning.job"), &json!("d")));
}

#[test]
fn a_job_that_has_ended_cannot_be_cancelled() {
    let server = Server::start();
    let made = job(&server, &server.admin, json!({}));
    for mount in ["/v1", "/openai/v1"] {
        let answer = server.post(&format!("{}/cancel", path(&made).replace("/v1", mount)), &json!({}));
        assert_eq!(answer.refusal(), (409, "conflict".to_owned(), None));
        assert!(answer.text.contains("failed"), "{}", answer.text);
    }
}

#[test]
fn a_job_that_waits_is_cancelled_once() {
    let server = Server::start();
    let made = job(&server, &server.admin, json!({}));
    let folder = server.stop();
    queue_again(folder.path(), made["id"].as_str().unwrap());
    let server = Server::start_in(folder);
    let waiting = server.get(&path(&made)).ok();
    assert_eq!(
        (&waiting["state"], &waiting["finished_at"], &waiting["error"]),
        (&json!("queued"), &Value::Null, &Value::Null)
    );
    let cancelled = server.post(&format!("{}/cancel", path(&made)), &json!({})).ok();
    assert_eq!(cancelled["state"], "cancelled");
    assert!(cancelled["finished_at"].is_string());
    let again = server.post(&format!("{}/cancel", path(&made)), &json!({}));
    assert!(again.status == 409 && again.text.contains("been cancelled"), "{}", again.text);
    let events = server.get(&format!("{}/events?limit=1", path(&made))).ok();
    assert!(events["data"][0]["message"].as_str().unwrap().contains("cancelled"));
    assert_eq!(
        server.get("/v1/audit-events?action=fine_tuning_job.cancelled").ok()["data"].as_array().unwrap().len(),
        1
    );
}

#[test]
fn a_job_is_made_once_for_one_idempotency_key() {
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
    assert_eq!(first.ok(), second.ok());
    assert_eq!(second.headers["idempotent-replayed"], "true");
    let mut other = body.clone();
    other["seed"] = json!(1);
    assert_eq!(send(&other).refusal().1, "idempotency_conflict");
    assert_eq!(server.get("/v1/fine_tuning/jobs").ok()["data"].as_array().unwrap().len(), 1);
}

#[test]
fn jobs_and_events_page_through_once() {
    let server = Server::start();
    let made: Vec<Value> = (0..5).map(|_| job(&server, &server.admin, json!({}))["id"].clone()).collect();
    let listed: Vec<Value> =
        pages(&server, "/v1/fine_tuning/jobs", 2).into_iter().map(|job| job["id"].clone()).collect();
    assert_eq!(listed, made.iter().rev().cloned().collect::<Vec<_>>());
    let events = |job: &Value| format!("/v1/fine_tuning/jobs/{}/events", job.as_str().unwrap());
    assert_eq!(pages(&server, &events(&made[0]), 1).len(), 2);
    let cursor = server.get(&format!("{}?limit=1", events(&made[0]))).ok()["next_cursor"].as_str().unwrap().to_owned();
    let foreign = server.get(&format!("{}?cursor={cursor}", events(&made[1]))).refusal();
    assert_eq!((foreign.0, foreign.2.as_deref()), (400, Some("cursor")));
}

#[test]
fn a_job_is_out_of_reach_for_another_project_and_lives_without_its_file() {
    let server = Server::start();
    let (project, _, owner) = server.tenant("owner");
    let (_, _, other) = server.tenant("other");
    let made = job(&server, &owner, json!({}));
    for mount in ["/v1", "/openai/v1"] {
        let path = path(&made).replace("/v1", mount);
        for (method, path, body) in [
            (Method::GET, path.clone(), None),
            (Method::GET, format!("{path}/events"), None),
            (Method::POST, format!("{path}/cancel"), Some(json!({}))),
            (Method::PATCH, path.clone(), Some(json!({ "name": "taken" }))),
            (Method::GET, format!("{mount}/fine_tuning/jobs?project_id={project}"), None),
        ] {
            let refused = server.call(method.clone(), &path, Some(&other), body.as_ref()).refusal();
            assert_eq!((refused.0, refused.1.as_str()), (403, "project_mismatch"), "{method} {path}");
        }
    }
    let file = format!("/v1/files/{}", made["training_file"].as_str().unwrap());
    server.delete(&file).ok();
    assert_eq!(server.get(&path(&made)).ok()["training_file"], made["training_file"]);
    server.post(&format!("/v1/projects/{project}/archive"), &json!({})).ok();
    assert_eq!(server.patch(&path(&made), &json!({ "name": "late" })).refusal().1, "conflict");
    for missing in ["ftjob-1", "ftjob-00000000000000000000000000000000"] {
        let path = format!("/v1/fine_tuning/jobs/{missing}");
        assert_eq!(server.get(&path).refusal().0, 404);
        assert_eq!(server.get(&format!("{path}/events")).refusal().0, 404);
        assert_eq!(server.patch(&path, &json!({})).refusal().0, 404);
        assert_eq!(server.post(&format!("{path}/cancel"), &json!({})).refusal().0, 404);
    }
}
