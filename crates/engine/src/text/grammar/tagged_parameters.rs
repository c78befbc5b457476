//! Grammars of arguments that a model writes [parameter by parameter](crate::text::tools::parameters).
//!
//! Parameters come in the order of the schema, as the properties of JSON do. Strings end at the first closing tag, so their patterns and
//! lengths are not enforced; values of other types match their schemas.

use llguidance::api::GrammarWithLexer;
use serde_json::{Map, Value, json};

use super::error::GrammarError;
use super::part::{Part, Unenforced, object_schema};
use super::regex_escape::{quote, without_anchors};
use super::schema::{self, Multiples};
use crate::text::tools::parameters::{PARAMETER_HEAD, PARAMETER_LEAD, PARAMETER_TAIL, ParameterKind};
use crate::text::tools::{InputFormat, Tool};

/// Rules that all tools share: the value of a string with the tag after it, and a parameter that no schema describes.
pub(super) const TAGGED_RULES: &str = r#"tagged_text[lazy]: /(?s:.*)\n<\/parameter>\n/
tagged_parameter: "<parameter=" TAGGED_NAME ">\n" tagged_text
TAGGED_NAME: /[^<>\n]{1,100}/
"#;

/// Max parameters that no schema describes.
const MAX_UNDESCRIBED: usize = 16;

/// Keywords of the schema of all arguments that are enforced here, or that say nothing about them.
const KNOWN: [&str; 12] = [
    "type",
    "properties",
    "required",
    "additionalProperties",
    "$defs",
    "definitions",
    "$schema",
    "$id",
    "$comment",
    "title",
    "description",
    "examples",
];
/// Keywords of strings that cannot be enforced.
const OF_STRINGS: [&str; 4] = ["pattern", "format", "minLength", "maxLength"];

/// The grammar of one tool's arguments.
pub(super) struct TaggedParameters {
    /// An expression in Lark notation.
    pub rule: String,
    /// The schemas of values that it refers to.
    pub schemas: Vec<Part>,
    /// The grammar of a custom tool's input that it refers to.
    pub input: Option<GrammarWithLexer>,
    pub unenforced: Vec<Unenforced>,
}

impl TaggedParameters {
    /// `index`: that of the tool among those of the request.
    pub fn new(index: usize, tool: &Tool, multiples: &mut Multiples) -> Result<Self, GrammarError> {
        if let Some(format) = &tool.input {
            return Ok(Self::of_input(index, format));
        }
        let root = object_schema(index, tool)?;
        let mut parameters = Self { rule: String::new(), schemas: Vec::new(), input: None, unenforced: Vec::new() };
        for keyword in root.as_object().into_iter().flat_map(Map::keys).filter(|key| !KNOWN.contains(&key.as_str())) {
            parameters.leave_open(index, tool, format!(".{keyword}"))?;
        }
        let properties = root.get("properties").and_then(Value::as_object).filter(|properties| !properties.is_empty());
        let Some(properties) = properties else {
            let is_open = root.get("additionalProperties") != Some(&json!(false));
            parameters.rule = if is_open { format!("tagged_parameter{{0,{MAX_UNDESCRIBED}}}") } else { String::new() };
            return Ok(parameters);
        };
        let required: Vec<&str> =
            root.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
        let mut rules = Vec::new();
        for (place, (name, schema)) in properties.iter().enumerate() {
            let path = schema::display(&root, &format!("/properties/{}", name.replace('~', "~0").replace('/', "~1")));
            if name.contains(['<', '>', '\n']) {
                let what = "has a name that cannot be written in this model's format of calls".to_owned();
                return Err(GrammarError::schema(Some(index), path, what));
            }
            let value = parameters.value(index, place, tool, (schema, &root, path), multiples)?;
            let head = quote(&format!("{PARAMETER_HEAD}{name}{PARAMETER_LEAD}"));
            let optional = if required.contains(&name.as_str()) { "" } else { "?" };
            rules.push(format!("({head} {value}){optional}"));
        }
        parameters.rule = rules.join(" ");
        Ok(parameters)
    }

    /// The input of a custom tool.
    fn of_input(index: usize, format: &InputFormat) -> Self {
        let name = format!("value_{index}");
        let grammar = match format {
            InputFormat::Text => None,
            InputFormat::Regex(regex) => Some(GrammarWithLexer::from_regex(without_anchors(regex))),
            InputFormat::Lark(lark) => Some(GrammarWithLexer::from_lark(lark.clone())),
        };
        let value = if grammar.is_some() { described(&name) } else { "tagged_text".to_owned() };
        let rule = format!("{} {value}", quote(&format!("{PARAMETER_HEAD}input{PARAMETER_LEAD}")));
        let input = grammar.map(|grammar| GrammarWithLexer { name: Some(name), ..grammar });
        Self { rule, schemas: Vec::new(), input, unenforced: Vec::new() }
    }

    /// The rule of a parameter's value and of the tag after it. `path`: the path of its schema.
    fn value(
        &mut self,
        index: usize,
        place: usize,
        tool: &Tool,
        (schema, root, path): (&Value, &Value, String),
        multiples: &mut Multiples,
    ) -> Result<String, GrammarError> {
        match ParameterKind::of(schema, root) {
            ParameterKind::Text => {
                if let Some(texts) = choices(schema) {
                    let end = format!("{PARAMETER_TAIL}\n");
                    let texts: Vec<String> = texts.iter().map(|text| quote(&format!("{text}{end}"))).collect();
                    return Ok(format!("({})", texts.join(" | ")));
                }
                for keyword in OF_STRINGS.iter().filter(|keyword| schema.get(**keyword).is_some()) {
                    self.leave_open(index, tool, format!("{path}.{keyword}"))?;
                }
                Ok("tagged_text".to_owned())
            }
            ParameterKind::Json => {
                let name = format!("value_{index}_{place}");
                let schema = with_definitions(schema, root);
                self.schemas.push(Part::new(name.clone(), &schema, path, tool.strict, Some(index), multiples)?);
                Ok(described(&name))
            }
            ParameterKind::Either => {
                self.leave_open(index, tool, path)?;
                Ok("tagged_text".to_owned())
            }
        }
    }

    /// Records that a part of the schema is not enforced, which is an error for a strict tool.
    fn leave_open(&mut self, index: usize, tool: &Tool, path: String) -> Result<(), GrammarError> {
        if tool.strict {
            let what = "cannot be enforced in this model's format of calls".to_owned();
            return Err(GrammarError::schema(Some(index), path, what));
        }
        self.unenforced.push(Unenforced { tool: Some(index), path });
        Ok(())
    }
}

/// A value of the grammar `name`, and the tag after it.
fn described(name: &str) -> String {
    format!("@{name} {}", quote(&format!("{PARAMETER_TAIL}\n")))
}

/// The only values of a string.
fn choices(schema: &Value) -> Option<Vec<&str>> {
    if let Some(constant) = schema.get("const").and_then(Value::as_str) {
        return Some(vec![constant]);
    }
    schema.get("enum")?.as_array()?.iter().map(Value::as_str).collect()
}

/// A part of a schema, with the definitions that it may refer to.
fn with_definitions(schema: &Value, root: &Value) -> Value {
    let mut schema = schema.clone();
    if let Some(fields) = schema.as_object_mut() {
        for key in ["$defs", "definitions"] {
            if let Some(definitions) = root.get(key) {
                fields.entry(key).or_insert_with(|| definitions.clone());
            }
        }
    }
    schema
}
