//! The input of a response as messages of the engine.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::{reasoning, summary_item};
use crate::calls::output_format::custom_tools;
use crate::calls::prompt::message_joining::join_line;
use crate::content::{Content, Message, Part, ToolCall};
use crate::display::shorten;
use crate::error::{Error, Result};
use crate::service::validation::json_fields::invalid_field;
use crate::service::validation::message_validation::MAX_MESSAGES;

/// The items of a request; a text is a user's message.
pub fn items(input: Option<&Value>) -> Result<Vec<Value>> {
    match input {
        Some(Value::String(text)) => Ok(vec![json!({ "type": "message", "role": "user", "content": text })]),
        Some(Value::Array(items)) if items.is_empty() => {
            invalid_field("input", "is empty. Send a text, or at least one item")
        }
        Some(Value::Array(items)) if items.len() > MAX_MESSAGES => {
            let text = format!("input has {} items; at most {MAX_MESSAGES} are allowed.", items.len());
            Err(Error::invalid("input", text))
        }
        Some(Value::Array(items)) => Ok(items.clone()),
        None | Some(Value::Null) => invalid_field("input", "is missing. Send a text or an array of items"),
        Some(_) => invalid_field("input", "must be a string or an array of items"),
    }
}

/// The type of an item; a message may leave it out.
pub fn kind(item: &Value) -> Option<&str> {
    match item.get("type") {
        None | Some(Value::Null) => item.get("role").map(|_| "message"),
        Some(kind) => kind.as_str(),
    }
}

/// Messages as items add to them. Neighbouring ones of a role are joined later.
#[derive(Default)]
pub struct Transcript {
    pub messages: Vec<Message>,
    /// The items that are left out.
    pub ignored: Vec<String>,
    /// The reasoning before the next message or call of the assistant.
    reasoning: String,
    /// The ids of the tool calls so far; `None` if calls may also be in a stored conversation, which is checked later.
    calls: Option<HashSet<String>>,
    /// Messages may have images, audio and files. Models read only text.
    keeps_attachments: bool,
}

impl Transcript {
    /// The transcript that begins with a system prompt.
    pub fn new(instructions: Option<&str>) -> Self {
        let system = instructions.filter(|text| !text.is_empty()).map(|text| Message::new("system", text));
        Self { messages: system.into_iter().collect(), calls: Some(HashSet::new()), ..Self::default() }
    }

    /// Items that are added to a stored conversation.
    pub fn of_conversation() -> Self {
        Self::default()
    }

    /// Items that are only stored, with their images, audio and files.
    pub fn to_store() -> Self {
        Self { keeps_attachments: true, ..Self::default() }
    }

    /// Adds items. `field`: the name of the list.
    pub fn append(&mut self, field: &str, items: &[Value]) -> Result<()> {
        items.iter().enumerate().try_for_each(|(index, item)| self.append_item(&format!("{field}[{index}]"), item))
    }

    /// Adds the item `field`.
    pub fn append_item(&mut self, field: &str, item: &Value) -> Result<()> {
        match kind(item) {
            Some("message") => self.append_message(field, item),
            Some("function_call") => self.append_call(field, item, string(field, item, "arguments")?),
            Some("custom_tool_call") => {
                self.append_call(field, item, custom_tools::arguments(&string(field, item, "input")?))
            }
            Some("function_call_output" | "custom_tool_call_output") => self.append_result(field, item),
            Some("reasoning") => {
                join_line(&mut self.reasoning, &reasoning::text_of(item));
                Ok(())
            }
            Some("compaction") => {
                self.messages.push(Message::new("user", summary_item::text_of(field, item)?));
                Ok(())
            }
            Some(kind) if is_hosted(kind) => {
                self.ignored.push(format!("{field} {}", shorten(kind)));
                Ok(())
            }
            Some(kind) => {
                let text = format!(
                    "is '{}'. This server accepts message, function_call, function_call_output, custom_tool_call, custom_tool_call_output, reasoning, compaction and item_reference",
                    shorten(kind)
                );
                invalid_field(&format!("{field}.type"), &text)
            }
            None => invalid_field(
                &format!("{field}.type"),
                "is missing. It must be the type of the item, such as 'message'",
            ),
        }
    }

    fn append_message(&mut self, field: &str, item: &Value) -> Result<()> {
        let (path, content) = (format!("{field}.content"), item.get("content").unwrap_or(&Value::Null));
        match item.get("role").and_then(Value::as_str) {
            Some("user") => {
                self.reasoning.clear();
                self.append_content("user", &path, content)
            }
            Some("assistant") => {
                self.messages.push(Message::new("assistant", text(&path, content, "")?));
                self.append_reasoning();
                Ok(())
            }
            Some(role @ ("system" | "developer")) => self.append_content(role, &path, content),
            _ => invalid_field(&format!("{field}.role"), "must be 'user', 'assistant', 'system' or 'developer'"),
        }
    }

