//! The request fields that say how the chat template renders a prompt, and whether the model reasons.

use serde_json::{Map, Value};

use crate::content::Message;
use crate::display::shorten;
use crate::engine::{PromptEnd, PromptOptions, RESERVED_VARIABLES, TemplateVariable};
use crate::error::{Error, Result};
use crate::service::validation::json_fields::invalid_field;

/// Variables that a request may set.
const MAX_VARIABLES: usize = 64;

/// The values of `reasoning_effort`.
const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// The fields; each may be absent.
#[derive(Default)]
pub struct PromptFields {
    pub add_generation_prompt: Option<bool>,
    pub continue_final_message: Option<bool>,
    pub chat_template_kwargs: Option<Map<String, Value>>,
    pub enable_thinking: Option<bool>,
    pub reasoning_effort: Option<String>,
}

impl PromptFields {
    /// Checks the fields. `last`: the last message of the request.
    pub fn check(self, last: Option<&Message>) -> Result<PromptOptions> {
        let end = self.end(last)?;
        let mut variables = Vec::new();
        if let Some(level) = self.reasoning_effort {
            variables.extend(effort("reasoning_effort", level)?);
        }
        variables.extend(self.enable_thinking.into_iter().flat_map(thinking));
        let further = self.chat_template_kwargs.unwrap_or_default();
        if further.len() > MAX_VARIABLES {
            let what = format!("has {} fields; at most {MAX_VARIABLES} are allowed", further.len());
            return invalid_field("chat_template_kwargs", &what);
        }
        for (name, value) in further {
            if RESERVED_VARIABLES.contains(&name.as_str()) {
                let what = "is set by the server. Send the field of the request instead, or leave it out";
                return invalid_field(&format!("chat_template_kwargs.{name}"), what);
            }
            variables.push(TemplateVariable { name, value });
        }
        Ok(PromptOptions { end, variables })
    }

    fn end(&self, last: Option<&Message>) -> Result<PromptEnd> {
        match (self.continue_final_message.unwrap_or(false), self.add_generation_prompt) {
            (false, Some(false)) => Ok(PromptEnd::LastMessage),
            (false, _) => Ok(PromptEnd::NextMessage),
            (true, Some(true)) => {
                let text = "'add_generation_prompt' and 'continue_final_message' are both true. Send one of them.";
                Err(Error::invalid("continue_final_message", text))
            }
            (true, _) => continued(last, "continue_final_message"),
        }
    }
}

/// The end of a prompt in APIs that always continue a last message of the assistant.
pub fn end_of_messages(messages: &[Message]) -> Result<PromptEnd> {
    match messages.last() {
        Some(last) if last.role == "assistant" => continued(Some(last), "messages"),
        _ => Ok(PromptEnd::NextMessage),
    }
}

/// The end of a prompt whose last message is continued. `field`: the field that asks for it.
pub fn continued(last: Option<&Message>, field: &str) -> Result<PromptEnd> {
    match last {
        Some(last)
            if last.role == "assistant" && last.tool_calls.is_empty() && !last.content.text().trim().is_empty() =>
        {
            Ok(PromptEnd::LastMessageText)
        }
        _ => {
            let text =
                "To be continued, the last message must have the role 'assistant' and a text, but no tool calls.";
            Err(Error::invalid(field, text))
        }
    }
}

/// The variables with which chat templates know how much the model reasons. `field`: the field with the level.
pub fn effort(field: &str, level: String) -> Result<Vec<TemplateVariable>> {
    if !EFFORTS.contains(&level.as_str()) {
        let what = format!("is '{}'; it must be one of {}", shorten(&level), EFFORTS.join(", "));
        return invalid_field(field, &what);
    }
    let mut variables: Vec<_> = thinking(level != "none").into();
    variables.push(TemplateVariable::new("reasoning_effort", level));
    Ok(variables)
}

/// The variables with which chat templates switch reasoning on or off.
pub fn thinking(enabled: bool) -> [TemplateVariable; 2] {
    ["enable_thinking", "thinking"].map(|name| TemplateVariable::new(name, enabled))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(fields: PromptFields) -> Result<Vec<(String, Value)>> {
        let options = fields.check(None)?;
        Ok(options.variables.into_iter().map(|variable| (variable.name, variable.value)).collect())
    }

    #[test]
    fn later_variables_take_precedence() {
        let fields = PromptFields {
            reasoning_effort: Some("none".to_owned()),
            enable_thinking: Some(true),
            chat_template_kwargs: json!({ "thinking": false, "date": "today" }).as_object().cloned(),
            ..PromptFields::default()
        };
        let variable = |name: &str, value: Value| (name.to_owned(), value);
        let expected = [
            variable("enable_thinking", json!(false)),
            variable("thinking", json!(false)),
            variable("reasoning_effort", json!("none")),
            variable("enable_thinking", json!(true)),
            variable("thinking", json!(true)),
            variable("thinking", json!(false)),
            variable("date", json!("today")),
        ];
        assert_eq!(check(fields).unwrap(), expected);
        assert_eq!(check(PromptFields::default()).unwrap(), []);
    }

    #[test]
    fn errors_name_the_field() {
        let param = |fields: PromptFields| check(fields).unwrap_err().param_name().unwrap().to_owned();
        let effort = PromptFields { reasoning_effort: Some("much".to_owned()), ..PromptFields::default() };
        assert_eq!(param(effort), "reasoning_effort");
        let variables =
            |value: Value| PromptFields { chat_template_kwargs: value.as_object().cloned(), ..PromptFields::default() };
        assert_eq!(param(variables(json!({ "messages": [] }))), "chat_template_kwargs.messages");
        let many: Map<String, Value> = (0..65).map(|index| (index.to_string(), json!(1))).collect();
        assert_eq!(param(variables(Value::Object(many))), "chat_template_kwargs");
        let both = PromptFields {
            continue_final_message: Some(true),
            add_generation_prompt: Some(true),
            ..PromptFields::default()
        };
        assert_eq!(param(both), "continue_final_message");
    }

    #[test]
    fn only_a_text_of_the_assistant_is_continued() {
        let fields = || PromptFields { continue_final_message: Some(true), ..PromptFields::default() };
        let end = |message: &Message| fields().check(Some(message)).map(|options| options.end);
        assert_eq!(end(&Message::new("assistant", "So")).unwrap(), PromptEnd::LastMessageText);
        assert!(end(&Message::new("user", "So")).is_err() && end(&Message::new("assistant", " ")).is_err());
        assert!(fields().check(None).is_err());
    }
}
