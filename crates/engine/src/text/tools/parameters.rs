//! Arguments that a model writes parameter by parameter, each between tags, and not as JSON.

use serde_json::Value;

use super::{InputFormat, Tool};
use crate::text::stop::StopMatcher;

/// Before a parameter's name.
pub const PARAMETER_HEAD: &str = "<parameter=";
/// After a parameter's name.
pub const PARAMETER_LEAD: &str = ">\n";
/// After a parameter's value.
pub const PARAMETER_TAIL: &str = "\n</parameter>";
/// After the last parameter.
const END: &str = "</function>";

/// Max references that are followed to the type of a parameter.
const MAX_REFERENCES: usize = 8;

/// How the value of a parameter is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterKind {
    /// As it is: the value is a string.
    Text,
    /// As JSON: the value is no string.
    Json,
    /// As JSON if it is JSON, otherwise as it is.
    Either,
}

impl ParameterKind {
    /// The kind of a parameter with this schema, which is a part of `root`.
    pub fn of(schema: &Value, root: &Value) -> Self {
        Self::resolved(schema, root, MAX_REFERENCES)
    }

    fn resolved(schema: &Value, root: &Value, references: usize) -> Self {
        let one = |kind: &Value| if kind == "string" { Self::Text } else { Self::Json };
        let value = |value: &Value| if value.is_string() { Self::Text } else { Self::Json };
        if let Some(pointer) = schema.get("$ref").and_then(Value::as_str) {
            let target = pointer.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
            return match target {
                Some(target) if references > 0 => Self::resolved(target, root, references - 1),
                _ => Self::Either,
            };
        }
        if let Some(constant) = schema.get("const") {
            return value(constant);
        }
        let list = |key: &str| schema.get(key).and_then(Value::as_array).filter(|list| !list.is_empty());
        match schema.get("type") {
            Some(Value::Array(kinds)) => Self::common(kinds.iter().map(one)),
            Some(kind) => one(kind),
            None => match (list("enum"), list("anyOf").or_else(|| list("oneOf"))) {
                (Some(values), _) => Self::common(values.iter().map(value)),
                (None, Some(schemas)) => {
                    Self::common(schemas.iter().map(|schema| Self::resolved(schema, root, references)))
                }
                (None, None) => Self::Either,
            },
        }
    }

    /// The kind of a value that has one of these kinds.
    fn common(kinds: impl Iterator<Item = Self>) -> Self {
        kinds.reduce(|one, other| if one == other { one } else { Self::Either }).unwrap_or(Self::Either)
    }
}

/// Turns parameters into JSON while they are generated.
pub struct ParameterParser {
    kinds: Vec<(String, ParameterKind)>,
    state: State,
    /// Parameters so far.
    count: usize,
}

enum State {
    /// Outside of values, with the text since the last one.
    Between(String),
    Value {
        kind: ParameterKind,
        end: StopMatcher,
        /// A value whose kind is only known at its end.
        held: String,
    },
}

impl ParameterParser {
    pub fn new(tool: &Tool) -> Self {
        let root = tool.parameters().unwrap_or(&Value::Null);
        let properties = root.get("properties").and_then(Value::as_object).into_iter().flatten();
        let kind = |(name, schema): (&String, &Value)| (name.clone(), ParameterKind::of(schema, root));
        let kinds = match &tool.input {
            Some(InputFormat::Text | InputFormat::Regex(_) | InputFormat::Lark(_)) => {
                vec![("input".to_owned(), ParameterKind::Text)]
            }
            None => properties.map(kind).collect(),
        };
        Self { kinds, state: State::Between(String::new()), count: 0 }
    }

