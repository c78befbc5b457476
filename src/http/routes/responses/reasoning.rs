//! Reasoning: what a request asks for, and the items with it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::Value;

use crate::calls::responses::item_format::ReasoningFormat;
use crate::display::shorten;
use crate::engine::TemplateVariable;
use crate::error::{Error, Result};
use crate::http::routes::prompt_fields::effort;
use crate::service::validation::json_fields::{invalid_field, optional};

/// The entry of `include` that asks for reasoning in a form that clients without a store send back.
const ENCRYPTED: &str = "reasoning.encrypted_content";
const SUMMARIES: [&str; 4] = ["auto", "concise", "detailed", "none"];

/// What the field `reasoning` asks for.
#[derive(Debug, PartialEq)]
pub struct RequestedReasoning {
    /// For the chat template.
    pub variables: Vec<TemplateVariable>,
    pub format: ReasoningFormat,
}

/// Checks the field `reasoning` and the entries of `include`.
pub fn requested(field: Option<&Value>, include: Option<&[String]>) -> Result<RequestedReasoning> {
    optional("reasoning", field, "an object", Value::is_object)?;
    let text = |name: &str| {
        let value = field.and_then(|field| field.get(name));
        optional(&format!("reasoning.{name}"), value, "a string", Value::is_string)?;
        Ok::<_, Error>(value.and_then(Value::as_str))
    };
    let variables = text("effort")?.map_or(Ok(Vec::new()), |level| effort("reasoning.effort", level.to_owned()))?;
    let mut is_summary = false;
    // The second one is the earlier name.
    for name in ["summary", "generate_summary"] {
        match text(name)? {
            Some(style) if SUMMARIES.contains(&style) => is_summary |= style != "none",
            Some(style) => {
                let what = format!("is '{}'; it must be one of {}", shorten(style), SUMMARIES.join(", "));
                return invalid_field(&format!("reasoning.{name}"), &what);
            }
            None => {}
        }
    }
    let has_encrypted = include.is_some_and(|include| include.iter().any(|entry| entry == ENCRYPTED));
    Ok(RequestedReasoning { variables, format: ReasoningFormat { is_summary, has_encrypted } })
}

/// A part of a reasoning item.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = ResponseReasoningPart)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ReasoningPart {
    ReasoningText { text: String },
    SummaryText { text: String },
}

/// The place of the text in its item.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PartIndex {
    ContentIndex(usize),
    SummaryIndex(usize),
}

/// The events of a reasoning item's text.
pub struct EventNames {
    pub part_added: &'static str,
    pub delta: &'static str,
    pub done: &'static str,
    pub part_done: &'static str,
    pub index: PartIndex,
}

const CONTENT: EventNames = EventNames {
    part_added: "response.content_part.added",
    delta: "response.reasoning_text.delta",
    done: "response.reasoning_text.done",
    part_done: "response.content_part.done",
    index: PartIndex::ContentIndex(0),
};

const SUMMARY: EventNames = EventNames {
    part_added: "response.reasoning_summary_part.added",
    delta: "response.reasoning_summary_text.delta",
    done: "response.reasoning_summary_text.done",
    part_done: "response.reasoning_summary_part.done",
    index: PartIndex::SummaryIndex(0),
};

impl ReasoningFormat {
    pub fn events(self) -> &'static EventNames {
        if self.is_summary { &SUMMARY } else { &CONTENT }
    }

    pub fn part(self, text: &str) -> ReasoningPart {
        let text = text.to_owned();
        if self.is_summary { ReasoningPart::SummaryText { text } } else { ReasoningPart::ReasoningText { text } }
    }

    /// The text as a client sends it back, if it asked for that.
    pub fn encrypted(self, text: &str) -> Option<String> {
        self.has_encrypted.then(|| STANDARD.encode(text))
    }
}

/// The text of a reasoning item; empty if it has none.
pub fn text_of(item: &Value) -> String {
    let texts = |name: &str| {
        let parts = item.get(name).and_then(Value::as_array).into_iter().flatten();
        let texts: Vec<&str> = parts.filter_map(|part| part.get("text")?.as_str()).collect();
        Some(texts.join("\n")).filter(|text| !text.is_empty())
    };
    // What another server has encrypted is not text.
    let encrypted = || {
        let bytes = STANDARD.decode(item.get("encrypted_content")?.as_str()?).ok()?;
        String::from_utf8(bytes).ok()
    };
    texts("content").or_else(encrypted).or_else(|| texts("summary")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn effort_and_summary_are_read() {
        let found = |field: Value, include: &[&str]| {
            let include: Vec<String> = include.iter().map(|entry| (*entry).to_owned()).collect();
            let RequestedReasoning { variables, format } = requested(Some(&field), Some(&include)).unwrap();
            let values: Vec<Value> = variables.into_iter().map(|variable| variable.value).collect();
            (values, format.is_summary, format.has_encrypted)
        };
        assert_eq!(found(json!(null), &[]), (vec![], false, false));
        assert_eq!(found(json!({ "effort": null, "summary": "none" }), &[ENCRYPTED]), (vec![], false, true));
        assert_eq!(
            found(json!({ "effort": "none", "summary": "auto" }), &["x"]),
            (vec![json!(false), json!(false), json!("none")], true, false)
        );
        let low = (vec![json!(true), json!(true), json!("low")], true, false);
        assert_eq!(found(json!({ "effort": "low", "generate_summary": "concise" }), &[]), low);
        let param = |field: Value| requested(Some(&field), None).unwrap_err().param_name().unwrap().to_owned();
        for (field, name) in [
            (json!("low"), "reasoning"),
            (json!({ "effort": 1 }), "reasoning.effort"),
            (json!({ "effort": "all" }), "reasoning.effort"),
            (json!({ "summary": true }), "reasoning.summary"),
            (json!({ "summary": "short" }), "reasoning.summary"),
        ] {
            assert_eq!(param(field), name);
        }
    }

    #[test]
    fn text_comes_back_in_each_form() {
        let format = ReasoningFormat { is_summary: true, has_encrypted: true };
        let summary = json!([{ "type": "summary_text", "text": "short" }]);
        let encrypted = format.encrypted("Hm — long").unwrap();
        assert_eq!(text_of(&json!({ "summary": summary, "encrypted_content": encrypted })), "Hm — long");
        assert_eq!(text_of(&json!({ "summary": summary, "encrypted_content": "gAAAAA==" })), "short");
        assert_eq!(text_of(&json!({ "summary": summary, "content": [{ "text": "a" }, { "text": "b" }] })), "a\nb");
        assert_eq!(text_of(&json!({ "summary": [], "content": null })), "");
    }
}
