//! Arguments that a model writes parameter by parameter, each between tags, and not as JSON.

use serde_json::Value;

use super::{InputFormat, Tool};
use crate::text::stop::StopMatcher;

/// The texts around parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tags {
    /// Before a parameter's name.
    pub head: &'static str,
    /// Between its name and its value.
    pub lead: &'static str,
    /// After its value.
    pub tail: &'static str,
    /// Between a parameter and what follows it.
    pub separator: &'static str,
    /// After the last parameter.
    pub end: &'static str,
}

/// Those of Qwen3-Coder.
pub const PARAMETER_TAGS: Tags =
    Tags { head: "<parameter=", lead: ">\n", tail: "\n</parameter>", separator: "\n", end: "</function>" };
/// Those of GLM-4.7.
pub const KEY_TAGS: Tags =
    Tags { head: "<arg_key>", lead: "</arg_key><arg_value>", tail: "</arg_value>", separator: "", end: "</tool_call>" };
/// Those of GLM-4.5 and 4.6, each in a line of its own.
pub const KEY_LINE_TAGS: Tags = Tags { lead: "</arg_key>\n<arg_value>", separator: "\n", ..KEY_TAGS };

impl Tags {
    /// Whether a value has lines of its own. An empty one may have none.
    pub fn has_lines(&self) -> bool {
        self.tail.starts_with('\n')
    }
}

/// Max parts of a schema that are looked at for the types of a parameter. Their number may be exponential.
const MAX_PARTS: usize = 1_000;

/// How the value of a parameter is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterKind {
    /// As it is: the value is a string.
    Text,
    /// As JSON: the value is no string.
    Json,
    /// As JSON if it is JSON of one of these types, otherwise as it is.
    Mixed(JsonTypes),
}

impl ParameterKind {
    /// The kind of a parameter with this schema, which is a part of `root`.
    pub fn of(schema: &Value, root: &Value) -> Self {
        let mut parts = MAX_PARTS;
        match JsonTypes::allowed(schema, root, &mut parts) {
            JsonTypes::STRING => Self::Text,
            types if types.contains(JsonTypes::STRING) => Self::Mixed(types),
            _ => Self::Json,
        }
    }
}

/// A set of types of JSON values. Integers are numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonTypes(u8);

impl JsonTypes {
    pub const STRING: Self = Self(1);
    pub const NULL: Self = Self(2);
    pub const STRING_OR_NULL: Self = Self(1 | 2);
    const NONE: Self = Self(0);
    const ANY: Self = Self(63);

    fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    fn of(value: &Value) -> Self {
        match value {
            Value::String(_) => Self::STRING,
            Value::Null => Self::NULL,
            Value::Bool(_) => Self(4),
            Value::Number(_) => Self(8),
            Value::Array(_) => Self(16),
            Value::Object(_) => Self(32),
        }
    }

    fn named(name: &Value) -> Self {
        match name.as_str() {
            Some("string") => Self::STRING,
            Some("null") => Self::NULL,
            Some("boolean") => Self(4),
            Some("number" | "integer") => Self(8),
            Some("array") => Self(16),
            Some("object") => Self(32),
            _ => Self::ANY,
        }
    }

    /// The types that a schema allows, after at most `parts` of its parts.
    fn allowed(schema: &Value, root: &Value, parts: &mut usize) -> Self {
        if *parts == 0 {
            return Self::ANY;
        }
        *parts -= 1;
        if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            return target(root, reference).map_or(Self::ANY, |target| Self::allowed(target, root, parts));
        }
        if let Some(constant) = schema.get("const") {
            return Self::of(constant);
        }
        match schema.get("type") {
            Some(Value::Array(names)) => return Self::union(names, Self::named),
            Some(name) => return Self::named(name),
            None => {}
        }
        match (schema.get("enum"), alternatives(schema)) {
            (Some(Value::Array(values)), _) => Self::union(values, Self::of),
            (_, Some(schemas)) => Self::union(schemas, |schema| Self::allowed(schema, root, parts)),
            _ => Self::ANY,
        }
    }

    fn union(values: &[Value], mut types: impl FnMut(&Value) -> Self) -> Self {
        let mut all = Self::NONE;
        for value in values {
            all = Self(all.0 | types(value).0);
            if all == Self::ANY {
                break;
            }
        }
        if all == Self::NONE { Self::ANY } else { all }
    }
}

/// Arguments between tags. Arguments that are no object are left as they are.
pub fn written(arguments: &Value, tags: Tags) -> String {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let parameter = |(name, value): (&String, &Value)| {
        [tags.head, name, tags.lead, &text(value), tags.tail, tags.separator].concat()
    };
    match arguments {
        Value::Object(fields) => fields.iter().map(parameter).collect(),
        other => text(other),
    }
}

/// The target of a reference within a schema.
fn target<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    root.pointer(reference.strip_prefix('#')?)
}

