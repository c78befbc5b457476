//! The requested output format and tools, and the tool calls of a completion.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::calls::output_format::custom_tools;
use crate::calls::text::dialect::Dialect;
use crate::clock_rng::ClockRng;
use crate::display::shorten;
use crate::engine::{CallMode, CompiledGrammar, GrammarError, OutputSpec, TextFormat, TextModel, Tool, Unenforced};
use crate::error::{Error, Result};
use crate::service::validation::tool_definitions;

/// The output fields of a request; `http` has validated each field on its own.
#[derive(Debug, Default)]
pub struct OutputRequest {
    pub text: TextFormat,
    /// The field with the text's format; `None`: the usual one of the dialect.
    pub text_field: Option<&'static str>,
    /// A JSON array of tool definitions, as text. `None`: the agent's tools, if any.
    pub tools: Option<String>,
    /// The position of each tool among those that the client sent; empty if it sent no others.
    pub tool_positions: Vec<usize>,
    pub choice: ToolChoice,
    /// The tools that may be called; `None`: all.
    pub allowed: Option<AllowedTools>,
    /// Allows several calls in one choice; `None`: if the model supports it.
    pub parallel: Option<bool>,
    pub dialect: &'static Dialect,
}

/// Tools that `tool_choice` allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedTools {
    pub names: Vec<String>,
    /// The field with the names.
    pub field: &'static str,
}

/// `tool_choice`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    #[default]
    Auto,
    None,
    Required,
    Named(String),
}

/// An output request with its tools resolved.
pub(in crate::calls) struct ResolvedOutput {
    pub spec: OutputSpec,
    tool_positions: Vec<usize>,
    /// Set if the tools come from the agent.
    from_agent: bool,
    /// Whether the request leaves open if there may be several calls.
    parallel_by_model: bool,
    text_field: &'static str,
    dialect: &'static Dialect,
}

impl OutputRequest {
    /// `agents`: the agent's tools. `strict_schemas`: whether every schema is strict.
    pub(in crate::calls) fn resolve(mut self, agents: Option<String>, strict_schemas: bool) -> Result<ResolvedOutput> {
        if let TextFormat::Schema { strict, .. } = &mut self.text {
            *strict |= strict_schemas;
        }
        let parse = |json: &str| tool_definitions::parse(json, self.dialect.has_custom_tools);
        let own = self.tools.as_deref().map(parse).transpose()?;
        let from_agent = own.is_none();
        let listed = match own {
            Some(own) => own,
            None => agents.as_deref().map(parse).transpose()?.unwrap_or_default(),
        };
        let (listed, tool_positions) = match self.allowed {
            Some(allowed) => allowed.select(listed, &self.tool_positions)?,
            None => (listed, self.tool_positions),
        };
        let text_field = self.text_field.unwrap_or(self.dialect.output_schema);
        let calling = resolve_call_mode(&self.choice, &listed, self.dialect)?;
        let visible = if self.choice == ToolChoice::None { Vec::new() } else { listed };
        let tools = visible.into_iter().map(|definition| tool(definition, strict_schemas)).collect();
        let spec = OutputSpec { text: self.text, tools, calling, parallel: self.parallel.unwrap_or(true) };
        let parallel_by_model = self.parallel.is_none();
        let dialect = self.dialect;
        Ok(ResolvedOutput { spec, tool_positions, from_agent, parallel_by_model, text_field, dialect })
    }
}

impl AllowedTools {
    /// The allowed ones of the tools, and their positions among those that the client sent.
    fn select(&self, tools: Vec<Value>, positions: &[usize]) -> Result<(Vec<Value>, Vec<usize>)> {
        let is_unknown = |name: &&String| !tools.iter().any(|tool| tool_name(tool) == Some(name));
        if let Some(unknown) = self.names.iter().find(is_unknown) {
            let text = format!("'{}' has '{}', which is not the name of a tool.", self.field, shorten(unknown));
            return Err(Error::invalid(self.field, text));
        }
        let is_allowed = |tool: &Value| tool_name(tool).is_some_and(|name| self.names.iter().any(|one| one == name));
        let position = |index: usize| positions.get(index).copied().unwrap_or(index);
        let numbered = tools.into_iter().enumerate().filter(|(_, tool)| is_allowed(tool));
        Ok(numbered.map(|(index, tool)| (tool, position(index))).unzip())
    }
}

fn resolve_call_mode(choice: &ToolChoice, tools: &[Value], dialect: &Dialect) -> Result<CallMode> {
    let name = match choice {
        ToolChoice::Auto | ToolChoice::None => return Ok(CallMode::Auto),
        _ if tools.is_empty() => {
            let text = "'tool_choice' requires a call, but there are no tools. Send 'tools' too, or leave it out.";
            return Err(Error::invalid("tool_choice", text));
        }
        ToolChoice::Required => return Ok(CallMode::Required),
        ToolChoice::Named(name) => name,
    };
    if tools.iter().any(|tool| tool_name(tool) == Some(name)) {
        return Ok(CallMode::Named(name.clone()));
    }
    let field = dialect.chosen_tool;
    let name = shorten(name);
    Err(Error::invalid(field, format!("'{field}' is '{name}', which is not the name of a tool.")))
}

