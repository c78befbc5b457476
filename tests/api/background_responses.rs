//! Responses that are generated in the background: polled, streamed from any event on, cancelled, limited and metered.

use std::io::{BufRead, BufReader};
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::responses::{PATH, assembled_from, body, calling_model, comparable, events, model, send, text_of, tool};
use crate::server::{Response, Server};
use crate::slow_model;
use crate::wait::until;

pub fn create(server: &Server, more: Value) -> Value {
    let mut all = json!({ "background": true });
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    send(server, all).ok()
}

pub fn path_of(response: &Value) -> String {
    format!("{PATH}/{}", response["id"].as_str().unwrap())
}

pub fn get(server: &Server, response: &Value) -> Value {
    server.get(&path_of(response)).ok()
}

pub fn wait_for(server: &Server, response: &Value, status: &str) -> Value {
    let mut found = Value::Null;
    until(
        || format!("the response is {status}"),
        || {
            found = get(server, response);
            found["status"] == status
        },
    );
    found
}

/// Waits until the response is not open any more.
fn wait_for_end(server: &Server, response: &Value) -> Value {
    let mut found = Value::Null;
    until(
        || "the response ends",
        || {
            found = get(server, response);
            !["queued", "in_progress"].contains(&found["status"].as_str().unwrap())
        },
    );
    found
}

pub fn cancel(server: &Server, response: &Value) -> Response {
    server.post(&format!("{}/cancel", path_of(response)), &json!({}))
}

/// A request that is not complete before it is cancelled.
pub fn long(more: Value) -> Value {
    let mut all = json!({ "max_output_tokens": 7000, "ignore_eos": true });
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    all
}

fn without(mut response: Value, fields: &[&str]) -> Value {
    for field in fields {
        response.as_object_mut().unwrap().remove(*field);
    }
    response
}

/// Creates a streamed response; returns it and the lines that follow its first event.
pub fn begin_stream(server: &Server, more: Value) -> (Value, impl Iterator<Item = String>) {
    let mut all = json!({ "background": true, "stream": true });
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let connection = server.begin(PATH, &server.admin, &body(all));
    let mut lines = BufReader::new(connection).lines().map_while(Result::ok);
    let created = lines.find_map(|line| line.strip_prefix("data: ").map(str::to_owned)).unwrap();
    let created: Value = serde_json::from_str(&created).unwrap();
    assert_eq!(created["type"], "response.created");
    (created["response"].clone(), lines)
}

/// The events of a stream that begins after the first `skipped`.
pub fn numbered(text: &str, skipped: u64) -> Vec<Value> {
    let data = |event: &str| -> Value { serde_json::from_str(event.split_once("data: ").unwrap().1).unwrap() };
    let events = text.strip_suffix("data: [DONE]\n\n").unwrap_or(text);
    let found: Vec<Value> = events.split_terminator("\n\n").filter(|event| !event.starts_with(':')).map(data).collect();
    for (number, event) in (skipped..).zip(&found) {
        assert_eq!(event["sequence_number"], number, "{text}");
    }
    found
}

