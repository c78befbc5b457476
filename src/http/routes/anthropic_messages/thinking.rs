//! Whether a model reasons before it answers: `thinking` and `output_config.effort`.
//!
//! Messages do not reason unless asked, unlike chat completions, where the template's default applies. It is the rule
//! of Anthropic's API, and its clients would show a long silence otherwise.
//!
//! Signatures of thinking blocks are not checked. They let Anthropic's servers trust reasoning that comes back; here a
//! client may send any text as an assistant's message, so there is nothing to protect. They are not empty, because
//! clients leave out blocks without one.

use serde_json::Value;

use crate::display::shorten;
use crate::engine::TemplateVariable;
use crate::error::Result;
use crate::http::routes::prompt_fields::thinking as switch;
use crate::service::validation::json_fields::{invalid_field, optional};

/// What clients may send in `thinking.type`.
const TYPES: [&str; 4] = ["enabled", "adaptive", "between_tools", "disabled"];

/// The reasoning that a request asks for.
#[derive(Debug, PartialEq)]
pub struct Thinking {
    /// For the chat template.
    pub variables: Vec<TemplateVariable>,
    pub max_tokens: Option<u32>,
}

/// Checks the fields. As in Anthropic's API, models do not reason unless they are asked to.
pub fn thinking(field: Option<&Value>, config: Option<&Value>) -> Result<Thinking> {
    optional("thinking", field, "an object", Value::is_object)?;
    let part = |name: &str| field.and_then(|field| field.get(name)).filter(|value| !value.is_null());
    let is_enabled = match part("type").map(|kind| kind.as_str().unwrap_or_default()) {
        None | Some("disabled") => false,
        Some(kind) if TYPES.contains(&kind) => true,
        Some(kind) => {
            return invalid_field("thinking.type", &format!("is '{}'; it must be {}", shorten(kind), TYPES.join(", ")));
        }
    };
    let max_tokens =
        match part("budget_tokens").map(|budget| budget.as_u64().and_then(|count| u32::try_from(count).ok())) {
            None => None,
            Some(Some(count)) if count > 0 => Some(count),
            Some(_) => return invalid_field("thinking.budget_tokens", "must be a whole number of at least 1"),
        };
    let mut variables: Vec<_> = switch(is_enabled).into();
    let effort = config.and_then(|config| config.get("effort")).and_then(Value::as_str).filter(|_| is_enabled);
    variables.extend(effort.map(|effort| TemplateVariable::new("reasoning_effort", effort)));
    Ok(Thinking { variables, max_tokens: max_tokens.filter(|_| is_enabled) })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reasoning_is_off_unless_requested() {
        let found = |field: Value, config: Value| {
            let Thinking { variables, max_tokens } = thinking(Some(&field), Some(&config)).unwrap();
            let values: Vec<Value> = variables.into_iter().map(|variable| variable.value).collect();
            (values, max_tokens)
        };
        let (on, off) = (json!(true), json!(false));
        assert_eq!(found(json!(null), json!({ "effort": "low" })), (vec![off.clone(), off.clone()], None));
        assert_eq!(found(json!({ "type": "disabled", "budget_tokens": 9 }), json!({})), (vec![off.clone(), off], None));
        assert_eq!(
            found(json!({ "type": "enabled", "budget_tokens": 1024 }), json!({})),
            (vec![on.clone(), on.clone()], Some(1024))
        );
        assert_eq!(
            found(json!({ "type": "adaptive", "display": "omitted" }), json!({ "effort": "max" })),
            (vec![on.clone(), on, json!("max")], None)
        );
    }

    #[test]
    fn errors_name_the_field() {
        let param = |field: Value| thinking(Some(&field), None).unwrap_err().param_name().unwrap().to_owned();
        assert_eq!(param(json!("on")), "thinking");
        assert_eq!(param(json!({ "type": "on" })), "thinking.type");
        for budget in [json!(0), json!(-1), json!("many"), json!(1u64 << 40)] {
            assert_eq!(param(json!({ "type": "enabled", "budget_tokens": budget })), "thinking.budget_tokens");
        }
    }
}
