//! Parameters between tags. Strings end at the first closing tag, so their patterns and lengths are not enforced; values
//! of other types match their schemas.

use llguidance::api::GrammarWithLexer;
use serde_json::Value;

use super::builder::{Builder, MAX_UNDESCRIBED};
use crate::text::grammar::error::GrammarError;
use crate::text::grammar::regex_escape::{escape, quote, without_anchors};
use crate::text::tools::InputFormat;
use crate::text::tools::parameters::{JsonTypes, ParameterKind, Tags, choices, resolved};

/// The value of a string with the tag after it, and a parameter that no schema describes.
pub(super) fn rules(tags: Tags) -> String {
    let tail = escape(tags.tail.trim_start_matches('\n'));
    let text = if tags.has_lines() { r"((?s:.*)\n)?" } else { "(?s:.*)" };
    let separator = if tags.separator.is_empty() { String::new() } else { quote(tags.separator) };
    let (head, lead) = (quote(tags.head), quote(tags.lead));
    format!(
        "tagged_value: tagged_text {separator}\ntagged_text[lazy]: /{text}{tail}/\n\
         tagged_parameter: {head} TAGGED_NAME {lead} tagged_value\nTAGGED_NAME: /[^<>\\n]{{1,100}}/\n"
    )
}

/// Keywords of strings that cannot be enforced.
const OF_STRINGS: [&str; 9] = ["pattern", "format", "minLength", "maxLength", "allOf", "anyOf", "oneOf", "not", "if"];

/// Parameters that no schema describes.
pub(super) fn undescribed() -> String {
    format!("tagged_parameter{{0,{MAX_UNDESCRIBED}}}")
}

/// Parameters in their order. Those that are not required may be left out.
pub(super) fn sequence(parameters: &[(String, bool)]) -> String {
    let one = |(parameter, required): &(String, bool)| format!("({parameter}){}", if *required { "" } else { "?" });
    parameters.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// The input of a custom tool, and its grammar with this name. Texts of a regular expression have no closing tag; those of a
/// grammar must not have one.
pub(super) fn input(format: &InputFormat, name: &str, tags: Tags) -> (String, Option<GrammarWithLexer>) {
    let grammar = match format {
        InputFormat::Text => None,
        InputFormat::Regex(regex) => {
            let regex = without_anchors(regex).replace('/', r"\/");
            let tail = escape(tags.tail).replace('\n', r"\n");
            let value = format!("/{regex}/ & ~/(?s:.*){tail}(?s:.*)/");
            Some(GrammarWithLexer::from_lark(format!("start: VALUE\nVALUE: {value}\n")))
        }
        InputFormat::Lark(lark) => Some(GrammarWithLexer::from_lark(lark.clone())),
    };
    let value = if grammar.is_some() { described(&format!("@{name}"), tags) } else { "tagged_value".to_owned() };
    (format!("{} {value}", head("input", tags)), grammar)
}

impl Builder<'_> {
    /// `pointer`: that of its schema.
    pub(super) fn tagged_parameter(
        &mut self,
        name: &str,
        schema: &Value,
        pointer: &str,
        tags: Tags,
    ) -> Result<String, GrammarError> {
        if name.contains(['<', '>', '\n']) {
            return Err(self.error(pointer, "has a name that cannot be written in this model's format of calls"));
        }
        Ok(format!("{} {}", head(name, tags), self.tagged_value(schema, pointer, tags)?))
    }

    /// The rule of a parameter's value and of the tag after it.
    fn tagged_value(&mut self, schema: &Value, pointer: &str, tags: Tags) -> Result<String, GrammarError> {
        let kind = ParameterKind::of(schema, self.root);
        if kind == ParameterKind::Json {
            return Ok(described(&self.json(schema, pointer)?, tags));
        }
        let has_texts = kind == ParameterKind::Text || kind == ParameterKind::Mixed(JsonTypes::STRING_OR_NULL);
        if !has_texts {
            self.leave_open(self.path(pointer))?;
            return Ok("tagged_value".to_owned());
        }
        if let Some(texts) = choices(schema, self.root) {
            if texts.is_empty() {
                return Err(self.error(pointer, "allows no value"));
            }
            let end = [tags.tail, tags.separator].concat();
            let texts: Vec<String> = texts.iter().map(|text| quote(&format!("{text}{end}"))).collect();
            return Ok(format!("({})", texts.join(" | ")));
        }
        let schema = resolved(schema, self.root);
        let is_plain = |schema: &Value| OF_STRINGS.iter().all(|keyword| schema.get(*keyword).is_none());
        let alternatives = schema.get("anyOf").and_then(Value::as_array);
        let are_plain = alternatives.is_some_and(|all| all.iter().all(|one| is_plain(resolved(one, self.root))));
        for keyword in OF_STRINGS.iter().filter(|keyword| schema.get(**keyword).is_some()) {
            if *keyword != "anyOf" || !are_plain {
                self.leave_open(format!("{}.{keyword}", self.path(pointer)))?;
            }
        }
        Ok("tagged_value".to_owned())
    }
}

fn head(name: &str, tags: Tags) -> String {
    quote(&[tags.head, name, tags.lead].concat())
}

/// A value, and the tag after it.
fn described(value: &str, tags: Tags) -> String {
    format!("{value} {}", quote(&[tags.tail, tags.separator].concat()))
}
