use serde_json::{Value, json};

use crate::server::{MODEL, Server};
use crate::slow_model;
use crate::wait::until;

#[test]
fn a_model_describes_its_properties_and_capabilities() {
    let server = Server::start();
    let model = server.get(&format!("/v1/models/{MODEL}?include_limits=true")).ok();
    assert_eq!(
        (&model["id"], &model["object"], &model["status"]),
        (&json!(MODEL), &json!("service.resource"), &json!("succeeded"))
    );
    assert_eq!((&model["architecture"], &model["format"]), (&json!("llama"), &json!("gguf")));
    assert_eq!(model["capabilities"]["chat_completions"], true);
    assert_eq!((&model["limits"]["context_window"], &model["context_window"]), (&json!(512), &json!(512)));
    assert_eq!((&model["max_model_len"], &model["root"]), (&json!(512), &json!(MODEL)));
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
    let response = server.call(reqwest::Method::GET, &path, Some(&server.admin), Some(&body)).ok();
    assert_eq!(response["limits"]["context_window"], 512);
    assert_eq!(response["access"], json!({ "project_id": project, "allowed": true }));
    let bad = server.get(&format!("{path}?include_limits=maybe")).error_fields();
    assert_eq!(bad, (400, "invalid_parameter".to_owned(), Some("include_limits".to_owned())));
    let unknown_project = server.get(&format!("{path}?project_id=proj_0")).error_fields();
    assert_eq!(unknown_project, (404, "not_found".to_owned(), Some("project_id".to_owned())));
}

#[test]
fn the_list_states_why_a_broken_model_is_unusable() {
    let server = Server::start();
    let folder = server.folder.path().join("models/cut");
    std::fs::create_dir(&folder).unwrap();
    let whole = std::fs::read(server.folder.path().join(format!("models/{MODEL}/{MODEL}.gguf"))).unwrap();
    std::fs::write(folder.join("cut.gguf"), &whole[..whole.len() / 2]).unwrap();
    // The folder is read once a second.
    let list = || server.get("/openai/v1/models").ok();
    until(|| "the new folder is found", || list()["data"].as_array().unwrap().len() == 2);
    let list = list();
    assert_eq!(list["object"], "list");
    let ids: Vec<&Value> = list["data"].as_array().unwrap().iter().map(|model| &model["id"]).collect();
    assert_eq!(ids, [&json!("cut"), &json!(MODEL)]);
    assert!(list["data"][0]["problem"].as_str().unwrap().contains("truncated"), "{list}");

    let chat = json!({ "model": "cut", "messages": [{ "role": "user", "content": "hi" }] });
    let response = server.post("/v1/chat/completions", &chat);
    assert_eq!(response.error_fields(), (503, "model_unavailable".to_owned(), Some("model".to_owned())));
    assert!(response.text.contains("truncated") && response.headers.contains_key("retry-after"), "{}", response.text);
}

#[test]
fn changes_of_model_files_are_noticed_by_the_next_request() {
    let server = Server::start();
    let file = server.folder.path().join(format!("models/{MODEL}/{MODEL}.gguf"));
    let ask = || {
        let message = json!({ "role": "user", "content": "hi" });
        server.post("/v1/chat/completions", &json!({ "model": MODEL, "messages": [message], "max_tokens": 2 }))
    };
    let context =
        || server.get(&format!("/v1/models/{MODEL}?include_limits=true")).ok()["limits"]["context_window"].clone();
    let whole = std::fs::read(&file).unwrap();
    ask().ok();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(ask().error_fields(), (404, "model_not_found".to_owned(), Some("model".to_owned())));
    assert_eq!(server.get(&format!("/v1/models/{MODEL}")).error_fields().0, 404);
    std::fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    // An unknown name is searched for once a second.
    until(|| "the model is found again", || ask().status != 404);
    assert_eq!(ask().error_fields(), (503, "model_unavailable".to_owned(), Some("model".to_owned())));
    std::fs::write(&file, &whole).unwrap();
    ask().ok();
    assert_eq!(context(), 512);
    std::fs::write(
        &file,
        crate::tiny_model::bytes(&crate::tiny_model::TinyModel { context: 256, blocks: 3, ..Default::default() }),
    )
    .unwrap();
    ask().ok();
    assert_eq!(context(), 256);
}

#[test]
fn a_model_that_computes_nan_is_named() {
    let server = Server::start();
    let damaged = crate::tiny_model::bytes_with_tensors(&crate::tiny_model::TinyModel::default(), |tensors| {
        tensors.iter_mut().filter(|tensor| tensor.0.contains("ffn_down")).for_each(|tensor| tensor.3.fill(0xff));
    });
    std::fs::write(server.folder.path().join(format!("models/{MODEL}/{MODEL}.gguf")), damaged).unwrap();
    let message = json!({ "role": "user", "content": "hi" });
    let ask = |stream: bool| {
        let body = json!({ "model": MODEL, "messages": [message], "max_tokens": 2, "stream": stream });
        server.post("/v1/chat/completions", &body)
    };
    let response = ask(false);
    assert_eq!(response.error_fields(), (503, "model_unavailable".to_owned(), Some("model".to_owned())));
    let expected_message = format!("The model '{MODEL}' cannot be used");
    assert!(response.text.contains(&expected_message) && response.text.contains("damaged"), "{}", response.text);
    let streamed = ask(true).text;
    assert!(streamed.contains("model_unavailable") && streamed.contains(&expected_message), "{streamed}");
}

