//! Items as messages of a stored conversation. Each message item is a message of its own; calls and reasoning belong to the
//! assistant's message that they are next to.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::engine::{Message, ToolCall};
use crate::error::{Error, Result};
use crate::http::routes::responses::input::{Transcript, kind, no_text, part_text};
use crate::http::routes::responses::reasoning;
use crate::service::json_fields::invalid_field;
use crate::service::message_validation::MAX_MESSAGES;

/// Messages that items make.
#[derive(Debug, Default)]
pub struct StoredItems {
    /// The JSON of each message.
    pub messages: Vec<String>,
    /// The items that are left out.
    pub ignored: Vec<String>,
}

/// The items of the field `items`.
pub fn from_field(items: &[Value]) -> Result<StoredItems> {
    match items.len() {
        0..=MAX_MESSAGES => messages("items", items),
        count => {
            let text = format!("items has {count} entries; at most {MAX_MESSAGES} are allowed.");
            Err(Error::invalid("items", text))
        }
    }
}

/// The field `items`, for errors about the messages that they make.
pub fn in_items(error: Error) -> Error {
    if error.param_name() == Some("messages") { error.param("items") } else { error }
}

/// Converts items. `field`: the name of their list.
pub fn messages(field: &str, items: &[Value]) -> Result<StoredItems> {
    let mut transcript = Transcript::of_conversation();
    let (mut attached, mut left_out) = (HashMap::new(), LeftOut::default());
    for (index, item) in items.iter().enumerate() {
        let field = format!("{field}[{index}]");
        if kind(item) == Some("item_reference") {
            return invalid_field(&format!("{field}.type"), "is 'item_reference'. Send the item itself");
        }
        match attached_parts(&field, item)? {
            Some(parts) => {
                transcript.append_item(&field, &without_content(item))?;
                attached.insert(transcript.messages.len(), parts);
            }
            None => transcript.append_item(&field, item)?,
        }
        left_out.observe(&field, item);
    }
    let mut ignored = transcript.ignored;
    ignored.append(&mut left_out.finish());
    let stored = |(count, message): (usize, Message)| stored_message(message, attached.remove(&count));
    Ok(StoredItems { messages: (1..).zip(transcript.messages).map(stored).collect(), ignored })
}

/// Reasoning that belongs to nothing.
#[derive(Default)]
struct LeftOut {
    /// Before the next message or call of the assistant.
    pending: Vec<String>,
    ignored: Vec<String>,
}

impl LeftOut {
    fn observe(&mut self, field: &str, item: &Value) {
        let role = item.get("role").and_then(Value::as_str);
        match (kind(item), role) {
            (Some("reasoning"), _) if reasoning::text_of(item).is_empty() => {
                self.ignored.push(format!("{field} reasoning"));
            }
            (Some("reasoning"), _) => self.pending.push(format!("{field} reasoning")),
            (Some("function_call" | "custom_tool_call"), _) | (Some("message"), Some("assistant")) => {
                self.pending.clear()
            }
            (Some("message"), Some("user")) => self.ignored.append(&mut self.pending),
            _ => {}
        }
    }

    fn finish(mut self) -> Vec<String> {
        self.ignored.append(&mut self.pending);
        self.ignored
    }
}

fn without_content(item: &Value) -> Value {
    let mut fields = item.as_object().cloned().unwrap_or_default();
    fields.insert("content".to_owned(), json!(""));
    Value::Object(fields)
}

/// The parts of a message that is not the assistant's, if one of them is not text.
fn attached_parts(field: &str, item: &Value) -> Result<Option<Vec<Value>>> {
    let is_assistant = item.get("role").and_then(Value::as_str) == Some("assistant");
    let parts = item.get("content").and_then(Value::as_array);
    let Some(parts) = parts.filter(|_| kind(item) == Some("message") && !is_assistant) else { return Ok(None) };
    if parts.iter().all(|part| part_text(part).is_some()) {
        return Ok(None);
    }
    let part = |(index, part)| stored_part(&format!("{field}.content[{index}]"), part);
    parts.iter().enumerate().map(part).collect::<Result<Vec<_>>>().map(Some)
}

/// A part as chat completions have it.
fn stored_part(field: &str, part: &Value) -> Result<Value> {
    if let Some(text) = part_text(part) {
        return Ok(json!({ "type": "text", "text": text }));
    }
    match part.get("type").and_then(Value::as_str) {
        Some("input_image") => match part.get("image_url") {
            Some(url @ Value::String(_)) => {
                let mut image = Map::from_iter([("url".to_owned(), url.clone())]);
                if let Some(detail) = part.get("detail").filter(|detail| detail.is_string()) {
                    image.insert("detail".to_owned(), detail.clone());
                }
                Ok(json!({ "type": "image_url", "image_url": image }))
            }
            _ => invalid_field(&format!("{field}.image_url"), "must be a URL. Images cannot be named by a file_id"),
        },
        Some("input_file") => {
            let fields = part.as_object().into_iter().flatten();
            let file: Map<String, Value> =
                fields.filter(|(name, _)| *name != "type").map(|(name, value)| (name.clone(), value.clone())).collect();
            Ok(json!({ "type": "file", "file": file }))
        }
        Some("input_audio") => Ok(part.clone()),
        _ => no_text(field, part),
    }
}

