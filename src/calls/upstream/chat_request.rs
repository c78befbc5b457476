//! The body of a chat request to a target.

use serde_json::{Value, json};

use super::errors::unsupported;
use super::request_fields::{Fields, TextParameters, add_text_parameters};
use crate::calls::text::dialect::Dialect;
use crate::content::Message;
use crate::engine::{CallMode, InputFormat, OutputSpec, PromptEnd, PromptOptions, TextFormat, Tool};
use crate::error::Result;
use crate::upstream::{Api, UpstreamModel};

/// The name of an output schema. Clients of other APIs send none, and it says nothing to the model.
const SCHEMA_NAME: &str = "response";

/// A chat, as the target gets it.
pub struct ChatRequest<'a> {
    pub messages: &'a [Message],
    pub prompt: &'a PromptOptions,
    pub output: &'a OutputSpec,
    /// The field that sets the format of the text.
    pub format_field: &'static str,
    /// Whether the request leaves open if there may be several calls.
    pub parallel_by_model: bool,
    pub max_reasoning_tokens: Option<u32>,
    /// Number of alternatives of each token.
    pub logprobs: Option<u8>,
    pub text: TextParameters<'a>,
    pub dialect: &'static Dialect,
}

impl ChatRequest<'_> {
    /// The body without the model's name. Fails if the target's server has no field for something.
    pub fn fields(&self, model: &UpstreamModel) -> Result<Fields> {
        let mut fields = Fields::new();
        let messages: Vec<Value> = self.messages.iter().map(|message| message_json(message, model.api)).collect();
        fields.insert("messages".to_owned(), Value::Array(messages));
        add_text_parameters(&mut fields, model, &self.text)?;
        self.add_prompt_options(&mut fields, model)?;
        self.add_format(&mut fields, model)?;
        self.add_tools(&mut fields, model)?;
        if let Some(top) = self.logprobs {
            fields.insert("logprobs".to_owned(), json!(true));
            fields.insert("top_logprobs".to_owned(), json!(top));
        }
        match self.max_reasoning_tokens {
            Some(count) if model.api == Api::Outpost => {
                fields.insert("max_reasoning_tokens".to_owned(), json!(count));
            }
            // In the other APIs, it is no strict limit.
            Some(_) if self.dialect.limits_reasoning => return Err(unsupported(&model.id, "max_reasoning_tokens")),
            _ => {}
        }
        Ok(fields)
    }

    fn add_prompt_options(&self, fields: &mut Fields, model: &UpstreamModel) -> Result<()> {
        let knows_template = matches!(model.api, Api::Vllm | Api::LlamaCpp | Api::Outpost);
        let mut variables = Fields::new();
        for variable in &self.prompt.variables {
            let name = variable.name.as_str();
            match name {
                "reasoning_effort" => drop(fields.insert(name.to_owned(), variable.value.clone())),
                _ if knows_template => drop(variables.insert(name.to_owned(), variable.value.clone())),
                // As for a model whose template does not know it.
                "enable_thinking" | "thinking" => {}
                _ => return Err(unsupported(&model.id, "chat_template_kwargs")),
            }
        }
        if !variables.is_empty() {
            fields.insert("chat_template_kwargs".to_owned(), Value::Object(variables));
        }
        let knows_end = matches!(model.api, Api::Vllm | Api::Outpost);
        match self.prompt.end {
            PromptEnd::NextMessage => {}
            // It always continues a last message of the assistant.
            PromptEnd::LastMessageText if model.api == Api::LlamaCpp => {}
            PromptEnd::LastMessage if knows_end => {
                drop(fields.insert("add_generation_prompt".to_owned(), json!(false)))
            }
            PromptEnd::LastMessageText if knows_end => {
                fields.insert("add_generation_prompt".to_owned(), json!(false));
                fields.insert("continue_final_message".to_owned(), json!(true));
            }
            PromptEnd::LastMessage => return Err(unsupported(&model.id, "add_generation_prompt")),
            PromptEnd::LastMessageText => return Err(unsupported(&model.id, self.dialect.continuation)),
        }
        Ok(())
    }

    fn add_format(&self, fields: &mut Fields, model: &UpstreamModel) -> Result<()> {
        let guided = |name: &str, value: Value| match (model.api, name) {
            (Api::Outpost, _) | (Api::Vllm, "regex" | "choice") => Ok(("structured_outputs", json!({ name: value }))),
            _ => Err(unsupported(&model.id, self.format_field)),
        };
        let (name, value) = match &self.output.text {
            TextFormat::Free => return Ok(()),
            TextFormat::Object => ("response_format", json!({ "type": "json_object" })),
            TextFormat::Schema { schema, strict } => {
                let named = json!({ "name": SCHEMA_NAME, "schema": schema, "strict": strict });
                ("response_format", json!({ "type": "json_schema", "json_schema": named }))
            }
            TextFormat::Regex(regex) => guided("regex", json!(regex))?,
            TextFormat::Choice(texts) => guided("choice", json!(texts))?,
            TextFormat::Lark(grammar) => guided("grammar", json!(grammar))?,
        };
        fields.insert(name.to_owned(), value);
        Ok(())
    }

    fn add_tools(&self, fields: &mut Fields, model: &UpstreamModel) -> Result<()> {
        if self.output.tools.is_empty() {
            return Ok(());
        }
        let has_grammar = |tool: &Tool| matches!(tool.input, Some(InputFormat::Regex(_) | InputFormat::Lark(_)));
        if self.output.tools.iter().any(has_grammar) {
            return Err(unsupported(&model.id, "tools"));
        }
        let tools: Vec<Value> = self.output.tools.iter().map(tool_json).collect();
        fields.insert("tools".to_owned(), Value::Array(tools));
        let choice = match &self.output.calling {
            CallMode::Auto => None,
            CallMode::Required => Some(json!("required")),
            CallMode::Named(name) => Some(json!({ "type": "function", "function": { "name": name } })),
        };
        fields.extend(choice.map(|choice| ("tool_choice".to_owned(), choice)));
        if !self.parallel_by_model {
            fields.insert("parallel_tool_calls".to_owned(), json!(self.output.parallel));
        }
        Ok(())
    }
}

fn message_json(message: &Message, api: Api) -> Value {
    let mut fields = message.to_json();
    if api == Api::OpenAi {
        fields.shift_remove("reasoning_content");
    }
    Value::Object(fields)
}

/// The definition as clients send it: with `strict`, which chat templates do not see.
fn tool_json(tool: &Tool) -> Value {
    let mut definition = tool.definition.clone();
    if let Some(function) = definition.get_mut("function").and_then(Value::as_object_mut)
        && tool.strict
        && tool.input.is_none()
    {
        function.insert("strict".to_owned(), json!(true));
    }
    definition
}
