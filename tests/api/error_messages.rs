//! Error messages name the field and the remedy, in plain words.

use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{EMBEDDER, IMAGE_MODEL, RERANKER, Server};

/// Words of libraries and of Rust that no client may see.
const LIBRARY_WORDS: [&str; 24] = [
    "f32",
    "f64",
    "u8",
    "u32",
    "u64",
    "usize",
    "i64",
    "serde",
    "struct ",
    "enum ",
    "untagged",
    "variant",
    "boolean",
    "sequence",
    "a map",
    "expected value",
    "invalid type",
    "invalid value",
    "missing field",
    "unknown field",
    "`",
    "coerce",
    "EOF",
    "panick",
];

const BOUNDARY: &str = "xYzZY";

/// A request with one mistake.
struct Mistake {
    method: Method,
    path: String,
    content_type: String,
    body: Option<Vec<u8>>,
}

fn get(path: &str) -> Mistake {
    Mistake { method: Method::GET, path: path.to_owned(), content_type: "application/json".to_owned(), body: None }
}

fn post(path: &str, body: &Value) -> Mistake {
    raw(path, body.to_string().into_bytes())
}

fn raw(path: &str, body: impl Into<Vec<u8>>) -> Mistake {
    Mistake { method: Method::POST, body: Some(body.into()), ..get(path) }
}

/// A correct request with other fields.
fn changed(path: &str, mut body: Value, more: Value) -> Mistake {
    let (Value::Object(fields), Value::Object(more)) = (&mut body, more) else { panic!("no objects") };
    fields.extend(more);
    post(path, &body)
}

fn chat(more: Value) -> Mistake {
    let body = json!({ "model": "tiny", "messages": [{ "role": "user", "content": "hi" }] });
    changed("/v1/chat/completions", body, more)
}

fn embed(more: Value) -> Mistake {
    changed("/v1/embeddings", json!({ "model": EMBEDDER, "input": "hi" }), more)
}

fn rerank(more: Value) -> Mistake {
    changed("/v1/rerank", json!({ "model": RERANKER, "query": "a", "documents": ["b"] }), more)
}

fn moderation(more: Value) -> Mistake {
    changed("/v1/moderations", json!({ "input": "a" }), more)
}

fn image(more: Value) -> Mistake {
    changed("/v1/images/generations", json!({ "model": IMAGE_MODEL, "prompt": "a" }), more)
}

fn strict_schema(schema: Value) -> Mistake {
    let format = json!({ "name": "x", "strict": true, "schema": schema });
    chat(json!({ "response_format": { "type": "json_schema", "json_schema": format } }))
}

fn form(path: &str, parts: &[(&str, &str)]) -> Mistake {
    let part = |(disposition, content): &(&str, &str)| {
        format!("--{BOUNDARY}\r\nContent-Disposition: form-data; {disposition}\r\n\r\n{content}\r\n")
    };
    let body: String = parts.iter().map(part).collect();
    let content_type = format!("multipart/form-data; boundary={BOUNDARY}");
    Mistake { content_type, ..raw(path, format!("{body}--{BOUNDARY}--\r\n")) }
}

/// An upload of training data with one line.
fn upload(line: &str) -> Mistake {
    form("/v1/files", &[("name=\"purpose\"", "fine-tune"), ("name=\"file\"; filename=\"a.jsonl\"", line)])
}

fn send(server: &Server, mistake: &Mistake) -> String {
    let headers = [("content-type", mistake.content_type.as_str())];
    let body = mistake.body.clone();
    let response = server.raw(mistake.method.clone(), &mistake.path, Some(&server.admin), &headers, body);
    response.error_fields();
    let folder = server.folder.path().join("models");
    let error = &response.json()["error"];
    // Ollama's errors are a text.
    let text = error["message"].as_str().or(error.as_str()).unwrap();
    text.replace(folder.to_str().unwrap(), "FOLDER")
}

fn check(cases: Vec<(Mistake, &str)>) {
    let server = Server::with_all_workloads();
    for (mistake, expected) in cases {
        let message = send(&server, &mistake);
        let body = mistake.body.as_deref().map(String::from_utf8_lossy).unwrap_or_default();
        assert_eq!(message, expected, "{} {} {body}", mistake.method, mistake.path);
        let found = LIBRARY_WORDS.iter().find(|word| message.contains(**word));
        assert_eq!(found, None, "{message}");
    }
}

