//! Batches: files of requests that are answered in the background.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::fixtures::add_fixture;
use crate::server::{CLASSIFIER, EMBEDDER, MODEL, Response, Server};
use crate::tiny_model::TinyModel;
use crate::upload::{CHAT, pages, quota_usage_of, records, send};
use crate::wait::until;

const COMPLETIONS: &str = "/v1/completions";

/// Uploads the input of a batch.
pub fn upload_batch(server: &Server, key: &str, content: &str) -> Response {
    let parts = [("purpose", None, &b"batch"[..]), ("file", Some("requests.jsonl"), content.as_bytes())];
    send(server, "/v1", key, &parts, &[])
}

/// A line of the input.
fn line(id: &str, url: &str, body: &Value) -> String {
    json!({ "custom_id": id, "method": "POST", "url": url, "body": body }).to_string()
}

/// Lines of short text completions.
pub fn short_lines(count: usize) -> String {
    let one = |index| {
        let body = json!({ "model": MODEL, "prompt": format!("text {index}"), "max_tokens": 3, "temperature": 0 });
        line(&format!("request-{index}"), COMPLETIONS, &body)
    };
    (0..count).map(one).collect::<Vec<_>>().join("\n")
}

/// Lines of completions that do not end during a test.
fn long_lines(count: usize) -> String {
    let body = json!({ "model": MODEL, "prompt": "a", "max_tokens": 8000, "ignore_eos": true });
    (0..count).map(|index| line(&format!("request-{index}"), COMPLETIONS, &body)).collect::<Vec<_>>().join("\n")
}

fn new_batch(server: &Server, key: &str, endpoint: &str, content: &str) -> Value {
    let file = upload_batch(server, key, content).ok()["id"].clone();
    let new = json!({ "input_file_id": file, "endpoint": endpoint, "completion_window": "24h" });
    server.call(Method::POST, "/openai/v1/batches", Some(key), Some(&new)).ok()
}

fn id(value: &Value) -> &str {
    value["id"].as_str().unwrap()
}

fn get(server: &Server, batch: &str) -> Value {
    server.get(&format!("/openai/v1/batches/{batch}")).ok()
}

/// Waits until a batch is in a state, and returns it.
pub fn wait_for_batch(server: &Server, batch: &str, status: &str) -> Value {
    let mut found = Value::Null;
    until(
        || format!("the batch is {status}"),
        || {
            found = get(server, batch);
            let ended = ["completed", "failed", "cancelled", "expired"].iter().any(|end| found["status"] == *end);
            assert!(found["status"] == status || !ended, "the batch shall be {status}: {found}");
            found["status"] == status
        },
    );
    found
}

