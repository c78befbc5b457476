//! Grammars of arguments that a model writes [parameter by parameter](crate::text::tools::parameters).
//!
//! Parameters come in the order of the schema, as the properties of JSON do. Strings end at the first closing tag, so their patterns and
//! lengths are not enforced; values of other types match their schemas.

use llguidance::api::GrammarWithLexer;
use serde_json::{Map, Value, json};

use super::error::GrammarError;
use super::json_string;
use super::part::{Part, Unenforced, object_schema};
use super::regex_escape::{quote, without_anchors};
use super::schema::{self, Multiples};
use crate::text::tools::parameters::{
    JsonTypes, PARAMETER_HEAD, PARAMETER_LEAD, PARAMETER_TAIL, ParameterKind, choices, resolved,
};
use crate::text::tools::{InputFormat, Tool};

/// Rules that all tools share: the value of a string with the tag after it, and a parameter that no schema describes.
pub(super) const TAGGED_RULES: &str = r#"tagged_value: tagged_text "\n"
tagged_text[lazy]: /((?s:.*)\n)?<\/parameter>/
tagged_parameter: "<parameter=" TAGGED_NAME ">\n" tagged_value
TAGGED_NAME: /[^<>\n]{1,100}/
"#;

/// Max bytes of definitions that the schemas of a tool's parameters have copies of.
const MAX_DEFINITIONS: usize = 1 << 20;
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
const OF_STRINGS: [&str; 9] = ["pattern", "format", "minLength", "maxLength", "allOf", "anyOf", "oneOf", "not", "if"];

/// The grammar of one tool's arguments.
pub(super) struct TaggedParameters {
    /// An expression in Lark notation.
    pub rule: String,
    /// The schemas of values that it refers to.
    pub schemas: Vec<Part>,
    /// The grammar of a custom tool's input that it refers to.
    pub input: Option<GrammarWithLexer>,
    pub unenforced: Vec<Unenforced>,
    /// Bytes of definitions that were copied.
    definitions: usize,
}

