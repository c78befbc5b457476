//! Conversations with tools, as input for chat templates.
//!
//! A template that supports tools gets them in the layout of Hugging Face's transformers. For other templates, tools,
//! calls and results are described in messages, in the Hermes format.

use std::borrow::Cow;
use std::collections::HashMap;

use serde_json::{Value, json};

use super::format::{ArgumentStyle, CallFormat};
use super::{Tool, harmony_messages, literals, parameters};
use outpost_content::{Message, ToolCall};

/// How tools are described to a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolPromptStyle {
    /// By its own chat template.
    Native(NativeTools),
    /// By a system message.
    Described,
}

/// What a chat template does with calls and results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NativeTools {
    format: CallFormat,
    /// Whether it writes the calls of earlier messages. If not, they become a part of the message's text: LFM2's and
    /// Granite 3's templates write only texts.
    writes_calls: bool,
    /// The role that it expects for results.
    result_role: &'static str,
    reasoning: ReasoningPlace,
}

/// Where a chat template expects the reasoning of earlier messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReasoningPlace {
    Field(&'static str),
    /// In a part of the content (Mistral).
    Content,
}

impl ReasoningPlace {
    /// The field of most templates.
    const USUAL: Self = Self::Field("reasoning_content");

    fn of(template: &str) -> Self {
        if template.contains("[THINK]") && template.contains("['type'] == 'thinking'") {
            Self::Content
        } else if template.contains("message.thinking") && !template.contains("reasoning_content") {
            // gpt-oss.
            Self::Field("thinking")
        } else {
            Self::USUAL
        }
    }
}

impl ToolPromptStyle {
    pub fn of(template: &str) -> Self {
        let native = |format| NativeTools {
            format,
            writes_calls: template.contains("tool_calls"),
            // Granite 3.0.
            result_role: if template.contains("== 'tool_response'") { "tool_response" } else { "tool" },
            reasoning: ReasoningPlace::of(template),
        };
        CallFormat::detect(template).map_or(Self::Described, |format| Self::Native(native(format)))
    }

    /// The format in which the model will write its calls.
    pub fn format(self) -> CallFormat {
        match self {
            Self::Native(native) => native.format,
            Self::Described => CallFormat::Hermes,
        }
    }

    /// The value of one of the template's variables for the one of a request.
    pub fn variable(self, name: &str, value: Value) -> Value {
        match &value {
            Value::String(level) if name == "reasoning_effort" && self.format() == CallFormat::Harmony => {
                harmony_messages::effort(level).into()
            }
            _ => value,
        }
    }

    /// The messages and tools to pass to the template. `in_user_message`: the server's instructions go into the first
    /// user message, for templates without system messages. `protect` escapes the special tokens in a text.
    pub fn template_input(
        self,
        messages: &[Message],
        tools: &[Tool],
        in_user_message: bool,
        protect: &dyn Fn(&str) -> String,
    ) -> (Vec<Value>, Vec<Value>) {
        match self {
            Self::Native(native) => {
                let definition = |tool: &Tool| match native.format {
                    CallFormat::Harmony => harmony_messages::described(tool.definition.clone()),
                    _ => tool.definition.clone(),
                };
                let tools = tools.iter().map(|tool| protected(definition(tool), protect));
                (native.messages(messages, protect), tools.collect())
            }
            Self::Described => {
                let messages = described_messages(messages, tools, in_user_message);
                (
                    messages
                        .iter()
                        .map(|message| protected(plain_value(message, ReasoningPlace::USUAL), protect))
                        .collect(),
                    Vec::new(),
                )
            }
        }
    }
}

/// The value with all its strings protected, including field names.
pub fn protected(value: Value, protect: &dyn Fn(&str) -> String) -> Value {
    match value {
        Value::String(text) => Value::String(protect(&text)),
        Value::Array(all) => all.into_iter().map(|one| protected(one, protect)).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(name, one)| (protect(&name), protected(one, protect))).collect()
        }
        plain => plain,
    }
}

