//! Isolation of projects: every route × every position of an ID × every kind of key.
//!
//! The routes come from `/openapi.json`. A route without a row here fails the test. A row states the position of a
//! project's ID: in the path, the query or the body, or nested in the body.

use std::collections::BTreeSet;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::contract::upload;
use crate::server::{EMBEDDER, MODEL, RERANKER, Response, Server};

const MOUNTS: [&str; 2] = ["/v1", "/openai/v1"];

/// The scope that a key needs for a route.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Needs {
    Nothing,
    Inference,
    Project,
    Admin,
}

enum Body {
    None,
    Json(Value),
    File { project: String },
    Form(&'static [(&'static str, &'static str)]),
}

struct Row {
    mounts: &'static [&'static str],
    method: Method,
    /// The path as in the OpenAPI document.
    route: &'static str,
    /// The position of the project's ID; `None` for a route without one.
    id_position: Option<&'static str>,
    path: String,
    body: Body,
    needs: Needs,
}

/// A project with one resource of each kind.
#[derive(Clone)]
struct Tenant {
    project: String,
    key: String,
    secret: String,
    inference: String,
    conversation: String,
    agent: String,
    response: String,
    completion: String,
    file: String,
    job: String,
    input: String,
    batch: String,
}

fn id(value: &Value) -> String {
    value["id"].as_str().unwrap().to_owned()
}

fn tenant(server: &Server) -> Tenant {
    let (project, key, secret) = server.tenant("tenant");
    let post = |path: &str, body: Value| server.call(Method::POST, path, Some(&secret), Some(&body)).ok();
    let inference = json!({ "name": "i", "project_id": project, "scopes": ["inference"] });
    let inference = post("/v1/api-keys", inference)["secret"].as_str().unwrap().to_owned();
    let conversation = id(&post("/v1/conversations", json!({ "messages": [{ "role": "user", "content": "secret" }] })));
    let agent = id(&post("/v1/agents", json!({ "name": "a", "instructions": "secret" })));
    let response = json!({ "model": MODEL, "input": "secret", "max_output_tokens": 1 });
    let response = id(&post("/v1/responses", response));
    let messages = json!([{ "role": "user", "content": "secret" }]);
    let completion = json!({ "model": MODEL, "messages": messages, "max_tokens": 1, "store": true });
    let completion = id(&post("/v1/chat/completions", completion));
    let file = upload(server, &secret);
    let job = id(&post("/v1/fine_tuning/jobs", json!({ "model": MODEL, "training_file": file })));
    crate::fine_tuning::wait_for(server, &job, "succeeded");
    let input = id(&crate::batches::upload_batch(server, &secret, &crate::batches::short_lines(1)).ok());
    let new = json!({ "input_file_id": input, "endpoint": "/v1/completions", "completion_window": "24h" });
    let batch = id(&post("/v1/batches", new));
    crate::batches::wait_for_batch(server, &batch, "completed");
    Tenant { project, key, secret, inference, conversation, agent, response, completion, file, job, input, batch }
}

