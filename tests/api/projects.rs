use serde_json::{Value, json};

use crate::server::Server;

#[test]
fn a_created_project_has_the_envelope_and_openai_fields() {
    let server = Server::start();
    let metadata = json!({ "team": "search", "nested": { "a": [1, 2.5, null] } });
    let new = json!({ "name": "shop", "environment": "production", "metadata": metadata });
    let created = server.post("/v1/projects", &new).ok();
    assert_eq!(created["object"], "service.resource");
    assert_eq!(created["status"], "succeeded");
    assert_eq!(created["state"], "active");
    assert!(created["id"].as_str().unwrap().starts_with("proj_"));
    assert_eq!(
        (&created["name"], &created["environment"], &created["metadata"]),
        (&json!("shop"), &json!("production"), &metadata)
    );
    assert!(created["created_at"].as_str().unwrap().ends_with('Z'));

    let id = created["id"].as_str().unwrap();
    let theirs = server.get(&format!("/openai/v1/projects/{id}")).ok();
    assert_eq!((&theirs["object"], &theirs["status"]), (&json!("organization.project"), &json!("active")));
    assert!(theirs["created_at"].is_i64());
    assert_eq!(theirs.get("state"), None);
}

#[test]
fn replacing_clears_absent_fields_and_keeps_the_metadata() {
    let server = Server::start();
    let new = json!({ "name": "a", "environment": "dev", "metadata": { "k": 1 } });
    let created = server.post("/v1/projects", &new).ok();
    let path = format!("/v1/projects/{}", created["id"].as_str().unwrap());
    let replaced = server.put(&path, &json!({ "name": "b" })).ok();
    assert_eq!((&replaced["name"], &replaced["environment"]), (&json!("b"), &Value::Null));
    assert_eq!(replaced["metadata"], json!({ "k": 1 }));
    assert_eq!(server.get(&path).ok()["name"], "b");
}

#[test]
fn a_project_survives_a_restart() {
    let server = Server::start();
    let created = server.post("/v1/projects", &json!({ "name": "lasting" })).ok();
    let (path, admin) = (format!("/v1/projects/{}", created["id"].as_str().unwrap()), server.admin.clone());
    let server = Server::start_in(server.stop());
    assert_eq!(server.admin, admin, "a second start creates no new key");
    assert_eq!(server.get(&path).ok()["name"], "lasting");
}

#[test]
fn keys_of_an_archived_project_stop_working() {
    let server = Server::start();
    let (project, _, secret) = server.tenant("gone");
    let path = format!("/v1/projects/{project}");
    assert_eq!(server.call(reqwest::Method::GET, &path, Some(&secret), None).status, 200);
    assert_eq!(server.post(&format!("{path}/archive"), &json!({})).ok()["state"], "archived");
    let refused = server.call(reqwest::Method::GET, &path, Some(&secret), None).error_fields();
    assert_eq!(refused, (401, "revoked_api_key".to_owned(), None));
}

#[test]
fn pagination_returns_each_project_once() {
    let server = Server::start();
    for number in 0..7 {
        server.post("/v1/projects", &json!({ "name": format!("p{number}") })).ok();
    }
    let (mut names, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = server.get(&format!("/v1/projects?limit=3{cursor}")).ok();
        let data = page["data"].as_array().unwrap();
        assert_eq!(page["first_id"], data[0]["id"]);
        assert_eq!(page["last_id"], data[data.len() - 1]["id"]);
        names.extend(data.iter().map(|project| project["name"].as_str().unwrap().to_owned()));
        assert_eq!(page["has_more"], !page["next_cursor"].is_null());
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(names, ["p6", "p5", "p4", "p3", "p2", "p1", "p0", "default"]);
}
