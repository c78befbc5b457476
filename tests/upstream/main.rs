//! Upstream models: what targets get, what clients get, and what happens when targets fail.
#![cfg(test)]
#![expect(clippy::disallowed_methods, reason = "tests wait in real time")]

#[expect(dead_code, reason = "other tests use the rest")]
#[path = "../common/clock.rs"]
mod clock;
#[expect(dead_code, reason = "other tests use the rest")]
#[path = "../common/process.rs"]
mod process;
#[expect(dead_code, reason = "other tests use the rest")]
#[path = "../common/server.rs"]
mod server;
#[expect(dead_code, reason = "other tests use the rest")]
#[path = "../common/store_location.rs"]
mod store_location;

mod chat;
mod fake_target;
mod false_usage;
mod files;
mod floods;
mod interleaved_calls;
mod other_calls;
mod second_server;
mod target_choice;
mod target_failures;
mod tls;

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use outpost_testing::{children, fixtures, postgres, tiny_model, wait};
use serde_json::{Value, json};
use server::Server;
use tiny_model::TinyModel;

/// The upstream model of most tests.
const REMOTE: &str = "remote";

/// Writes the `upstream.toml` of a model.
fn write_upstream(models: &Path, id: &str, text: &str) {
    let folder = models.join(id);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("upstream.toml"), text).unwrap();
}

/// The text of an `upstream.toml` with these targets.
fn upstream_toml(head: &str, targets: &[SocketAddr]) -> String {
    let target = |address: &SocketAddr| format!("[[target]]\nurl = \"http://{address}/v1\"\nmodel = \"there\"\n");
    format!("{head}\n{}", targets.iter().map(target).collect::<String>())
}

/// A server with a chat model on these targets.
fn server_with(targets: &[SocketAddr]) -> Server {
    server_with_settings("kind = \"chat\"", targets, "")
}

/// `end`: what follows the targets in the file.
fn server_with_settings(head: &str, targets: &[SocketAddr], end: &str) -> Server {
    let text = format!("{}{end}", upstream_toml(head, targets));
    Server::start_configured(&TinyModel::default(), |config| write_upstream(&config.paths.models, REMOTE, &text))
}

/// A chat request to the upstream model.
fn chat_body(more: Value) -> Value {
    let mut body = json!({ "model": REMOTE, "messages": [{ "role": "user", "content": "hello there" }] });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The JSON events of a stream that ends with `[DONE]`.
fn events(text: &str) -> Vec<Value> {
    let data: Vec<&str> = text.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
    let (last, events) = data.split_last().unwrap();
    assert_eq!(*last, "[DONE]", "{text}");
    events.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
}
