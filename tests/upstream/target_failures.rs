//! Clients get errors that do not name the target when it fails.

use serde_json::json;

use crate::fake_target::{FakeTarget, Reply, chunk};
use crate::server::{Response, Server};
use crate::{chat_body, server_with, server_with_settings};

fn chat(server: &Server) -> Response {
    server.post("/v1/chat/completions", &chat_body(json!({})))
}

/// Checks that an answer names neither the target nor its model nor its key.
fn assert_anonymous(response: &Response, target: &FakeTarget) {
    let address = target.address.to_string();
    for secret in ["127.0.0.1", "there", address.as_str(), "http:"] {
        assert!(!response.text.contains(secret), "{}", response.text);
    }
}

#[test]
fn faults_of_the_request_are_the_clients() {
    let too_long = r#"{"error":{"message":"'there' has a maximum context length of 8 tokens","param":"messages"}}"#;
    for (status, body, expected) in [
        (400, r#"{"error":{"message":"bad n","param":"n"}}"#, (400, "invalid_parameter", Some("n"))),
        (422, r#"{"detail":[{"loc":["body"],"msg":"bad"}]}"#, (400, "invalid_parameter", None)),
        (413, "", (413, "request_too_large", None)),
        (400, too_long, (400, "context_length_exceeded", Some("messages"))),
        (400, r#"{"error":{"message":"see http://127.0.0.1/there"}}"#, (400, "invalid_parameter", None)),
    ] {
        let target = FakeTarget::start(move |_, _, reply| reply.status(status, "", body));
        let server = server_with(&[target.address]);
        let response = chat(&server);
        let (status, code, param) = response.error_fields();
        assert_eq!((status, code.as_str(), param.as_deref()), expected, "{body}");
        assert_anonymous(&response, &target);
        assert_eq!(target.count(), 1, "it is not sent again");
    }
}

#[test]
fn faults_of_the_target_are_the_operators() {
    let elsewhere = FakeTarget::chatting("redirected");
    let location = format!("location: http://{}/v1/chat/completions\r\n", elsewhere.address);
    for status in [301, 307, 401, 403, 404, 405, 500, 502] {
        let location = location.clone();
        let target = FakeTarget::start(move |_, _, reply| {
            reply.status(status, &location, r#"{"error":{"message":"the key sk-1 of there is wrong"}}"#);
        });
        let server = server_with(&[target.address]);
        let response = chat(&server);
        assert_eq!(
            response.error_fields(),
            (503, "model_unavailable".to_owned(), Some("model".to_owned())),
            "{status}"
        );
        assert!(response.header("retry-after").is_some());
        assert_anonymous(&response, &target);
    }
    assert_eq!(elsewhere.count(), 0, "redirects are not followed");
}

#[test]
fn responses_that_make_no_sense_are_refused() {
    type Answer = fn(&mut Reply<'_>);
    let answers: [Answer; 9] = [
        |reply| reply.raw("garbage\r\n\r\n"),
        |reply| reply.json(&json!({ "choices": [] })),
        |reply| reply.status(200, "content-type: text/event-stream\r\ncontent-encoding: gzip\r\n", "data: {}\n\n"),
        |reply| reply.status(200, "content-type: text/event-stream\r\n", ""),
        |reply| {
            reply.begin_events();
            reply.raw("data: {not json\n\n");
        },
        |reply| {
            reply.begin_events();
            reply.event(&json!({ "error": { "message": "at there", "code": 500 } }));
        },
        |reply| {
            reply.begin_events();
            reply.raw(&format!("data: {}\n\n", "x".repeat(2 << 20)));
        },
        |reply| {
            reply.begin_events();
            reply.event(&chunk("cut", None));
        },
        |reply| {
            reply.begin_events();
            reply.event(&json!({ "choices": [{ "index": 3, "delta": { "content": "x" } }] }));
        },
    ];
    for (number, answer) in answers.into_iter().enumerate() {
        let target = FakeTarget::start(move |_, _, reply| answer(reply));
        let server = server_with(&[target.address]);
        let response = chat(&server);
        assert_eq!(response.error_fields().1, "model_unavailable", "{number}");
        assert_anonymous(&response, &target);
    }
}

#[test]
fn an_error_at_the_beginning_of_a_stream_is_the_requests_if_it_says_so() {
    let target = FakeTarget::start(|_, _, reply| {
        reply.begin_events();
        reply.event(&json!({ "object": "error", "message": "top_p is odd", "param": "top_p", "code": 400 }));
    });
    let response = server_with(&[target.address]).post("/v1/chat/completions", &chat_body(json!({ "stream": true })));
    assert_eq!(response.error_fields(), (400, "invalid_parameter".to_owned(), Some("top_p".to_owned())));
}

#[test]
fn a_stream_that_breaks_off_ends_with_an_error_event() {
    let target = FakeTarget::start(|_, _, reply| {
        reply.begin_events();
        reply.event(&chunk("one", None));
        reply.raw("data: {\"choices\"");
    });
    let server = server_with(&[target.address]);
    let response = server.post("/v1/chat/completions", &chat_body(json!({ "stream": true })));
    assert_eq!(response.status, 200);
    assert!(response.text.contains("one") && response.text.contains("model_unavailable"), "{}", response.text);
    assert!(!response.text.contains("[DONE]"));
    assert_anonymous(&response, &target);
}

#[test]
fn targets_that_are_too_slow_are_given_up() {
    fn hold(reply: &mut Reply<'_>) {
        reply.wait_closed();
    }
    let silent = FakeTarget::start(move |_, _, reply| hold(reply));
    let slow_first = FakeTarget::start(move |_, _, reply| {
        reply.begin_events();
        reply.raw(": waiting\n\n");
        hold(reply);
    });
    let stalled = FakeTarget::start(move |_, _, reply| {
        reply.begin_events();
        reply.event(&chunk("one", None));
        hold(reply);
    });
    for (target, limits) in [
        (&silent, "first_byte = 0.2\nidle = 600"),
        (&slow_first, "first_byte = 0.2\nidle = 600"),
        (&stalled, "first_byte = 600\nidle = 0.2"),
    ] {
        let server = server_with_settings("kind = \"chat\"", &[target.address], &format!("[timeouts]\n{limits}\n"));
        let response = chat(&server);
        assert_eq!(response.error_fields().1, "model_unavailable");
        assert_anonymous(&response, target);
    }
}

#[test]
fn a_busy_target_is_left_alone() {
    for status in [429, 503] {
        let target = FakeTarget::start(move |_, _, reply| reply.status(status, "retry-after: 40\r\n", "{}"));
        let server = server_with(&[target.address]);
        for _ in 0..3 {
            let response = chat(&server);
            assert_eq!(response.error_fields().1, "overloaded");
            let wait: u64 = response.header("retry-after").unwrap().parse().unwrap();
            assert!((1..=40).contains(&wait), "{wait}");
        }
        assert_eq!(target.count(), 1);
    }
}