    /// Adds a message with the content `field`.
    fn append_content(&mut self, role: &str, field: &str, content: &Value) -> Result<()> {
        let content = match content {
            Value::Array(parts) if self.keeps_attachments && parts.iter().any(|part| part_text(part).is_none()) => {
                let part = |(index, value)| part(&format!("{field}[{index}]"), value);
                Content::Parts(parts.iter().enumerate().map(part).collect::<Result<_>>()?)
            }
            _ => text(field, content, "\n")?.into(),
        };
        self.messages.push(Message { content, ..Message::new(role, "") });
        Ok(())
    }

    /// Moves the reasoning to the assistant's message that it led to, the last one.
    fn append_reasoning(&mut self) {
        let reasoning = std::mem::take(&mut self.reasoning);
        if let Some(last) = self.messages.last_mut() {
            join_line(&mut last.reasoning, &reasoning);
        }
    }

    /// A call belongs to the assistant's message before it.
    fn append_call(&mut self, field: &str, item: &Value, arguments: String) -> Result<()> {
        let text = |name: &str| string(field, item, name);
        let call = ToolCall { id: text("call_id")?, name: text("name")?, arguments };
        if let Some(calls) = &mut self.calls {
            calls.insert(call.id.clone());
        }
        match self.messages.last_mut().filter(|last| last.role == "assistant") {
            Some(last) => last.tool_calls.push(call),
            None => {
                self.messages.push(Message { tool_calls: vec![call], ..Message::new("assistant", "") });
            }
        }
        self.append_reasoning();
        Ok(())
    }

    fn append_result(&mut self, field: &str, item: &Value) -> Result<()> {
        let id = string(field, item, "call_id")?;
        if self.calls.as_ref().is_some_and(|calls| !calls.contains(&id)) {
            let field = format!("{field}.call_id");
            let text = format!(
                "'{field}' is '{}', but no item before it is a call with this call_id. Send the call first, or previous_response_id.",
                shorten(&id)
            );
            return Err(Error::invalid(field, text));
        }
        let output = match item.get("output") {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Array(parts)) => parts.iter().map(result_part).collect::<Vec<_>>().join("\n"),
            _ => return invalid_field(&format!("{field}.output"), "must be a string or an array of content parts"),
        };
        self.messages.push(Message { tool_call_id: Some(id), ..Message::new("tool", output) });
        Ok(())
    }
}

/// Whether an item records the work of a tool that this server does not have.
fn is_hosted(kind: &str) -> bool {
    let is_tool = kind.ends_with("_call") || kind.ends_with("_call_output");
    is_tool || kind.starts_with("mcp_") || kind.starts_with("tool_search_")
}

fn string(field: &str, item: &Value, name: &str) -> Result<String> {
    match item.get(name).and_then(Value::as_str) {
        Some(text) if !text.is_empty() || matches!(name, "arguments" | "input") => Ok(text.to_owned()),
        _ => invalid_field(&format!("{field}.{name}"), "must be a string that is not empty"),
    }
}

/// The text of a part, if it has one.
fn part_text(part: &Value) -> Option<&str> {
    let text = match part.get("type").and_then(Value::as_str)? {
        "input_text" | "output_text" | "text" => part.get("text"),
        "refusal" => part.get("refusal"),
        _ => None,
    };
    text.and_then(Value::as_str)
}

fn text(field: &str, content: &Value, separator: &str) -> Result<String> {
    let parts = match content {
        Value::String(text) => return Ok(text.clone()),
        Value::Array(parts) => parts,
        _ => return invalid_field(field, "must be a string or an array of content parts"),
    };
    let text = |(index, part)| part_text(part).map_or_else(|| no_text(&format!("{field}[{index}]"), part), Ok);
    Ok(parts.iter().enumerate().map(text).collect::<Result<Vec<_>>>()?.join(separator))
}

/// A part of a message that may have other parts than text.
fn part(field: &str, part: &Value) -> Result<Part> {
    if let Some(text) = part_text(part) {
        return Ok(Part::Text(text.to_owned()));
    }
    match part.get("type").and_then(Value::as_str) {
        Some("input_image") => match part.get("image_url") {
            Some(Value::String(url)) => {
                let detail = part.get("detail").and_then(Value::as_str).map(str::to_owned);
                Ok(Part::Image { url: url.clone(), detail })
            }
            _ => invalid_field(&format!("{field}.image_url"), "must be a URL. Images cannot be named by a file_id"),
        },
        Some("input_file") => {
            let mut file = part.as_object().cloned().unwrap_or_default();
            file.shift_remove("type");
            Ok(Part::File(Value::Object(file).to_string()))
        }
        Some("input_audio") => Ok(Part::Audio(part.get("input_audio").unwrap_or(&Value::Null).to_string())),
        _ => no_text(field, part),
    }
}

