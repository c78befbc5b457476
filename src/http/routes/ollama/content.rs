//! The messages of Ollama's API as those of the engine. Its tool results name the tool, not the call: they answer the calls
//! before them in order.

use std::collections::VecDeque;

use serde_json::Value;

use crate::content::{Message, ToolCall};
use crate::display::shorten;
use crate::error::{Error, Result};
use crate::service::validation::json_fields::{invalid_field, optional};
use crate::service::validation::message_validation::MAX_MESSAGES;

const ROLES: &str = "'system', 'user', 'assistant' or 'tool'";

/// Refuses images. `field`: the list's.
pub fn refuse_images(field: &str, images: Option<&Value>) -> Result<()> {
    match images {
        None | Some(Value::Null) => Ok(()),
        Some(Value::Array(images)) if images.is_empty() => Ok(()),
        Some(_) => invalid_field(field, "has images, but the models of this server read only text. Leave it out"),
    }
}

/// The messages of a request, which has at least one.
pub fn messages(messages: &[Value]) -> Result<Vec<Message>> {
    if messages.len() > MAX_MESSAGES {
        let text = format!("messages has {} entries; at most {MAX_MESSAGES} are allowed.", messages.len());
        return Err(Error::invalid("messages", text));
    }
    let mut calls = Calls::default();
    let parsed = messages.iter().enumerate().map(|(index, value)| calls.message(&format!("messages[{index}]"), value));
    parsed.collect()
}

/// The calls so far.
#[derive(Default)]
struct Calls {
    /// How many there are.
    count: usize,
    /// Those without a result.
    open: VecDeque<ToolCall>,
}

impl Calls {
    fn message(&mut self, field: &str, message: &Value) -> Result<Message> {
        let Some(fields) = message.as_object() else {
            return invalid_field(field, "must be an object with a role and a content");
        };
        let role = fields.get("role").and_then(Value::as_str).unwrap_or_default().to_ascii_lowercase();
        let content = fields.get("content");
        optional(&format!("{field}.content"), content, "a string", Value::is_string)?;
        refuse_images(&format!("{field}.images"), fields.get("images"))?;
        let message = Message::new(&role, content.and_then(Value::as_str).unwrap_or_default());
        match role.as_str() {
            "system" | "user" => Ok(message),
            "assistant" => {
                let thinking = fields.get("thinking");
                optional(&format!("{field}.thinking"), thinking, "a string", Value::is_string)?;
                let reasoning = thinking.and_then(Value::as_str).unwrap_or_default().to_owned();
                let tool_calls = self.calls(&format!("{field}.tool_calls"), fields.get("tool_calls"))?;
                Ok(Message { tool_calls, reasoning, ..message })
            }
            "tool" => self.result(field, fields, message),
            _ => invalid_field(&format!("{field}.role"), &format!("must be {ROLES}")),
        }
    }

    /// The calls of an assistant's message, which have no results yet.
    fn calls(&mut self, field: &str, calls: Option<&Value>) -> Result<Vec<ToolCall>> {
        optional(field, calls, "an array of tool calls", Value::is_array)?;
        let listed = calls.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let call = |(index, call): (usize, &Value)| self.call(&format!("{field}[{index}]"), call);
        let calls = listed.iter().enumerate().map(call).collect::<Result<Vec<_>>>()?;
        if !calls.is_empty() {
            // Calls of an earlier message that have no result by now get none.
            self.open = calls.iter().cloned().collect();
        }
        Ok(calls)
    }

    fn call(&mut self, field: &str, call: &Value) -> Result<ToolCall> {
        let Some(name) = call.pointer("/function/name").and_then(Value::as_str).filter(|name| !name.is_empty()) else {
            return invalid_field(&format!("{field}.function.name"), "must be a string that is not empty");
        };
        let arguments = match call.pointer("/function/arguments") {
            Some(arguments @ Value::Object(_)) => arguments.to_string(),
            None | Some(Value::Null) => "{}".to_owned(),
            Some(_) => return invalid_field(&format!("{field}.function.arguments"), "must be an object"),
        };
        let own_id = call.get("id").and_then(Value::as_str).filter(|id| !id.is_empty());
        // Some chat templates require IDs of nine letters and digits.
        let id = own_id.map_or_else(|| format!("call{:05}", self.count), str::to_owned);
        self.count += 1;
        Ok(ToolCall { id, name: name.to_owned(), arguments })
    }

