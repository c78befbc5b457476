use serde_json::{Value, json};

use crate::server::{MODEL, Server};

#[test]
fn a_model_tells_what_it_is_and_can() {
    let server = Server::start();
    let model = server.get(&format!("/v1/models/{MODEL}?include_limits=true")).ok();
    assert_eq!(
        (&model["id"], &model["object"], &model["status"]),
        (&json!(MODEL), &json!("service.resource"), &json!("succeeded"))
    );
    assert_eq!((&model["architecture"], &model["format"]), (&json!("llama"), &json!("gguf")));
    assert_eq!(model["capabilities"]["chat_completions"], true);
    assert_eq!(model["limits"]["context_window"], 512);
    assert!(model["parameters"].as_u64().unwrap() > 1000 && model["bytes"].as_u64().unwrap() > 1000);
    assert!(server.get(&format!("/v1/models/{MODEL}")).ok().get("limits").is_none());

    let theirs = server.get(&format!("/openai/v1/models/{MODEL}")).ok();
    assert_eq!((&theirs["object"], &theirs["owned_by"].is_string()), (&json!("model"), &true));
    assert!(theirs["created"].is_i64() && theirs.get("status").is_none());
}

#[test]
fn include_limits_is_read_from_query_and_body() {
    let server = Server::start();
    let path = format!("/v1/models/{MODEL}");
    let (project, ..) = server.tenant("t");
    let body = json!({ "include_limits": true, "project_id": project });
    let answer = server.call(reqwest::Method::GET, &path, Some(&server.admin), Some(&body)).ok();
    assert_eq!(answer["limits"]["context_window"], 512);
    assert_eq!(answer["access"], json!({ "project_id": project, "allowed": true }));
    let bad = server.get(&format!("{path}?include_limits=maybe")).refusal();
    assert_eq!(bad, (400, "invalid_parameter".to_owned(), Some("include_limits".to_owned())));
    let nobody = server.get(&format!("{path}?project_id=proj_0")).refusal();
    assert_eq!(nobody, (404, "not_found".to_owned(), Some("project_id".to_owned())));
}

#[test]
fn the_list_names_models_and_why_a_broken_one_cannot_be_used() {
    let server = Server::start();
    let folder = server.folder.path().join("models/cut");
    std::fs::create_dir(&folder).unwrap();
    let whole = std::fs::read(server.folder.path().join(format!("models/{MODEL}/{MODEL}.gguf"))).unwrap();
    std::fs::write(folder.join("cut.gguf"), &whole[..whole.len() / 2]).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1100)); // the folder is read again after a second

    let list = server.get("/openai/v1/models").ok();
    assert_eq!(list["object"], "list");
    let ids: Vec<&Value> = list["data"].as_array().unwrap().iter().map(|model| &model["id"]).collect();
    assert_eq!(ids, [&json!("cut"), &json!(MODEL)]);
    assert!(list["data"][0]["problem"].as_str().unwrap().contains("truncated"), "{list}");

    let chat = json!({ "model": "cut", "messages": [{ "role": "user", "content": "hi" }] });
    let answer = server.post("/v1/chat/completions", &chat);
    assert_eq!(answer.refusal(), (503, "model_unavailable".to_owned(), Some("model".to_owned())));
    assert!(answer.text.contains("truncated") && answer.headers.contains_key("retry-after"), "{}", answer.text);
}

#[test]
fn names_that_are_no_model_s_are_404() {
    let server = Server::start();
    for name in ["gpt-5", "..", "%2e%2e", "%2e%2e%2fdata", ".pull", "catalog.toml", "tiny%00", "%F0%9F%97%BC"] {
        let (status, code, _) = server.get(&format!("/v1/models/{name}")).refusal();
        assert_eq!(status, 404, "{name}: {code}");
    }
}
