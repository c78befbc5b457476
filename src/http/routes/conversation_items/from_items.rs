//! Items as messages of a stored conversation. Each message item is a message of its own; calls and reasoning belong to the
//! assistant's message that they are next to.

use serde_json::Value;

use crate::content::Message;
use crate::error::{Error, Result};
use crate::http::routes::responses::input::{Transcript, kind};
use crate::http::routes::responses::reasoning;
use crate::service::validation::json_fields::invalid_field;
use crate::service::validation::message_validation::MAX_MESSAGES;

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
    let (mut transcript, mut left_out) = (Transcript::to_store(), LeftOut::default());
    for (index, item) in items.iter().enumerate() {
        let field = format!("{field}[{index}]");
        if kind(item) == Some("item_reference") {
            return invalid_field(&format!("{field}.type"), "is 'item_reference'. Send the item itself");
        }
        transcript.append_item(&field, item)?;
        left_out.observe(&field, item);
    }
    let mut ignored = transcript.ignored;
    ignored.append(&mut left_out.finish());
    let stored = |message: &Message| Value::Object(message.to_json()).to_string();
    Ok(StoredItems { messages: transcript.messages.iter().map(stored).collect(), ignored })
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::service::validation::message_validation::{UnknownFields, parse};

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
