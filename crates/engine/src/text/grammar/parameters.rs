//! Grammars of arguments that a model writes parameter by parameter: [between tags](tagged), or [as Python](python) does.
//!
//! Parameters come in the order of the schema, as the properties of JSON do. Keywords of the schema of all arguments that are not listed
//! here have no part in these grammars. They are left open, and refused for a strict tool.

mod python;
mod tagged;

use llguidance::api::GrammarWithLexer;
use serde_json::{Map, Value, json};

use super::error::GrammarError;
use super::json_string;
use super::part::{Part, Unenforced, object_schema};
use super::schema::{self, Multiples};
use crate::text::tools::{ArgumentStyle, InputFormat, Tool};

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

/// The rules that the grammars of all tools share.
pub(super) fn shared_rules(style: ArgumentStyle) -> String {
    match style {
        ArgumentStyle::Json => String::new(),
        ArgumentStyle::Tagged => tagged::RULES.to_owned(),
        ArgumentStyle::Python => python::rules(),
    }
}

/// The grammar of one tool's arguments.
#[derive(Default)]
pub(super) struct ParameterGrammar {
    /// An expression in Lark notation.
    pub expression: String,
    /// Rules that it refers to, a line each.
    pub rules: String,
    /// The schemas of values that it refers to.
    pub schemas: Vec<Part>,
    /// The grammar of a custom tool's input that it refers to.
    pub input: Option<GrammarWithLexer>,
    pub unenforced: Vec<Unenforced>,
}

impl ParameterGrammar {
    /// `index`: that of the tool among those of the request. `nested`: lists, dicts and unions in the request so far.
    pub fn new(
        style: ArgumentStyle,
        index: usize,
        tool: &Tool,
        nested: &mut usize,
        multiples: &mut Multiples,
    ) -> Result<Self, GrammarError> {
        if let Some(format) = &tool.input {
            return Self::of_input(style, index, format);
        }
        let root = object_schema(index, tool)?;
        // Checks the schema and its size.
        Part::new(String::new(), &root, String::new(), false, Some(index), multiples)?;
        let mut builder = Builder {
            index,
            tool,
            root: &root,
            multiples,
            written: Self::default(),
            definitions: 0,
            nested,
            rules: 0,
            is_json: false,
        };
        builder.parameters(style)?;
        Ok(builder.written)
    }

    /// The input of a custom tool.
    fn of_input(style: ArgumentStyle, index: usize, format: &InputFormat) -> Result<Self, GrammarError> {
        // Also checks the format and its size.
        let string =
            json_string::string(format).map_err(|what| GrammarError::schema(Some(index), String::new(), what))?;
        let name = format!("value_{index}");
        let (expression, input) = match style {
            ArgumentStyle::Tagged => tagged::input(format, &name),
            _ => (format!("\"input=\" @{name}"), Some(GrammarWithLexer::from_lark(string))),
        };
        let input = input.map(|grammar| GrammarWithLexer { name: Some(name), ..grammar });
        Ok(Self { expression, input, ..Self::default() })
    }
}

/// Writes the grammar of one tool's arguments.
struct Builder<'a> {
    index: usize,
    tool: &'a Tool,
    /// The schema of all arguments.
    root: &'a Value,
    multiples: &'a mut Multiples,
    written: ParameterGrammar,
    /// Bytes of definitions that were copied.
    definitions: usize,
    /// Of Python's literals: lists, dicts and unions in the request so far, rules of the tool, and whether the current
    /// parameter must be JSON.
    nested: &'a mut usize,
    rules: usize,
    is_json: bool,
}

impl Builder<'_> {
    fn parameters(&mut self, style: ArgumentStyle) -> Result<(), GrammarError> {
        let root = self.root;
        for keyword in root.as_object().into_iter().flat_map(Map::keys).filter(|key| !KNOWN.contains(&key.as_str())) {
            self.leave_open(format!(".{keyword}"))?;
        }
        if root.get("additionalProperties").is_some_and(Value::is_object) {
            self.leave_open(".additionalProperties".to_owned())?;
        }
        let properties = root.get("properties").and_then(Value::as_object).filter(|properties| !properties.is_empty());
        let Some(properties) = properties else {
            if root.get("additionalProperties") != Some(&json!(false)) {
                self.written.expression = match style {
                    ArgumentStyle::Tagged => tagged::undescribed(),
                    _ => python::undescribed(),
                };
            }
            return Ok(());
        };
        let required = names(root.get("required"));
        if required.iter().any(|name| !properties.contains_key(*name)) {
            self.leave_open(".required".to_owned())?;
        }
        let mut parameters = Vec::new();
        let is_possible =
            |(name, schema): &(&String, &Value)| *schema != &json!(false) || required.contains(&name.as_str());
        for (name, schema) in properties.iter().filter(is_possible) {
            let pointer = schema::child("/properties", name);
            let parameter = match style {
                ArgumentStyle::Tagged => self.tagged_parameter(name, schema, &pointer)?,
                _ => self.python_parameter(name, schema, &pointer)?,
            };
            parameters.push((parameter, required.contains(&name.as_str())));
        }
        self.written.expression = match style {
            ArgumentStyle::Tagged => tagged::sequence(&parameters),
            _ => self.python_sequence(&parameters),
        };
        Ok(())
    }

    /// The path of a part of the schema, for messages.
    fn path(&self, pointer: &str) -> String {
        schema::display(self.root, pointer)
    }

    fn error(&self, pointer: &str, what: &str) -> GrammarError {
        GrammarError::schema(Some(self.index), self.path(pointer), what.to_owned())
    }

    /// Adds the schema of a value that is written as JSON. Returns the expression for it.
    fn json(&mut self, schema: &Value, pointer: &str) -> Result<String, GrammarError> {
        let path = self.path(pointer);
        let schema = match self.with_definitions(schema) {
            Some(schema) => schema,
            None => {
                self.leave_open(path.clone())?;
                schema.get("type").map_or_else(|| json!({}), |kind| json!({ "type": kind }))
            }
        };
        let name = format!("value_{}_{}", self.index, self.written.schemas.len());
        let part = Part::new(name.clone(), &schema, path, self.tool.strict, Some(self.index), self.multiples)?;
        self.written.schemas.push(part);
        Ok(format!("@{name}"))
    }

    /// A part of a schema, with the definitions that it refers to; `None`: it refers to other parts, or there are too many.
    fn with_definitions(&mut self, schema: &Value) -> Option<Value> {
        let mut schema = schema.clone();
        match references(&schema) {
            References::None => return Some(schema),
            References::Others => return None,
            References::Definitions => {}
        }
        for key in DEFINITIONS {
            let Some(definitions) = self.root.get(key) else { continue };
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
    fn leave_open(&mut self, path: String) -> Result<(), GrammarError> {
        if self.tool.strict {
            let what = "cannot be enforced in this model's format of calls".to_owned();
            return Err(GrammarError::schema(Some(self.index), path, what));
        }
        self.written.unenforced.push(Unenforced { tool: Some(self.index), path });
        Ok(())
    }
}

/// A list of names.
fn names(list: Option<&Value>) -> Vec<&str> {
    list.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
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
