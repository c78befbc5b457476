//! Responses in the background of two nodes over one database: any node streams what another one generates.

use std::io::{BufRead, BufReader};
use std::time::Duration;

use outpost_testing::needs_postgres;
use serde_json::{Value, json};

use crate::background_responses::{begin_stream, cancel, create, get, long, numbered, path_of, wait_for};
use crate::nodes::Nodes;
use crate::responses::{assembled_from, calling_model, send, tool};
use crate::server::Server;
use crate::slow_model;
use crate::tiny_model::TinyModel;

/// A model and a request for a response that does not end by itself during a test, however fast the machine is.
fn endless_model() -> TinyModel {
    TinyModel { context: 1 << 16, ..slow_model() }
}

fn endless() -> Value {
    long(json!({ "max_output_tokens": 60_000 }))
}

/// The events of a response as they arrive.
fn follow(server: &Server, response: &Value) -> impl Iterator<Item = Value> + use<> {
    let url = format!("{}{}?stream=true", server.url, path_of(response));
    let client = reqwest::blocking::Client::builder().timeout(None).build().unwrap();
    let answer = client.get(url).bearer_auth(&server.admin).send().unwrap();
    assert_eq!(answer.status(), 200);
    let lines = BufReader::new(answer).lines().map_while(Result::ok);
    let data = lines.filter_map(|line| line.strip_prefix("data: ").map(str::to_owned));
    data.take_while(|data| data != "[DONE]").map(|data| serde_json::from_str(&data).unwrap())
}

fn is_delta(event: &Value) -> bool {
    event["type"] == "response.output_text.delta"
}

/// The last events of a stream.
fn rest(events: impl Iterator<Item = Value>) -> Vec<Value> {
    let rest: Vec<Value> = events.collect();
    assert!(!rest.is_empty(), "the stream ended without an event");
    rest
}

#[test]
fn a_stream_on_another_node_has_every_event_once_and_in_order() {
    needs_postgres!();
    let nodes = Nodes::start(&calling_model());
    let call = json!({ "tools": [tool("look")], "tool_choice": "required", "max_output_tokens": 300 });
    let logprobs = json!({ "include": ["message.output_text.logprobs"], "max_output_tokens": 200 });
    for more in [logprobs, call] {
        let (response, lines) = begin_stream(nodes.first(), more);
        let followed: Vec<Value> = follow(&nodes.servers[1], &response).collect();
        lines.take_while(|line| line != "0").for_each(drop);
        for server in &nodes.servers {
            let path = path_of(&response);
            let whole = numbered(&server.get(&format!("{path}?stream=true")).text, 0);
            assert_eq!(followed, whole);
            let from_fifth = numbered(&server.get(&format!("{path}?stream=true&starting_after=4")).text, 5);
            assert_eq!(from_fifth, whole[5..]);
        }
        let ended = assembled_from(followed[2]["response"].clone(), &followed[3..], "");
        assert_eq!(get(nodes.first(), &response), ended);
    }
    let report = nodes.stop();
    assert_eq!((report.records["response_steps"], report.records["response_generations"]), (2, 0), "parts are removed");
}

#[test]
fn streams_follow_a_response_while_another_node_generates_it_and_that_may_cancel_it() {
    needs_postgres!();
    let nodes = Nodes::start(&endless_model());
    let (response, lines) = begin_stream(nodes.first(), endless());
    let generator = nodes.generator();
    let other = &nodes.servers[1 - generator];
    let mut followed = follow(other, &response);
    let before: Vec<Value> = followed.by_ref().take_while(|event| !is_delta(event)).collect();
    let kinds: Vec<&str> = before.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds[..3], ["response.created", "response.queued", "response.in_progress"]);
    // More than one part.
    let parts = followed.by_ref().take(50).collect::<Vec<_>>();
    assert!(parts.iter().all(is_delta), "{parts:?}");
    for server in &nodes.servers {
        assert_eq!(get(server, &response)["status"], "in_progress");
    }
    // A second stream of the same node begins in the middle.
    let path = format!("{}{}?stream=true&starting_after=20", other.url, path_of(&response));
    let later = reqwest::blocking::Client::new().get(path).bearer_auth(&other.admin).send().unwrap();
    let mut later = BufReader::new(later).lines().map_while(Result::ok).filter(|line| line.starts_with("data: "));
    assert!(later.next().unwrap().contains("\"sequence_number\":21,"));

    let cancelled = cancel(other, &response).ok();
    assert_eq!(cancelled["status"], "cancelled");
    let last = rest(followed);
    let last = last.last().unwrap();
    assert_eq!([&last["type"], &last["response"]["status"]], ["response.failed", "cancelled"]);
    let last = lines.take_while(|line| line != "0").filter(|line| line.starts_with("data: {")).last().unwrap();
    assert!(last.contains("response.failed") && last.contains("cancelled"), "{last}");
    nodes.servers[generator].wait_idle(Duration::from_secs(60));
    let report = nodes.stop();
    assert_eq!((report.records["response_steps"], report.records["response_generations"]), (1, 0));
}

#[test]
fn a_stream_ends_with_an_error_when_the_node_that_generates_its_response_stops() {
    needs_postgres!();
    let mut nodes = Nodes::start(&endless_model());
    let (response, lines) = begin_stream(nodes.first(), endless());
    drop(lines);
    let generator = nodes.generator();
    let mut followed = follow(&nodes.servers[1 - generator], &response);
    assert!(followed.any(|event| is_delta(&event)));
    let stopped = nodes.servers.remove(generator).stop();
    let last = rest(followed);
    let [.., error, failed] = &last[..] else { panic!("{last:?}") };
    assert_eq!((&error["type"], &failed["type"]), (&json!("error"), &json!("response.failed")));
    assert!(error["message"].as_str().unwrap().contains("stream it again from its beginning"), "{error}");
    drop(stopped);
    // It is not lost.
    let status = get(nodes.first(), &response)["status"].clone();
    assert!(["queued", "in_progress"].contains(&status.as_str().unwrap()), "{status}");
    cancel(nodes.first(), &response).ok();
    nodes.stop();
}

#[test]
fn the_status_is_the_same_on_every_node_without_a_stream() {
    needs_postgres!();
    let nodes = Nodes::start(&endless_model());
    let response = create(nodes.first(), endless());
    for server in &nodes.servers {
        wait_for(server, &response, "in_progress");
    }
    let refused = nodes.servers[1].get(&format!("{}?stream=true", path_of(&response)));
    assert_eq!(refused.error_fields().2.as_deref(), Some("stream"));
    nodes.servers[1].delete(&path_of(&response)).ok();
    nodes.first().get(&path_of(&response)).error_fields();
    let ended = send(nodes.first(), json!({})).ok();
    assert_eq!(get(&nodes.servers[1], &ended), ended);
}
