//! Derived models: other names for models with settings of their own, which Ollama's clients create, copy and delete.

use std::fs;

use reqwest::Method;
use serde_json::{Value, json};

use crate::fixtures::add_fixture;
use crate::server::{MODEL, Response, Server};
use crate::tiny_model::TinyModel;

const SYSTEM: &str = "You are Mario.";

fn model() -> TinyModel {
    TinyModel { context: 2048, blocks: 1, width: 32, ..TinyModel::default() }
}

fn create(server: &Server, more: Value) -> Response {
    let mut body = json!({ "model": "mario", "from": MODEL, "stream": false });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.post("/api/create", &body)
}

fn delete(server: &Server, key: &str, model: &str) -> Response {
    server.call(Method::DELETE, "/api/delete", Some(key), Some(&json!({ "model": model })))
}

fn show(server: &Server, model: &str) -> Value {
    server.post("/api/show", &json!({ "model": model })).ok()
}

/// The response of a model to a question, without randomness.
fn chat(server: &Server, model: &str, system: Option<&str>) -> Value {
    let system = system.map(|text| json!({ "role": "system", "content": text }));
    let messages: Vec<Value> = system.into_iter().chain([json!({ "role": "user", "content": "the sea" })]).collect();
    let body = json!({ "model": model, "messages": messages, "temperature": 0, "max_tokens": 12 });
    server.post("/v1/chat/completions", &body).ok()
}

fn usage_and_text(response: &Value) -> (Value, Value) {
    (response["usage"]["prompt_tokens"].clone(), response["choices"][0]["message"]["content"].clone())
}