#[test]
fn a_response_in_the_background_is_the_one_that_a_client_would_have_waited_for() {
    let server = Server::start_with(&calling_model());
    let call = json!({ "tools": [tool("look")], "tool_choice": "required", "max_output_tokens": 300 });
    for more in [json!({}), call, json!({ "include": ["message.output_text.logprobs"], "top_logprobs": 2 })] {
        let waited = send(&server, more.clone()).ok();
        let queued = create(&server, more.clone());
        assert_eq!((&queued["status"], &queued["background"]), (&json!("queued"), &json!(true)));
        assert_eq!((&queued["output"], &queued["usage"]), (&json!([]), &Value::Null));
        let ended = wait_for(&server, &queued, waited["status"].as_str().unwrap());
        assert_eq!(ended["id"], queued["id"]);
        assert_eq!(ended["created_at"], queued["created_at"]);
        let plain = |response: &Value| without(comparable(response.clone()), &["background"]);
        assert_eq!(plain(&ended), plain(&waited));
        // Items have IDs of this response, and it can be continued.
        let item = ended["output"].as_array().unwrap().last().unwrap();
        let mut input = vec![json!({ "type": "item_reference", "id": item["id"] })];
        if item["type"] == "function_call" {
            input.push(json!({ "type": "function_call_output", "call_id": item["call_id"], "output": "water" }));
        }
        send(&server, json!({ "input": input })).ok();
    }
    let first = wait_for_end(&server, &create(&server, json!({ "store": true, "seed": null })));
    let second = create(&server, json!({ "input": "and the land", "previous_response_id": first["id"] }));
    let second = wait_for_end(&server, &second);
    let waited = send(&server, json!({ "input": "and the land", "previous_response_id": first["id"] })).ok();
    assert_eq!(text_of(&second), text_of(&waited));
    let items = server.get(&format!("{}/input_items", path_of(&second))).ok();
    assert_eq!(items["data"][0]["content"][0]["text"], "and the land");
}

