use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{MODEL, Server};
use crate::upload::{file, pages, quota_usage_of, records, requeue_job};

fn job(server: &Server, key: &str, more: Value) -> Value {
    let mut body = json!({ "model": MODEL, "training_file": file(server, key) });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.call(Method::POST, "/v1/fine_tuning/jobs", Some(key), Some(&body)).ok()
}

fn path(job: &Value) -> String {
    format!("/v1/fine_tuning/jobs/{}", job["id"].as_str().unwrap())
}

#[test]
fn a_job_fails_at_once_because_this_server_cannot_train() {
    let server = Server::start();
    let (project, _, key) = server.tenant("tuning");
    let files = [file(&server, &key), file(&server, &key)];
    let new = json!({
        "model": MODEL, "training_file": files[0], "validation_file": files[1], "suffix": "mine", "seed": 7, "name": "n",
        "metadata": { "team": "a" }, "integrations": null,
        "method": { "type": "supervised", "supervised": { "hyperparameters": { "n_epochs": 3, "batch_size": "auto" } } },
    });
    let created = server.call(Method::POST, "/v1/fine_tuning/jobs", Some(&key), Some(&new)).ok();
    assert_eq!((&created["object"], &created["status"]), (&json!("service.resource"), &json!("succeeded")));
    assert_eq!(created["state"], "failed");
    assert!(created["id"].as_str().unwrap().starts_with("ftjob-"));
    let parameters = json!({ "n_epochs": 3, "batch_size": "auto", "learning_rate_multiplier": "auto" });
    let expected = json!({
        "name": "n", "project_id": project, "organization_id": project, "model": MODEL, "fine_tuned_model": null,
        "training_file": files[0], "validation_file": files[1], "result_files": [], "hyperparameters": parameters,
        "method": { "type": "supervised", "supervised": { "hyperparameters": parameters } }, "suffix": "mine", "seed": 7,
        "metadata": { "team": "a" }, "integrations": [], "trained_tokens": null, "estimated_finish": null,
    });
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(created[field], *value, "{field}");
    }
    assert_eq!((&created["error"]["code"], &created["error"]["param"]), (&json!("training_unavailable"), &Value::Null));
    assert!(created["error"]["message"].as_str().unwrap().contains("cannot train"));
    assert!(created["finished_at"].is_i64() && created["created_at"].is_i64());
    assert!(created["updated_at"].as_str().unwrap().ends_with('Z'));
    let listed = server.get(&format!("/v1/fine_tuning/jobs?project_id={project}")).ok();
    assert_eq!((&listed["data"][0]["status"], &listed["data"][0]["state"]), (&json!("failed"), &json!("failed")));

    let theirs = server.get(&path(&created).replace("/v1", "/openai/v1")).ok();
    assert_eq!((&theirs["object"], &theirs["status"]), (&json!("fine_tuning.job"), &json!("failed")));
    assert!(theirs["created_at"].is_i64() && theirs["finished_at"].is_i64() && theirs.get("state").is_none());

    let events = server.get(&format!("{}/events", path(&created).replace("/v1", "/openai/v1"))).ok();
    let events = events["data"].as_array().unwrap();
    assert_eq!(events.len(), 2);
    assert_eq!((&events[0]["object"], &events[0]["level"]), (&json!("fine_tuning.job.event"), &json!("error")));
    assert_eq!((&events[1]["level"], &events[1]["type"]), (&json!("info"), &json!("message")));
    assert_eq!(events[0]["message"], created["error"]["message"]);
    assert!(events[0]["created_at"].is_i64());

    let folder = server.stop();
    assert_eq!(quota_usage_of(folder.path(), &project).jobs, 1);
    assert_eq!(records(folder.path())["job_events"], 2);
}

#[test]
fn omitted_fields_get_defaults() {
    let server = Server::start();
    let created = job(&server, &server.admin, json!({ "hyperparameters": { "learning_rate_multiplier": 0.5 } }));
    assert_eq!(
        created["hyperparameters"],
        json!({ "n_epochs": "auto", "batch_size": "auto", "learning_rate_multiplier": 0.5 })
    );
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
    for mount in ["/v1", "/openai/v1"] {
        let response = server.post(&format!("{}/cancel", path(&created).replace("/v1", mount)), &json!({}));
        assert_eq!(response.error_fields(), (409, "conflict".to_owned(), None));
        assert!(response.text.contains("failed"), "{}", response.text);
    }
}

#[test]
fn a_queued_job_is_cancelled_once() {
    let server = Server::start();
    let created = job(&server, &server.admin, json!({}));
    let folder = server.stop();
    requeue_job(folder.path(), created["id"].as_str().unwrap());
    let server = Server::start_in(folder);
    let waiting = server.get(&path(&created)).ok();
    assert_eq!(
        (&waiting["state"], &waiting["finished_at"], &waiting["error"]),
        (&json!("queued"), &Value::Null, &Value::Null)
    );
    let cancelled = server.post(&format!("{}/cancel", path(&created)), &json!({})).ok();
    assert_eq!(cancelled["state"], "cancelled");
    assert!(cancelled["finished_at"].is_i64());
    let again = server.post(&format!("{}/cancel", path(&created)), &json!({}));
    assert!(again.status == 409 && again.text.contains("been cancelled"), "{}", again.text);
    let events = server.get(&format!("{}/events?limit=1", path(&created))).ok();
    assert!(events["data"][0]["message"].as_str().unwrap().contains("cancelled"));
    assert_eq!(
        server.get("/v1/audit-events?action=fine_tuning_job.cancelled").ok()["data"].as_array().unwrap().len(),
        1
    );
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
    assert_eq!(first.ok(), second.ok());
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
    assert_eq!(pages(&server, &events(&created[0]), 1).len(), 2);
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
