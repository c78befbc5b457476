//! Messages as JSON, in the form of OpenAI's chat completions.

use serde_json::{Map, Value, json};

use super::{Content, Message, Part, ToolCall};

impl Message {
    /// Reads a message that has the form of this API. Other fields, and parts of other types, are left out.
    pub fn from_json(message: &Value) -> Self {
        let text = |name: &str| message.get(name).and_then(Value::as_str);
        let content = match message.get("content") {
            Some(Value::String(text)) => Content::Text(text.clone()),
            Some(Value::Array(parts)) => content(parts),
            // A refusal takes the place of the content, if there is one.
            _ => text("refusal").unwrap_or_default().into(),
        };
        let calls = message.get("tool_calls").and_then(Value::as_array).into_iter().flatten();
        Self {
            role: text("role").unwrap_or("user").to_owned(),
            content,
            reasoning: text("reasoning_content").or_else(|| text("reasoning")).unwrap_or_default().to_owned(),
            name: text("name").map(str::to_owned),
            tool_calls: calls.map(ToolCall::from_json).collect(),
            tool_call_id: text("tool_call_id").map(str::to_owned),
        }
    }

    /// The message as an object.
    pub fn to_json(&self) -> Map<String, Value> {
        let mut fields = Map::new();
        fields.insert("role".to_owned(), json!(self.role));
        let has_calls_only = self.content.is_empty() && !self.tool_calls.is_empty();
        fields.insert("content".to_owned(), if has_calls_only { Value::Null } else { self.content.to_json() });
        if !self.reasoning.is_empty() {
            fields.insert("reasoning_content".to_owned(), json!(self.reasoning));
        }
        fields.extend(self.name.as_ref().map(|name| ("name".to_owned(), json!(name))));
        if !self.tool_calls.is_empty() {
            fields.insert("tool_calls".to_owned(), self.tool_calls.iter().map(ToolCall::to_json).collect());
        }
        fields.extend(self.tool_call_id.as_ref().map(|id| ("tool_call_id".to_owned(), json!(id))));
        fields
    }
}

/// A text if all parts are text.
fn content(parts: &[Value]) -> Content {
    let parts: Vec<Part> = parts.iter().filter_map(Part::from_json).collect();
    match parts.iter().map(Part::text).collect::<Option<String>>() {
        Some(text) => Content::Text(text),
        None => Content::Parts(parts),
    }
}

impl Content {
    fn to_json(&self) -> Value {
        match self {
            Self::Text(text) => json!(text),
            Self::Parts(parts) => parts.iter().map(Part::to_json).collect(),
        }
    }
}

impl Part {
    /// `None` if it has no known type.
    fn from_json(part: &Value) -> Option<Self> {
        let text = |path: &str| part.pointer(path).and_then(Value::as_str).map(str::to_owned);
        let json = |name: &str| part.get(name).unwrap_or(&Value::Null).to_string();
        match part.get("type").and_then(Value::as_str)? {
            "text" => text("/text").map(Self::Text),
            "refusal" => text("/refusal").map(Self::Refusal),
            "image_url" => Some(Self::Image { url: text("/image_url/url")?, detail: text("/image_url/detail") }),
            "input_audio" => Some(Self::Audio(json("input_audio"))),
            "file" => Some(Self::File(json("file"))),
            _ => None,
        }
    }

    fn to_json(&self) -> Value {
        let object = |json: &str| serde_json::from_str(json).unwrap_or(Value::Null);
        let (name, value) = match self {
            Self::Text(text) => ("text", json!(text)),
            Self::Refusal(text) => ("refusal", json!(text)),
            Self::Image { url, detail: None } => ("image_url", json!({ "url": url })),
            Self::Image { url, detail: Some(detail) } => ("image_url", json!({ "url": url, "detail": detail })),
            Self::Audio(json) => ("input_audio", object(json)),
            Self::File(json) => ("file", object(json)),
        };
        json!({ "type": self.kind(), name: value })
    }
}

impl ToolCall {
    fn from_json(call: &Value) -> Self {
        let text = |path: &str| call.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
        Self { id: text("/id"), name: text("/function/name"), arguments: text("/function/arguments") }
    }

    fn to_json(&self) -> Value {
        let function = json!({ "name": self.name, "arguments": self.arguments });
        json!({ "id": self.id, "type": "function", "function": function })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_from_their_json() {
        let call = json!({ "id": "c", "type": "function", "function": { "name": "f", "arguments": "{}" } });
        let messages = [
            json!({ "role": "user", "content": "q", "name": "ada" }),
            json!({ "role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [call] }),
            json!({ "role": "tool", "content": "", "tool_call_id": "c" }),
            json!({ "role": "user", "content": [
                { "type": "text", "text": "a" },
                { "type": "image_url", "image_url": { "url": "https://example.org/a.png", "detail": "low" } },
                { "type": "image_url", "image_url": { "url": "data:," } },
                { "type": "input_audio", "input_audio": { "data": "", "format": "wav" } },
                { "type": "file", "file": { "file_id": "file-1" } },
                { "type": "refusal", "refusal": "no" },
            ] }),
        ];
        for message in messages {
            let decoded = Message::from_json(&message);
            assert_eq!(Value::Object(decoded.to_json()), message);
        }
    }

    #[test]
    fn parts_of_text_are_a_text() {
        let parts = json!([{ "type": "text", "text": "a" }, { "type": "refusal", "refusal": "b" }]);
        assert_eq!(
            Message::from_json(&json!({ "role": "assistant", "content": parts })),
            Message::new("assistant", "ab")
        );
        let refused = json!({ "role": "assistant", "content": null, "refusal": "no", "reasoning": "" });
        assert_eq!(Message::from_json(&refused), Message::new("assistant", "no"));
    }
}