#[test]
fn its_events_can_be_read_from_any_number_on() {
    let server = Server::start_with(&calling_model());
    let call = json!({ "tools": [tool("look")], "tool_choice": "required", "max_output_tokens": 300 });
    for more in [json!({ "include": ["message.output_text.logprobs"] }), call, json!({ "max_output_tokens": 3 })] {
        let mut all = json!({ "background": true, "stream": true });
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let live = send(&server, all).text;
        let found = events(&live);
        let kinds: Vec<&str> = found[..3].iter().map(|event| event["type"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["response.created", "response.queued", "response.in_progress"]);
        let statuses: Vec<&Value> = found[..3].iter().map(|event| &event["response"]["status"]).collect();
        assert_eq!(statuses, ["queued", "queued", "in_progress"]);
        let ended = assembled_from(found[2]["response"].clone(), &found[3..], &live);
        assert_eq!(get(&server, &ended), ended);
        let read = |after: Option<usize>| {
            let after = after.map(|after| format!("&starting_after={after}")).unwrap_or_default();
            server.get(&format!("{}?stream=true{after}", path_of(&ended))).text
        };
        assert_eq!(read(None), live, "it is streamed again");
        for after in [0, 2, 4, found.len() - 2] {
            assert_eq!(numbered(&read(Some(after)), after as u64 + 1), found[after + 1..], "{after}");
        }
        let last = numbered(&read(Some(1000)), 1001);
        assert_eq!((last.len(), &last[0]["response"]), (1, &ended), "the end is always sent");
    }
}

#[test]
fn streams_follow_a_response_while_it_is_generated_and_may_leave_it() {
    let server = Server::start_with(&slow_model());
    let (response, mut lines) = begin_stream(&server, json!({ "max_output_tokens": 200, "ignore_eos": true }));
    lines.find(|line| line.contains("response.output_text.delta")).unwrap();
    assert_eq!(get(&server, &response)["status"], "in_progress");
    let refused = send(&server, json!({ "previous_response_id": response["id"] }));
    assert_eq!(refused.error_fields(), (400, "invalid_parameter".to_owned(), Some("previous_response_id".to_owned())));
    // Its connection closes.
    drop(lines);
    let path = format!("{}?stream=true&starting_after=4", path_of(&response));
    let rest = numbered(&server.get(&path).text, 5);
    let ended = &rest.last().unwrap()["response"];
    assert_eq!((&ended["status"], &ended["usage"]["output_tokens"]), (&json!("incomplete"), &json!(200)));
    let deltas = |events: &[Value]| -> String {
        let text = |event: &Value| event["delta"].as_str().map(str::to_owned);
        events.iter().filter_map(text).collect()
    };
    let whole = numbered(&server.get(&format!("{}?stream=true", path_of(&response))).text, 0);
    assert_eq!((&whole[5..], deltas(&whole).as_str()), (&rest[..], text_of(ended)));
}

#[test]
fn a_cancelled_response_ends_at_once_and_pays_for_what_was_generated() {
    let server = Server::start_with(&slow_model());
    let (project, _, key) = server.tenant("cancels");
    let ask = |more: Value| {
        let request = body(long(more));
        server.call(Method::POST, PATH, Some(&key), Some(&request)).ok()
    };
    // More than run at once.
    let running = ask(json!({ "background": true, "input": "the first" }));
    wait_for(&server, &running, "in_progress");
    let waiting: Vec<Value> = (0..8).map(|_| ask(json!({ "background": true }))).collect();
    until(|| "eight run", || server.engine.load().running == 8);
    let last = waiting.last().unwrap();
    assert_eq!(get(&server, last)["status"], "queued");
    for response in waiting.iter().rev().chain([&running]) {
        let cancelled = cancel(&server, response).ok();
        assert_eq!((&cancelled["status"], &cancelled["output"]), (&json!("cancelled"), &json!([])));
        assert_eq!(get(&server, response), cancelled);
        assert_eq!(cancel(&server, response).ok(), cancelled, "a second time changes nothing");
    }
    server.wait_idle(Duration::from_secs(20));
    let usage = || {
        let report = server.get(&format!("/v1/projects/{project}/usage?group_by=endpoint")).ok();
        let groups = report["groups"].as_array().unwrap().clone();
        groups.into_iter().find(|group| group["endpoint"] == "BACKGROUND /responses").unwrap_or_default()
    };
    until(|| "all that ran are recorded", || usage()["requests_by_outcome"]["abandoned"].as_u64() >= Some(8));
    let used = usage();
    assert!(used["tokens"]["output"].as_u64() > Some(0), "{used}");
    assert_eq!(used["requests_by_outcome"]["abandoned"].as_u64(), Some(8), "the last one never ran: {used}");
    // One that has ended is not cancelled.
    let ended = wait_for_end(&server, &create(&server, json!({})));
    assert_eq!(cancel(&server, &ended).ok(), ended);
    let waited = send(&server, json!({})).ok();
    assert_eq!(cancel(&server, &waited).error_fields().2.as_deref(), Some("response_id"));
    let audit = server.get("/v1/audit-events?action=response.cancelled&limit=100").ok();
    assert_eq!(audit["data"].as_array().unwrap().len(), 9, "{audit}");
}

#[test]
fn a_stream_ends_when_its_response_is_cancelled_or_deleted() {
    let server = Server::start_with(&slow_model());
    for (method, more, last) in [
        (Method::POST, "/cancel", ["response.failed", "cancelled"]),
        (Method::DELETE, "", ["response.failed", "failed"]),
    ] {
        let connection = begin_stream(&server, long(json!({})));
        let (response, mut lines) = connection;
        lines.find(|line| line.contains("response.output_text.delta")).unwrap();
        let path = path_of(&response);
        server.call(method, &format!("{path}{more}"), Some(&server.admin), None).ok();
        let rest: Vec<String> = lines.take_while(|line| line != "0").collect();
        let [.., data, end] = &rest.iter().filter_map(|line| line.strip_prefix("data: ")).collect::<Vec<_>>()[..]
        else {
            panic!("{rest:?}")
        };
        assert_eq!(*end, "[DONE]");
        let event: Value = serde_json::from_str(data).unwrap();
        assert_eq!([&event["type"], &event["response"]["status"]], last);
        if more == "/cancel" {
            let again = numbered(&server.get(&format!("{path}?stream=true")).text, 0);
            let kinds: Vec<&Value> = again.iter().map(|event| &event["type"]).collect();
            assert_eq!(kinds, ["response.created", "response.queued", "response.failed"]);
        }
    }
    server.wait_idle(Duration::from_secs(20));
}

#[test]
fn what_cannot_be_generated_fails_with_the_reason() {
    let server = Server::start_with(&model());
    for (more, status, param) in [
        (json!({ "model": "none" }), 404, "model"),
        (json!({ "store": false }), 400, "background"),
        (json!({ "tools": [{ "type": "function" }] }), 400, "tools[0].name"),
    ] {
        let mut all = json!({ "background": true });
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let refused = send(&server, all).error_fields();
        assert_eq!((refused.0, refused.2.as_deref()), (status, Some(param)));
    }
    let text = "far too long ".repeat(2000);
    let failed = wait_for(&server, &create(&server, json!({ "input": text })), "failed");
    assert_eq!((&failed["error"]["code"], &failed["output"]), (&json!("context_length_exceeded"), &json!([])));
    let streamed = send(&server, json!({ "background": true, "stream": true, "input": text }));
    let found = events(&streamed.text);
    let kinds: Vec<&str> = found.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["response.created", "response.queued", "error", "response.failed"]);
    assert_eq!(found[2]["code"], "context_length_exceeded");
    // A response that it continues is deleted before it is generated.
    let first = send(&server, json!({})).ok();
    let continued = json!({ "previous_response_id": first["id"], "background": true, "stream": false });
    let queued = send(&server, continued).ok();
    server.delete(&path_of(&first)).ok();
    wait_for_end(&server, &queued);
}

