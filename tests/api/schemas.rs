//! The schemas in `/openapi.json` of requests that are not parsed with derived deserializers: documented fields are
//! accepted, errors name missing required fields, and unknown fields are refused where the endpoint refuses them.

use std::io::Cursor;

use image::{DynamicImage, ImageFormat, RgbaImage};
use serde_json::{Map, Value, json};

use crate::images::send as send_images;
use crate::server::{IMAGE_MODEL, MODEL, Response, Server};
use crate::upload::{self, CHAT, Part};

/// A sample of one schema with every documented field, and the request that carries it.
struct Case {
    schema: &'static str,
    sample: Value,
    send: fn(&Server, &Value) -> Response,
    /// Fields that are optional in the document but required in this sample, such as the schema of a `json_schema`
    /// format.
    needed: &'static [&'static str],
    refuses_unknown: bool,
}

fn case(schema: &'static str, sample: Value, send: fn(&Server, &Value) -> Response) -> Case {
    Case { schema, sample, send, needed: &[], refuses_unknown: true }
}

fn chat(server: &Server, more: Value) -> Response {
    let mut body = json!({ "model": MODEL, "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 1 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.post("/v1/chat/completions", &body)
}

fn named_schema() -> Value {
    json!({ "name": "n", "description": "d", "schema": { "type": "object" }, "strict": true })
}

fn function() -> Value {
    json!({ "name": "f", "description": "d", "parameters": { "type": "object" }, "strict": false })
}

fn with_format(server: &Server, format: &Value) -> Response {
    chat(server, json!({ "response_format": format }))
}

fn with_tool(server: &Server, tool: &Value) -> Response {
    chat(server, json!({ "tools": [tool] }))
}

fn with_choice(server: &Server, choice: &Value) -> Response {
    chat(server, json!({ "tools": [{ "type": "function", "function": function() }], "tool_choice": choice }))
}

/// Stored messages are checked like those of a chat, and their unknown fields are refused.
fn with_message(server: &Server, message: &Value) -> Response {
    server.post("/v1/conversations", &json!({ "messages": [message] }))
}

fn with_call(server: &Server, call: &Value) -> Response {
    with_message(server, &json!({ "role": "assistant", "tool_calls": [call] }))
}

fn call() -> Value {
    json!({ "id": "call_1", "type": "function", "function": { "name": "f", "arguments": "{}" } })
}

fn png_file() -> Vec<u8> {
    let mut file = Cursor::new(Vec::new());
    DynamicImage::from(RgbaImage::new(64, 64)).write_to(&mut file, ImageFormat::Png).unwrap();
    file.into_inner()
}

/// The fields as parts of a form: files where the sample says so, otherwise text.
fn parts(sample: &Value, send: impl FnOnce(&[Part<'_>]) -> Response) -> Response {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned).into_bytes();
    let contents: Vec<(&String, Option<&str>, Vec<u8>)> = sample
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, value)| match value.as_str() {
            Some("(picture)") => (name, Some("a.png"), png_file()),
            Some("(examples)") => (name, Some("a.jsonl"), CHAT.as_bytes().to_vec()),
            _ => (name, None, text(value)),
        })
        .collect();
    let parts: Vec<Part<'_>> =
        contents.iter().map(|(name, file, content)| (name.as_str(), *file, &content[..])).collect();
    send(&parts)
}

fn edit(server: &Server, sample: &Value) -> Response {
    parts(sample, |parts| send_images(server, "edits", &server.admin, parts))
}

fn variation(server: &Server, sample: &Value) -> Response {
    // Two steps instead of the model's default.
    let mut sample = sample.clone();
    sample["steps"] = json!(2);
    parts(&sample, |parts| send_images(server, "variations", &server.admin, parts))
}

fn upload_file(server: &Server, sample: &Value) -> Response {
    parts(sample, |parts| upload::send(server, "/v1", &server.admin, parts, &[]))
}

fn cases(project: &str) -> Vec<Case> {
    let assistant = json!({
        "role": "assistant", "content": "c", "name": "n", "tool_calls": [call()], "refusal": "r",
        "reasoning_content": "s", "reasoning": "s",
    });
    let tool = json!({ "role": "tool", "content": "c", "name": "n", "tool_call_id": "call_1", "refusal": "r" });
    let request = json!({
        "model": IMAGE_MODEL, "prompt": "p", "n": 1, "size": "64x64", "resize": true, "quality": "low",
        "response_format": "b64_json", "output_format": "jpeg", "output_compression": 90, "seed": 1,
        "steps": 2, "guidance_scale": 2, "negative_prompt": "n", "scheduler": "ddim", "lora": [], "stream": true,
        "partial_images": 1,
    });
    let mut edits = request.clone();
    let files = json!({ "image": "(picture)", "mask": "(picture)", "strength": 0.5 });
    edits.as_object_mut().unwrap().extend(files.as_object().unwrap().clone());
    vec![
        Case {
            needed: &["json_schema"],
            ..case("ResponseFormat", json!({ "type": "json_schema", "json_schema": named_schema() }), with_format)
        },
        Case {
            needed: &["type"],
            ..case("ResponseFormat", json!({ "type": "json_object", "schema": { "type": "object" } }), with_format)
        },
        case("NamedSchema", named_schema(), |server, named| {
            with_format(server, &json!({ "type": "json_schema", "json_schema": named }))
        }),
        case("FunctionTool", json!({ "type": "function", "function": function() }), with_tool),
        case("ToolFunction", function(), |server, function| {
            with_tool(server, &json!({ "type": "function", "function": function }))
        }),
        case("NamedTool", json!({ "type": "function", "function": { "name": "f" } }), with_choice),
        case("ToolName", json!({ "name": "f" }), |server, name| {
            with_choice(server, &json!({ "type": "function", "function": name }))
        }),
        case("Message", assistant, with_message),
        Case { needed: &["content", "tool_call_id"], ..case("Message", tool, with_message) },
        Case {
            needed: &["text"],
            refuses_unknown: false,
            ..case("Part", json!({ "type": "text", "text": "t" }), |server, part| {
                with_message(server, &json!({ "role": "user", "content": [part] }))
            })
        },
        Case { refuses_unknown: false, ..case("ToolCall", call(), with_call) },
        Case {
            refuses_unknown: false,
            ..case("CalledFunction", call()["function"].clone(), |server, function| {
                with_call(server, &json!({ "id": "call_1", "type": "function", "function": function }))
            })
        },
        // Partial images need a stream.
        Case { needed: &["stream", "output_format"], ..case("EditForm", edits, edit) },
        case(
            "VariationForm",
            json!({ "image": "(picture)", "strength": 0.5, "model": IMAGE_MODEL, "prompt": "p", "n": 1 }),
            variation,
        ),
        case("UploadFile", json!({ "project_id": project, "purpose": "fine-tune", "file": "(examples)" }), upload_file),
    ]
}

/// The schemas of a document.
struct Schemas(Value);

impl Schemas {
    /// `(properties, required)` of an object's schema, including those of `allOf`.
    fn fields(&self, schema: &Value) -> (Map<String, Value>, Vec<String>) {
        let target = schema["$ref"].as_str().and_then(|path| self.0.pointer(path.trim_start_matches('#')));
        let schema = target.unwrap_or(schema);
        let mut properties = schema["properties"].as_object().cloned().unwrap_or_default();
        let names = |list: &Value| {
            list.as_array().into_iter().flatten().map(|name| name.as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let mut required = names(&schema["required"]);
        for part in schema["allOf"].as_array().into_iter().flatten() {
            let (more, needed) = self.fields(part);
            properties.extend(more);
            required.extend(needed);
        }
        (properties, required)
    }

    fn named(&self, name: &str) -> &Value {
        let schema = &self.0["components"]["schemas"][name];
        assert!(schema.is_object(), "no schema {name}");
        schema
    }

    /// The values of an enumeration.
    fn values(&self, name: &str) -> Vec<&str> {
        self.named(name)["enum"].as_array().unwrap().iter().map(|value| value.as_str().unwrap()).collect()
    }
}

fn schemas(server: &Server) -> Schemas {
    Schemas(server.raw(reqwest::Method::GET, "/openapi.json", None, &[], None).ok())
}

#[test]
fn documented_fields_are_accepted_and_others_refused() {
    let server = Server::with_all_workloads();
    let schemas = schemas(&server);
    let project = server.tenant("t").0;
    let cases = cases(&project);
    for Case { schema, sample, send, needed, refuses_unknown } in &cases {
        let (documented, required) = schemas.fields(schemas.named(schema));
        let fields = sample.as_object().unwrap();
        let elsewhere =
            |name: &str| cases.iter().any(|other| other.schema == *schema && other.sample.get(name).is_some());
        for name in documented.keys() {
            assert!(fields.contains_key(name) || elsewhere(name), "{schema} documents '{name}': add it to the sample");
        }
        let response = send(&server, sample);
        assert_eq!(response.status, 200, "{schema}: {}", response.text);
        for name in fields.keys() {
            assert!(documented.contains_key(name), "{schema} does not document '{name}'");
            let mut without = sample.clone();
            without.as_object_mut().unwrap().remove(name);
            let response = send(&server, &without);
            if required.contains(name) || needed.contains(&name.as_str()) {
                assert_eq!(response.status, 400, "{schema} without '{name}': {}", response.text);
            } else {
                assert_eq!(response.status, 200, "{schema} without '{name}': {}", response.text);
            }
        }
        let mut more = sample.clone();
        more["no_such_field"] = json!("x");
        let response = send(&server, &more);
        assert_eq!(response.status, if *refuses_unknown { 400 } else { 200 }, "{schema}: {}", response.text);
        if *refuses_unknown {
            assert!(
                response.error_fields().2.is_some_and(|param| param.ends_with("no_such_field")),
                "{}",
                response.text
            );
        }
    }
}

#[test]
fn documented_values_are_accepted_and_others_refused() {
    let server = Server::start();
    let schemas = schemas(&server);
    let format = |kind: &str| {
        let schema = (kind == "json_schema").then(named_schema);
        with_format(&server, &json!({ "type": kind, "json_schema": schema })).status
    };
    let message = |role: &str| {
        let id = (role == "tool").then_some("call_1");
        with_message(&server, &json!({ "role": role, "content": "c", "tool_call_id": id })).status
    };
    assert_eq!(schemas.values("FormatType").len(), 3);
    assert!(schemas.values("FormatType").into_iter().all(|kind| format(kind) == 200));
    assert_eq!(format("xml"), 400);
    assert_eq!(schemas.values("Role").len(), 5);
    assert!(schemas.values("Role").into_iter().all(|role| message(role) == 200));
    assert_eq!(message("robot"), 400);
    // A string or a list, as documented.
    for (schema, kinds) in [("Content", 2), ("ToolChoice", 2)] {
        assert_eq!(schemas.named(schema)["oneOf"].as_array().map(Vec::len), Some(kinds), "{schema}");
    }
    for choice in ["none", "auto", "required"] {
        assert_eq!(with_choice(&server, &json!(choice)).status, 200, "{choice}");
    }
    assert_eq!(with_choice(&server, &json!("some")).status, 400);
    assert_eq!(with_message(&server, &json!({ "role": "user", "content": { "text": "t" } })).status, 400);
}