/// A request to every route, from a caller of project `own`, with the IDs of project `of`.
fn rows(own: &Tenant, of: &Tenant) -> Vec<Row> {
    use Body::{File, Form, Json, None as Empty};
    let mut rows = Vec::new();
    let mut row = |method: Method, route, id_position, path: String, body, needs| {
        rows.push(Row { mounts: &MOUNTS, method, route, id_position, path, body, needs });
    };
    let (get, post, put, patch, delete) = (Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE);
    let Tenant { project, key, conversation, agent, response, completion, file, job, input, batch, .. } = of;
    let (path, query, body) = (Some("path"), Some("query"), Some("body"));
    let named = || Json(json!({ "name": "n" }));
    let messages = || json!([{ "role": "user", "content": "hi" }]);
    let (needs_p, needs_i) = (Needs::Project, Needs::Inference);

    row(post.clone(), "/projects", None, "/projects".into(), named(), Needs::Admin);
    row(get.clone(), "/projects", None, "/projects".into(), Empty, needs_p);
    row(get.clone(), "/projects/{project_id}", path, format!("/projects/{project}"), Empty, needs_p);
    row(put.clone(), "/projects/{project_id}", path, format!("/projects/{project}"), named(), needs_p);
    let route = "/projects/{project_id}/archive";
    row(post.clone(), route, path, format!("/projects/{project}/archive"), Empty, Needs::Admin);
    let (route, limits) = ("/projects/{project_id}/rate-limits", format!("/projects/{project}/rate-limits"));
    row(get.clone(), route, path, limits.clone(), Empty, needs_p);
    row(patch.clone(), route, path, limits.clone(), Json(json!({ "requests_per_minute": 100_000 })), needs_p);
    row(patch.clone(), route, path, limits, Json(json!({ "ceiling": { "token_budget": 5 } })), Needs::Admin);
    row(get.clone(), "/projects/{project_id}/usage", path, format!("/projects/{project}/usage"), Empty, needs_p);

    row(get.clone(), "/api-keys", query, format!("/api-keys?project_id={project}"), Empty, needs_p);
    row(get.clone(), "/api-keys", body, "/api-keys".into(), Json(json!({ "project_id": project })), needs_p);
    row(
        post.clone(),
        "/api-keys",
        body,
        "/api-keys".into(),
        Json(json!({ "name": "n", "project_id": project })),
        needs_p,
    );
    for (method, body) in [(&get, Empty), (&put, Json(json!({}))), (&patch, named()), (&delete, Empty)] {
        row(method.clone(), "/api-keys/{api_key_id}", path, format!("/api-keys/{key}"), body, needs_p);
    }

    row(get.clone(), "/me", None, "/me".into(), Empty, Needs::Nothing);
    row(get.clone(), "/catalog", None, "/catalog".into(), Empty, Needs::Nothing);
    row(get.clone(), "/models", None, "/models".into(), Empty, Needs::Nothing);
    row(get.clone(), "/models/{model_id}", None, format!("/models/{MODEL}"), Empty, Needs::Nothing);
    row(get.clone(), "/models/{model_id}", query, format!("/models/{MODEL}?project_id={project}"), Empty, needs_p);
    row(delete.clone(), "/models/{model_id}", None, format!("/models/{MODEL}"), Empty, Needs::Project);
    for (route, act) in [("/models/{model_id}/load", "load"), ("/models/{model_id}/unload", "unload")] {
        row(post.clone(), route, None, format!("/models/{MODEL}/{act}"), Empty, Needs::Admin);
    }
    row(post.clone(), "/models/pull", None, "/models/pull".into(), Json(json!({ "model": "hf:u/r" })), Needs::Admin);
    row(get.clone(), "/model-pulls", None, "/model-pulls".into(), Empty, Needs::Admin);
    for method in [&get, &delete] {
        let one = format!("/model-pulls/pull_{}", "0".repeat(32));
        row(method.clone(), "/model-pulls/{pull_id}", path, one, Empty, Needs::Admin);
    }
    let chat = |more: Value| {
        let mut body = json!({ "model": MODEL, "messages": messages(), "max_tokens": 1 });
        more.as_object().unwrap().iter().for_each(|(name, value)| body[name] = value.clone());
        Json(body)
    };
    row(post.clone(), "/chat/completions", None, "/chat/completions".into(), chat(json!({})), needs_i);
    for field in [json!({ "conversation_id": conversation }), json!({ "agent_id": agent })] {
        row(post.clone(), "/chat/completions", body, "/chat/completions".into(), chat(field), needs_i);
    }
    row(get.clone(), "/chat/completions", None, "/chat/completions".into(), Empty, needs_i);
    let (route, one) = ("/chat/completions/{completion_id}", format!("/chat/completions/{completion}"));
    row(get.clone(), route, path, one.clone(), Empty, needs_i);
    row(post.clone(), route, path, one.clone(), Json(json!({ "metadata": { "taken": "1" } })), needs_i);
    row(get.clone(), "/chat/completions/{completion_id}/messages", path, format!("{one}/messages"), Empty, needs_i);
    row(delete.clone(), route, path, one, Empty, needs_i);
    for route in ["/messages", "/messages/count_tokens"] {
        row(post.clone(), route, None, route.into(), chat(json!({})), needs_i);
    }
    for route in ["/responses", "/responses/input_tokens", "/responses/compact"] {
        let plain = json!({ "model": MODEL, "input": "hi", "max_output_tokens": 1 });
        row(post.clone(), route, None, route.into(), Json(plain), needs_i);
        let next = json!({ "model": MODEL, "input": "hi", "max_output_tokens": 1, "previous_response_id": response });
        row(post.clone(), route, body, route.into(), Json(next), needs_i);
        let turn = json!({ "model": MODEL, "input": "hi", "max_output_tokens": 1, "conversation": conversation });
        // Conversations cannot be compacted.
        if route == "/responses/compact" {
            continue;
        }
        row(post.clone(), route, body, route.into(), Json(turn), needs_i);
    }
    let (route, one) = ("/responses/{response_id}", format!("/responses/{response}"));
    row(get.clone(), route, path, one.clone(), Empty, needs_i);
    row(get.clone(), "/responses/{response_id}/input_items", path, format!("{one}/input_items"), Empty, needs_i);
    row(post.clone(), "/responses/{response_id}/cancel", path, format!("{one}/cancel"), Empty, needs_i);
    row(delete.clone(), route, path, one, Empty, needs_i);
    let text = Json(json!({ "model": MODEL, "prompt": ["hi", "hello"], "max_tokens": 1 }));
    row(post.clone(), "/completions", None, "/completions".into(), text, needs_i);
    let prompt = Json(json!({ "model": MODEL, "prompt": "hi" }));
    row(post.clone(), "/tokenize", None, "/tokenize".into(), prompt, needs_i);
    row(post.clone(), "/apply-template", None, "/apply-template".into(), chat(json!({})), needs_i);
    let text = Json(json!({ "model": MODEL, "prompt": "hi", "n_predict": 1 }));
    row(post.clone(), "/completion", None, "/completion".into(), text, needs_i);
    let gap = Json(json!({ "model": MODEL, "input_prefix": "hi", "input_suffix": "hello", "n_predict": 1 }));
    row(post.clone(), "/infill", None, "/infill".into(), gap, needs_i);
    let tokens = Json(json!({ "model": MODEL, "tokens": [1] }));
    row(post.clone(), "/detokenize", None, "/detokenize".into(), tokens, needs_i);
    let described = format!("/tokenizer_info?model={MODEL}");
    row(get.clone(), "/tokenizer_info", None, described, Empty, needs_i);
    row(get.clone(), "/props", None, format!("/props?model={MODEL}"), Empty, needs_i);
    let vectors = Json(json!({ "model": EMBEDDER, "input": ["a"] }));
    row(post.clone(), "/embeddings", None, "/embeddings".into(), vectors, needs_i);
    for route in ["/rerank", "/reranking"] {
        let ranks = Json(json!({ "model": RERANKER, "query": "a", "documents": ["b"] }));
        row(post.clone(), route, None, route.into(), ranks, needs_i);
    }
    let scores = Json(json!({ "model": RERANKER, "text_1": "a", "text_2": "b" }));
    row(post.clone(), "/score", None, "/score".into(), scores, needs_i);
    let moderated = Json(json!({ "model": MODEL, "input": "a" }));
    row(post.clone(), "/moderations", None, "/moderations".into(), moderated, needs_i);
    let image_request = Json(json!({ "model": MODEL, "prompt": "a cat" }));
    row(post.clone(), "/images/generations", None, "/images/generations".into(), image_request, needs_i);
    for route in ["/images/edits", "/images/variations"] {
        let form = Form(&[("model", MODEL), ("prompt", "a cat"), ("image", "no picture")]);
        row(post.clone(), route, None, route.into(), form, needs_i);
    }

    for route in ["/audio/transcriptions", "/audio/translations"] {
        let form = Form(&[("model", MODEL), ("file", "no audio")]);
        row(post.clone(), route, None, route.into(), form, needs_i);
    }
    let speech = Json(json!({ "model": MODEL, "input": "a", "voice": "alloy" }));
    row(post.clone(), "/audio/speech", None, "/audio/speech".into(), speech, needs_i);
    row(get.clone(), "/audio/voices", None, "/audio/voices".into(), Empty, Needs::Nothing);

    row(get.clone(), "/conversations", query, format!("/conversations?project_id={project}"), Empty, needs_p);
    row(post.clone(), "/conversations", body, "/conversations".into(), Json(json!({ "project_id": project })), needs_p);
    let (route, one) = ("/conversations/{conversation_id}", format!("/conversations/{conversation}"));
    row(get.clone(), route, path, one.clone(), Empty, needs_p);
    row(put.clone(), route, path, one.clone(), Json(json!({ "messages": messages() })), needs_p);
    row(patch.clone(), route, path, one.clone(), Json(json!({ "metadata": { "taken": 1 } })), needs_p);
    let appended = Json(json!({ "messages": messages() }));
    row(post.clone(), "/conversations/{conversation_id}/messages", path, format!("{one}/messages"), appended, needs_p);
    row(post.clone(), route, path, one.clone(), Json(json!({ "metadata": { "taken": 1 } })), needs_p);
    row(delete.clone(), route, path, one.clone(), Empty, needs_p);
    let (route, items) = ("/conversations/{conversation_id}/items", format!("{one}/items"));
    let added = Json(json!({ "items": messages() }));
    row(post.clone(), route, path, items.clone(), added, needs_p);
    row(get.clone(), route, path, items.clone(), Empty, needs_p);
    let route = "/conversations/{conversation_id}/items/{item_id}";
    let item = format!("{items}/{}00000000", conversation.replace("conv_", "msg_"));
    row(get.clone(), route, path, item.clone(), Empty, needs_p);
    row(delete.clone(), route, path, item, Empty, needs_p);

    row(get.clone(), "/agents", query, format!("/agents?project_id={project}"), Empty, needs_p);
    row(post.clone(), "/agents", body, "/agents".into(), Json(json!({ "name": "n", "project_id": project })), needs_p);
    let (route, one) = ("/agents/{agent_id}", format!("/agents/{agent}"));
    row(get.clone(), route, path, one.clone(), Empty, needs_p);
    row(get.clone(), "/agents/{agent_id}/versions", path, format!("{one}/versions"), Empty, needs_p);
    row(patch.clone(), route, path, one.clone(), Json(json!({ "instructions": "taken" })), needs_p);
    row(delete.clone(), route, path, one, Empty, needs_p);

    row(get.clone(), "/files", query, format!("/files?project_id={project}"), Empty, needs_p);
    row(post.clone(), "/files", body, "/files".into(), File { project: project.clone() }, needs_p);
    let (route, one) = ("/files/{file_id}", format!("/files/{file}"));
    row(get.clone(), route, path, one.clone(), Empty, needs_p);
    row(get.clone(), "/files/{file_id}/content", path, format!("{one}/content"), Empty, needs_p);
    row(delete.clone(), route, path, one, Empty, needs_p);

    let jobs = "/fine_tuning/jobs";
    row(get.clone(), jobs, query, format!("{jobs}?project_id={project}"), Empty, needs_p);
    let job_of = |more: Value| {
        let mut body = json!({ "model": MODEL, "training_file": own.file, "project_id": own.project });
        more.as_object().unwrap().iter().for_each(|(name, value)| body[name] = value.clone());
        Json(body)
    };
    for field in
        [json!({ "project_id": project }), json!({ "training_file": file }), json!({ "validation_file": file })]
    {
        row(post.clone(), jobs, body, jobs.into(), job_of(field), needs_p);
    }
    let (route, one) = ("/fine_tuning/jobs/{job_id}", format!("{jobs}/{job}"));
    row(get.clone(), route, path, one.clone(), Empty, needs_p);
    row(patch.clone(), route, path, one.clone(), named(), needs_p);
    for (route, act) in [
        ("/fine_tuning/jobs/{job_id}/cancel", "cancel"),
        ("/fine_tuning/jobs/{job_id}/pause", "pause"),
        ("/fine_tuning/jobs/{job_id}/resume", "resume"),
    ] {
        row(post.clone(), route, path, format!("{one}/{act}"), Empty, needs_p);
    }
    for (route, list) in
        [("/fine_tuning/jobs/{job_id}/events", "events"), ("/fine_tuning/jobs/{job_id}/checkpoints", "checkpoints")]
    {
        row(get.clone(), route, path, format!("{one}/{list}"), Empty, needs_p);
    }

    row(get.clone(), "/batches", query, format!("/batches?project_id={project}"), Empty, needs_p);
    for field in [json!({ "project_id": project }), json!({ "input_file_id": input })] {
        let mut new = json!({ "input_file_id": own.input, "project_id": own.project, "completion_window": "24h" });
        new["endpoint"] = json!("/v1/completions");
        new.as_object_mut().unwrap().extend(field.as_object().unwrap().clone());
        row(post.clone(), "/batches", body, "/batches".into(), Json(new), needs_p);
    }
    row(get.clone(), "/batches/{batch_id}", path, format!("/batches/{batch}"), Empty, needs_p);
    row(post.clone(), "/batches/{batch_id}/cancel", path, format!("/batches/{batch}/cancel"), Empty, needs_p);

    row(get.clone(), "/audit-events", None, "/audit-events".into(), Empty, Needs::Admin);
    row(get, "/audit-events", query, format!("/audit-events?project_id={project}"), Empty, needs_p);
    rows.extend(ollama_rows());
    rows.extend(cohere_rows());
    rows
}