#[test]
fn responses_in_the_background_are_limited_and_count_against_quotas_and_usage() {
    let server = Server::start_with(&slow_model());
    let (project, _, key) = server.tenant("limited");
    let limits = format!("/v1/projects/{project}/rate-limits");
    let held = |quota: &str| server.get(&limits).ok()["holds"][quota].as_u64().unwrap();
    let ask = |more: Value| server.call(Method::POST, PATH, Some(&key), Some(&body(more)));
    let all: Vec<Value> = (0..100).map(|_| ask(long(json!({ "background": true }))).ok()).collect();
    let refused = ask(long(json!({ "background": true })));
    assert_eq!(refused.error_fields().1, "rate_limit_exceeded");
    assert!(refused.header("retry-after").is_some());
    assert_eq!(held("responses"), 100);
    for response in &all {
        server.delete(&path_of(response)).ok();
    }
    server.wait_idle(Duration::from_secs(20));
    assert_eq!((held("responses"), held("storage_bytes")), (0, 0), "their requests are deleted with them");
    let one = ask(json!({ "background": true, "stream": false, "max_output_tokens": 5, "ignore_eos": true })).ok();
    let ended = wait_for(&server, &one, "incomplete");
    let report = server.get(&format!("/v1/projects/{project}/usage?group_by=endpoint")).ok();
    let groups = report["groups"].as_array().unwrap();
    let of = |endpoint: &str| groups.iter().find(|group| group["endpoint"] == endpoint).unwrap();
    let generated = of("BACKGROUND /responses");
    assert_eq!(generated["requests_by_outcome"]["succeeded"], 1, "{generated}");
    assert!(generated["tokens"]["output"].as_u64() >= ended["usage"]["output_tokens"].as_u64());
    assert_eq!(of("POST /responses")["tokens"]["total"], 0);
    // Tokens per minute hold here, too: it waits until there are some again.
    let waiting =
        json!({ "background": true, "input": "word ".repeat(60), "max_output_tokens": 2, "ignore_eos": true });
    let count =
        server.post("/v1/responses/input_tokens", &body(waiting.clone())).ok()["input_tokens"].as_u64().unwrap();
    server.patch(&limits, &json!({ "tokens_per_minute": count * 3 / 2 })).ok();
    server.clock.advance(Duration::from_secs(120));
    let responses: Vec<Value> = (0..2).map(|_| ask(waiting.clone()).ok()).collect();
    wait_for(&server, &responses[0], "incomplete");
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(get(&server, &responses[1])["status"], "queued");
    server.clock.advance(Duration::from_secs(120));
    wait_for(&server, &responses[1], "incomplete");
    let folder = server.stop();
    let report = crate::store_location::check_store(&folder.path().join("data"));
    assert!(report.is_clean(), "{:?}", report.problems);
}