#[test]
fn a_derived_model_has_a_system_prompt_and_parameters_of_its_own() {
    let server = Server::start_with(&model());
    let parameters =
        json!({ "temperature": 0.7, "top_k": 3, "num_predict": 5, "stop": ["END", "\n"], "num_ctx": 4096 });
    let created = create(&server, json!({ "system": SYSTEM, "parameters": parameters, "license": ["MIT", "more"] }));
    assert_eq!(created.header("x-outpost-ignored"), Some("parameters.num_ctx"));
    assert_eq!(created.ok(), json!({ "status": "success" }));

    let tags = server.get("/api/tags").ok();
    let names: Vec<&str> =
        tags["models"].as_array().unwrap().iter().map(|model| model["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["mario:latest", "tiny:latest"]);
    let listed = server.get("/v1/models/mario").ok();
    assert_eq!(listed["alias_of"], MODEL);
    assert!(server.get("/openai/v1/models").text.contains("\"mario\""));

    let shown = show(&server, "mario:latest");
    assert_eq!((&shown["system"], &shown["license"]), (&json!(SYSTEM), &json!("MIT\nmore")));
    assert_eq!(shown["details"]["parent_model"], MODEL);
    assert_eq!(shown["template"], show(&server, MODEL)["template"]);
    let parameters = "temperature                    0.7\ntop_k                          3\nnum_predict                    5\n\
                      stop                           \"END\"\nstop                           \"\\n\"";
    assert_eq!(shown["parameters"], parameters);

    // On every API, as if the requests had the settings.
    let own = chat(&server, "mario", None);
    assert_eq!(usage_and_text(&own), usage_and_text(&chat(&server, MODEL, Some(SYSTEM))));
    assert_ne!(own["usage"]["prompt_tokens"], chat(&server, MODEL, None)["usage"]["prompt_tokens"]);
    assert_eq!(own["model"], MODEL);
    let other = Some("Be brief.");
    assert_eq!(usage_and_text(&chat(&server, "mario", other)), usage_and_text(&chat(&server, MODEL, other)));
    let prompt_tokens = &own["usage"]["prompt_tokens"];
    let generate = json!({ "model": "mario", "prompt": "the sea", "stream": false });
    let generated = server.post("/api/generate", &generate).ok();
    assert_eq!((&generated["model"], &generated["prompt_eval_count"]), (&json!("mario"), prompt_tokens));
    assert!(generated["eval_count"].as_u64().unwrap() <= 5, "{generated}");
    let responses = json!({ "model": "mario:latest", "input": "the sea" });
    assert_eq!(&server.post("/v1/responses", &responses).ok()["usage"]["input_tokens"], prompt_tokens);
    let messages = json!([{ "role": "user", "content": "the sea" }]);
    let counted = server.post("/v1/messages/count_tokens", &json!({ "model": "mario", "messages": messages })).ok();
    assert_eq!(&counted["input_tokens"], prompt_tokens);
    let tokens = server.post("/v1/tokenize", &json!({ "model": "mario", "messages": messages })).ok();
    assert_eq!(&tokens["count"], prompt_tokens);

    // What is shown can be created again, and what is created again replaces what was there.
    let again = json!({ "model": "luigi", "modelfile": shown["modelfile"], "stream": false });
    server.post("/api/create", &again).ok();
    let copied = show(&server, "luigi");
    for field in ["system", "parameters", "license", "modelfile"] {
        assert_eq!(copied[field], shown[field], "{field}");
    }
    create(&server, json!({ "system": "You are Wario." })).ok();
    assert_eq!(
        (&show(&server, "mario")["system"], &show(&server, "mario")["parameters"]),
        (&json!("You are Wario."), &json!(""))
    );
}

#[test]
fn a_derived_model_can_be_derived_copied_and_deleted() {
    let server = Server::start_with(&model());
    let streamed = create(&server, json!({ "model": "mario:v1", "system": SYSTEM, "stream": true }));
    assert_eq!(streamed.text, "{\"status\":\"writing manifest\"}\n{\"status\":\"success\"}\n");
    // It takes over what is not set.
    create(&server, json!({ "model": "luigi", "from": "mario:v1", "parameters": { "seed": 7 } })).ok();
    let luigi = show(&server, "luigi");
    assert_eq!((&luigi["system"], &luigi["parameters"]), (&json!(SYSTEM), &json!("seed                           7")));
    let copy = |source: &str, destination: &str| {
        server.post("/api/copy", &json!({ "source": source, "destination": destination }))
    };
    assert_eq!(copy("luigi:latest", "peach").text, "");
    assert_eq!(show(&server, "peach")["modelfile"], luigi["modelfile"]);
    assert_eq!(copy(MODEL, "plain").status, 200);
    assert_eq!(show(&server, "plain")["modelfile"], "FROM tiny\n");

    // A model of the folder keeps its settings, and those of its operator apply to models that are derived from it.
    let settings = "[models.tiny]\nsystem = 'Be brief.'\n[models.tiny.defaults]\ntop_k = 2";
    fs::write(server.folder.path().join("models/models.toml"), settings).unwrap();
    crate::wait::until(|| "the settings are read", || show(&server, "plain")["system"] == "Be brief.");
    assert_eq!(
        show(&server, "luigi")["parameters"],
        "top_k                          2\nseed                           7"
    );
    assert_eq!(show(&server, "luigi")["system"], SYSTEM);

    // It is there after a restart.
    let server = Server::start_in(server.stop());
    assert_eq!(show(&server, "mario:v1")["system"], SYSTEM);
    let (_, _, key) = server.tenant("other");
    assert_eq!(delete(&server, &key, "peach").error_fields().0, 403);
    assert_eq!(delete(&server, &server.admin, "peach:latest").status, 200);
    assert_eq!(server.post("/api/show", &json!({ "model": "peach" })).error_fields().0, 404);
    assert_eq!(delete(&server, &server.admin, "peach").error_fields().0, 404);
    assert_eq!(server.delete("/v1/models/luigi").status, 200);
    assert!(!server.folder.path().join("models/luigi").exists());
    assert_eq!(delete(&server, &server.admin, MODEL).error_fields().0, 409);
    let events = server.get("/v1/audit-events?action=derived_model").ok();
    let events: Vec<_> = events["data"].as_array().unwrap().iter().map(|event| event["action"].clone()).collect();
    let created = "derived_model.created";
    assert_eq!(
        json!(events),
        json!(["derived_model.deleted", "derived_model.deleted", created, created, created, created])
    );
}

#[test]
fn only_admins_change_derived_models_and_everybody_who_may_use_the_model_uses_them() {
    let server = Server::start_with(&model());
    let (project, _, key) = server.tenant("other");
    let post = |key: &str, path: &str, body: &Value| server.call(Method::POST, path, Some(key), Some(body));
    let new = json!({ "model": "mario", "from": MODEL, "system": SYSTEM, "stream": false });
    assert_eq!(post(&key, "/api/create", &new).error_fields().0, 403);
    let copy = json!({ "source": MODEL, "destination": "mario" });
    assert_eq!(post(&key, "/api/copy", &copy).error_fields().0, 403);
    server.post("/api/create", &new).ok();
    let prompt = json!({ "model": "mario", "prompt": "the", "options": { "num_predict": 1 }, "stream": false });
    assert_eq!(post(&key, "/api/generate", &prompt).status, 200);
    let restricted = |models: &[&str], scope: &str| {
        let new = json!({ "name": "k", "project_id": project, "models": models, "scopes": ["inference", scope] });
        server.post("/v1/api-keys", &new).ok()["secret"].as_str().unwrap().to_owned()
    };
    let none = restricted(&["mario"], "project");
    assert_eq!(post(&none, "/api/generate", &prompt).error_fields().0, 403, "its model is not allowed");
    let admin = restricted(&["another"], "admin");
    assert_eq!(post(&admin, "/api/create", &new).error_fields().0, 403);
    assert_eq!(delete(&server, &admin, "mario").error_fields().0, 403);
}

#[test]
fn a_name_is_never_a_path_or_that_of_something_else() {
    let server = Server::start_with(&model());
    let models = server.folder.path().join("models");
    fs::write(models.join("models.toml"), "[aliases]\ntaken = 'tiny'").unwrap();
    fs::create_dir(models.join("other")).unwrap();
    fs::write(models.join("other/notes.txt"), "mine").unwrap();
    crate::wait::until(|| "the alias is read", || server.get("/v1/models/taken").status == 200);
    for name in [
        "../x",
        "a/b",
        "..",
        ".",
        ".hidden",
        "/tmp/x",
        "a\\b",
        "a:b:c",
        "a:../b",
        ":v1",
        "a:",
        "models.toml",
        "loras",
        "ft:a",
        "a\u{0}b",
        "ä",
        "lost+found",
        "Thumbs.db",
        &"x".repeat(97),
        "catalog.toml",
        "Models.toml",
    ] {
        let refused = create(&server, json!({ "model": name }));
        assert_eq!(refused.error_fields().0, 400, "{name}: {}", refused.text);
        let copy = server.post("/api/copy", &json!({ "source": MODEL, "destination": name }));
        assert_eq!(copy.error_fields().0, 400, "{name}: {}", copy.text);
    }
    for name in [MODEL, "taken", "other", "tiny:latest"] {
        let refused = create(&server, json!({ "model": name }));
        assert_eq!(refused.error_fields().0, 409, "{name}: {}", refused.text);
    }
    let mut entries: Vec<_> = fs::read_dir(&models).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    entries.sort();
    assert_eq!(entries, ["models.toml", "other", "tiny"]);
    // A folder with files of the operator is not removed.
    create(&server, json!({})).ok();
    fs::write(models.join("mario/notes.txt"), "mine").unwrap();
    assert_eq!(create(&server, json!({ "system": SYSTEM })).error_fields().0, 409);
    assert_eq!(delete(&server, &server.admin, "mario").error_fields().0, 409);
    assert!(models.join("mario/notes.txt").exists());
}

#[test]
fn what_a_derived_model_cannot_have_is_named() {
    let server = Server::start_with(&model());
    for (more, status, names) in [
        (json!({ "from": "none" }), 404, "none"),
        (json!({ "from": null }), 400, "from"),
        (json!({ "from": null, "files": { "a.gguf": "sha256:0" } }), 400, "outpost models import"),
        (json!({ "quantize": "q4_K_M" }), 400, "quantize"),
        (json!({ "template": "{{ .Prompt }}" }), 400, "template"),
        (json!({ "messages": [{ "role": "user", "content": "x" }] }), 400, "messages"),
        (json!({ "adapters": { "lora": "sha256:0" } }), 400, "lora"),
        (json!({ "adapters": { "tiny": "sha256:0" } }), 400, "is not an adapter"),
        (json!({ "parameters": { "temperature": 3 } }), 400, "parameters.temperature"),
        (json!({ "parameters": { "stop": vec!["x"; 17] } }), 400, "stop"),
        (json!({ "modelfile": "FROM tiny\nTEMPLATE x" }), 400, "TEMPLATE"),
        (json!({ "modelfile": "FROM tiny\nMESSAGE user x" }), 400, "MESSAGE"),
        (json!({ "modelfile": "FROM tiny\nRUN x" }), 400, "Line 2"),
        (json!({ "model": null }), 400, "model"),
        (json!({ "system": "x".repeat(300 << 10) }), 400, "KiB"),
    ] {
        let refused = create(&server, more.clone());
        assert_eq!(refused.error_fields().0, status, "{}", refused.text);
        assert!(refused.text.contains(names), "{names}: {}", refused.text);
    }
    let copy = server.post("/api/copy", &json!({ "source": "none", "destination": "x" }));
    assert_eq!(copy.error_fields().0, 404);
}

#[test]
fn an_adapter_is_that_of_a_derived_model() {
    let (encoder, adapter) = ("bert-mean", "bert-all");
    let server = Server::start_configured(&model(), |config| {
        add_fixture("encoders", &config.paths.models, encoder);
        add_fixture("encoder_adapters", &config.paths.models, adapter);
    });
    create(&server, json!({ "from": encoder, "adapters": { adapter: "sha256:0" } })).ok();
    let modelfile = format!("FROM {encoder}\nADAPTER {adapter}");
    create(&server, json!({ "model": "old", "from": null, "modelfile": modelfile })).ok();
    let vector =
        |model: &str| server.post("/api/embed", &json!({ "model": model, "input": "the" })).ok()["embeddings"].clone();
    assert_ne!(vector(encoder), vector(adapter));
    for name in ["mario", "old"] {
        assert_eq!(vector(name), vector(adapter), "{name}");
    }
    let wrong = create(&server, json!({ "from": MODEL, "adapters": { adapter: "sha256:0" } }));
    assert_eq!(wrong.error_fields().0, 400);
    assert!(wrong.text.contains("adapter of the model 'bert-mean', not of 'tiny'"), "{}", wrong.text);
}
