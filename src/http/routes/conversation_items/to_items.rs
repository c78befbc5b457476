//! The items of a stored message: its reasoning, its text, then each tool call; or the result of a tool call.

use std::collections::HashSet;

use ring::digest::{Context, SHA256};
use serde_json::{Map, Value, json};

use super::item_id::{ConversationItemId, ItemPart};
use crate::display::shorten;
use crate::error::{Code, Error, Result};
use crate::ids::ConversationId;

/// The items of the message in a row. Each has an ID.
pub fn items(conversation: ConversationId, row: u32, json: &str) -> Result<Vec<Value>> {
    let message = parse(json)?;
    let item = |(part, mut fields): (ItemPart, Map<String, Value>)| {
        let id = ConversationItemId { conversation, row, part }.to_string();
        fields.insert("id".to_owned(), json!(id));
        fields.insert("status".to_owned(), json!("completed"));
        Value::Object(fields)
    };
    Ok(parts(&message).into_iter().map(item).collect())
}

/// One item of a message. A 404 if the message does not have it, or if there is no message.
pub fn item(id: ConversationItemId, json: Option<&str>) -> Result<Value> {
    let items = json.map_or(Ok(Vec::new()), |json| items(id.conversation, id.row, json))?;
    let text = id.to_string();
    items.into_iter().find(|item| item["id"] == text).ok_or_else(|| not_found(id.conversation, &text))
}

/// The message without one of its items; `None` if nothing is left of it.
pub fn without(id: ConversationItemId, json: Option<&str>) -> Result<Option<String>> {
    item(id, json)?;
    let mut message = json.map_or(Ok(Map::new()), parse)?;
    match id.part {
        ItemPart::Output => return Ok(None),
        ItemPart::Reasoning => remove(&mut message, &["reasoning_content", "reasoning"]),
        ItemPart::Message => remove(&mut message, &["content", "refusal"]),
        ItemPart::Call(digest) => {
            let kept: Vec<Value> = calls(&message)
                .into_iter()
                .filter(|(found, _)| *found != digest)
                .map(|(_, call)| call.clone())
                .collect();
            message.insert("tool_calls".to_owned(), Value::Array(kept));
        }
    }
    if calls(&message).is_empty() {
        remove(&mut message, &["tool_calls"]);
        if reasoning(&message).is_none() && !has_content(&message) {
            return Ok(None);
        }
        if !has_content(&message) {
            message.insert("content".to_owned(), json!(""));
        }
    } else if !has_content(&message) {
        message.insert("content".to_owned(), Value::Null);
    }
    Ok(Some(Value::Object(message).to_string()))
}

/// The error for an item that is not in the conversation.
pub fn not_found(conversation: ConversationId, id: &str) -> Error {
    let text = format!("No item '{}' exists in the conversation '{conversation}'. List its items.", shorten(id));
    Error::new(Code::NotFound, text)
}

fn parse(json: &str) -> Result<Map<String, Value>> {
    serde_json::from_str(json).map_err(Error::internal)
}

fn remove(message: &mut Map<String, Value>, fields: &[&str]) {
    message.retain(|name, _| !fields.contains(&name.as_str()));
}

/// The parts of a message with the fields of their items.
fn parts(message: &Map<String, Value>) -> Vec<(ItemPart, Map<String, Value>)> {
    let role = role(message);
    if role == "tool" {
        let fields = json!({
            "type": "function_call_output", "call_id": message.get("tool_call_id"), "output": output(message),
        });
        return vec![(ItemPart::Output, object(fields))];
    }
    let mut parts = Vec::new();
    if let Some(text) = reasoning(message) {
        let content = json!([{ "type": "reasoning_text", "text": text }]);
        parts.push((ItemPart::Reasoning, object(json!({ "type": "reasoning", "summary": [], "content": content }))));
    }
    let calls = calls(message);
    if role != "assistant" || has_content(message) || (parts.is_empty() && calls.is_empty()) {
        let fields = json!({ "type": "message", "role": role, "content": content(message, role) });
        parts.push((ItemPart::Message, object(fields)));
    }
    parts.extend(calls.into_iter().map(|(digest, call)| {
        let fields = json!({
            "type": "function_call", "call_id": call.get("id"),
            "name": call.pointer("/function/name"), "arguments": call.pointer("/function/arguments"),
        });
        (ItemPart::Call(digest), object(fields))
    }));
    parts
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

fn role(message: &Map<String, Value>) -> &str {
    message.get("role").and_then(Value::as_str).unwrap_or("user")
}

/// A text field that is not empty.
fn text<'a>(message: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    message.get(name).and_then(Value::as_str).filter(|text| !text.is_empty())
}

fn reasoning(message: &Map<String, Value>) -> Option<&str> {
    text(message, "reasoning_content").or_else(|| text(message, "reasoning"))
}

/// Whether there is a text or another part.
fn has_content(message: &Map<String, Value>) -> bool {
    let has_parts = message.get("content").and_then(Value::as_array).is_some_and(|parts| !parts.is_empty());
    has_parts || text(message, "content").is_some() || text(message, "refusal").is_some()
}