#[test]
fn wrong_values_are_named_with_what_is_right() {
    check(vec![
        (chat(json!({ "temperature": "hot" })), "'temperature' must be a number, not \"hot\"."),
        (chat(json!({ "temperature": 1e39 })), "'temperature' is 1e39, which is too large."),
        (chat(json!({ "top_p": 7 })), "'top_p' is 7; it must be from 0 to 1."),
        (chat(json!({ "max_tokens": -2 })), "'max_tokens' is -2; it must be from 1 to 4294967295."),
        (chat(json!({ "max_tokens": 1.5 })), "'max_tokens' must be a whole number, not 1.5."),
        (
            chat(json!({ "max_tokens": 99_999_999_999_u64 })),
            "'max_tokens' is 99999999999; it must be from 1 to 4294967295.",
        ),
        (chat(json!({ "top_logprobs": 300 })), "'top_logprobs' is 300; it must be from 0 to 20."),
        (chat(json!({ "stream": "yes" })), "'stream' must be true or false, not \"yes\"."),
        (chat(json!({ "stop": 5 })), "'stop' must be a string or an array of strings."),
        (chat(json!({ "logit_bias": { "1": "x" } })), "'logit_bias.1' must be a number, not \"x\"."),
        (chat(json!({ "messages": "hi" })), "'messages' must be an array, not \"hi\"."),
        (
            chat(json!({ "messages": [{ "role": "robot", "content": "hi" }] })),
            "'messages[0].role' is \"robot\". It must be one of developer, system, user, assistant, tool.",
        ),
        (chat(json!({ "truncation": "yes" })), "'truncation' is 'yes'; it must be auto or disabled."),
        (post("/v1/chat/completions", &json!({ "model": "tiny" })), "'messages' is missing."),
        (chat(json!({ "model": 5 })), "'model' must be a string, not 5."),
        (chat(json!({ "tools": {} })), "'tools' must be an array, not an object."),
        (embed(json!({ "input": 5 })), "'input' must be a string, an array of strings, or token ids."),
        (embed(json!({ "encoding_format": "hex" })), "'encoding_format' is 'hex'; it must be float or base64."),
        (
            moderation(json!({ "input": [5] })),
            "'input' must be a string, an array of strings, or an array of parts with type and text.",
        ),
        (rerank(json!({ "documents": [5] })), "'documents[0]' must be a string, or an object with a text."),
        (rerank(json!({ "query": null })), "'query' must be a string, not null."),
        (image(json!({ "output_format": "gif" })), "'output_format' is 'gif'; it must be png, jpeg or webp."),
        (post("/v1/projects", &json!({ "name": "x", "metadata": [] })), "'metadata' must be an object, not an array."),
        (
            post(
                "/v1/fine_tuning/jobs",
                &json!({ "model": "tiny", "training_file": "x", "hyperparameters": { "n_epochs": "many" } }),
            ),
            "'hyperparameters.n_epochs' must be \"auto\" or a whole number.",
        ),
        (get("/v1/projects?limit=many"), "'limit' must be a whole number."),
        (get("/v1/models/tiny?include_limits=maybe"), "'include_limits' must be true or false."),
        (
            get("/v1/audit-events?start_time=yesterday"),
            "'start_time' must be an RFC 3339 time with an offset, such as 2027-01-31T12:00:00Z.",
        ),
    ]);
}

