//! What a request demands of the form of its answer, and what an answer's calls become.

use serde_json::{Map, Value, json};

use crate::clock_rng::ClockRng;
use crate::display::shorten;
use crate::engine::{CallPiece, Calling, GrammarError, Shape, Text, Tool};
use crate::error::{Error, Result};
use crate::service::tools;

/// As the request says it; `http` has checked the form of each field.
#[derive(Debug, Default)]
pub struct Demand {
    pub text: Text,
    /// A JSON array of tool definitions, as text. `None`: the agent's, if there is one.
    pub tools: Option<String>,
    pub choice: Choice,
    pub parallel: bool,
}

/// `tool_choice`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    #[default]
    Auto,
    None,
    Required,
    Named(String),
}

/// A demand with its tools found.
pub(super) struct Demanded {
    pub shape: Shape,
    /// Whether the tools are the agent's.
    borrowed: bool,
}

impl Demand {
    /// `agents`: the agent's tools.
    pub(super) fn resolve(self, agents: Option<String>) -> Result<Demanded> {
        let own = self.tools.as_deref().map(tools::read).transpose()?;
        let borrowed = own.is_none();
        let listed = match own {
            Some(own) => own,
            None => agents.as_deref().map(tools::read).transpose()?.unwrap_or_default(),
        };
        let calling = calling(&self.choice, &listed)?;
        let told = if self.choice == Choice::None { Vec::new() } else { listed };
        let tools = told.into_iter().map(tool).collect();
        Ok(Demanded { shape: Shape { text: self.text, tools, calling, parallel: self.parallel }, borrowed })
    }
}

fn calling(choice: &Choice, tools: &[Value]) -> Result<Calling> {
    let name = match choice {
        Choice::Auto | Choice::None => return Ok(Calling::Auto),
        _ if tools.is_empty() => {
            let text = "'tool_choice' demands a call, but there are no tools. Send 'tools' beside it, or leave it out.";
            return Err(Error::invalid("tool_choice", text));
        }
        Choice::Required => return Ok(Calling::Required),
        Choice::Named(name) => name,
    };
    if tools.iter().any(|tool| tool.pointer("/function/name").and_then(Value::as_str) == Some(name)) {
        return Ok(Calling::Named(name.clone()));
    }
    let field = "tool_choice.function.name";
    let name = shorten(name);
    Err(Error::invalid(field, format!("'{field}' is '{name}', which is the name of none of the tools.")))
}

/// A checked definition in the shape that templates take: every one has parameters.
fn tool(given: Value) -> Tool {
    let mut function = given.get("function").and_then(Value::as_object).cloned().unwrap_or_default();
    let name = function.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    function.retain(|name, value| name != "strict" && !value.is_null());
    function.entry("parameters").or_insert_with(no_parameters);
    Tool { name, definition: json!({ "type": "function", "function": Value::Object(function) }) }
}

/// OpenAI: a function without parameters takes none.
fn no_parameters() -> Value {
    json!({ "type": "object", "properties": Map::new(), "additionalProperties": false })
}

impl Demanded {
    /// What a caller is told of a form that cannot be enforced.
    pub fn refuse(&self, error: GrammarError) -> Error {
        match error {
            GrammarError::Schema { path, what } => {
                let field = format!("response_format.json_schema.schema{path}");
                let text = format!("'{field}' {what}.");
                Error::invalid(field, text)
            }
            GrammarError::Tool { tool, path, what } if self.borrowed => {
                let name = self.shape.tools.get(tool).map_or("", |tool| tool.name.as_str());
                Error::invalid("agent_id", format!("The agent's tool '{name}' has parameters{path} that {what}."))
            }
            GrammarError::Tool { tool, path, what } => {
                let field = format!("tools[{tool}].function.parameters{path}");
                let text = format!("'{field}' {what}.");
                Error::invalid(field, text)
            }
            GrammarError::Together(text) => Error::invalid(self.culprit(), text),
            GrammarError::Model(reason) => Error::internal(reason),
        }
    }

    fn culprit(&self) -> &'static str {
        match (&self.shape.text, self.borrowed) {
            (Text::Schema(_), _) => "response_format.json_schema.schema",
            (Text::Object, _) => "response_format",
            (Text::Free, true) => "agent_id",
            (Text::Free, false) => "tools",
        }
    }
}

/// A call of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Called {
    pub name: String,
    /// JSON, as text.
    pub arguments: String,
}

/// Adds to the calls of one answer what a step made of them.
pub(super) fn add(calls: &mut Vec<Called>, pieces: &[CallPiece]) {
    for piece in pieces {
        if let Some(name) = &piece.name {
            calls.push(Called { name: name.clone(), arguments: String::new() });
        }
        if let Some(call) = calls.get_mut(piece.index as usize) {
            call.arguments.push_str(&piece.arguments);
        }
    }
}

/// The ids of the calls of one request's answers: numbers in a row from a random one on.
#[derive(Clone, Copy, Debug)]
pub struct CallIds(u128);

impl CallIds {
    pub(super) fn new(clock_rng: &dyn ClockRng) -> Self {
        let mut bytes = [0; 16];
        clock_rng.fill(&mut bytes);
        Self(u128::from_be_bytes(bytes))
    }

    /// The id of one call of one choice.
    pub fn of(self, choice: u32, index: u32) -> String {
        let place = (u128::from(choice) << 32) + u128::from(index);
        format!("call_{:032x}", self.0.wrapping_add(place))
    }
}
