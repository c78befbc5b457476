//! Conversations with tools, as input for chat templates.
//!
//! A template that supports tools gets them in the layout of Hugging Face's transformers. For other templates, tools,
//! calls and results are described in messages, in the Hermes format.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::Tool;
use super::format::CallFormat;
use outpost_content::{Message, ToolCall};

/// How tools are described to a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolPromptStyle {
    /// By its own chat template.
    Native(CallFormat),
    /// By a system message.
    Described,
}

impl ToolPromptStyle {
    pub fn of(template: &str) -> Self {
        CallFormat::detect(template).map_or(Self::Described, Self::Native)
    }

    /// The format in which the model will write its calls.
    pub fn format(self) -> CallFormat {
        match self {
            Self::Native(format) => format,
            Self::Described => CallFormat::Hermes,
        }
    }

    /// The messages and tools to pass to the template. `in_user_message`: the server's instructions go into the first
    /// user message, for templates without system messages.
    pub fn template_input(
        self,
        messages: &[Message],
        tools: &[Tool],
        in_user_message: bool,
    ) -> (Vec<Value>, Vec<Value>) {
        match self {
            Self::Native(format) => {
                (native_messages(messages, format), tools.iter().map(|tool| tool.definition.clone()).collect())
            }
            Self::Described => {
                (described_messages(messages, tools, in_user_message).iter().map(plain_value).collect(), Vec::new())
            }
        }
    }
}

fn plain_value(message: &Message) -> Value {
    let mut value = json!({ "role": message.role, "content": message.content.text() });
    if let Some(fields) = value.as_object_mut() {
        if let Some(name) = &message.name {
            fields.insert("name".to_owned(), json!(name));
        }
        if !message.reasoning.is_empty() {
            fields.insert("reasoning_content".to_owned(), json!(message.reasoning));
        }
    }
    value
}

/// Calls get their arguments as objects; results get the name of the called tool.
fn native_messages(messages: &[Message], format: CallFormat) -> Vec<Value> {
    let mut ids = CallIds { short: format == CallFormat::Mistral, seen: HashMap::new() };
    let mut names: HashMap<&str, &str> = HashMap::new();
    let mut all = Vec::with_capacity(messages.len());
    for message in messages {
        let Message { tool_calls, tool_call_id, .. } = message;
        let mut value = plain_value(message);
        let Some(fields) = value.as_object_mut() else { continue };
        if !tool_calls.is_empty() {
            names.extend(tool_calls.iter().map(|call| (call.id.as_str(), call.name.as_str())));
            let calls: Vec<Value> = tool_calls.iter().map(|call| call_value(call, &ids.of(&call.id))).collect();
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

fn call_value(call: &ToolCall, id: &str) -> Value {
    let function = json!({ "name": call.name, "arguments": call.arguments_value() });
    json!({ "id": id, "type": "function", "function": function })
}

/// Call IDs for the template. Mistral's templates accept only nine alphanumeric characters.
struct CallIds<'a> {
    short: bool,
    seen: HashMap<&'a str, String>,
}

impl<'a> CallIds<'a> {
    fn of(&mut self, id: &'a str) -> String {
        let fits = id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !self.short || fits {
            return id.to_owned();
        }
        let next = self.seen.len();
        self.seen.entry(id).or_insert_with(|| format!("call{next:05}")).clone()
    }
}

/// The conversation with tools, calls and results written as plain messages.
fn described_messages(messages: &[Message], tools: &[Tool], in_user_message: bool) -> Vec<Message> {
    let mut out: Vec<Message> = Vec::with_capacity(messages.len() + 1);
    for message in messages {
        match out.last_mut() {
            // The results of parallel calls are one turn.
            Some(last) if message.role == "tool" && last.tool_call_id.is_some() => {
                last.content.append(tool_response(message).into());
            }
            _ if message.role == "tool" => {
                let tool_call_id = message.tool_call_id.clone();
                out.push(Message { tool_call_id, ..Message::new("user", tool_response(message)) });
            }
            _ => out.push(Message {
                content: assistant_content(message).into(),
                tool_calls: Vec::new(),
                ..message.clone()
            }),
        }
    }
    if !tools.is_empty() {
        add_instructions(&mut out, &instructions(tools), in_user_message);
    }
    out
}

fn tool_response(message: &Message) -> String {
    format!("<tool_response>\n{}\n</tool_response>", message.content.text())
}

/// The content of an assistant message, with its calls as text.
fn assistant_content(message: &Message) -> String {
    let hermes = CallFormat::Hermes.notation();
    let call = |call: &ToolCall| {
        let arguments = to_json(&call.arguments_value());
        format!("<tool_call>\n{}{arguments}{}", hermes.head(&call.name), hermes.tail)
    };
    let text = Some(message.content.text().into_owned());
    let text = text.filter(|text| !text.is_empty() || message.tool_calls.is_empty());
    text.into_iter().chain(message.tool_calls.iter().map(call)).collect::<Vec<_>>().join("\n")
}

fn instructions(tools: &[Tool]) -> String {
    let list: Vec<String> = tools.iter().map(|tool| to_json(&tool.definition)).collect();
    format!(
        "You can call functions. These are the functions, one JSON object a line:\n<tools>\n{}\n</tools>\n\
        To call one, write nothing but its name and its arguments as JSON between tags, like this:\n\
        <tool_call>\n{{\"name\": \"the function's name\", \"arguments\": {{\"an argument\": \"its value\"}}}}\n</tool_call>\n\
        The result comes in a message between <tool_response> tags.",
        list.join("\n")
    )
}

fn add_instructions(messages: &mut Vec<Message>, text: &str, in_user_message: bool) {
    let role = if in_user_message { "user" } else { "system" };
    match messages.iter_mut().find(|message| message.role == role) {
        Some(first) if in_user_message => first.content = format!("{text}\n\n{}", first.content.text()).into(),
        Some(first) => first.content = format!("{}\n\n{text}", first.content.text()).into(),
        None => messages.insert(0, Message::new(role, text.to_owned())),
    }
}

/// JSON with the spacing that models were trained on.
fn to_json(value: &Value) -> String {
    crate::text::chat_template::spaced_json(value).unwrap_or_default()
}