/// The routes of Cohere's API. None has the ID of a project.
fn cohere_rows() -> [Row; 2] {
    let row = |route: &'static str, body: Value| Row {
        mounts: &["/v2"],
        method: Method::POST,
        route,
        id_position: None,
        path: route.to_owned(),
        body: Body::Json(body),
        needs: Needs::Inference,
    };
    [
        row("/embed", json!({ "model": EMBEDDER, "input_type": "search_query", "texts": ["a"] })),
        row("/rerank", json!({ "model": RERANKER, "query": "a", "documents": ["b"] })),
    ]
}

/// The routes of Ollama's API. None has the ID of a project.
fn ollama_rows() -> Vec<Row> {
    use Needs::{Inference, Nothing, Project};
    let options = json!({ "num_predict": 1 });
    let chat = json!({ "model": MODEL, "messages": [{ "role": "user", "content": "hi" }], "options": options });
    let text = |model: &str| json!({ "model": model, "prompt": "hi", "options": options });
    let named = || json!({ "model": MODEL, "stream": false });
    let post = |route, body, needs| (Method::POST, route, Body::Json(body), needs);
    let get = |route| (Method::GET, route, Body::None, Nothing);
    let rows = [
        get("/version"),
        get("/tags"),
        get("/ps"),
        get("/blobs/{digest}"),
        post("/blobs/{digest}", json!({}), Nothing),
        post("/show", named(), Nothing),
        post("/pull", named(), Nothing),
        post("/push", named(), Nothing),
        post("/create", named(), Needs::Admin),
        post("/copy", json!({ "source": MODEL, "destination": "b" }), Needs::Admin),
        post("/chat", chat, Inference),
        post("/generate", text(MODEL), Inference),
        post("/embed", json!({ "model": EMBEDDER, "input": ["a"] }), Inference),
        post("/embeddings", text(EMBEDDER), Inference),
        (Method::DELETE, "/delete", Body::Json(named()), Project),
    ];
    let row = |(method, route, body, needs): (Method, &'static str, _, _)| {
        let path = route.replace("{digest}", "sha256:0");
        Row { mounts: &["/api"], method, route, id_position: None, path, body, needs }
    };
    rows.map(row).into()
}