/// The error for a part of a message without a text.
fn no_text<T>(field: &str, part: &Value) -> Result<T> {
    match part.get("type").and_then(Value::as_str) {
        Some("input_text" | "output_text" | "text") => invalid_field(&format!("{field}.text"), "must be a string"),
        Some("refusal") => invalid_field(&format!("{field}.refusal"), "must be a string"),
        Some(kind) => {
            let what = match kind {
                "input_image" => "Images are not supported: describe them as text",
                "input_file" => "Files are not supported: send their text as 'input_text'",
                _ => "This server accepts the parts input_text, output_text and refusal",
            };
            invalid_field(&format!("{field}.type"), &format!("is '{}'. {what}", shorten(kind)))
        }
        None => invalid_field(&format!("{field}.type"), "is missing. A content part is an object with a type"),
    }
}

/// A part of a tool's result. One that has no text is named: clients send their whole history with each request, so an
/// error would come back for good.
fn result_part(part: &Value) -> String {
    let kind = part.get("type").and_then(Value::as_str).unwrap_or("part");
    let left_out = || format!("[{} left out: the model reads only text]", shorten(kind));
    part_text(part).map_or_else(left_out, str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::prompt::message_joining::join;

    fn parse(instructions: Option<&str>, input: &Value) -> Result<Transcript> {
        let mut transcript = Transcript::new(instructions);
        transcript.append("input", &items(Some(input))?)?;
        Ok(transcript)
    }

    #[test]
    fn items_become_messages_of_the_engine() {
        let found = parse(
            Some("Be brief."),
            &json!([
                { "role": "developer", "content": "Speak Latin." },
                { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "a" }, { "type": "input_text", "text": "b" }] },
                { "role": "system", "content": "It rains." },
                { "type": "reasoning", "id": "rs_1", "summary": [], "content": [{ "type": "reasoning_text", "text": "Hm." }] },
                { "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "I ", "annotations": [] }, { "type": "refusal", "refusal": "look." }] },
                { "type": "function_call", "call_id": "c1", "name": "read", "arguments": "{}" },
                { "type": "web_search_call", "id": "ws_1" },
                { "type": "function_call", "call_id": "c2", "name": "list", "arguments": "" },
                { "type": "function_call_output", "call_id": "c1", "output": "one" },
                { "type": "function_call_output", "call_id": "c2", "output": [{ "type": "input_text", "text": "two" }, { "type": "input_image" }] },
                { "type": "custom_tool_call", "id": "ctc_1", "call_id": "c3", "name": "patch", "input": "a\n\"b\"", "status": "completed" },
                { "type": "custom_tool_call_output", "call_id": "c3", "output": [{ "type": "input_text", "text": "done" }] },
                { "role": "user", "content": "go on" },
            ]),
        )
        .unwrap();
        let call = |id: &str, name: &str, arguments: &str| ToolCall {
            id: id.to_owned(),
            name: name.to_owned(),
            arguments: arguments.to_owned(),
        };
        let result =
            |id: &str, content: &str| Message { tool_call_id: Some(id.to_owned()), ..Message::new("tool", content) };
        let expected = [
            Message::new("system", "Be brief.\nSpeak Latin."),
            Message::new("user", "a\nb\nIt rains."),
            Message {
                tool_calls: vec![call("c1", "read", "{}"), call("c2", "list", "")],
                reasoning: "Hm.".to_owned(),
                ..Message::new("assistant", "I look.")
            },
            result("c1", "one"),
            result("c2", "two\n[input_image left out: the model reads only text]"),
            Message {
                tool_calls: vec![call("c3", "patch", r#"{"input": "a\n\"b\""}"#)],
                ..Message::new("assistant", "")
            },
            result("c3", "done"),
            Message::new("user", "go on"),
        ];
        assert_eq!(join(found.messages, false), expected);
        assert_eq!(found.ignored, ["input[6] web_search_call"]);
    }

    #[test]
    fn errors_name_the_part() {
        let error = |input: &Value| parse(None, input).err().unwrap().param_name().unwrap().to_owned();
        let user = |part: Value| json!([{ "role": "user", "content": [part] }]);
        for (input, param) in [
            (json!(null), "input"),
            (json!([]), "input"),
            (json!(1), "input"),
            (json!([1]), "input[0].type"),
            (json!([{ "type": "compaction_trigger" }]), "input[0].type"),
            (json!([{ "type": "compaction" }]), "input[0].encrypted_content"),
            (json!([{ "role": "tool", "content": "x" }]), "input[0].role"),
            (json!([{ "role": "user" }]), "input[0].content"),
            (user(json!({ "text": "x" })), "input[0].content[0].type"),
            (user(json!({ "type": "input_text" })), "input[0].content[0].text"),
            (user(json!({ "type": "input_image", "image_url": "data:" })), "input[0].content[0].type"),
            (json!([{ "type": "function_call", "call_id": "a", "name": "b" }]), "input[0].arguments"),
            (json!([{ "type": "function_call_output", "call_id": "a", "output": "" }]), "input[0].call_id"),
            (json!([{ "type": "custom_tool_call", "call_id": "a", "name": "b" }]), "input[0].input"),
            (json!([{ "type": "custom_tool_call_output", "call_id": "a", "output": "" }]), "input[0].call_id"),
        ] {
            assert_eq!(error(&input), param, "{input}");
        }
    }
}
