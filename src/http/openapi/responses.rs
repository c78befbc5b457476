//! Schemas that all routes share: the envelope of the mount around the handler's documented body, the page around a
//! list, the error formats, and optional bodies where no field is required. They are added here, so that new routes get
//! them.

use serde_json::{Map, Value, json};

use crate::http::api_format::{APIS, OPENAI};
use crate::http::response::Mount;

/// The tag whose bodies are the same on both mounts, without an envelope, as those of all APIs but OpenAI's are.
const EXACT_TAG: &str = "responses";
/// The tags some of whose bodies have no `id` or no `object` on OpenAI's mount.
const BARE_TAGS: [&str; 6] = ["audio", "images", "tokenization", "conversation-items", "llama-cpp", "moderations"];

/// Completes the document collected from the handlers.
pub fn complete(document: &mut Value) {
    let optional_bodies = without_required_fields(&document["components"]["schemas"]);
    let Some(paths) = document.get_mut("paths").and_then(Value::as_object_mut) else { return };
    for (path, item) in paths {
        let mount = Mount::of(path).map(|(mount, _)| mount);
        let operations = item.as_object_mut().into_iter().flat_map(Map::values_mut);
        for operation in operations.filter(|operation| operation["responses"].is_object()) {
            complete_operation(operation, mount);
            let body = operation.pointer("/requestBody/content/application~1json/schema/$ref").and_then(Value::as_str);
            if body.is_some_and(|body| optional_bodies.iter().any(|name| body.ends_with(&format!("/{name}")))) {
                operation["requestBody"]["required"] = Value::Bool(false);
            }
        }
    }
    for api in APIS {
        let name = api.error_name;
        document["components"]["schemas"][name] = (api.error_schema)();
        document["components"]["responses"][name] = json!({
            "description": api.error_description,
            "headers": { "x-request-id": { "schema": { "type": "string" } } },
            "content": { "application/json": { "schema": { "$ref": format!("#/components/schemas/{name}") } } },
        });
    }
}

/// Objects without required fields: a missing body counts as an empty object.
fn without_required_fields(schemas: &Value) -> Vec<String> {
    let schemas = schemas.as_object().into_iter().flatten();
    schemas
        .filter(|(_, schema)| schema["type"] == "object" && schema["required"].is_null())
        .map(|(name, _)| name.clone())
        .collect()
}

fn complete_operation(operation: &mut Value, mount: Option<Mount>) {
    // A handler's name alone is not unique: there is a `list` in most files, on both mounts.
    let text = |value: &Value| value.as_str().unwrap_or_default().replace([' ', '-'], "_");
    let prefix = if mount == Some(Mount::OpenAi) { "openai_" } else { "" };
    let name = format!("{prefix}{}_{}", text(&operation["tags"][0]), text(&operation["operationId"]));
    operation["operationId"] = Value::String(name);
    let tag = operation["tags"][0].as_str();
    let api = APIS.into_iter().find(|api| api.tag == tag).unwrap_or(&OPENAI);
    let is_exact = api.tag.is_some() || tag == Some(EXACT_TAG);
    let is_bare = tag.is_some_and(|tag| BARE_TAGS.contains(&tag));
    operation["responses"]["default"] = json!({ "$ref": format!("#/components/responses/{}", api.error_name) });
    for status in ["200", "202"] {
        let documented = operation.pointer_mut(&format!("/responses/{status}/content/application~1json/schema"));
        if let (Some(mount), Some(schema)) = (mount.filter(|_| !is_exact), documented) {
            let is_plain = is_bare && mount == Mount::OpenAi;
            *schema = if is_plain { schema.take() } else { with_envelope(mount, schema.take()) };
        }
    }
}

/// The whole body: the envelope and the handler's documented body.
fn with_envelope(mount: Mount, body: Value) -> Value {
    let head = match mount {
        Mount::Spec => json!({
            "type": "object",
            "required": ["id", "object", "status"],
            "properties": {
                "id": { "type": "string" },
                "object": { "const": "service.resource" },
                "status": { "const": "succeeded" },
                "state": { "type": "string", "description": "The real condition of a resource." },
            },
        }),
        Mount::OpenAi => json!({
            "type": "object",
            "required": ["object"],
            "properties": {
                "id": { "type": "string" },
                "object": { "type": "string" },
                "status": { "type": "string", "description": "The real condition of a resource." },
            },
        }),
    };
    let body = if body["type"] == "array" { page(&body["items"]) } else { body };
    json!({ "allOf": [head, body] })
}

/// A page of a listing.
fn page(item: &Value) -> Value {
    let maybe = json!({ "type": ["string", "null"] });
    let named = json!({
        "type": "object",
        "required": ["id", "object"],
        "properties": { "id": { "type": "string" }, "object": { "type": "string" } },
    });
    json!({
        "type": "object",
        "required": ["data", "has_more", "next_cursor", "first_id", "last_id"],
        "properties": {
            "data": { "type": "array", "items": { "allOf": [named, item] } },
            "has_more": { "type": "boolean" },
            "next_cursor": maybe,
            "first_id": maybe,
            "last_id": maybe,
        },
    })
}