impl Row {
    fn send(&self, server: &Server, mount: &str, key: Option<&str>) -> Response {
        let path = format!("{mount}{}", self.path);
        let part = |name: &str, more: &str, value: &str| {
            format!("--x\r\ncontent-disposition: form-data; name=\"{name}\"{more}\r\n\r\n{value}\r\n")
        };
        let send = |parts: String| {
            let headers = [("content-type", "multipart/form-data; boundary=x")];
            server.raw(self.method.clone(), &path, key, &headers, Some((parts + "--x--\r\n").into_bytes()))
        };
        match &self.body {
            Body::None => server.call(self.method.clone(), &path, key, None),
            Body::Json(body) => server.call(self.method.clone(), &path, key, Some(body)),
            Body::File { project } => {
                let line = r#"{"prompt": "a", "completion": "b"}"#;
                send(
                    part("purpose", "", "fine-tune")
                        + &part("project_id", "", project)
                        + &part("file", "; filename=\"t.jsonl\"", line),
                )
            }
            Body::Form(fields) => send(fields.iter().map(|(name, value)| part(name, "", value)).collect()),
        }
    }

    fn describe(&self, mount: &str, response: &Response) -> String {
        let id_position = self.id_position.unwrap_or("nowhere");
        format!(
            "{} {mount}{} with an id in the {id_position}: {} {}",
            self.method, self.route, response.status, response.text
        )
    }

