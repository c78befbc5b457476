//! A change on one server holds on the others.

use outpost_testing::needs_postgres;
use reqwest::Method;
use serde_json::json;

use crate::database::Database;
use crate::server::Server;
use crate::tiny_model::TinyModel;
use crate::wait::until;

/// Two servers that know of each other.
fn two_servers(database: &Database) -> [Server; 2] {
    let servers = database.serve_two(&TinyModel::default());
    for server in &servers {
        let knows_both = || server.get("/metrics").text.lines().any(|line| line == "outpost_store_nodes 2");
        until(|| "the servers see each other", knows_both);
    }
    servers
}

fn status(server: &Server, key: &str) -> u16 {
    server.call(Method::GET, "/v1/models", Some(key), None).status
}

#[test]
fn a_key_works_on_every_server_until_any_of_them_ends_it() {
    needs_postgres!();
    let database = Database::new();
    let [a, b] = two_servers(&database);
    let (_, id, key) = a.tenant("t");
    let (other, _, second) = b.tenant("u");
    for server in [&a, &b] {
        assert_eq!(
            [status(server, &key), status(server, &second)],
            [200, 200],
            "each server has both in its cache now"
        );
    }
    let rotated = a.put(&format!("/v1/api-keys/{id}"), &json!({})).ok();
    let new = rotated["secret"].as_str().unwrap().to_owned();
    assert_eq!([status(&a, &new), status(&b, &new)], [200, 200]);
    until(|| "the old secret is refused on the other server", || status(&b, &key) == 401);
    b.delete(&format!("/v1/api-keys/{id}")).ok();
    assert_eq!(status(&b, &new), 401);
    until(|| "the revoked key is refused on the other server", || status(&a, &new) == 401);
    assert_eq!([status(&a, &second), status(&b, &second)], [200, 200]);
    let path = format!("/v1/projects/{other}/archive");
    a.post(&path, &json!({})).ok();
    until(|| "the key of an archived project is refused on the other server", || status(&b, &second) != 200);
}

#[test]
fn usage_on_all_servers_is_reported_by_each() {
    needs_postgres!();
    let database = Database::new();
    let [a, b] = two_servers(&database);
    let (project, _, key) = a.tenant("t");
    for (server, requests) in [(&a, 3), (&b, 4)] {
        (0..requests).for_each(|_| assert_eq!(status(server, &key), 200));
    }
    let path = format!("/v1/projects/{project}/usage");
    for server in [&a, &b] {
        let report = server.get(&path).ok();
        assert_eq!(report["requests"], 7, "{report}");
    }
}
