//! Conversations with tools, as templates take them.
//!
//! A template that knows tools gets them in the shape that Hugging Face's library hands over. For one
//! that does not, tools, calls and results are put into words, in the form of Hermes.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::format::Format;
use super::{Tool, ToolCall};
use crate::engine::text::message::Message;

/// How a model is told of tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wording {
    /// By its own template.
    Native(Format),
    /// By a system message.
    Described,
}

impl Wording {
    pub fn of(template: &str) -> Self {
        Format::detect(template).map_or(Self::Described, Self::Native)
    }

    /// How the model will write its calls.
    pub fn format(self) -> Format {
        match self {
            Self::Native(format) => format,
            Self::Described => Format::Hermes,
        }
    }

    /// The messages and tools that the template is given. `merged`: instructions of this server's go
    /// into the user's first message, for templates that take no system message.
    pub fn arrange(self, messages: &[Message], tools: &[Tool], merged: bool) -> (Vec<Value>, Vec<Value>) {
        match self {
            Self::Native(format) => {
                (native(messages, format), tools.iter().map(|tool| tool.definition.clone()).collect())
            }
            Self::Described => (described(messages, tools, merged).iter().map(plain).collect(), Vec::new()),
        }
    }
}

fn plain(message: &Message) -> Value {
    let mut value = json!({ "role": message.role, "content": message.content });
    if let (Some(fields), Some(name)) = (value.as_object_mut(), &message.name) {
        fields.insert("name".to_owned(), json!(name));
    }
    value
}

/// Calls with their arguments as objects; results with the name of what was called.
fn native(messages: &[Message], format: Format) -> Vec<Value> {
    let mut ids = Ids { short: format == Format::Mistral, seen: HashMap::new() };
    let mut names: HashMap<&str, &str> = HashMap::new();
    let mut all = Vec::with_capacity(messages.len());
    for message in messages {
        let Message { tool_calls, tool_call_id, .. } = message;
        let mut value = plain(message);
        let Some(fields) = value.as_object_mut() else { continue };
        if !tool_calls.is_empty() {
            names.extend(tool_calls.iter().map(|call| (call.id.as_str(), call.name.as_str())));
            let calls: Vec<Value> = tool_calls.iter().map(|call| called(call, &ids.of(&call.id))).collect();
            fields.insert("tool_calls".to_owned(), json!(calls));
        }
        if let Some(id) = tool_call_id {
            fields.insert("tool_call_id".to_owned(), json!(ids.of(id)));
            if let Some(name) = names.get(id.as_str()) {
                fields.entry("name").or_insert_with(|| json!(name));
            }
        }
        all.push(value);
    }
    all
}

fn called(call: &ToolCall, id: &str) -> Value {
    let function = json!({ "name": call.name, "arguments": arguments(call) });
    json!({ "id": id, "type": "function", "function": function })
}

/// The arguments as a value; those that are no JSON stay the text that they are.
fn arguments(call: &ToolCall) -> Value {
    match call.arguments.trim() {
        "" => json!({}),
        text => serde_json::from_str(text).unwrap_or_else(|_| json!(call.arguments)),
    }
}

/// Ids of calls. Mistral's templates take nine letters and digits and nothing else.
struct Ids<'a> {
    short: bool,
    seen: HashMap<&'a str, String>,
}

impl<'a> Ids<'a> {
    fn of(&mut self, id: &'a str) -> String {
        let fits = id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !self.short || fits {
            return id.to_owned();
        }
        let next = self.seen.len();
        self.seen.entry(id).or_insert_with(|| format!("call{next:05}")).clone()
    }
}

/// The same conversation in plain messages.
fn described(messages: &[Message], tools: &[Tool], merged: bool) -> Vec<Message> {
    let mut out: Vec<Message> = Vec::with_capacity(messages.len() + 1);
    for message in messages {
        match out.last_mut() {
            // The results of several calls are one turn.
            Some(last) if message.role == "tool" && last.tool_call_id.is_some() => {
                last.content.push('\n');
                last.content.push_str(&result(message));
            }
            _ if message.role == "tool" => {
                let tool_call_id = message.tool_call_id.clone();
                out.push(Message { tool_call_id, ..Message::new("user", result(message)) });
            }
            _ => out.push(Message { content: said(message), tool_calls: Vec::new(), ..message.clone() }),
        }
    }
    if !tools.is_empty() {
        instruct(&mut out, &instructions(tools), merged);
    }
    out
}

fn result(message: &Message) -> String {
    format!("<tool_response>\n{}\n</tool_response>", message.content)
}

/// What an assistant said, calls and all.
fn said(message: &Message) -> String {
    let call = |call: &ToolCall| {
        let arguments = spaced(&arguments(call));
        format!("<tool_call>\n{}{arguments}{}", Format::Hermes.head(&call.name), Format::Hermes.tail())
    };
    let text = Some(message.content.clone()).filter(|text| !text.is_empty() || message.tool_calls.is_empty());
    text.into_iter().chain(message.tool_calls.iter().map(call)).collect::<Vec<_>>().join("\n")
}

fn instructions(tools: &[Tool]) -> String {
    let list: Vec<String> = tools.iter().map(|tool| spaced(&tool.definition)).collect();
    format!(
        "You can call functions. These are the functions, one JSON object a line:\n<tools>\n{}\n</tools>\n\
        To call one, write nothing but its name and its arguments as JSON between tags, like this:\n\
        <tool_call>\n{{\"name\": \"the function's name\", \"arguments\": {{\"an argument\": \"its value\"}}}}\n</tool_call>\n\
        The result comes in a message between <tool_response> tags.",
        list.join("\n")
    )
}

fn instruct(messages: &mut Vec<Message>, text: &str, merged: bool) {
    let role = if merged { "user" } else { "system" };
    match messages.iter_mut().find(|message| message.role == role) {
        Some(first) if merged => first.content = format!("{text}\n\n{}", first.content),
        Some(first) => first.content = format!("{}\n\n{text}", first.content),
        None => messages.insert(0, Message::new(role, text.to_owned())),
    }
}

/// JSON as it stands in what models were trained on.
fn spaced(value: &Value) -> String {
    crate::engine::text::chat_template::spaced_json(value).unwrap_or_default()
}