fn plain_value(message: &Message, place: ReasoningPlace) -> Value {
    let text = message.content.text();
    let mut value = json!({ "role": message.role, "content": text });
    if let Some(fields) = value.as_object_mut() {
        if let Some(name) = &message.name {
            fields.insert("name".to_owned(), json!(name));
        }
        match place {
            _ if message.reasoning.is_empty() => {}
            ReasoningPlace::Field(name) => {
                fields.insert(name.to_owned(), json!(message.reasoning));
            }
            ReasoningPlace::Content => {
                let thinking = json!({ "type": "thinking", "thinking": message.reasoning });
                let text = (!text.is_empty()).then(|| json!({ "type": "text", "text": text }));
                let parts: Vec<Value> = [thinking].into_iter().chain(text).collect();
                fields.insert("content".to_owned(), json!(parts));
            }
        }
    }
    value
}

impl NativeTools {
    /// Calls get their arguments as objects; results get the name of the called tool.
    fn messages(self, messages: &[Message], protect: &dyn Fn(&str) -> String) -> Vec<Value> {
        let messages = match self.format {
            CallFormat::Harmony => harmony_messages::arranged(messages),
            _ => messages.iter().map(Cow::Borrowed).collect(),
        };
        let is_mistral = matches!(self.format, CallFormat::Mistral | CallFormat::MistralArgs);
        let mut ids = CallIds { short: is_mistral, seen: HashMap::new() };
        let mut names: HashMap<&str, &str> = HashMap::new();
        let mut all = Vec::with_capacity(messages.len());
        for message in messages.iter().map(Cow::as_ref) {
            let Message { tool_calls, tool_call_id, .. } = message;
            let mut value = plain_value(message, self.reasoning);
            let Some(fields) = value.as_object_mut() else { continue };
            names.extend(tool_calls.iter().map(|call| (call.id.as_str(), call.name.as_str())));
            if !tool_calls.is_empty() && self.writes_calls {
                let calls: Vec<Value> = tool_calls.iter().map(|call| call_value(call, &ids.of(&call.id))).collect();
                fields.insert("tool_calls".to_owned(), json!(calls));
            }
            if message.role == "tool" {
                fields.insert("role".to_owned(), json!(self.result_role));
            }
            if let Some(id) = tool_call_id {
                fields.insert("tool_call_id".to_owned(), json!(ids.of(id)));
                if let Some(name) = names.get(id.as_str()) {
                    fields.entry("name").or_insert_with(|| json!(name));
                }
            }
            let mut value = protected(value, protect);
            if !tool_calls.is_empty() && !self.writes_calls {
                let text = protect(&message.content.text()) + &written_calls(self.format, tool_calls, protect);
                value["content"] = Value::String(text);
            }
            all.push(value);
        }
        all
    }
}

fn call_value(call: &ToolCall, id: &str) -> Value {
    let function = json!({ "name": call.name, "arguments": call.arguments_value() });
    json!({ "id": id, "type": "function", "function": function })
}

/// Calls as the model writes them. Only their names and arguments are protected, as the markers may be special tokens.
fn written_calls(format: CallFormat, calls: &[ToolCall], protect: &dyn Fn(&str) -> String) -> String {
    let notation = format.notation();
    let written = |call: &ToolCall| {
        let arguments = call.arguments_value();
        let arguments = match notation.arguments {
            ArgumentStyle::Json => to_json(&arguments),
            ArgumentStyle::Tagged(tags) => parameters::written(&arguments, tags),
            ArgumentStyle::Python => literals::arguments(&arguments),
            ArgumentStyle::Gemma => literals::gemma_arguments(&arguments),
        };
        notation.head(&protect(&call.name)) + &protect(&arguments) + notation.tail
    };
    let calls: Vec<String> = calls.iter().map(written).collect();
    let opening = notation.openings.first().copied().unwrap_or_default();
    [opening, notation.lead, &calls.join(notation.separator.unwrap_or("\n")), notation.closing].concat()
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
    let text = message.content.text().into_owned();
    if message.tool_calls.is_empty() {
        return text;
    }
    let calls = written_calls(CallFormat::Hermes, &message.tool_calls, &str::to_owned);
    if text.is_empty() { calls } else { format!("{text}\n{calls}") }
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