    /// Takes a character. Returns what it adds to the JSON of the arguments, and whether they end with it.
    pub fn push(&mut self, ch: char) -> (String, bool) {
        match &mut self.state {
            State::Between(seen) => {
                seen.push(ch);
                if seen.ends_with(END) {
                    return (if self.count == 0 { "{}" } else { "}" }.to_owned(), true);
                }
                let name = seen.strip_suffix(PARAMETER_LEAD).and_then(|seen| seen.rsplit_once(PARAMETER_HEAD));
                let Some((_, name)) = name else { return (String::new(), false) };
                let kind = self.kinds.iter().find(|(known, _)| known == name).map(|(_, kind)| *kind);
                let kind = kind.unwrap_or(ParameterKind::Either);
                let separator = if self.count == 0 { "{" } else { ", " };
                let quote = if kind == ParameterKind::Text { "\"" } else { "" };
                let json = format!("{separator}{}: {quote}", Value::from(name));
                self.count += 1;
                let end = StopMatcher::new(vec![PARAMETER_TAIL.to_owned()]);
                self.state = State::Value { kind, end, held: String::new() };
                (json, false)
            }
            State::Value { kind, end, held } => {
                let (text, found) = end.push(ch.encode_utf8(&mut [0; 4]));
                let mut json = match kind {
                    ParameterKind::Text => escaped(&text),
                    ParameterKind::Json => text,
                    ParameterKind::Either => {
                        held.push_str(&text);
                        String::new()
                    }
                };
                if found.is_some() {
                    match kind {
                        ParameterKind::Text => json.push('"'),
                        ParameterKind::Json => {}
                        ParameterKind::Either => json = json_or_string(held),
                    }
                    self.state = State::Between(String::new());
                }
                (json, false)
            }
        }
    }
}

/// Text inside a string of JSON.
fn escaped(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted.get(1..quoted.len() - 1).unwrap_or_default().to_owned()
}

fn json_or_string(text: &str) -> String {
    match serde_json::from_str::<Value>(text) {
        Ok(_) => text.trim().to_owned(),
        Err(_) => Value::from(text).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{ParameterKind, ParameterParser};
    use crate::text::tools::Tool;

    fn parsed(parameters: Value, text: &str) -> (String, Vec<bool>) {
        let definition = json!({ "function": { "parameters": parameters } });
        let tool = Tool { name: "f".to_owned(), definition, strict: false, input: None };
        let mut parser = ParameterParser::new(&tool);
        text.chars().map(|ch| parser.push(ch)).unzip()
    }

    #[test]
    fn values_become_json_by_their_types() {
        let parameters = json!({
            "properties": {
                "text": { "type": "string" },
                "count": { "type": "integer" },
                "tags": { "$ref": "#/$defs/tags" },
                "any": { "type": ["string", "null"] },
            },
            "$defs": { "tags": { "type": "array" } },
        });
        let value = |name: &str, value: &str| format!("<parameter={name}>\n{value}\n</parameter>\n");
        let text = "a \"quoted\"\n</param line\\\n\t5";
        let all = [value("text", text), value("count", "5"), value("tags", "[\"x\", {}]"), value("any", "null")]
            .concat()
            + &value("any", "no json")
            + &value("unknown", "[1]")
            + &value("text", "");
        let (json, ends) = parsed(parameters, &format!("{all}</function>"));
        assert_eq!(ends.iter().position(|end| *end), Some(ends.len() - 1));
        let expected = format!(
            "{{\"text\": {}, \"count\": 5, \"tags\": [\"x\", {{}}], \"any\": null, \"any\": \"no json\", \"unknown\": [1], \"text\": \"\"}}",
            Value::from(text)
        );
        assert_eq!(json, expected);
        assert_eq!(parsed(json!({}), "</function>").0, "{}");
    }

    #[test]
    fn kinds_follow_from_schemas() {
        let root = json!({ "$defs": { "loop": { "$ref": "#/$defs/loop" }, "text": { "const": "x" } } });
        for (schema, kind) in [
            (json!({ "type": "string" }), ParameterKind::Text),
            (json!({ "type": ["string"] }), ParameterKind::Text),
            (json!({ "enum": ["a", "b"] }), ParameterKind::Text),
            (json!({ "$ref": "#/$defs/text" }), ParameterKind::Text),
            (json!({ "type": ["number", "null"] }), ParameterKind::Json),
            (json!({ "enum": [1, 2] }), ParameterKind::Json),
            (json!({ "anyOf": [{ "type": "object" }, { "type": "array" }] }), ParameterKind::Json),
            (json!({ "anyOf": [{ "type": "string" }, { "type": "array" }] }), ParameterKind::Either),
            (json!({ "enum": ["a", 1] }), ParameterKind::Either),
            (json!({ "$ref": "#/$defs/loop" }), ParameterKind::Either),
            (json!({ "$ref": "#/$defs/none" }), ParameterKind::Either),
            (json!({}), ParameterKind::Either),
        ] {
            assert_eq!(ParameterKind::of(&schema, &root), kind, "{schema}");
        }
    }
}
