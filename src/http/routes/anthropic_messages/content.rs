//! The messages of Anthropic's API as those of the engine.
//!
//! A part of a tool's result that is not text becomes a note, because an agent repeats its whole history with each
//! request, so an error would end the session for good.

use std::collections::HashSet;

use serde_json::Value;

use crate::content::{Content, Message, ToolCall};
use crate::display::shorten;
use crate::error::{Error, Result};
use crate::service::validation::json_fields::invalid_field;
use crate::service::validation::message_validation::MAX_MESSAGES;

/// The beginning of a system block that Claude Code adds. It changes with each request, so that no prefix of the prompt could
/// be reused, and tells the model nothing.
const BILLING_HEADER: &str = "x-anthropic-billing-header:";

/// Blocks of an assistant's message that do not reach the model.
const UNSEEN: [&str; 2] = ["redacted_thinking", "server_tool_use"];

/// The system prompt as a message, if there is one.
pub fn system<'a>(system: Option<&'a Value>) -> Result<Vec<Message>> {
    let texts = match system {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::String(text)) => vec![text.as_str()],
        Some(Value::Array(blocks)) => {
            let text = |(index, block): (usize, &'a Value)| match text_of(block) {
                Some(text) => Ok(text),
                None => invalid_field(&format!("system[{index}]"), "must be a block of the type 'text' with a text"),
            };
            blocks.iter().enumerate().map(text).collect::<Result<Vec<_>>>()?
        }
        Some(_) => return invalid_field("system", "must be a string or an array of text blocks"),
    };
    let texts: Vec<&str> = texts.into_iter().filter(|text| !text.starts_with(BILLING_HEADER)).collect();
    let text = texts.join("\n");
    Ok(if text.is_empty() { Vec::new() } else { vec![Message::new("system", text)] })
}

/// Appends the messages of a request.
pub fn append(messages: &[Value], out: &mut Vec<Message>) -> Result<()> {
    match messages.len() {
        0 => return Err(Error::invalid("messages", "'messages' is empty. Send at least one message.")),
        1..=MAX_MESSAGES => {}
        count => {
            let text = format!("messages has {count} entries; at most {MAX_MESSAGES} are allowed.");
            return Err(Error::invalid("messages", text));
        }
    }
    let mut calls = HashSet::new();
    for (index, message) in messages.iter().enumerate() {
        let field = format!("messages[{index}]");
        let blocks = blocks(&field, message)?;
        match message.get("role").and_then(Value::as_str) {
            // Some clients send later system messages in the list.
            Some("user" | "system") => append_user(&field, &blocks, &calls, out)?,
            Some("assistant") => append_assistant(&field, &blocks, &mut calls, out)?,
            _ => return invalid_field(&format!("{field}.role"), "must be 'user' or 'assistant'"),
        }
    }
    Ok(())
}

/// A block of a message, or a text that stands for one.
enum Block<'a> {
    Text(&'a str),
    Typed(&'a str, &'a Value),
}

fn blocks<'a>(field: &str, message: &'a Value) -> Result<Vec<Block<'a>>> {
    let field = format!("{field}.content");
    match message.get("content") {
        Some(Value::String(text)) => Ok(vec![Block::Text(text)]),
        Some(Value::Array(blocks)) => {
            let block = |(index, block): (usize, &'a Value)| match block.get("type").and_then(Value::as_str) {
                Some("text") => match text_of(block) {
                    Some(text) => Ok(Block::Text(text)),
                    None => invalid_field(&format!("{field}[{index}].text"), "must be a string"),
                },
                Some(kind) => Ok(Block::Typed(kind, block)),
                None => invalid_field(&format!("{field}[{index}].type"), "is missing"),
            };
            blocks.iter().enumerate().map(block).collect()
        }
        _ => invalid_field(&field, "must be a string or an array of content blocks"),
    }
}

fn text_of(block: &Value) -> Option<&str> {
    let is_text = block.get("type").and_then(Value::as_str) == Some("text");
    block.get("text").and_then(Value::as_str).filter(|_| is_text)
}

