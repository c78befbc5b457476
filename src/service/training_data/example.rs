//! A training example: a JSON object with `messages` (a chat with at least one assistant message), `prompt` and
//! `completion`, `text`, or `input`, `preferred_output` and `non_preferred_output`. Other fields are allowed.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use serde::Deserialize;
use serde_json::Value;

use crate::error::Result;
use crate::json_input::{self, InputError};
use crate::service::validation::json_fields::invalid_field;
use crate::service::validation::message_validation::{self, MAX_MESSAGES, UnknownFields};
use crate::service::validation::tool_definitions;

/// Lines from this size on are parsed one at a time: JSON values take up to 16 times the size of their text.
const LARGE_BYTES: usize = 256 << 10;
static LARGE: Mutex<()> = Mutex::new(());

/// The format of a file's lines. The number is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ExampleFormat {
    Messages = 1,
    Completion = 2,
    Text = 3,
    Preference = 4,
}

impl ExampleFormat {
    const ALL: [Self; 4] = [Self::Messages, Self::Completion, Self::Text, Self::Preference];

    pub fn as_str(self) -> &'static str {
        match self {
            ExampleFormat::Messages => "messages",
            ExampleFormat::Completion => "prompt_completion",
            ExampleFormat::Text => "text",
            ExampleFormat::Preference => "preference",
        }
    }

    pub(in crate::service) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|form| *form as u8 == number)
    }

    pub(super) fn fields(self) -> &'static str {
        match self {
            ExampleFormat::Messages => "'messages'",
            ExampleFormat::Completion => "'prompt' and 'completion'",
            ExampleFormat::Text => "'text'",
            ExampleFormat::Preference => "'input', 'preferred_output' and 'non_preferred_output'",
        }
    }
}

/// A validated example. Messages and tools are as in a chat request; messages have only text.
#[derive(Clone, Debug, PartialEq)]
pub enum Example {
    /// Assistant messages may have the `weight` 0: the model does not learn them.
    Messages {
        messages: Vec<Value>,
        tools: Vec<Value>,
    },
    Completion {
        prompt: String,
        completion: String,
    },
    Text(String),
    Preference {
        messages: Vec<Value>,
        tools: Vec<Value>,
        preferred: Vec<Value>,
        non_preferred: Vec<Value>,
    },
}

/// The relevant fields of a line. Others are skipped without being stored.
#[derive(Deserialize)]
struct Line {
    messages: Option<Vec<Value>>,
    tools: Option<Vec<Value>>,
    #[serde(rename = "parallel_tool_calls")]
    _parallel_tool_calls: Option<bool>,
    prompt: Option<String>,
    completion: Option<String>,
    text: Option<String>,
    input: Option<Input>,
    preferred_output: Option<Vec<Value>>,
    non_preferred_output: Option<Vec<Value>>,
}

/// The conversation before a preferred and a non-preferred output.
#[derive(Deserialize)]
struct Input {
    messages: Vec<Value>,
    tools: Option<Vec<Value>>,
    #[serde(rename = "parallel_tool_calls")]
    _parallel_tool_calls: Option<bool>,
}

impl Example {
    /// Parses and validates a line. The error is a clause that names the field.
    pub fn parse(line: &[u8]) -> Result<Self, String> {
        let text = json_input::decode(line).map_err(|problem| format!("it {problem}; save the file as UTF-8"))?;
        if !text.trim_start().starts_with('{') {
            return Err("it is not a JSON object; a line looks like {\"messages\": [...]}".into());
        }
        let _alone = (line.len() >= LARGE_BYTES).then(|| LARGE.lock().unwrap_or_else(PoisonError::into_inner));
        let line = read(text)?;
        let form = line.format()?;
        line.into_example(form).map_err(|error| error.message().trim_end_matches('.').to_owned())
    }

    pub fn format(&self) -> ExampleFormat {
        match self {
            Self::Messages { .. } => ExampleFormat::Messages,
            Self::Completion { .. } => ExampleFormat::Completion,
            Self::Text(_) => ExampleFormat::Text,
            Self::Preference { .. } => ExampleFormat::Preference,
        }
    }
}

