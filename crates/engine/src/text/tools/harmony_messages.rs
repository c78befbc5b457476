//! Conversations as the chat template of gpt-oss expects them.
//!
//! The template writes only the first call of a message, takes the name of a result's function from the call before it, drops
//! system messages after the first message, and refuses a message with reasoning, text and calls. So each call becomes a
//! message of its own with its result after it, system messages are joined, and a text before calls follows the reasoning:
//! the template writes it as reasoning in any case.

use std::borrow::Cow;
use std::collections::VecDeque;

use serde_json::{Value, json};

use outpost_content::{Message, ToolCall};

/// The messages, reordered and split.
pub fn arranged(messages: &[Message]) -> Vec<Cow<'_, Message>> {
    let mut out: Vec<Cow<'_, Message>> = Vec::with_capacity(messages.len());
    out.extend(instructions(messages));
    let mut rest = messages.iter().filter(|message| message.role != "system").peekable();
    while let Some(message) = rest.next() {
        if message.tool_calls.is_empty() {
            out.push(Cow::Borrowed(message));
            continue;
        }
        let mut results: VecDeque<&Message> = VecDeque::new();
        while let Some(result) = rest.next_if(|message| message.role == "tool") {
            results.push_back(result);
        }
        for (index, call) in message.tool_calls.iter().enumerate() {
            out.push(Cow::Owned(with_call(message, index, call)));
            let answers = |result: &&Message| result.tool_call_id.as_ref() == Some(&call.id);
            let found = results.iter().position(answers).and_then(|at| results.remove(at));
            out.extend(found.map(Cow::Borrowed));
        }
        out.extend(results.into_iter().map(Cow::Borrowed));
    }
    out
}

/// All system messages as one.
fn instructions(messages: &[Message]) -> Option<Cow<'_, Message>> {
    let mut all = messages.iter().filter(|message| message.role == "system");
    let first = all.next()?;
    let more: Vec<Cow<'_, str>> = all.map(|message| message.content.text()).collect();
    if more.is_empty() {
        return Some(Cow::Borrowed(first));
    }
    let texts: Vec<Cow<'_, str>> = [first.content.text()].into_iter().chain(more).collect();
    Some(Cow::Owned(Message { content: texts.join("\n\n").into(), ..first.clone() }))
}

/// A message with one of its calls. The first one has the reasoning, too.
fn with_call(message: &Message, index: usize, call: &ToolCall) -> Message {
    let text = message.content.text();
    let parts = [message.reasoning.as_str(), &text].into_iter().filter(|part| index == 0 && !part.is_empty());
    Message {
        role: message.role.clone(),
        reasoning: parts.collect::<Vec<_>>().join("\n\n"),
        name: message.name.clone(),
        tool_calls: vec![call.clone()],
        tool_call_id: message.tool_call_id.clone(),
        ..Message::default()
    }
}

/// The definition of a tool as the template expects it, which always has a description.
pub fn described(mut definition: Value) -> Value {
    if let Some(function) = definition.get_mut("function").and_then(Value::as_object_mut) {
        function.entry("description").or_insert_with(|| json!(""));
    }
    definition
}

/// The level of reasoning that the model knows for one of those that requests may have.
pub fn effort(level: &str) -> &str {
    match level {
        "none" | "minimal" => "low",
        "xhigh" | "max" => "high",
        other => other,
    }
}