/// The name of a validated definition.
fn tool_name(definition: &Value) -> Option<&str> {
    let names = ["/function/name", "/custom/name"];
    names.iter().find_map(|path| definition.pointer(path)).and_then(Value::as_str)
}

/// Converts a validated definition to the form that chat templates expect, which always has parameters.
pub(in crate::calls) fn tool(definition: Value, strict_schemas: bool) -> Tool {
    if let Some(custom) = definition.get("custom").and_then(Value::as_object) {
        return custom_tools::tool(custom);
    }
    let mut function = definition.get("function").and_then(Value::as_object).cloned().unwrap_or_default();
    let name = tool_name(&definition).unwrap_or_default().to_owned();
    let strict = strict_schemas || function.get("strict") == Some(&Value::Bool(true));
    function.retain(|name, value| name != "strict" && !value.is_null());
    function.entry("parameters").or_insert_with(no_parameters);
    let definition = json!({ "type": "function", "function": Value::Object(function) });
    Tool { name, definition, strict, input: None }
}

/// As in OpenAI's API, omitted parameters mean that the function takes none.
fn no_parameters() -> Value {
    json!({ "type": "object", "properties": Map::new(), "additionalProperties": false })
}

impl ResolvedOutput {
    /// Allows one required call only, unless the request says otherwise, for a model whose template knows no tools:
    /// such a model repeats its call up to the token limit.
    pub fn adapt_to(&mut self, model: &TextModel) {
        if self.parallel_by_model && self.spec.calling == CallMode::Required && !model.template_describes_tools() {
            self.spec.parallel = false;
        }
    }

    /// The field that sets the format of the text.
    pub fn text_field(&self) -> &'static str {
        self.text_field
    }

    pub fn dialect(&self) -> &'static Dialect {
        self.dialect
    }

    /// Whether the request leaves open if there may be several calls.
    pub fn is_parallel_by_model(&self) -> bool {
        self.parallel_by_model
    }

    /// The error for an output format that cannot be enforced.
    pub fn grammar_error(&self, error: GrammarError) -> Error {
        match error {
            GrammarError::Schema { path, what } => {
                let field = self.schema_field(None, &path);
                let text = format!("'{field}' {what}.");
                Error::invalid(field, text)
            }
            GrammarError::Tool { tool, path, what } if self.from_agent => {
                let name = self.spec.tools.get(tool).map_or("", |tool| tool.name.as_str());
                Error::invalid("agent_id", format!("The agent's tool '{name}' has parameters{path} that {what}."))
            }
            GrammarError::Tool { tool, path, what } => {
                let field = self.schema_field(Some(tool), &path);
                let text = format!("'{field}' {what}.");
                Error::invalid(field, text)
            }
            GrammarError::Combination(text) => Error::invalid(self.offending_field(), text),
            GrammarError::Model(reason) => Error::internal(reason),
        }
    }

    /// The fields of the request's schemas that the output need not match.
    pub fn unenforced(&self, grammar: &CompiledGrammar) -> Vec<String> {
        let field = |part: &Unenforced| self.schema_field(part.tool, &part.path);
        grammar.unenforced().iter().map(field).collect()
    }

    /// The name of a part of a schema, of the tool with this index or of the text.
    fn schema_field(&self, tool: Option<usize>, path: &str) -> String {
        match tool {
            None => format!("{}{path}", self.text_field),
            Some(tool) if self.spec.tools.get(tool).is_some_and(|tool| tool.input.is_some()) => {
                format!("tools[{}].{}", self.position(tool), self.dialect.tool_grammar)
            }
            Some(tool) if self.from_agent => format!("agent.tools[{tool}].function.parameters{path}"),
            Some(tool) => format!("tools[{}].{}{path}", self.position(tool), self.dialect.tool_schema),
        }
    }

    /// The position of a tool among those that the client sent.
    fn position(&self, tool: usize) -> usize {
        self.tool_positions.get(tool).copied().unwrap_or(tool)
    }

    fn offending_field(&self) -> &'static str {
        match (&self.spec.text, self.from_agent) {
            (TextFormat::Free, true) => "agent_id",
            (TextFormat::Free, false) => "tools",
            (TextFormat::Object, _) => self.dialect.output_format,
            _ => self.text_field,
        }
    }
}

/// Ids of the tool calls of one request: consecutive numbers from a random start.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(from = "[u8; 16]", into = "[u8; 16]")]
pub struct ToolCallIds(u128);

impl From<[u8; 16]> for ToolCallIds {
    fn from(bytes: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(bytes))
    }
}

impl From<ToolCallIds> for [u8; 16] {
    fn from(ids: ToolCallIds) -> Self {
        ids.0.to_be_bytes()
    }
}

impl ToolCallIds {
    pub(in crate::calls) fn new(clock_rng: &dyn ClockRng) -> Self {
        let mut bytes = [0; 16];
        clock_rng.fill(&mut bytes);
        bytes.into()
    }

    /// The id of a choice's tool call.
    pub fn of(self, choice: u32, index: u32) -> String {
        let offset = (u128::from(choice) << 32) + u128::from(index);
        format!("call_{:032x}", self.0.wrapping_add(offset))
    }
}