    /// Whether a resource of another project counts as absent, as in OpenAI's API.
    fn hides_foreign_resources(&self) -> bool {
        matches!(&self.body, Body::Json(body) if body.get("previous_response_id").is_some())
    }

    /// Checks the response to an authorized caller: success, or an error that does not depend on the caller.
    fn assert_allowed(&self, response: &Response) -> bool {
        match self.route {
            // The model is a chat model.
            "/moderations" | "/images/generations" | "/images/edits" | "/images/variations" => response.status == 400,
            "/audio/transcriptions" | "/audio/translations" | "/audio/speech" => response.status == 400,
            // The model was not trained to fill gaps.
            "/infill" => response.status == 400,
            // The response was not generated in the background.
            "/responses/{response_id}/cancel" => response.status == 400,
            // The job or batch has ended.
            "/batches/{batch_id}/cancel"
            | "/fine_tuning/jobs/{job_id}/cancel"
            | "/fine_tuning/jobs/{job_id}/pause"
            | "/fine_tuning/jobs/{job_id}/resume" => response.status == 409,
            "/push" | "/create" => response.status == 400,
            "/blobs/{digest}" => [400, 404].contains(&response.status),
            // The server does not allow pulls.
            "/models/pull" | "/model-pulls" | "/model-pulls/{pull_id}" => is_error(response, 403, &["pulls_disabled"]),
            // The model is in the models folder.
            "/delete" => response.status == 409,
            "/models/{model_id}" if self.method == Method::DELETE => response.status == 409,
            _ => response.status == 200,
        }
    }
}