#[test]
fn misspelled_fields_are_answered_with_the_right_ones() {
    check(vec![
        (chat(json!({ "tempreature": 1 })), "'tempreature' is unknown. Did you mean 'temperature'?"),
        (chat(json!({ "maxTokens": 1 })), "'maxTokens' is unknown. Did you mean 'max_tokens'?"),
        (chat(json!({ "audio": {} })), "'audio' is not supported by this server. Leave it out."),
        (
            chat(json!({ "tools": [{ "type": "function", "function": { "nmae": "a" } }] })),
            "'tools[0].function.nmae' is unknown. Did you mean 'name'?",
        ),
        (rerank(json!({ "topn": 1 })), "'topn' is unknown. Did you mean 'top_n'?"),
        (image(json!({ "guidance": 1 })), "'guidance' is unknown. Did you mean 'guidance_scale'?"),
        (image(json!({ "lora": [{ "nam": "x" }] })), "'lora[0].nam' is unknown. Did you mean 'name'?"),
        (post("/v1/projects", &json!({ "nmae": "x" })), "'nmae' is unknown. Did you mean 'name'?"),
        (
            post("/v1/projects", &json!({ "name": "x", "color": "red" })),
            "'color' is unknown. The fields are name, environment, metadata.",
        ),
        (post("/v1/models/tiny/load", &json!({ "now": true })), "'now' is unknown. No field is accepted here."),
        (
            raw("/v1/chat/completions", r#"{"model": "a", "model": "b"}"#),
            "'model' is given more than once. Give it once.",
        ),
    ]);
}

#[test]
fn broken_bodies_are_described_by_their_place() {
    let broken = |body: &str| raw("/v1/projects", body);
    check(vec![
        (broken(r#"{"name": "x", }"#), "The body is not valid JSON: nothing follows a comma at line 1, column 15."),
        (
            broken("{\"name\": \"x\"\n \"metadata\": {}}"),
            "The body is not valid JSON: expected ',' or '}' at line 2, column 2.",
        ),
        (broken("{'name': 'x'}"), "The body is not valid JSON: expected a name in double quotes at line 1, column 2."),
        (broken(r#"{"name": "x""#), "The body is not valid JSON: it ends too early at line 1, column 12."),
        (
            broken(r#"{"name": "x"} {}"#),
            "The body is not valid JSON: something follows the JSON value at line 1, column 15.",
        ),
        (broken("[1]"), "The body must be an object, not an array."),
        (
            raw("/v1/projects", b"{\"name\": \"\xff\"}".as_slice()),
            "The body is not valid UTF-8 from byte 10 on. Send it as UTF-8.",
        ),
        (
            raw("/v1/chat/completions", r#"{"model": "tiny", "messages": [{"role": "user", "content": "\ud800"}]}"#),
            "'messages[0]' cannot be read: an escape \\u is not a character.",
        ),
        (
            upload("{\"messages\": [{\"role\": 5}]}"),
            "line 1: 'messages[0].role' is 5. It must be one of developer, system, user, assistant, tool.",
        ),
        (upload("{\"text\": \"x\", }"), "line 1: it is not valid JSON: nothing follows a comma at column 15."),
        (
            form(
                "/v1/images/edits",
                &[("name=\"model\"", IMAGE_MODEL), ("name=\"n\"", "two"), ("name=\"image\"; filename=\"a\"", "x")],
            ),
            "'n' must be a whole number, not \"two\".",
        ),
        (
            Mistake { content_type: "multipart/form-data".to_owned(), ..raw("/v1/files", "x") },
            "The header 'Content-Type' has no boundary. Leave the header to your HTTP client, which adds one.",
        ),
    ]);
}

#[test]
fn unknown_paths_and_ids_are_answered_with_the_right_form() {
    let hex = "followed by 32 lowercase hexadecimal digits";
    let project = format!("No project 'org-abc' exists. A valid ID is 'proj_' {hex}.");
    let file = format!("No file 'file-abc123' exists. A valid ID is 'file-' {hex}.");
    let conversation = format!("No conversation 'thread_x' exists. A valid ID is 'conv_' {hex}.");
    let after = format!(
        "'after' is 'x', which is not an ID of this list. A valid ID is 'proj_' {hex}. Send the ID of the last item that you received."
    );
    let nothing = json!({});
    check(vec![
        (get("/files"), "There is nothing at '/files'. Did you mean '/v1/files'?"),
        (get("/openai/files"), "There is nothing at '/openai/files'. Did you mean '/openai/v1/files'?"),
        (
            post("/v1/chat/completion", &nothing),
            "There is nothing at '/v1/chat/completion'. Did you mean '/v1/chat/completions'?",
        ),
        (post("/chat", &nothing), "There is nothing at '/chat'. Did you mean '/v1/chat/completions'?"),
        (post("/batches", &nothing), "There is nothing at '/batches'. Did you mean '/v1/batches'?"),
        (
            post("/v1/threads", &nothing),
            "The Assistants API is not served by this server. Use conversations ('/v1/conversations').",
        ),
        (
            post("/openai/v1/uploads/upload_1/parts", &nothing),
            "The Uploads API is not served by this server. Upload a whole file of any size with 'POST /v1/files'.",
        ),
        (get("/v1/nothing/here"), "There is nothing at '/v1/nothing/here'. /openapi.json lists every path."),
        (get("/v1/projects/org-abc"), &project),
        (get("/v1/files/file-abc123"), &file),
        (chat(json!({ "conversation_id": "thread_x" })), &conversation),
        (get("/v1/projects?after=x"), &after),
    ]);
}

#[test]
fn models_that_do_not_fit_are_answered_with_one_that_does() {
    check(vec![
        (
            chat(json!({ "model": EMBEDDER })),
            "The model 'bert-mean' is an embedding model, but this request needs a chat model. Send 'tiny' instead.",
        ),
        (
            embed(json!({ "model": "tiny" })),
            "The model 'tiny' is a chat model, but this request needs an embedding model. Send 'bert-mean' instead.",
        ),
        (
            rerank(json!({ "model": "tiny" })),
            "The model 'tiny' is a chat model, but this request needs a reranking model. Send 'rank-bert' instead.",
        ),
        (
            image(json!({ "model": RERANKER })),
            "The model 'rank-bert' is a reranking model, but this request needs an image model. Send 'sd1' instead.",
        ),
        (chat(json!({ "model": "tinny" })), "No model 'tinny' is installed. Did you mean 'tiny'?"),
        (
            chat(json!({ "model": "all-minilm-l6-v2" })),
            "No model 'all-minilm-l6-v2' is installed. 'outpost models pull all-minilm-l6-v2 --models FOLDER' installs it.",
        ),
        (
            chat(json!({ "model": "gpt-4o" })),
            "No model 'gpt-4o' is installed. GET /v1/models lists the installed models; 'outpost models pull' downloads more.",
        ),
    ]);
}

#[test]
fn without_a_model_of_the_kind_the_command_that_installs_one_is_named() {
    let server = Server::start();
    for (mistake, expected) in [
        (
            embed(json!({ "model": "tiny" })),
            "needs an embedding model. 'outpost models pull all-minilm-l6-v2 --models FOLDER' installs one.",
        ),
        (
            image(json!({ "model": "tiny" })),
            "needs an image model. 'outpost models pull pictogram --models FOLDER' installs one.",
        ),
        (
            rerank(json!({ "model": "tiny" })),
            "needs a reranking model. 'outpost models import' installs one from a file.",
        ),
    ] {
        let message = send(&server, &mistake);
        assert!(message.ends_with(expected), "{message}");
    }
}

/// A key that may use one model learns nothing about the others.
#[test]
fn only_allowed_models_are_named() {
    let server = Server::with_all_workloads();
    let (project, ..) = server.tenant("restricted");
    let key = json!({ "name": "x", "project_id": project, "models": ["tiny", "tinny"] });
    let secret = server.post("/v1/api-keys", &key).ok()["secret"].as_str().unwrap().to_owned();
    let body = json!({ "model": "tiny", "input": "x" });
    let refused = server.call(Method::POST, "/v1/embeddings", Some(&secret), Some(&body));
    assert!(refused.status == 400 && !refused.text.contains(EMBEDDER), "{}", refused.text);
    let body = json!({ "model": "tinny", "messages": [{ "role": "user", "content": "hi" }] });
    let unknown = server.call(Method::POST, "/v1/chat/completions", Some(&secret), Some(&body));
    assert!(unknown.status == 404 && unknown.text.contains("Did you mean 'tiny'?"), "{}", unknown.text);
}

#[test]
fn schemas_that_cannot_be_enforced_are_explained_without_the_compilers_words() {
    let overlapping =
        json!({ "type": "object", "properties": { "a": { "oneOf": [{ "type": "number" }, { "type": "integer" }] } } });
    let impossible = json!({ "type": "object", "properties": { "a": { "type": "integer", "minimum": 5, "maximum": 3 } }, "required": ["a"] });
    let prefix = "'response_format.json_schema.schema' cannot be enforced:";
    let overlap = format!("{prefix} alternatives of a 'oneOf' may overlap. Use 'anyOf'.");
    let contradiction = format!("{prefix} it is unsatisfiable: no value meets all of its conditions.");
    check(vec![(strict_schema(overlapping), &overlap), (strict_schema(impossible), &contradiction)]);
}