fn read(text: &str) -> Result<Line, String> {
    json_input::from_str(text).map_err(|error| match error {
        // A line is one line of the text, so only the column matters.
        InputError::Syntax { problem, column, .. } => format!("it is not valid JSON: {problem} at column {column}"),
        InputError::Value { path, problem } if path.is_empty() => format!("it {}", problem.trim_end_matches('.')),
        InputError::Value { path, problem } => format!("'{path}' {}", problem.trim_end_matches('.')),
    })
}

impl Line {
    fn format(&self) -> Result<ExampleFormat, String> {
        let preference = self.input.is_some() || self.preferred_output.is_some() || self.non_preferred_output.is_some();
        let has_fields = |form: &ExampleFormat| match form {
            ExampleFormat::Messages => self.messages.is_some(),
            ExampleFormat::Completion => self.prompt.is_some() || self.completion.is_some(),
            ExampleFormat::Text => self.text.is_some(),
            ExampleFormat::Preference => preference,
        };
        let mut given = ExampleFormat::ALL.into_iter().filter(has_fields);
        match (given.next(), given.next()) {
            (Some(one), Some(other)) => {
                Err(format!("it has {} and {}; send one of them", one.fields(), other.fields()))
            }
            (Some(form), None) => Ok(form),
            (None, _) => {
                let fields = ExampleFormat::ALL.map(ExampleFormat::fields).join(", nor ");
                Err(format!("it has neither {fields}"))
            }
        }
    }

    fn into_example(self, form: ExampleFormat) -> Result<Example> {
        match form {
            ExampleFormat::Messages => {
                let (messages, tools) = (self.messages.unwrap_or_default(), self.tools.unwrap_or_default());
                check_chat("", &messages, &tools)?;
                check_trained(&messages)?;
                Ok(Example::Messages { messages, tools })
            }
            ExampleFormat::Completion => {
                let Some(prompt) = self.prompt else {
                    return invalid_field("prompt", "is missing; 'completion' requires it");
                };
                Ok(Example::Completion { prompt, completion: filled("completion", self.completion)? })
            }
            ExampleFormat::Text => Ok(Example::Text(filled("text", self.text)?)),
            ExampleFormat::Preference => {
                let Some(Input { messages, tools, .. }) = self.input else {
                    return invalid_field("input", "is missing");
                };
                let tools = tools.unwrap_or_default();
                check_chat("input.", &messages, &tools)?;
                no_weights("input.messages", &messages)?;
                if messages.is_empty() {
                    return invalid_field("input.messages", "is empty; it needs the messages before the outputs");
                }
                let preferred = output("preferred_output", self.preferred_output, &messages)?;
                let non_preferred = output("non_preferred_output", self.non_preferred_output, &messages)?;
                Ok(Example::Preference { messages, tools, preferred, non_preferred })
            }
        }
    }
}

fn filled(field: &str, text: Option<String>) -> Result<String> {
    match text {
        None => invalid_field(field, "is missing"),
        Some(text) if text.is_empty() => invalid_field(field, "is empty; there is nothing to learn from it"),
        Some(text) => Ok(text),
    }
}

/// Checks the fields `messages` and `tools` of the object at `path`.
fn check_chat(path: &str, messages: &[Value], tools: &[Value]) -> Result<()> {
    check_messages(&format!("{path}messages"), messages, HashSet::new())?;
    tool_definitions::check_list(&format!("{path}tools"), tools)
}

/// Checks messages of text. `calls`: the IDs of the tool calls before them.
fn check_messages<'a>(field: &str, messages: &'a [Value], mut calls: HashSet<&'a str>) -> Result<()> {
    if messages.len() > MAX_MESSAGES {
        return invalid_field(field, &format!("has {} entries; at most {MAX_MESSAGES} are allowed", messages.len()));
    }
    for (index, message) in messages.iter().enumerate() {
        let field = format!("{field}[{index}]");
        message_validation::check(&field, message, UnknownFields::Ignore)?;
        check_content(&format!("{field}.content"), message)?;
        check_weight(&format!("{field}.weight"), message)?;
        calls.extend(call_ids(message));
        if let Some(id) = message.get("tool_call_id").and_then(Value::as_str).filter(|id| !calls.contains(id)) {
            let text = format!("is '{}', but no message before it has a call of this id", crate::display::shorten(id));
            return invalid_field(&format!("{field}.tool_call_id"), &text);
        }
    }
    Ok(())
}