impl TaggedParameters {
    /// `index`: that of the tool among those of the request.
    pub fn new(index: usize, tool: &Tool, multiples: &mut Multiples) -> Result<Self, GrammarError> {
        if let Some(format) = &tool.input {
            return Self::of_input(index, format);
        }
        let root = object_schema(index, tool)?;
        // Checks the schema and its size.
        Part::new(String::new(), &root, String::new(), false, Some(index), multiples)?;
        let mut parameters =
            Self { rule: String::new(), schemas: Vec::new(), input: None, unenforced: Vec::new(), definitions: 0 };
        for keyword in root.as_object().into_iter().flat_map(Map::keys).filter(|key| !KNOWN.contains(&key.as_str())) {
            parameters.leave_open(index, tool, format!(".{keyword}"))?;
        }
        if root.get("additionalProperties").is_some_and(Value::is_object) {
            parameters.leave_open(index, tool, ".additionalProperties".to_owned())?;
        }
        let properties = root.get("properties").and_then(Value::as_object).filter(|properties| !properties.is_empty());
        let Some(properties) = properties else {
            let is_open = root.get("additionalProperties") != Some(&json!(false));
            parameters.rule = if is_open { format!("tagged_parameter{{0,{MAX_UNDESCRIBED}}}") } else { String::new() };
            return Ok(parameters);
        };
        let required: Vec<&str> =
            root.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
        if required.iter().any(|name| !properties.contains_key(*name)) {
            parameters.leave_open(index, tool, ".required".to_owned())?;
        }
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

    /// The input of a custom tool. Texts of a regular expression have no closing tag; those of a grammar must not have one.
    fn of_input(index: usize, format: &InputFormat) -> Result<Self, GrammarError> {
        // Checks the format and its size.
        json_string::arguments(format).map_err(|what| GrammarError::schema(Some(index), String::new(), what))?;
        let name = format!("value_{index}");
        let grammar = match format {
            InputFormat::Text => None,
            InputFormat::Regex(regex) => {
                let regex = without_anchors(regex).replace('/', r"\/");
                let value = format!("/{regex}/ & ~/(?s:.*)\\n<\\/parameter>(?s:.*)/");
                Some(GrammarWithLexer::from_lark(format!("start: VALUE\nVALUE: {value}\n")))
            }
            InputFormat::Lark(lark) => Some(GrammarWithLexer::from_lark(lark.clone())),
        };
        let value = if grammar.is_some() { described(&name) } else { "tagged_value".to_owned() };
        let rule = format!("{} {value}", quote(&format!("{PARAMETER_HEAD}input{PARAMETER_LEAD}")));
        let input = grammar.map(|grammar| GrammarWithLexer { name: Some(name), ..grammar });
        Ok(Self { rule, schemas: Vec::new(), input, unenforced: Vec::new(), definitions: 0 })
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
        let kind = ParameterKind::of(schema, root);
        if kind == ParameterKind::Json {
            let name = format!("value_{index}_{place}");
            let schema = match self.with_definitions(schema, root) {
                Some(schema) => schema,
                None => {
                    self.leave_open(index, tool, path.clone())?;
                    schema.get("type").map_or_else(|| json!({}), |kind| json!({ "type": kind }))
                }
            };
            self.schemas.push(Part::new(name.clone(), &schema, path, tool.strict, Some(index), multiples)?);
            return Ok(described(&name));
        }
        let has_texts = kind == ParameterKind::Text || kind == ParameterKind::Mixed(JsonTypes::STRING_OR_NULL);
        if !has_texts {
            self.leave_open(index, tool, path)?;
            return Ok("tagged_value".to_owned());
        }
        if let Some(texts) = choices(schema, root) {
            if texts.is_empty() {
                return Err(GrammarError::schema(Some(index), path, "allows no value".to_owned()));
            }
            let end = format!("{PARAMETER_TAIL}\n");
            let texts: Vec<String> = texts.iter().map(|text| quote(&format!("{text}{end}"))).collect();
            return Ok(format!("({})", texts.join(" | ")));
        }
        let schema = resolved(schema, root);
        let is_plain = |schema: &Value| OF_STRINGS.iter().all(|keyword| schema.get(*keyword).is_none());
        let alternatives = schema.get("anyOf").and_then(Value::as_array);
        let are_plain = alternatives.is_some_and(|all| all.iter().all(|one| is_plain(resolved(one, root))));
        for keyword in OF_STRINGS.iter().filter(|keyword| schema.get(**keyword).is_some()) {
            if *keyword != "anyOf" || !are_plain {
                self.leave_open(index, tool, format!("{path}.{keyword}"))?;
            }
        }
        Ok("tagged_value".to_owned())
    }

    /// A part of a schema, with the definitions that it refers to; `None`: it refers to other parts, or there are too many.
    fn with_definitions(&mut self, schema: &Value, root: &Value) -> Option<Value> {
        let mut schema = schema.clone();
        match references(&schema) {
            References::None => return Some(schema),
            References::Others => return None,
            References::Definitions => {}
        }
        for key in DEFINITIONS {
            let Some(definitions) = root.get(key) else { continue };
            self.definitions += definitions.to_string().len();
            let fields = schema.as_object_mut()?;
            if self.definitions > MAX_DEFINITIONS
                || fields.contains_key(key)
                || references(definitions) == References::Others
            {
                return None;
            }
            fields.insert(key.to_owned(), definitions.clone());
        }
        Some(schema)
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

/// Where the references of a schema lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum References {
    None,
    /// To definitions.
    Definitions,
    /// To some other part.
    Others,
}

const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

fn references(schema: &Value) -> References {
    match schema {
        Value::Array(all) => all.iter().map(references).max().unwrap_or(References::None),
        Value::Object(fields) => {
            let own = match fields.get("$ref").and_then(Value::as_str) {
                None => References::None,
                Some(target) if DEFINITIONS.iter().any(|key| target.starts_with(&format!("#/{key}/"))) => {
                    References::Definitions
                }
                Some(_) => References::Others,
            };
            fields.values().map(references).max().unwrap_or(References::None).max(own)
        }
        _ => References::None,
    }
}