/// Tool results come before the text of the message, as chat templates require.
fn append_user(field: &str, blocks: &[Block<'_>], calls: &HashSet<String>, out: &mut Vec<Message>) -> Result<()> {
    let mut texts: Vec<String> = Vec::new();
    for (index, block) in blocks.iter().enumerate() {
        let field = format!("{field}.content[{index}]");
        match block {
            Block::Text(text) => texts.push((*text).to_owned()),
            Block::Typed("tool_result", block) => out.push(tool_result(&field, block, calls)?),
            Block::Typed(kind, block) => match document_text(block) {
                Some(text) => texts.push(text),
                None => return unsupported(&field, kind, "text, documents with text and tool results"),
            },
        }
    }
    if blocks.is_empty() || !texts.is_empty() {
        append_text("user", &texts.join("\n"), out);
    }
    Ok(())
}

fn append_assistant(
    field: &str,
    blocks: &[Block<'_>],
    calls: &mut HashSet<String>,
    out: &mut Vec<Message>,
) -> Result<()> {
    let (mut reasoning, mut text, mut tool_calls) = (String::new(), String::new(), Vec::new());
    for (index, block) in blocks.iter().enumerate() {
        let field = format!("{field}.content[{index}]");
        match block {
            Block::Text(part) => text.push_str(part),
            Block::Typed("tool_use", block) => {
                let call = tool_call(&field, block)?;
                calls.insert(call.id.clone());
                tool_calls.push(call);
            }
            Block::Typed("thinking", block) => {
                reasoning.push_str(block.get("thinking").and_then(Value::as_str).unwrap_or_default());
            }
            Block::Typed(kind, _) if UNSEEN.contains(kind) || kind.ends_with("_tool_result") => {}
            Block::Typed(kind, _) => return unsupported(&field, kind, "text, thinking and tool_use"),
        }
    }
    append_text("assistant", &text, out);
    if let Some(last) = out.last_mut() {
        last.tool_calls.extend(tool_calls);
        last.reasoning.push_str(&reasoning);
    }
    Ok(())
}

/// Appends a text. Neighbouring messages of a role are one message, as in Anthropic's API: many templates want the roles to
/// alternate.
fn append_text(role: &str, text: &str, out: &mut Vec<Message>) {
    match out.last_mut() {
        Some(Message { role: last, content: Content::Text(before), .. }) if last == role => {
            if !before.is_empty() {
                before.push('\n');
            }
            before.push_str(text);
        }
        _ => out.push(Message::new(role, text)),
    }
}

fn tool_call(field: &str, block: &Value) -> Result<ToolCall> {
    let text = |name: &str| match block.get(name).and_then(Value::as_str) {
        Some(text) if !text.is_empty() => Ok(text.to_owned()),
        _ => invalid_field(&format!("{field}.{name}"), "must be a string that is not empty"),
    };
    match block.get("input") {
        Some(input @ Value::Object(_)) => {
            Ok(ToolCall { id: text("id")?, name: text("name")?, arguments: input.to_string() })
        }
        _ => invalid_field(&format!("{field}.input"), "must be an object"),
    }
}

fn tool_result(field: &str, block: &Value, calls: &HashSet<String>) -> Result<Message> {
    let id = match block.get("tool_use_id").and_then(Value::as_str) {
        Some(id) if calls.contains(id) => id,
        Some(id) => {
            let field = format!("{field}.tool_use_id");
            let text = format!(
                "'{field}' is '{}', but no message before it has a tool_use of this id. Send the assistant's message with the tool_use first.",
                shorten(id)
            );
            return Err(Error::invalid(field, text));
        }
        None => return invalid_field(&format!("{field}.tool_use_id"), "must be the id of a tool_use"),
    };
    let content = match block.get("content") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => parts.iter().map(result_part).collect::<Vec<_>>().join("\n"),
        Some(_) => return invalid_field(&format!("{field}.content"), "must be a string or an array of content blocks"),
    };
    let is_error = block.get("is_error") == Some(&Value::Bool(true));
    let content = if is_error { format!("Error: {content}") } else { content };
    Ok(Message { tool_call_id: Some(id.to_owned()), ..Message::new("tool", content) })
}

/// A part of a tool's result. One that has no text is named, because the client cannot take a result back.
fn result_part(part: &Value) -> String {
    let kind = part.get("type").and_then(Value::as_str).unwrap_or("block");
    let text = text_of(part).map(str::to_owned).or_else(|| document_text(part));
    text.unwrap_or_else(|| format!("[{} left out: the model reads only text]", shorten(kind)))
}

/// The text of a document or of a search result.
fn document_text(block: &Value) -> Option<String> {
    let text = |path: &str| block.pointer(path).and_then(Value::as_str);
    let body = match (text("/type")?, text("/source/type")) {
        ("document", Some("text")) => text("/source/data")?.to_owned(),
        ("document", Some("content")) => joined_texts(block.pointer("/source/content")?)?,
        ("search_result", _) => joined_texts(block.get("content")?)?,
        _ => return None,
    };
    let title = text("/title").map(|title| format!("{title}\n")).unwrap_or_default();
    Some(title + &body)
}

fn joined_texts(content: &Value) -> Option<String> {
    match content {
        Value::String(text) => Some(text.clone()),
        Value::Array(blocks) => Some(blocks.iter().map(text_of).collect::<Option<Vec<_>>>()?.join("\n")),
        _ => None,
    }
}

fn unsupported<T>(field: &str, kind: &str, supported: &str) -> Result<T> {
    invalid_field(&format!("{field}.type"), &format!("is '{}'. This server accepts {supported}", shorten(kind)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::engine::PromptEnd;
    use crate::http::routes::prompt_fields::end_of_messages;

    fn parse(messages: &Value) -> Result<Vec<Message>> {
        let mut out = Vec::new();
        append(messages.as_array().unwrap(), &mut out)?;
        Ok(out)
    }

    #[test]
    fn blocks_become_messages_of_the_engine() {
        let messages = parse(&json!([
            { "role": "user", "content": [
                { "type": "text", "text": "a", "cache_control": { "type": "ephemeral" } }, { "type": "text", "text": "b" },
            ] },
            { "role": "user", "content": "c" },
            { "role": "assistant", "content": [
                { "type": "thinking", "thinking": "hm", "signature": "x" },
                { "type": "text", "text": "I look." },
                { "type": "tool_use", "id": "t1", "name": "read", "input": { "z": 1, "a": [2] } },
                { "type": "tool_use", "id": "t2", "name": "list", "input": {} },
            ] },
            { "role": "user", "content": [
                { "type": "text", "text": "go on" },
                { "type": "tool_result", "tool_use_id": "t1", "content": [
                    { "type": "text", "text": "one" }, { "type": "image", "source": {} },
                ] },
                { "type": "tool_result", "tool_use_id": "t2", "is_error": true, "content": "gone" },
                { "type": "document", "title": "T", "source": { "type": "text", "data": "body" } },
            ] },
        ]))
        .unwrap();
        let call = |id: &str, name: &str, arguments: &str| ToolCall {
            id: id.to_owned(),
            name: name.to_owned(),
            arguments: arguments.to_owned(),
        };
        let tool =
            |id: &str, content: &str| Message { tool_call_id: Some(id.to_owned()), ..Message::new("tool", content) };
        let assistant = Message {
            tool_calls: vec![call("t1", "read", r#"{"z":1,"a":[2]}"#), call("t2", "list", "{}")],
            reasoning: "hm".to_owned(),
            ..Message::new("assistant", "I look.")
        };
        let expected = [
            Message::new("user", "a\nb\nc"),
            assistant,
            tool("t1", "one\n[image left out: the model reads only text]"),
            tool("t2", "Error: gone"),
            Message::new("user", "go on\nT\nbody"),
        ];
        assert_eq!(messages, expected);
    }

    #[test]
    fn a_last_message_of_the_assistant_is_continued() {
        let end = |last: Value| end_of_messages(&parse(&json!([{ "role": "user", "content": "x" }, last])).unwrap());
        assert_eq!(end(json!({ "role": "user", "content": "y" })).unwrap(), PromptEnd::NextMessage);
        assert_eq!(end(json!({ "role": "assistant", "content": "{" })).unwrap(), PromptEnd::LastMessageText);
        let call = json!([{ "type": "tool_use", "id": "t", "name": "n", "input": {} }]);
        for content in [json!(" "), call] {
            let error = end(json!({ "role": "assistant", "content": content })).unwrap_err();
            assert_eq!(error.param_name(), Some("messages"));
        }
    }

    #[test]
    fn the_system_prompt_is_one_text_without_the_billing_header() {
        let blocks = json!([
            { "type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=00000;" },
            { "type": "text", "text": "You are Claude Code." }, { "type": "text", "text": "Be brief." },
        ]);
        assert_eq!(system(Some(&blocks)).unwrap(), [Message::new("system", "You are Claude Code.\nBe brief.")]);
        assert_eq!(system(Some(&json!(""))).unwrap(), []);
        assert_eq!(system(None).unwrap(), []);
        assert!(system(Some(&json!([{ "type": "image" }]))).unwrap_err().message().contains("system[0]"));
    }

    #[test]
    fn errors_name_the_block() {
        let error = |messages: &Value| parse(messages).unwrap_err().param_name().unwrap().to_owned();
        let user = |block: Value| json!([{ "role": "user", "content": [block] }]);
        for (messages, param) in [
            (json!([]), "messages"),
            (json!([{ "role": "tool", "content": "x" }]), "messages[0].role"),
            (json!([{ "role": "user" }]), "messages[0].content"),
            (user(json!({ "text": "x" })), "messages[0].content[0].type"),
            (user(json!({ "type": "text" })), "messages[0].content[0].text"),
            (user(json!({ "type": "image", "source": {} })), "messages[0].content[0].type"),
            (user(json!({ "type": "tool_result", "tool_use_id": "no" })), "messages[0].content[0].tool_use_id"),
            (
                json!([{ "role": "assistant", "content": [{ "type": "tool_use", "id": "a", "name": "b" }] }]),
                "messages[0].content[0].input",
            ),
        ] {
            assert_eq!(error(&messages), param, "{messages}");
        }
    }
}