/// Whether a response is an error with this status and one of these codes. Ollama's errors have no codes.
fn is_error(response: &Response, status: u16, codes: &[&str]) -> bool {
    let (found, code, _) = response.error_fields();
    found == status && (code.is_empty() || codes.contains(&code.as_str()))
}

#[test]
fn every_route_has_a_row_for_each_id_position() {
    let server = Server::with_encoders();
    let tenant = tenant(&server);
    let rows = rows(&tenant, &tenant);
    let document = server.raw(Method::GET, "/openapi.json", None, &[], None).ok();
    for (path, item) in document["paths"].as_object().unwrap() {
        let Some(route) = ["/v1", "/v2", "/api"].into_iter().find_map(|prefix| path.strip_prefix(prefix)) else {
            continue;
        };
        let mount = &path[..path.len() - route.len()];
        for (method, operation) in item.as_object().unwrap() {
            if operation["security"] == json!([{}]) {
                continue; // `routes.rs` lists these
            }
            let mine: Vec<&Row> = rows
                .iter()
                .filter(|row| row.route == route && row.mounts.contains(&mount))
                .filter(|row| row.method.as_str().eq_ignore_ascii_case(method))
                .collect();
            assert!(!mine.is_empty(), "give {method} {route} a row");
            let id_positions: BTreeSet<&str> = mine.iter().filter_map(|row| row.id_position).collect();
            let mut expected = BTreeSet::new();
            if route.contains('{') && !route.contains("{model_id}") && !route.contains("{digest}") {
                expected.insert("path");
            }
            let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
            if parameters.iter().any(|parameter| parameter["name"] == "project_id" && parameter["in"] == "query") {
                expected.insert("query");
            }
            assert!(
                id_positions.is_superset(&expected),
                "{method} {route}: IDs are in {expected:?}, rows have {id_positions:?}"
            );
        }
    }
}

#[test]
fn missing_invalid_expired_and_revoked_keys_get_401_everywhere() {
    let server = Server::with_encoders();
    let tenant = tenant(&server);
    let new = |more: Value| {
        let mut body = json!({ "name": "k", "project_id": tenant.project });
        more.as_object().unwrap().iter().for_each(|(name, value)| body[name] = value.clone());
        server.post("/v1/api-keys", &body).ok()
    };
    let secret = |key: &Value| key["secret"].as_str().unwrap().to_owned();
    let soon = outpost::clock_rng::ClockRng::now(&*server.clock).after(Duration::from_secs(30));
    let expired = secret(&new(json!({ "expires_at": soon })));
    let revoked = new(json!({}));
    server.delete(&format!("/v1/api-keys/{}", id(&revoked))).ok();
    let replaced = new(json!({}));
    server.put(&format!("/v1/api-keys/{}", id(&replaced)), &json!({})).ok();
    server.clock.advance(Duration::from_secs(31));
    let keys = [
        (None, "missing_api_key"),
        (Some("opk_nonsense".to_owned()), "invalid_api_key"),
        (Some(expired), "expired_api_key"),
        (Some(secret(&revoked)), "revoked_api_key"),
        (Some(secret(&replaced)), "revoked_api_key"),
    ];
    for row in rows(&tenant, &tenant) {
        for mount in row.mounts {
            for (key, code) in &keys {
                let response = row.send(&server, mount, key.as_deref());
                assert!(is_error(&response, 401, &[*code]), "{}", row.describe(mount, &response));
                assert_eq!(response.error_fields().2, None);
            }
        }
    }
}

