//! The API from outside: a real server, real requests, both mounts.
#![cfg(test)]
#![expect(clippy::disallowed_methods, reason = "a test waits on real time")]

#[path = "../common/clock.rs"]
mod clock;
#[path = "../common/server.rs"]
mod server;
#[path = "../common/tiny_model.rs"]
mod tiny_model;

mod access;
mod agents;
mod api_keys;
mod bad_input;
mod chat;
mod conversations;
mod departures;
mod memory;
mod models;
mod projects;
mod routes;