/// The content of a message item.
fn content(message: &Map<String, Value>, role: &str) -> Vec<Value> {
    let text_part = |text: &Value| match role {
        "assistant" => json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] }),
        _ => json!({ "type": "input_text", "text": text }),
    };
    let refusal = |text: &Value| json!({ "type": "refusal", "refusal": text });
    let refused = message.get("refusal").filter(|text| text.is_string());
    let mut parts: Vec<Value> = match message.get("content") {
        Some(text @ Value::String(_)) => vec![text_part(text)],
        Some(Value::Array(parts)) => parts
            .iter()
            .map(|part| match part.get("type").and_then(Value::as_str) {
                Some("text") => text_part(&part["text"]),
                Some("refusal") => refusal(&part["refusal"]),
                _ => attachment(part),
            })
            .collect(),
        _ => Vec::new(),
    };
    parts.extend(refused.map(refusal));
    parts
}

/// An image, a file or audio.
fn attachment(part: &Value) -> Value {
    match part.get("type").and_then(Value::as_str) {
        Some("image_url") => {
            let detail = part.pointer("/image_url/detail").filter(|detail| detail.is_string());
            let detail = detail.cloned().unwrap_or_else(|| json!("auto"));
            json!({ "type": "input_image", "image_url": part["image_url"]["url"], "detail": detail })
        }
        Some("file") => {
            let mut fields = part.get("file").and_then(Value::as_object).cloned().unwrap_or_default();
            fields.insert("type".to_owned(), json!("input_file"));
            Value::Object(fields)
        }
        _ => part.clone(),
    }
}

/// The result of a tool call: a text, or parts.
fn output(message: &Map<String, Value>) -> Value {
    match message.get("content") {
        Some(Value::Array(_)) => json!(content(message, "tool")),
        Some(Value::String(text)) => json!(text),
        _ => json!(""),
    }
}

/// The tool calls of a message, each with a digest that no other one has.
fn calls(message: &Map<String, Value>) -> Vec<(u64, &Value)> {
    let calls = message.get("tool_calls").and_then(Value::as_array).into_iter().flatten();
    let mut used = HashSet::new();
    let numbered = |call| {
        let digest = (0..).map(|copy| digest(call, copy)).find(|digest| used.insert(*digest));
        (digest.unwrap_or_default(), call)
    };
    calls.map(numbered).collect()
}

/// A digest of a call. `copy`: the number of equal calls before it.
fn digest(call: &Value, copy: u32) -> u64 {
    let mut context = Context::new(&SHA256);
    for path in ["/id", "/function/name", "/function/arguments"] {
        let text = call.pointer(path).and_then(Value::as_str).unwrap_or_default();
        context.update(&(text.len() as u64).to_be_bytes());
        context.update(text.as_bytes());
    }
    context.update(&copy.to_be_bytes());
    context.finish().as_ref().iter().take(8).fold(0, |digest, byte| digest << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversation() -> ConversationId {
        ConversationId::from_bytes([1; 16])
    }

    fn message() -> Value {
        let call = |id: &str| json!({ "id": id, "type": "function", "function": { "name": "f", "arguments": "{}" } });
        json!({
            "role": "assistant", "content": "a", "reasoning_content": "hm", "tool_calls": [call("1"), call("2"), call("2")],
        })
    }

    fn kinds(items: &[Value]) -> Vec<&str> {
        items.iter().map(|item| item["type"].as_str().unwrap()).collect()
    }

    #[test]
    fn a_message_loses_one_item_after_the_other() {
        let mut json = Some(message().to_string());
        let mut all = items(conversation(), 3, &message().to_string()).unwrap();
        assert_eq!(kinds(&all), ["reasoning", "message", "function_call", "function_call", "function_call"]);
        let ids: HashSet<String> = all.iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect();
        assert_eq!(ids.len(), 5);
        for index in [1, 1, 2, 1, 0] {
            let id: ConversationItemId = all.remove(index)["id"].as_str().unwrap().parse().unwrap();
            json = without(id, json.as_deref()).unwrap();
            let left = json.as_ref().map_or(Vec::new(), |json| items(conversation(), 3, json).unwrap());
            assert_eq!(left, all, "the other items stay the same");
            assert_eq!(without(id, json.as_deref()).unwrap_err().code(), Code::NotFound);
        }
        assert_eq!(json, None);
    }

    #[test]
    fn content_is_that_of_the_role() {
        let item = |message: Value| {
            let mut items = items(conversation(), 0, &message.to_string()).unwrap();
            let mut item = items.remove(0);
            item.as_object_mut().unwrap().retain(|name, _| !["id", "status"].contains(&name.as_str()));
            item
        };
        let parts = json!([
            { "type": "text", "text": "x" },
            { "type": "image_url", "image_url": { "url": "https://example.org/a.png" } },
            { "type": "file", "file": { "file_id": "file-1" } },
        ]);
        let expected = json!([
            { "type": "input_text", "text": "x" },
            { "type": "input_image", "image_url": "https://example.org/a.png", "detail": "auto" },
            { "file_id": "file-1", "type": "input_file" },
        ]);
        assert_eq!(
            item(json!({ "role": "user", "content": parts })),
            json!({ "type": "message", "role": "user", "content": expected })
        );
        let refused = item(json!({ "role": "assistant", "content": null, "refusal": "no" }));
        assert_eq!(refused["content"], json!([{ "type": "refusal", "refusal": "no" }]));
        let result = item(json!({ "role": "tool", "tool_call_id": "1", "content": "r" }));
        assert_eq!(result, json!({ "type": "function_call_output", "call_id": "1", "output": "r" }));
        assert_eq!(item(json!({ "role": "assistant", "content": "" }))["content"][0]["text"], "");
    }
}