fn alternatives(schema: &Value) -> Option<&[Value]> {
    let list = schema.get("anyOf").or_else(|| schema.get("oneOf"))?;
    list.as_array().map(Vec::as_slice)
}

/// The only texts that a schema of strings, or of strings and `null`, allows; `None`: there may be others.
pub fn choices(schema: &Value, root: &Value) -> Option<Vec<String>> {
    let (mut parts, mut found) = (MAX_PARTS, Vec::new());
    add_choices(schema, root, &mut parts, &mut found).then_some(found)
}

fn add_choices(schema: &Value, root: &Value, parts: &mut usize, found: &mut Vec<String>) -> bool {
    if *parts == 0 {
        return false;
    }
    *parts -= 1;
    if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
        return target(root, reference).is_some_and(|target| add_choices(target, root, parts, found));
    }
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Null => Some("null".to_owned()),
        // Values of other types are not allowed by the type.
        _ => None,
    };
    match (schema.get("const"), schema.get("enum"), alternatives(schema)) {
        (Some(value), ..) => found.extend(text(value)),
        (_, Some(Value::Array(values)), _) => found.extend(values.iter().filter_map(text)),
        (_, _, Some(schemas)) => return schemas.iter().all(|schema| add_choices(schema, root, parts, found)),
        _ if schema.get("type").is_some_and(|name| name == "null") => found.push("null".to_owned()),
        _ => return false,
    }
    true
}

/// A schema after its references, if it has any.
pub fn resolved<'a>(schema: &'a Value, root: &'a Value) -> &'a Value {
    let mut at = schema;
    for _ in 0..8 {
        match at.get("$ref").and_then(Value::as_str).and_then(|reference| target(root, reference)) {
            Some(target) => at = target,
            None => break,
        }
    }
    at
}

/// Turns parameters into JSON while they are generated.
pub struct ParameterParser {
    tags: Tags,
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
        /// Also has the line break before a value with lines of its own, so that an empty value may have no line.
        end: StopMatcher,
        /// The line break was passed on, or there is none.
        is_open: bool,
        /// A value whose type is only known at its end.
        held: String,
    },
}

impl ParameterParser {
    pub fn new(tool: &Tool, tags: Tags) -> Self {
        let root = tool.parameters().unwrap_or(&Value::Null);
        let properties = root.get("properties").and_then(Value::as_object).into_iter().flatten();
        let kind = |(name, schema): (&String, &Value)| (name.clone(), ParameterKind::of(schema, root));
        let kinds = match &tool.input {
            Some(InputFormat::Text | InputFormat::Regex(_) | InputFormat::Lark(_)) => {
                vec![("input".to_owned(), ParameterKind::Text)]
            }
            None => properties.map(kind).collect(),
        };
        Self { tags, kinds, state: State::Between(String::new()), count: 0 }
    }