/// A message as chat completions have it. `parts`: its content, if it has other parts than text.
fn stored_message(message: Message, parts: Option<Vec<Value>>) -> String {
    let Message { role, content, reasoning, tool_calls, tool_call_id, .. } = message;
    let content = match parts {
        Some(parts) => json!(parts),
        None if content.is_empty() && !tool_calls.is_empty() => Value::Null,
        None => json!(content),
    };
    let mut fields = Map::from_iter([("role".to_owned(), json!(role)), ("content".to_owned(), content)]);
    if !reasoning.is_empty() {
        fields.insert("reasoning_content".to_owned(), json!(reasoning));
    }
    if !tool_calls.is_empty() {
        let calls: Vec<Value> = tool_calls.iter().map(stored_call).collect();
        fields.insert("tool_calls".to_owned(), json!(calls));
    }
    if let Some(id) = tool_call_id {
        fields.insert("tool_call_id".to_owned(), json!(id));
    }
    Value::Object(fields).to_string()
}

fn stored_call(call: &ToolCall) -> Value {
    json!({ "id": call.id, "type": "function", "function": { "name": call.name, "arguments": call.arguments } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::message_validation::{UnknownFields, parse};

    fn stored(items: &Value) -> (Vec<Value>, Vec<String>) {
        let StoredItems { messages, ignored } = messages("items", items.as_array().unwrap()).unwrap();
        let valid = |json: &String| parse("message", json, UnknownFields::Reject).unwrap();
        (messages.iter().map(valid).collect(), ignored)
    }

    #[test]
    fn items_become_messages_that_can_be_stored() {
        let image = json!({ "type": "input_image", "image_url": "https://example.org/a.png", "detail": "low" });
        let reasoning = |text: &str| json!({ "type": "reasoning", "summary": [], "content": [{ "type": "reasoning_text", "text": text }] });
        let (messages, ignored) = stored(&json!([
            { "role": "developer", "content": "Be brief." },
            { "role": "user", "content": "a" },
            { "role": "user", "content": [{ "type": "input_text", "text": "b" }, image, { "type": "input_file", "file_id": "file-1" }] },
            reasoning("lost"),
            { "role": "user", "content": [{ "type": "input_text", "text": "c" }, { "type": "input_text", "text": "d" }] },
            reasoning("hm"),
            { "type": "message", "id": "msg_1", "role": "assistant", "content": [{ "type": "output_text", "text": "e" }] },
            { "type": "function_call", "call_id": "1", "name": "f", "arguments": "{}" },
            { "type": "web_search_call", "id": "ws_1" },
            { "type": "function_call_output", "call_id": "1", "output": "r" },
            { "type": "function_call", "call_id": "2", "name": "g", "arguments": "" },
            { "type": "function_call_output", "call_id": "elsewhere", "output": [{ "type": "input_text", "text": "s" }] },
            reasoning(""),
            reasoning("last"),
        ]));
        let call = |id: &str, name: &str, arguments: &str| json!([{ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } }]);
        let parts = json!([
            { "type": "text", "text": "b" },
            { "type": "image_url", "image_url": { "url": "https://example.org/a.png", "detail": "low" } },
            { "type": "file", "file": { "file_id": "file-1" } },
        ]);
        let expected = [
            json!({ "role": "developer", "content": "Be brief." }),
            json!({ "role": "user", "content": "a" }),
            json!({ "role": "user", "content": parts }),
            json!({ "role": "user", "content": "c\nd" }),
            json!({ "role": "assistant", "content": "e", "reasoning_content": "hm", "tool_calls": call("1", "f", "{}") }),
            json!({ "role": "tool", "content": "r", "tool_call_id": "1" }),
            json!({ "role": "assistant", "content": null, "tool_calls": call("2", "g", "") }),
            json!({ "role": "tool", "content": "s", "tool_call_id": "elsewhere" }),
        ];
        assert_eq!(messages, expected);
        let named = ["items[8] web_search_call", "items[3] reasoning", "items[12] reasoning", "items[13] reasoning"];
        assert_eq!(ignored, named);
    }

    #[test]
    fn errors_name_the_field() {
        let param = |item: Value| messages("items", &[item]).unwrap_err().param_name().unwrap().to_owned();
        let part = |part: Value| json!({ "role": "user", "content": [{ "type": "input_text", "text": "x" }, part] });
        for (item, expected) in [
            (json!(1), "items[0].type"),
            (json!({ "type": "item_reference", "id": "msg_1" }), "items[0].type"),
            (json!({ "role": "robot", "content": "x" }), "items[0].role"),
            (json!({ "role": "user" }), "items[0].content"),
            (part(json!({ "type": "input_image", "file_id": "file-1" })), "items[0].content[1].image_url"),
            (part(json!({ "type": "input_text" })), "items[0].content[1].text"),
            (part(json!({ "type": "video" })), "items[0].content[1].type"),
            (json!({ "type": "function_call", "call_id": "a", "name": "b" }), "items[0].arguments"),
            (json!({ "type": "function_call_output", "call_id": "a" }), "items[0].output"),
        ] {
            assert_eq!(param(item.clone()), expected, "{item}");
        }
    }
}