/// All resources of a project, read with an admin key.
fn state(server: &Server, of: &Tenant) -> Vec<Value> {
    let Tenant { project, key, conversation, agent, response, file, job, batch, .. } = of;
    let mut paths = vec![
        format!("/projects/{project}"),
        format!("/projects/{project}/rate-limits"),
        format!("/api-keys/{key}"),
        format!("/conversations/{conversation}"),
        format!("/agents/{agent}"),
        format!("/responses/{response}"),
        format!("/files/{file}"),
        format!("/fine_tuning/jobs/{job}"),
        format!("/batches/{batch}"),
    ];
    paths.extend(
        ["api-keys", "conversations", "agents", "files", "fine_tuning/jobs", "batches", "audit-events"]
            .map(|list| format!("/{list}?project_id={project}")),
    );
    let read = |path: &String| {
        let mut value = server.get(&format!("/openai/v1{path}")).ok();
        value.as_object_mut().unwrap().remove("tokens_this_month");
        value
    };
    paths.iter().map(read).collect()
}

#[test]
fn a_key_of_another_project_gets_403_everywhere_and_changes_nothing() {
    let server = Server::with_encoders();
    let (own, victim) = (tenant(&server), tenant(&server));
    let before = state(&server, &victim);
    for row in rows(&own, &victim).iter().filter(|row| row.id_position.is_some()) {
        for mount in row.mounts {
            for key in [&own.secret, &own.inference] {
                let response = row.send(&server, mount, Some(key));
                let (status, code, _) = response.error_fields();
                let expected: (u16, &[&str]) = match row.hides_foreign_resources() {
                    true => (400, &["previous_response_not_found"]),
                    false => (403, &["project_mismatch", "insufficient_scope"]),
                };
                assert_eq!(status, expected.0, "{}", row.describe(mount, &response));
                assert!(expected.1.contains(&code.as_str()), "{}", row.describe(mount, &response));
                assert!(!response.text.contains("secret\""), "{}", row.describe(mount, &response));
            }
        }
    }
    assert_eq!(state(&server, &victim), before);
}

#[test]
fn project_keys_are_limited_by_scope_and_admin_keys_are_not() {
    let server = Server::with_encoders();
    let count = {
        let tenant = tenant(&server);
        rows(&tenant, &tenant).len()
    };
    let shared = tenant(&server);
    for id_position in 0..count {
        for mount in rows(&shared, &shared)[id_position].mounts {
            let refused = |row: &Row, key: &str| {
                let response = row.send(&server, mount, Some(key));
                assert!(is_error(&response, 403, &["insufficient_scope"]), "{}", row.describe(mount, &response));
            };
            let assert_allowed = |tenant: &Tenant, key: &str| {
                let row = &rows(tenant, tenant)[id_position];
                let response = row.send(&server, mount, Some(key));
                assert!(row.assert_allowed(&response), "{}", row.describe(mount, &response));
            };
            let reads = rows(&shared, &shared)[id_position].method == Method::GET;
            // Each request that changes something gets a project of its own.
            let fresh = || if reads { shared.clone() } else { tenant(&server) };
            let row = &rows(&shared, &shared)[id_position];
            match row.needs {
                Needs::Nothing | Needs::Inference => {
                    let own = if row.method == Method::DELETE { fresh() } else { shared.clone() };
                    assert_allowed(&own, &own.inference);
                }
                Needs::Project | Needs::Admin => refused(row, &shared.inference),
            }
            let own = fresh();
            match row.needs {
                Needs::Admin => refused(row, &shared.secret),
                _ => assert_allowed(&own, &own.secret),
            }
            let own = fresh();
            if row.needs != Needs::Inference || row.id_position.is_none() {
                assert_allowed(&own, &server.admin);
            }
        }
    }
}