#[test]
fn unknown_model_names_are_404() {
    let server = Server::start();
    for name in ["gpt-5", "..", "%2e%2e", "%2e%2e%2fdata", ".pull", "catalog.toml", "tiny%00", "%F0%9F%97%BC"] {
        let (status, code, _) = server.get(&format!("/v1/models/{name}")).error_fields();
        assert_eq!(status, 404, "{name}: {code}");
    }
}

#[test]
fn a_model_is_loaded_and_unloaded_by_an_admin() {
    let server = Server::start_with(&slow_model());
    let (path, (_, _, tenant)) = (format!("/v1/models/{MODEL}"), server.tenant("t"));
    let act = |what: &str| server.post(&format!("{path}/{what}"), &json!({}));
    assert_eq!(server.get(&path).ok()["loaded"], false);
    assert_eq!(server.get(&path).ok()["device"], "cpu");
    for what in ["load", "load"] {
        assert_eq!(act(what).ok()["loaded"], true);
    }
    assert_eq!(server.get(&path).ok()["loaded"], true);
    let running = server.start_chat(&json!({
        "model": MODEL, "messages": [{ "role": "user", "content": "hi" }], "stream": true, "ignore_eos": true,
        "max_tokens": 1500,
    }));
    server.wait_running();
    assert_eq!(act("unload").error_fields(), (409, "conflict".to_owned(), Some("model_id".to_owned())));
    drop(running);
    server.wait_idle(std::time::Duration::from_secs(10));
    for what in ["unload", "unload"] {
        assert_eq!(act(what).ok()["loaded"], false);
    }
    let post = reqwest::Method::POST;
    assert_eq!(server.call(post, &format!("{path}/load"), Some(&tenant), None).error_fields().0, 403);
    assert_eq!(server.post("/v1/models/none/load", &json!({})).error_fields().1, "model_not_found");
    assert_eq!(server.post("/v1/models/none/unload", &json!({})).error_fields().1, "model_not_found");
}

#[test]
fn metrics_are_for_admins_and_count_requests() {
    let server = Server::start();
    let (_, _, tenant) = server.tenant("t");
    let ask = json!({ "model": MODEL, "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 5, "ignore_eos": true });
    let usage = server.post("/v1/chat/completions", &ask).ok()["usage"].clone();
    let get = |key: Option<&str>| server.call(reqwest::Method::GET, "/metrics", key, None);
    assert_eq!(get(Some(&tenant)).error_fields().0, 403);
    assert_eq!(server.raw(reqwest::Method::GET, "/metrics", None, &[], None).error_fields().0, 401);
    let response = get(Some(&server.admin));
    assert_eq!(response.status, 200);
    assert!(response.headers["content-type"].to_str().unwrap().starts_with("application/openmetrics-text"));
    let figure = |name: &str| {
        let line = response.text.lines().find(|line| line.starts_with(name));
        line.unwrap_or_else(|| panic!("no {name} in {}", response.text)).rsplit_once(' ').unwrap().1.to_owned()
    };
    assert_eq!(figure("outpost_prompt_tokens_total"), usage["prompt_tokens"].to_string());
    assert_eq!(figure("outpost_generated_tokens_total"), "5");
    assert_eq!(figure("outpost_time_to_first_token_seconds_count"), "1");
    assert_eq!(
        (figure("outpost_answers_running"), figure("outpost_requests_queued")),
        ("0".to_owned(), "0".to_owned())
    );
    assert_ne!(figure("outpost_memory_bytes{device=\"cpu\",use=\"weights\"}"), "0");
    assert!(response.text.ends_with("# EOF\n"));
}

#[test]
fn the_catalog_lists_models_that_can_be_pulled() {
    let server = Server::start_configured(&crate::tiny_model::TinyModel::default(), |config| {
        crate::tiny_model::write(
            &config.paths.models,
            "smollm2-135m-instruct",
            &crate::tiny_model::TinyModel::default(),
        );
    });
    for mount in ["/v1", "/openai/v1"] {
        let offers = server.get(&format!("{mount}/catalog")).ok();
        let offers = offers["data"].as_array().unwrap();
        let of = |name: &str| offers.iter().find(|offer| offer["id"] == name).unwrap_or_else(|| panic!("no {name}"));
        assert_eq!(of("smollm2-135m-instruct")["installed"], json!(true));
        let vectors = of("all-minilm-l6-v2");
        assert_eq!(vectors["installed"], json!(false));
        let command = "outpost models pull all-minilm-l6-v2";
        let folder = server.folder.path().join("models");
        assert_eq!(vectors["command"], json!(format!("{command} --models {}", folder.display())));
        // Only an admin learns where the models folder is.
        let (_, _, key) = server.tenant(mount);
        let response = server.call(reqwest::Method::GET, &format!("{mount}/catalog"), Some(&key), None);
        assert!(response.text.contains(&format!("\"command\":\"{command}\"")), "{}", response.text);
        assert!(vectors["bytes"].as_u64().unwrap() > 1_000_000 && vectors["license"].is_string(), "{vectors}");
    }
}