    fn result(&mut self, field: &str, fields: &serde_json::Map<String, Value>, message: Message) -> Result<Message> {
        let text = |name: &str| fields.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        let (id, name) = (text("tool_call_id"), text("tool_name").or_else(|| text("name")));
        let position = |fits: &dyn Fn(&ToolCall) -> bool| self.open.iter().position(fits);
        let by_id = id.and_then(|id| position(&|call| call.id == id));
        let by_name = || name.and_then(|name| position(&|call| call.name == name));
        // Some clients send an ID of their own.
        let at = by_id.or_else(by_name).or_else(|| name.is_none().then_some(0));
        let found = at.and_then(|at| self.open.remove(at));
        let Some(call) = found else {
            let named = id.or(name).map(|named| format!(" '{}'", shorten(named))).unwrap_or_default();
            let text = format!(
                "'{field}' is the result of a tool, but the message of the assistant before it has no call{named} that waits for one. Send the assistant's message with its tool_calls first."
            );
            return Err(Error::invalid(field, text));
        };
        Ok(Message { tool_call_id: Some(call.id), name: name.map(str::to_owned), ..message })
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use serde_json::json;

    use super::*;
    use crate::engine::PromptEnd;
    use crate::http::routes::prompt_fields::end_of_messages;

    fn parse(list: Value) -> Result<Vec<Message>> {
        messages(list.as_array().unwrap())
    }

    fn call(name: &str) -> Value {
        json!({ "function": { "name": name, "arguments": { "z": 1, "a": 2 } } })
    }

    #[test]
    fn results_answer_the_calls_before_them() {
        let parsed = parse(json!([
            { "role": "System", "content": "s" },
            { "role": "user", "content": "u" },
            { "role": "assistant", "thinking": "hm", "tool_calls": [call("a"), call("b"), call("a")] },
            { "role": "tool", "content": "2", "tool_name": "b" },
            { "role": "tool", "content": "1" },
            { "role": "tool", "content": "3", "name": "a" },
            { "role": "assistant", "content": "t", "tool_calls": [{ "id": "own", "function": { "name": "c" } }] },
            { "role": "tool", "content": "4", "tool_call_id": "own" },
            { "role": "assistant", "tool_calls": [call("d")] },
            { "role": "tool", "content": "5", "tool_call_id": "foreign" },
        ]))
        .unwrap();
        let results: Vec<_> = parsed
            .iter()
            .filter(|message| message.role == "tool")
            .map(|message| (message.content.text(), message.tool_call_id.as_deref(), message.name.as_deref()))
            .collect();
        let expected = [
            ("2", Some("call00001"), Some("b")),
            ("1", Some("call00000"), None),
            ("3", Some("call00002"), Some("a")),
            ("4", Some("own"), None),
            ("5", Some("call00004"), None),
        ]
        .map(|(text, id, name)| (Cow::from(text), id, name));
        assert_eq!(results, expected);
        assert_eq!(parsed[2].tool_calls[0].arguments, r#"{"z":1,"a":2}"#);
        assert_eq!((parsed[0].role.as_str(), &*parsed[2].content.text()), ("system", ""));
        assert_eq!(parsed[2].reasoning, "hm");
        assert_eq!(parsed[6].tool_calls[0].arguments, "{}");
    }

    #[test]
    fn errors_name_the_field() {
        for (list, param) in [
            (json!([1]), "messages[0]"),
            (json!([{ "content": "x" }]), "messages[0].role"),
            (json!([{ "role": "user", "content": 1 }]), "messages[0].content"),
            (json!([{ "role": "user", "content": "x", "images": ["aGk="] }]), "messages[0].images"),
            (json!([{ "role": "tool", "content": "x" }]), "messages[0]"),
            (json!([{ "role": "assistant", "tool_calls": 1 }]), "messages[0].tool_calls"),
            (json!([{ "role": "assistant", "tool_calls": [{}] }]), "messages[0].tool_calls[0].function.name"),
            (
                json!([{ "role": "assistant", "tool_calls": [{ "function": { "name": "a", "arguments": "{}" } }] }]),
                "messages[0].tool_calls[0].function.arguments",
            ),
            (
                json!([{ "role": "assistant", "tool_calls": [call("a")] }, { "role": "tool", "tool_name": "b" }]),
                "messages[1]",
            ),
            (json!([{ "role": "assistant", "content": "x", "thinking": 1 }]), "messages[0].thinking"),
        ] {
            assert_eq!(parse(list.clone()).unwrap_err().param_name(), Some(param), "{list}");
        }
    }

    #[test]
    fn a_last_message_of_the_assistant_is_continued() {
        let end = |last: Value| end_of_messages(&parse(json!([{ "role": "user", "content": "x" }, last])).unwrap());
        assert_eq!(end(json!({ "role": "user", "content": "y" })).unwrap(), PromptEnd::NextMessage);
        assert_eq!(end(json!({ "role": "assistant", "content": "{" })).unwrap(), PromptEnd::LastMessageText);
        let error = end(json!({ "role": "assistant", "tool_calls": [call("a")] })).unwrap_err();
        assert_eq!(error.param_name(), Some("messages"));
    }
}
