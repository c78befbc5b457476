//! The output formats of other servers: vLLM's `guided_…` and `structured_outputs`, llama.cpp's `grammar` and `json_schema`,
//! and SGLang's `regex` and `ebnf`.

use serde_json::{Map, Value};

use crate::engine::{TextFormat, gbnf_to_lark};
use crate::error::{Error, Result};
use crate::json_input;
use crate::service::validation::json_fields::{invalid_field, known};

const MAX_GRAMMAR_BYTES: usize = 64 << 10;
const MAX_CHOICES: usize = 1024;

/// The fields; all that are set must ask for the same. Some clients send a format under the names of two versions of vLLM.
#[derive(Default)]
pub struct GuidedFields {
    pub guided_json: Option<Value>,
    pub guided_regex: Option<String>,
    pub guided_choice: Option<Vec<String>>,
    pub guided_grammar: Option<String>,
    pub grammar: Option<String>,
    /// `{json | json_object | regex | choice | grammar}`.
    pub structured_outputs: Option<Map<String, Value>>,
    pub json_schema: Option<Value>,
    pub regex: Option<String>,
    pub ebnf: Option<String>,
}

/// A format and its field.
type Format = (TextFormat, &'static str);

impl GuidedFields {
    /// The format of the text, and the field that sets it.
    pub fn format(self) -> Result<Option<Format>> {
        let outputs = self.structured_outputs.map(structured_outputs).transpose()?.flatten();
        let regex = self.guided_regex.map(|regex| text_format("guided_regex", regex, TextFormat::Regex));
        let choice = self.guided_choice.map(|texts| choice("guided_choice", texts));
        let given = [
            self.guided_json.map(|schema| json("guided_json", schema)),
            regex,
            choice,
            self.guided_grammar.map(|text| grammar("guided_grammar", text)),
            self.grammar.map(|text| grammar("grammar", text)),
            outputs.map(Ok),
            self.json_schema.map(|schema| json("json_schema", schema)),
            self.regex.map(|regex| text_format("regex", regex, TextFormat::Regex)),
            self.ebnf.map(|text| grammar("ebnf", text)),
        ];
        let mut given = given.into_iter().flatten();
        let Some(format) = given.next().transpose()? else { return Ok(None) };
        for other in given {
            let (other, field) = other?;
            if other != format.0 {
                let text = format!("'{}' and '{field}' are both set. Send one of them.", format.1);
                return Err(Error::invalid(field, text));
            }
        }
        Ok(Some(format))
    }
}

fn structured_outputs(fields: Map<String, Value>) -> Result<Option<Format>> {
    const NAMES: [&str; 5] = ["json", "json_object", "regex", "choice", "grammar"];
    known("structured_outputs", &fields, &NAMES, |_, value| value.is_null())?;
    let mut set = fields.into_iter().filter(|(_, value)| !value.is_null() && *value != Value::Bool(false));
    let Some((name, value)) = set.next() else { return Ok(None) };
    if set.next().is_some() {
        return invalid_field("structured_outputs", &format!("must have only one of {}", NAMES.join(", ")));
    }
    let string = |field: &str, value: Value| match value {
        Value::String(text) => Ok(text),
        _ => invalid_field(field, "must be a string"),
    };
    let format = match name.as_str() {
        "json" => json("structured_outputs.json", value),
        "json_object" if value == Value::Bool(true) => Ok((TextFormat::Object, "structured_outputs.json_object")),
        "json_object" => invalid_field("structured_outputs.json_object", "must be true or false"),
        "regex" => {
            let field = "structured_outputs.regex";
            text_format(field, string(field, value)?, TextFormat::Regex)
        }
        "choice" => {
            let field = "structured_outputs.choice";
            match serde_json::from_value(value) {
                Ok(texts) => choice(field, texts),
                Err(_) => invalid_field(field, "must be an array of strings"),
            }
        }
        _ => {
            let field = "structured_outputs.grammar";
            grammar(field, string(field, value)?)
        }
    };
    format.map(Some)
}

/// A JSON schema, as an object or as text.
fn json(field: &'static str, schema: Value) -> Result<Format> {
    let schema = match schema {
        Value::String(text) => json_input::from_str(&text).map_err(|error| error.in_field(field))?,
        other => other,
    };
    match schema {
        Value::Object(_) => Ok((TextFormat::Schema { schema, strict: false }, field)),
        _ => invalid_field(field, "must be an object, a JSON schema"),
    }
}

fn choice(field: &'static str, texts: Vec<String>) -> Result<Format> {
    let bytes: usize = texts.iter().map(String::len).sum();
    if texts.is_empty() || texts.iter().any(String::is_empty) {
        return invalid_field(field, "must have at least one text, and none may be empty");
    }
    if texts.len() > MAX_CHOICES || bytes > MAX_GRAMMAR_BYTES {
        let what = format!("may have at most {MAX_CHOICES} texts, of {MAX_GRAMMAR_BYTES} bytes together");
        return invalid_field(field, &what);
    }
    Ok((TextFormat::Choice(texts), field))
}

/// Whether a grammar begins with a rule of GBNF, after comments.
fn is_gbnf(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let first = lines.next().unwrap_or_default();
    let name = |character: char| character.is_ascii_alphanumeric() || character == '-' || character == '_';
    first.trim_start_matches(name).trim_start().starts_with("::=")
}

/// A grammar in Lark or in GBNF.
fn grammar(field: &'static str, text: String) -> Result<Format> {
    if text.len() <= MAX_GRAMMAR_BYTES && is_gbnf(&text) {
        return match gbnf_to_lark(&text) {
            Ok(lark) => Ok((TextFormat::Lark(lark), field)),
            Err(problem) => invalid_field(field, &format!("is a grammar in GBNF that {problem}")),
        };
    }
    text_format(field, text, TextFormat::Lark)
}

fn text_format(field: &'static str, text: String, format: impl Fn(String) -> TextFormat) -> Result<Format> {
    match text.len() {
        1..=MAX_GRAMMAR_BYTES => Ok((format(text), field)),
        bytes => invalid_field(field, &format!("has {bytes} bytes; it must have from 1 to {MAX_GRAMMAR_BYTES}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn one_format_may_be_set() {
        let found = |outputs: Value| {
            let fields = GuidedFields { structured_outputs: outputs.as_object().cloned(), ..GuidedFields::default() };
            fields.format().map(|format| format.map(|(format, field)| (format!("{format:?}"), field)))
        };
        assert_eq!(found(json!({})).unwrap(), None);
        assert_eq!(found(json!({ "json_object": false, "regex": null })).unwrap(), None);
        let regex = found(json!({ "regex": "a+" })).unwrap();
        assert_eq!(regex, Some(("Regex(\"a+\")".to_owned(), "structured_outputs.regex")));
        let gbnf = found(json!({ "grammar": "root ::= \"a\"" })).unwrap();
        assert_eq!(
            gbnf,
            Some((format!("{:?}", TextFormat::Lark("start: (\"a\")\n".to_owned())), "structured_outputs.grammar"))
        );
        let lark = found(json!({ "grammar": "start: \"a ::= b\"" })).unwrap();
        assert!(lark.unwrap().0.starts_with("Lark("));
        for (outputs, param) in [
            (json!({ "regex": "a", "choice": ["b"] }), "structured_outputs"),
            (json!({ "pattern": "a" }), "structured_outputs.pattern"),
            (json!({ "regex": 1 }), "structured_outputs.regex"),
            (json!({ "choice": [] }), "structured_outputs.choice"),
            (json!({ "choice": ["a", 1] }), "structured_outputs.choice"),
            (json!({ "json": "{" }), "structured_outputs.json"),
            (json!({ "json_object": 1 }), "structured_outputs.json_object"),
            (json!({ "grammar": "root ::= missing" }), "structured_outputs.grammar"),
            (json!({ "grammar": "" }), "structured_outputs.grammar"),
        ] {
            assert_eq!(found(outputs.clone()).unwrap_err().param_name(), Some(param), "{outputs}");
        }
        let both = GuidedFields {
            guided_regex: Some("a".to_owned()),
            guided_choice: Some(vec!["b".to_owned()]),
            ..GuidedFields::default()
        };
        assert_eq!(both.format().unwrap_err().param_name(), Some("guided_choice"));
        let same = GuidedFields {
            guided_regex: Some("a".to_owned()),
            structured_outputs: json!({ "regex": "a" }).as_object().cloned(),
            ..GuidedFields::default()
        };
        assert_eq!(same.format().unwrap().unwrap().1, "guided_regex");
    }
}