    /// Takes a character. Returns what it adds to the JSON of the arguments, and whether they end with it.
    pub fn push(&mut self, ch: char) -> (String, bool) {
        let tags = self.tags;
        match &mut self.state {
            State::Between(seen) => {
                seen.push(ch);
                if seen.ends_with(tags.end) {
                    return (if self.count == 0 { "{}" } else { "}" }.to_owned(), true);
                }
                let name = seen.strip_suffix(tags.lead).and_then(|seen| seen.rsplit_once(tags.head));
                let Some((_, name)) = name else { return (String::new(), false) };
                let kind = self.kinds.iter().find(|(known, _)| known == name).map(|(_, kind)| *kind);
                let kind = kind.unwrap_or(ParameterKind::Mixed(JsonTypes::ANY));
                let separator = if self.count == 0 { "{" } else { ", " };
                let quote = if kind == ParameterKind::Text { "\"" } else { "" };
                let json = format!("{separator}{}: {quote}", Value::from(name));
                self.count += 1;
                let mut end = StopMatcher::new(vec![tags.tail.to_owned()]);
                if tags.has_lines() {
                    end.push("\n");
                }
                self.state = State::Value { kind, end, is_open: !tags.has_lines(), held: String::new() };
                (json, false)
            }
            State::Value { kind, end, is_open, held } => {
                let (mut text, found) = end.push(ch.encode_utf8(&mut [0; 4]));
                if !*is_open && !text.is_empty() {
                    (*is_open, text) = (true, text.split_off(1));
                }
                let mut json = match kind {
                    ParameterKind::Text => escaped(&text),
                    ParameterKind::Json => text,
                    ParameterKind::Mixed(_) => {
                        held.push_str(&text);
                        String::new()
                    }
                };
                if found.is_some() {
                    match kind {
                        ParameterKind::Text => json.push('"'),
                        ParameterKind::Json => {}
                        ParameterKind::Mixed(types) => json = json_or_string(*types, held),
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

fn json_or_string(types: JsonTypes, text: &str) -> String {
    // Templates show `null` as Python writes it.
    if text == "None" && types.contains(JsonTypes::NULL) {
        return "null".to_owned();
    }
    match serde_json::from_str::<Value>(text) {
        Ok(value) if !value.is_string() && types.contains(JsonTypes::of(&value)) => text.trim().to_owned(),
        _ => Value::from(text).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{
        JsonTypes, KEY_LINE_TAGS, KEY_TAGS, PARAMETER_TAGS, ParameterKind, ParameterParser, Tags, choices, written,
    };
    use crate::text::tools::Tool;

    fn parsed(parameters: Value, text: &str, tags: Tags) -> (String, Vec<bool>) {
        let definition = json!({ "function": { "parameters": parameters } });
        let tool = Tool { name: "f".to_owned(), definition, strict: false, input: None };
        let mut parser = ParameterParser::new(&tool, tags);
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
            + &value("text", "")
            + "<parameter=text>\n</parameter>\n<parameter=any>\n5\n</parameter>\n";
        let (json, ends) = parsed(parameters, &format!("{all}</function>"), PARAMETER_TAGS);
        assert_eq!(ends.iter().position(|end| *end), Some(ends.len() - 1));
        let expected = format!(
            "{{\"text\": {}, \"count\": 5, \"tags\": [\"x\", {{}}], \"any\": null, \"any\": \"no json\", \"unknown\": [1], \"text\": \"\", \"text\": \"\", \"any\": \"5\"}}",
            Value::from(text)
        );
        assert_eq!(json, expected);
        assert_eq!(parsed(json!({}), "</function>", PARAMETER_TAGS).0, "{}");
    }

    #[test]
    fn what_is_written_is_parsed_with_all_tags() {
        let parameters = json!({ "properties": { "a": { "type": "string" }, "b": { "type": "array" } } });
        for arguments in [
            json!({ "a": "", "b": [1, "x"] }),
            json!({ "a": "\n x < y </arg \n", "b": [] }),
            json!({ "c": true, "d": "text", "e": null }),
            json!({}),
        ] {
            for tags in [PARAMETER_TAGS, KEY_TAGS, KEY_LINE_TAGS] {
                let text = written(&arguments, tags) + tags.end;
                let (json, ends) = parsed(parameters.clone(), &text, tags);
                assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), arguments, "{text}");
                assert_eq!(ends.iter().position(|end| *end), Some(ends.len() - 1), "{text}");
            }
        }
    }

    #[test]
    fn kinds_follow_from_schemas() {
        // A hundred alternatives of a hundred alternatives, and so on.
        let many = vec![json!({ "$ref": "#/$defs/many" }); 100];
        let root = json!({ "$defs": {
            "loop": { "$ref": "#/$defs/loop" },
            "text": { "const": "x" },
            "many": { "anyOf": many },
        } });
        let mixed = |types: u8| ParameterKind::Mixed(JsonTypes(types));
        for (schema, kind) in [
            (json!({ "type": "string" }), ParameterKind::Text),
            (json!({ "type": ["string"] }), ParameterKind::Text),
            (json!({ "enum": ["a", "b"] }), ParameterKind::Text),
            (json!({ "$ref": "#/$defs/text" }), ParameterKind::Text),
            (json!({ "type": ["number", "null"] }), ParameterKind::Json),
            (json!({ "enum": [1, 2] }), ParameterKind::Json),
            (json!({ "anyOf": [{ "type": "object" }, { "type": "array" }] }), ParameterKind::Json),
            (json!({ "anyOf": [{ "type": "string" }, { "type": "null" }] }), mixed(1 | 2)),
            (json!({ "enum": ["a", 1] }), mixed(1 | 8)),
            (json!({ "$ref": "#/$defs/loop" }), mixed(63)),
            (json!({ "$ref": "#/$defs/many" }), mixed(63)),
            (json!({ "$ref": "#/$defs/none" }), mixed(63)),
            (json!({}), mixed(63)),
        ] {
            assert_eq!(ParameterKind::of(&schema, &root), kind, "{schema}");
        }
        for (schema, expected) in [
            (json!({ "$ref": "#/$defs/text" }), Some(vec!["x"])),
            (json!({ "type": "string", "enum": ["a", 1] }), Some(vec!["a"])),
            (
                json!({ "anyOf": [{ "const": "a" }, { "enum": ["b"] }, { "type": "null" }] }),
                Some(vec!["a", "b", "null"]),
            ),
            (json!({ "anyOf": [{ "const": "a" }, { "type": "string" }] }), None),
            (json!({ "$ref": "#/$defs/many" }), None),
            (json!({ "type": "string" }), None),
        ] {
            let expected = expected.map(|texts| texts.into_iter().map(str::to_owned).collect::<Vec<_>>());
            assert_eq!(choices(&schema, &root), expected, "{schema}");
        }
    }
}