fn call_ids(message: &Value) -> impl Iterator<Item = &str> {
    let calls = message.get("tool_calls").and_then(Value::as_array).into_iter().flatten();
    calls.filter_map(|call| call.get("id")?.as_str())
}

/// Checks that a validated message has text or tool calls, and nothing else.
fn check_content(field: &str, message: &Value) -> Result<()> {
    match message.get("content") {
        Some(Value::Array(parts)) => {
            let kind = |part: &Value| part.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
            match parts.iter().map(kind).enumerate().find(|(_, kind)| kind != "text") {
                None => Ok(()),
                Some((index, kind)) => invalid_field(
                    &format!("{field}[{index}]"),
                    &format!("is of type '{kind}'; only {{\"type\": \"text\", \"text\": …}} is taken"),
                ),
            }
        }
        None | Some(Value::Null) if call_ids(message).next().is_none() => {
            invalid_field(field, "is missing; it is a string or an array of text parts")
        }
        _ => Ok(()),
    }
}

fn is_assistant(message: &Value) -> bool {
    message.get("role").and_then(Value::as_str) == Some("assistant")
}

fn check_weight(field: &str, message: &Value) -> Result<()> {
    match message.get("weight") {
        None | Some(Value::Null) => Ok(()),
        Some(_) if !is_assistant(message) => invalid_field(field, "belongs to messages of the role assistant only"),
        Some(weight) if [Some(0.), Some(1.)].contains(&weight.as_f64()) => Ok(()),
        Some(_) => invalid_field(field, "must be 0 or 1"),
    }
}

/// Whether the model learns this message of an [`Example::Messages`].
pub fn is_trained(message: &Value) -> bool {
    is_assistant(message) && message.get("weight").and_then(Value::as_f64) != Some(0.)
}

/// Checks that the model can learn from the messages.
fn check_trained(messages: &[Value]) -> Result<()> {
    if messages.first().is_some_and(is_trained) {
        let text =
            "has the role 'assistant', but no message is before it; begin with another message, or add \"weight\": 0";
        return invalid_field("messages[0]", text);
    }
    if messages.iter().any(is_trained) {
        return Ok(());
    }
    match messages.iter().any(is_assistant) {
        true => {
            invalid_field("messages", "has only assistant messages of the weight 0; there is nothing to learn from it")
        }
        false => invalid_field("messages", "has no message of the role 'assistant'; there is nothing to learn from it"),
    }
}

fn no_weights(field: &str, messages: &[Value]) -> Result<()> {
    match messages.iter().position(|message| message.get("weight").is_some_and(|weight| !weight.is_null())) {
        None => Ok(()),
        Some(index) => invalid_field(&format!("{field}[{index}].weight"), "belongs to examples with 'messages' only"),
    }
}

/// Checks an output: assistant messages, and results of their tool calls. `input`: the messages before it.
fn output(field: &str, messages: Option<Vec<Value>>, input: &[Value]) -> Result<Vec<Value>> {
    let Some(messages) = messages else { return invalid_field(field, "is missing") };
    check_messages(field, &messages, input.iter().flat_map(call_ids).collect())?;
    no_weights(field, &messages)?;
    let is_result = |message: &Value| message.get("role").and_then(Value::as_str) == Some("tool");
    if let Some(index) = messages.iter().position(|message| !is_assistant(message) && !is_result(message)) {
        return invalid_field(
            &format!("{field}[{index}].role"),
            "must be 'assistant', or 'tool' for the result of a call",
        );
    }
    match messages.last().is_some_and(is_assistant) {
        true => Ok(messages),
        false => invalid_field(field, "must end with a message of the role 'assistant'"),
    }
}