/// The lines of a result file.
fn lines(server: &Server, file: &Value) -> Vec<Value> {
    let content = server.get(&format!("/v1/files/{}/content", file.as_str().unwrap()));
    assert_eq!(content.status, 200, "{}", content.text);
    content.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn counts(batch: &Value) -> [u64; 3] {
    ["total", "completed", "failed"].map(|name| batch["request_counts"][name].as_u64().unwrap())
}

/// A body without what differs from one response to the next.
fn lasting(mut body: Value) -> Value {
    for field in ["id", "created", "created_at", "completed_at"] {
        body.as_object_mut().unwrap().remove(field);
    }
    if let Some(output) = body.get_mut("output") {
        output.as_array_mut().unwrap().iter_mut().for_each(|item| drop(item.as_object_mut().unwrap().remove("id")));
    }
    body["usage"] = Value::Null; // The prefix cache may have more.
    body
}

/// Requests by outcome of an endpoint of a project.
fn usage(server: &Server, project: &str, endpoint: &str) -> Value {
    let report = server.get(&format!("/v1/projects/{project}/usage?group_by=endpoint")).ok();
    let found = report["groups"].as_array().unwrap().iter().find(|group| group["endpoint"] == endpoint).cloned();
    found.unwrap_or(Value::Null)
}

#[test]
fn every_endpoint_answers_as_it_answers_clients() {
    let server = Server::start_configured(&TinyModel::default(), |config| {
        add_fixture("encoders", &config.paths.models, EMBEDDER);
        add_fixture("classifiers", &config.paths.models, CLASSIFIER);
    });
    let (project, _, key) = server.tenant("batches");
    let message = json!([{ "role": "user", "content": "hi" }]);
    let cases = [
        ("/v1/chat/completions", json!({ "model": MODEL, "messages": message, "max_tokens": 4, "temperature": 0 })),
        ("/v1/responses", json!({ "model": MODEL, "input": "hi", "max_output_tokens": 4, "temperature": 0 })),
        (COMPLETIONS, json!({ "model": MODEL, "prompt": "hi", "max_tokens": 4, "temperature": 0 })),
        ("/v1/embeddings", json!({ "model": EMBEDDER, "input": ["hi", "ho"] })),
        ("/v1/moderations", json!({ "model": CLASSIFIER, "input": ["hi", "ho"] })),
    ];
    for (endpoint, request) in cases {
        let mut missing = request.clone();
        missing["model"] = json!("none");
        let content = [line("good", endpoint, &request), String::new(), line("bad", endpoint, &missing)].join("\r\n");
        let created = new_batch(&server, &key, endpoint, &content);
        assert_eq!((&created["object"], &created["status"]), (&json!("batch"), &json!("validating")));
        assert!(id(&created).starts_with("batch_"));
        let batch = wait_for_batch(&server, id(&created), "completed");
        assert_eq!(counts(&batch), [2, 1, 1], "{batch}");
        assert_eq!((&batch["endpoint"], &batch["errors"]), (&json!(endpoint), &Value::Null));
        for time in ["created_at", "in_progress_at", "finalizing_at", "completed_at", "expires_at"] {
            assert!(batch[time].is_i64(), "{time}: {batch}");
        }
        let output = lines(&server, &batch["output_file_id"]);
        assert_eq!((output.len(), &output[0]["custom_id"]), (1, &json!("good")));
        assert_eq!((&output[0]["error"], &output[0]["response"]["status_code"]), (&Value::Null, &json!(200)));
        assert!(id(&output[0]).starts_with("batch_req_"));
        assert!(output[0]["response"]["request_id"].as_str().unwrap().starts_with("req_"));
        let path = endpoint.replace("/v1", "/openai/v1");
        let mut unstored = request.clone();
        if endpoint == "/v1/responses" {
            unstored["store"] = json!(false);
        }
        let interactive = server.call(Method::POST, &path, Some(&key), Some(&unstored)).ok();
        assert_eq!(lasting(output[0]["response"]["body"].clone()), lasting(interactive), "{endpoint}");
        let errors = lines(&server, &batch["error_file_id"]);
        assert_eq!((errors.len(), &errors[0]["custom_id"]), (1, &json!("bad")));
        assert_eq!(errors[0]["response"]["status_code"], 404, "{}", errors[0]);
        let error = &errors[0]["response"]["body"]["error"];
        assert_eq!(
            (&error["code"], &error["request_id"]),
            (&json!("model_not_found"), &errors[0]["response"]["request_id"])
        );
        let metered = usage(&server, &project, &endpoint.replace("/v1", "BATCH "));
        assert_eq!(
            (&metered["requests_by_outcome"]["succeeded"], &metered["requests_by_outcome"]["refused"]),
            (&json!(1), &json!(1)),
            "{metered}"
        );
    }
    let file = server.get(&format!("/v1/files?project_id={project}&purpose=batch_output&limit=1")).ok();
    assert_eq!(
        (&file["data"][0]["purpose"], &file["data"][0]["example_format"]),
        (&json!("batch_output"), &Value::Null)
    );
    assert!(file["data"][0]["filename"].as_str().unwrap().ends_with("_error.jsonl"), "{file}");
    let inputs = server.get(&format!("/v1/files?project_id={project}&purpose=batch")).ok();
    assert_eq!(inputs["data"].as_array().unwrap().len(), 5);
    let stored = server.get(&format!("/v1/projects/{project}/rate-limits")).ok();
    let folder = server.stop();
    let records = records(folder.path());
    assert_eq!((records["batches"], records["open_batches"], records["batch_results"]), (5, 0, 0));
    assert_eq!(records["responses"], 0, "{stored}");
}

#[test]
fn a_line_of_results_has_no_other_character_that_ends_a_line() {
    let server = Server::start();
    let text = "a\u{2028}b\u{2029}c\u{85}d";
    let body = json!({ "model": MODEL, "prompt": text, "echo": true, "max_tokens": 1, "temperature": 0 });
    // The input may be marked as UTF-8, on each of the files that were joined.
    let content =
        format!("\u{feff}{}\n \n\u{feff}{}\r\n", line(text, COMPLETIONS, &body), line("two", COMPLETIONS, &body));
    let batch = new_batch(&server, &server.admin, COMPLETIONS, &content);
    let batch = wait_for_batch(&server, id(&batch), "completed");
    let results = server.get(&format!("/v1/files/{}/content", batch["output_file_id"].as_str().unwrap())).text;
    assert!(!results.contains(['\u{2028}', '\u{2029}', '\u{85}']), "{results}");
    let results = lines(&server, &batch["output_file_id"]);
    assert_eq!(results.iter().map(|line| line["custom_id"].as_str().unwrap()).collect::<Vec<_>>(), [text, "two"]);
    let choice = &results[0]["response"]["body"]["choices"][0];
    assert!(choice["text"].as_str().unwrap().starts_with(text), "{choice}");
    // A file is given back as it was sent.
    let input = server.get(&format!("/v1/files/{}/content", batch["input_file_id"].as_str().unwrap()));
    assert_eq!(input.text.trim_start_matches('\u{feff}'), content.trim_start_matches('\u{feff}'));
}

#[test]
fn an_invalid_input_fails_the_batch_with_line_numbers() {
    let server = Server::start();
    let good = line("a", COMPLETIONS, &json!({ "model": MODEL, "prompt": "a" }));
    let streamed = line("b", COMPLETIONS, &json!({ "model": MODEL, "prompt": "a", "stream": true }));
    let talk = line("c", COMPLETIONS, &json!({ "conversation_id": "conv_1" }));
    let too_many = (0..50_001).map(|index| good.replace("\"a\",\"m", &format!("\"{index}\",\"m"))).collect::<Vec<_>>();
    let cases = [
        ("no JSON".to_owned(), "invalid_json_line", Some(1), None),
        (format!("{good}\n\n{good}"), "duplicate_custom_id", Some(3), Some("custom_id")),
        (format!("{good}\n{}", good.replace("completions", "embeddings")), "mismatched_url", Some(2), Some("url")),
        (good.replace("POST", "GET"), "invalid_method", Some(1), Some("method")),
        (streamed, "invalid_parameter", Some(1), Some("body.stream")),
        (talk, "invalid_parameter", Some(1), Some("body.conversation_id")),
        (good.replace("custom_id", "id"), "missing_required_parameter", Some(1), Some("custom_id")),
        ("\n \n".to_owned(), "empty_file", None, None),
        ("x".repeat((8 << 20) + 1), "line_too_long", Some(1), None),
        (too_many.join("\n"), "too_many_requests", None, None),
    ];
    for (content, code, number, param) in cases {
        let created = new_batch(&server, &server.admin, COMPLETIONS, &content);
        let batch = wait_for_batch(&server, id(&created), "failed");
        let errors = batch["errors"]["data"].as_array().unwrap();
        assert_eq!((errors.len(), &batch["errors"]["object"]), (1, &json!("list")), "{batch}");
        let error = &errors[0];
        let expected = [json!(code), json!(number), json!(param)];
        assert_eq!([&error["code"], &error["line"], &error["param"]], expected.each_ref(), "{batch}");
        assert!(error["message"].as_str().unwrap().ends_with('.'), "{error}");
        assert_eq!((counts(&batch), &batch["output_file_id"]), ([0, 0, 0], &Value::Null));
        assert!(batch["failed_at"].is_i64() && batch["in_progress_at"].is_null());
    }
    let many = vec!["x"; 1000].join("\n");
    let batch = new_batch(&server, &server.admin, COMPLETIONS, &many);
    let batch = wait_for_batch(&server, id(&batch), "failed");
    assert_eq!(batch["errors"]["data"].as_array().unwrap().len(), 100);
}

#[test]
fn a_batch_that_cannot_be_created_is_refused_by_field() {
    let server = Server::start();
    let input = upload_batch(&server, &server.admin, &short_lines(1)).ok()["id"].clone();
    let parts = [("purpose", None, &b"fine-tune"[..]), ("file", Some("train.jsonl"), CHAT.as_bytes())];
    let training = send(&server, "/v1", &server.admin, &parts, &[]).ok()["id"].clone();
    let (_, _, stranger) = server.tenant("other");
    let foreign = upload_batch(&server, &stranger, &short_lines(1)).ok()["id"].clone();
    let missing = "file-00000000000000000000000000000000";
    let cases = [
        (json!({ "endpoint": "/v1/images/generations" }), 400, "endpoint"),
        (json!({ "completion_window": "1h" }), 400, "completion_window"),
        (json!({ "input_file_id": training }), 400, "input_file_id"),
        (json!({ "input_file_id": foreign }), 400, "input_file_id"),
        (json!({ "input_file_id": missing }), 404, "input_file_id"),
        (json!({ "metadata": { "a": "x".repeat(20_000) } }), 400, "metadata"),
        (json!({ "output_expires_after": { "anchor": "created_at", "seconds": 3600 } }), 400, "output_expires_after"),
        (json!({ "priority": 1 }), 400, "priority"),
    ];
    for (more, status, param) in cases {
        let mut new = json!({ "input_file_id": input, "endpoint": COMPLETIONS, "completion_window": "24h" });
        new.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        for mount in ["/v1", "/openai/v1"] {
            let response = server.post(&format!("{mount}/batches"), &new);
            let (found, _, named) = response.error_fields();
            assert_eq!((found, named.as_deref()), (status, Some(param)), "{}", response.text);
        }
    }
    let empty = upload_batch(&server, &server.admin, "").error_fields();
    assert_eq!((empty.0, empty.2.as_deref()), (400, Some("file")));
    let parts = [("file", Some("a.jsonl"), short_lines(1).into_bytes()), ("purpose", None, b"batch".to_vec())];
    let parts = parts.each_ref().map(|(name, file, content)| (*name, *file, content.as_slice()));
    send(&server, "/v1", &server.admin, &parts, &[]).ok();
    let output = [("purpose", None, &b"batch_output"[..])];
    assert_eq!(send(&server, "/v1", &server.admin, &output, &[]).error_fields().2.as_deref(), Some("purpose"));
    assert_eq!(server.get("/v1/batches").ok()["data"], json!([]));
}

#[test]
fn batches_are_listed_by_page_and_created_once_for_an_idempotency_key() {
    let server = Server::start();
    let (project, _, key) = server.tenant("lists");
    let file = upload_batch(&server, &key, &short_lines(2)).ok()["id"].clone();
    let new = json!({
        "input_file_id": file, "endpoint": COMPLETIONS, "completion_window": "24h", "metadata": { "run": "1" },
    });
    let create = |idempotency: &str| {
        let headers = [("content-type", "application/json"), ("idempotency-key", idempotency)];
        server.raw(Method::POST, "/v1/batches", Some(&key), &headers, Some(new.to_string().into_bytes()))
    };
    let ids: Vec<String> = (0..5).map(|index| id(&create(&index.to_string()).ok()).to_owned()).collect();
    let replayed = create("0");
    assert_eq!((replayed.header("idempotent-replayed"), id(&replayed.ok())), (Some("true"), ids[0].as_str()));
    let newest_first: Vec<&str> = ids.iter().rev().map(String::as_str).collect();
    let listed = pages(&server, &format!("/v1/batches?project_id={project}"), 2);
    let listed: Vec<&str> = listed.iter().map(id).collect();
    assert_eq!(listed, newest_first);
    let after = server.call(Method::GET, &format!("/openai/v1/batches?after={}", ids[1]), Some(&key), None).ok();
    assert_eq!((after["data"].as_array().unwrap().len(), id(&after["data"][0])), (1, ids[0].as_str()));
    let batch = wait_for_batch(&server, &ids[4], "completed");
    assert_eq!((counts(&batch), &batch["metadata"]), ([2, 2, 0], &json!({ "run": "1" })));
    let spec = server.get(&format!("/v1/batches/{}", ids[4])).ok();
    assert_eq!((&spec["object"], &spec["status"]), (&json!("service.resource"), &json!("succeeded")));
    assert_eq!(spec["state"], "completed");
    let cancelled = server.post(&format!("/v1/batches/{}/cancel", ids[4]), &json!({}));
    assert_eq!(cancelled.error_fields().0, 409);
}

#[test]
fn a_project_has_a_limited_number_of_batches_that_have_not_ended() {
    let server = Server::start_with(&crate::slow_model());
    let (_, _, key) = server.tenant("many");
    let file = upload_batch(&server, &key, &long_lines(1)).ok()["id"].clone();
    let new = json!({ "input_file_id": file, "endpoint": COMPLETIONS, "completion_window": "24h" });
    let create = || server.call(Method::POST, "/v1/batches", Some(&key), Some(&new));
    let batches: Vec<Value> = (0..100).map(|_| create().ok()).collect();
    let refused = create();
    assert_eq!(refused.error_fields().1, "rate_limit_exceeded");
    assert!(refused.header("retry-after").is_some());
    server.call(Method::POST, &format!("/v1/batches/{}/cancel", id(&batches[50])), Some(&key), Some(&json!({}))).ok();
    wait_for_batch(&server, id(&batches[50]), "cancelled");
    create().ok();
    assert_eq!(create().status, 429);
    // Those that wait expire, too.
    server.clock.advance(Duration::from_secs(24 * 3600));
    wait_for_batch(&server, id(&batches[99]), "expired");
}

#[test]
fn a_cancelled_batch_keeps_what_is_complete() {
    let server = Server::start_with(&crate::slow_model());
    let (project, _, key) = server.tenant("cancels");
    let content = format!("{}\n{}", short_lines(3), long_lines(20).replace("request-", "long-"));
    let batch = new_batch(&server, &key, COMPLETIONS, &content);
    let waiting = new_batch(&server, &key, COMPLETIONS, &short_lines(2));
    until(|| "the short requests are complete", || counts(&get(&server, id(&batch))) == [23, 3, 0]);
    until(|| "the other batch is valid", || get(&server, id(&waiting))["status"] == "in_progress");
    assert_eq!(counts(&get(&server, id(&waiting))), [2, 0, 0], "batches of a project run one after the other");
    until(|| "eight requests run", || server.engine.load().running == 8);
    for batch in [&waiting, &batch] {
        let path = format!("/openai/v1/batches/{}/cancel", id(batch));
        let cancelling = server.call(Method::POST, &path, Some(&key), Some(&json!({}))).ok();
        assert_eq!(cancelling["status"], "cancelling");
        assert!(cancelling["cancelling_at"].is_i64());
        wait_for_batch(&server, id(batch), "cancelled");
    }
    server.wait_idle(Duration::from_secs(20));
    let ended = get(&server, id(&batch));
    assert_eq!((counts(&ended), ended["cancelled_at"].is_i64()), ([23, 3, 0], true));
    assert_eq!(lines(&server, &ended["output_file_id"]).len(), 3);
    let errors = lines(&server, &ended["error_file_id"]);
    assert_eq!(errors.len(), 20);
    assert!(errors.iter().all(|line| line["error"]["code"] == "batch_cancelled" && line["response"].is_null()));
    until(
        || "what ran is recorded as abandoned",
        || usage(&server, &project, "BATCH /completions")["requests_by_outcome"]["abandoned"].as_u64() == Some(8),
    );
    assert_eq!(usage(&server, &project, "BATCH /completions")["requests_by_outcome"]["succeeded"], 3);
    let held = quota_usage_of(server.stop().path(), &project);
    assert_eq!(held.files, 5, "two inputs and three files of results");
}

#[test]
fn what_is_not_complete_after_a_day_expires() {
    let server = Server::start_with(&crate::slow_model());
    let content = format!("{}\n{}", short_lines(1), long_lines(9).replace("request-", "long-"));
    let batch = new_batch(&server, &server.admin, COMPLETIONS, &content);
    until(|| "the short request is complete", || counts(&get(&server, id(&batch))) == [10, 1, 0]);
    server.clock.advance(Duration::from_secs(24 * 3600));
    let ended = wait_for_batch(&server, id(&batch), "expired");
    assert!(ended["expired_at"].is_i64() && ended["expired_at"].as_i64() >= ended["expires_at"].as_i64());
    assert_eq!(lines(&server, &ended["output_file_id"]).len(), 1);
    let errors = lines(&server, &ended["error_file_id"]);
    assert_eq!((errors.len(), &errors[8]["error"]["code"]), (9, &json!("batch_expired")));
}

#[test]
fn a_batch_whose_input_is_deleted_fails_with_what_is_complete() {
    let server = Server::start_with(&crate::slow_model());
    let content = format!(
        "{}\n{}\n{}",
        short_lines(1),
        long_lines(8).replace("request-", "long-"),
        long_lines(9).replace("request-", "more-")
    );
    let batch = new_batch(&server, &server.admin, COMPLETIONS, &content.replace("8000", "400"));
    until(|| "the short request is complete", || counts(&get(&server, id(&batch))) == [18, 1, 0]);
    server.delete(&format!("/v1/files/{}", batch["input_file_id"].as_str().unwrap())).ok();
    let ended = wait_for_batch(&server, id(&batch), "failed");
    assert_eq!(ended["errors"]["data"][0]["code"], "input_file_deleted");
    let [total, completed, failed] = counts(&ended);
    assert!(total == 18 && completed < 18 && failed == 0, "{ended}");
    assert_eq!(lines(&server, &ended["output_file_id"]).len() as u64, completed);
}

#[test]
fn a_batch_waits_for_the_budget_and_outlives_its_key_but_no_rate_limit_stops_it() {
    let server = Server::start();
    let (project, key_id, key) = server.tenant("budget");
    let limits = format!("/v1/projects/{project}/rate-limits");
    let batch = {
        let file = upload_batch(&server, &key, &short_lines(30)).ok()["id"].clone();
        let tight = json!({ "token_budget": 60, "tokens_per_minute": 12, "requests_per_minute": 1 });
        server.patch(&limits, &tight).ok();
        let new = json!({ "input_file_id": file, "endpoint": COMPLETIONS, "completion_window": "24h" });
        server.call(Method::POST, "/openai/v1/batches", Some(&key), Some(&new)).ok()
    };
    let completed = || counts(&get(&server, id(&batch)))[1];
    until(|| "some requests fit into the budget", || completed() > 1);
    server.delete(&format!("/v1/api-keys/{key_id}")).ok();
    std::thread::sleep(Duration::from_millis(500));
    assert!(completed() < 30, "the budget is exhausted");
    assert_eq!(get(&server, id(&batch))["status"], "in_progress");
    server.patch(&limits, &json!({ "token_budget": 100_000 })).ok();
    let ended = wait_for_batch(&server, id(&batch), "completed");
    assert_eq!(counts(&ended), [30, 30, 0]);
    let metered = usage(&server, &project, "BATCH /completions");
    assert_eq!(
        (&metered["requests_by_outcome"]["succeeded"], &metered["requests_by_outcome"]["limited"]),
        (&json!(30), &json!(0))
    );
}

#[test]
fn a_batch_of_an_archived_project_stops() {
    let server = Server::start_with(&crate::slow_model());
    let (project, _, key) = server.tenant("archived");
    let batch = new_batch(&server, &key, COMPLETIONS, &long_lines(20).replace("8000", "40"));
    until(|| "a request is complete", || counts(&get(&server, id(&batch)))[1] > 0);
    server.post(&format!("/v1/projects/{project}/archive"), &json!({})).ok();
    server.wait_idle(Duration::from_secs(30));
    std::thread::sleep(Duration::from_millis(300));
    let before = get(&server, id(&batch));
    assert!(counts(&before)[1] < 20, "{before}");
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(get(&server, id(&batch)), before);
    assert_eq!(server.post(&format!("/v1/batches/{}/cancel", id(&batch)), &json!({})).error_fields().0, 409);
}

#[test]
fn interactive_requests_come_first() {
    let server = Server::start_with(&crate::slow_model());
    let message = json!([{ "role": "user", "content": "a" }]);
    let chat = json!({ "model": MODEL, "messages": message, "max_tokens": 8000, "ignore_eos": true, "stream": true });
    let client = server.start_chat(&chat);
    server.wait_running();
    let (_, _, other) = server.tenant("other");
    let batches = [&server.admin, &other].map(|key| new_batch(&server, key, COMPLETIONS, &long_lines(8)));
    until(|| "one request runs beside", || server.engine.load().running == 2);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(server.engine.load().running, 2);
    drop(client);
    until(|| "all requests run", || server.engine.load().running == 16);
    for batch in batches {
        server.post(&format!("/v1/batches/{}/cancel", id(&batch)), &json!({})).ok();
        wait_for_batch(&server, id(&batch), "cancelled");
    }
}

#[test]
fn a_batch_goes_on_after_a_restart() {
    let server = Server::start_with(&crate::slow_model());
    let (project, _, key) = server.tenant("restarts");
    let batch = new_batch(&server, &key, COMPLETIONS, &long_lines(40).replace("8000", "20"));
    until(|| "some requests are complete", || counts(&get(&server, id(&batch)))[1] > 3);
    let folder = server.stop();
    let server = Server::start_in(folder);
    let ended = wait_for_batch(&server, id(&batch), "completed");
    assert_eq!(counts(&ended), [40, 40, 0]);
    let ids = lines(&server, &ended["output_file_id"]);
    let expected: Vec<Value> = (0..40).map(|index| json!(format!("request-{index}"))).collect();
    assert_eq!(ids.iter().map(|line| line["custom_id"].clone()).collect::<Vec<_>>(), expected);
    let metered = usage(&server, &project, "BATCH /completions");
    assert_eq!(
        (&metered["requests_by_outcome"]["succeeded"], &metered["requests_by_outcome"]["abandoned"]),
        (&json!(40), &json!(0)),
        "{metered}"
    );
}
