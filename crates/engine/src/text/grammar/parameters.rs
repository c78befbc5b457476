//! Grammars of arguments that a model writes parameter by parameter: [between tags](tagged), or as [literals](literals) of
//! Python or Gemma.
//!
//! Parameters come in the order of the schema, as the properties of JSON do, or of their names in Gemma's calls. Keywords of
//! the schema of all arguments that are not listed here have no part in these grammars. They are left open, and refused for a
//! strict tool.

mod builder;
mod literal_style;
mod literals;
mod tagged;

use llguidance::api::GrammarWithLexer;
use serde_json::{Map, Value, json};

use super::error::GrammarError;
use super::json_string;
use super::part::{Part, object_schema};
use super::schema::{self, Multiples};
use crate::text::tools::{ArgumentStyle, InputFormat, Tool};
use builder::{Builder, names};

pub(super) use builder::{Budget, ParameterGrammar};
pub(super) use literal_style::LiteralStyle;

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

/// Arguments that no schema describes.
fn undescribed(style: ArgumentStyle) -> String {
    match style {
        ArgumentStyle::Tagged(_) => tagged::undescribed(),
        _ => literals::undescribed(),
    }
}

/// The rules that the grammars of all tools share.
pub(super) fn shared_rules(style: LiteralStyle) -> String {
    match style.arguments {
        ArgumentStyle::Json => String::new(),
        ArgumentStyle::Tagged(tags) => tagged::rules(tags),
        ArgumentStyle::Python | ArgumentStyle::Gemma => style.rules(),
    }
}

impl ParameterGrammar {
    /// `index`: that of the tool among those of the request.
    pub fn new(
        style: LiteralStyle,
        index: usize,
        tool: &Tool,
        budget: &mut Budget,
        multiples: &mut Multiples,
    ) -> Result<Self, GrammarError> {
        if let Some(format) = &tool.input {
            return Self::of_input(style, index, format);
        }
        let root = object_schema(index, tool)?;
        // Checks the schema and its size.
        let whole = Part::new(String::new(), &root, String::new(), false, Some(index), multiples)?;
        let mut builder = Builder {
            style,
            index,
            tool,
            root: &root,
            multiples,
            written: Self::default(),
            definitions: 0,
            budget,
            rules: 0,
            is_json: false,
        };
        match whole.unenforced.iter().any(String::is_empty) {
            // It is too large.
            true => builder.leave_all_open()?,
            false => builder.parameters()?,
        }
        Ok(builder.written)
    }

    /// The input of a custom tool.
    fn of_input(style: LiteralStyle, index: usize, format: &InputFormat) -> Result<Self, GrammarError> {
        // Also checks the format and its size.
        let string =
            json_string::string(format).map_err(|what| GrammarError::schema(Some(index), String::new(), what))?;
        let name = format!("value_{index}");
        let (expression, input) = match style.arguments {
            ArgumentStyle::Tagged(tags) => tagged::input(format, &name, tags),
            _ => (style.input(&name), Some(GrammarWithLexer::from_lark(string))),
        };
        let input = input.map(|grammar| GrammarWithLexer { name: Some(name), ..grammar });
        Ok(Self { expression, input, ..Self::default() })
    }
}

impl Builder<'_> {
    /// Any arguments: the schema is too large.
    fn leave_all_open(&mut self) -> Result<(), GrammarError> {
        self.written.expression = undescribed(self.style.arguments);
        self.leave_open(String::new())
    }

    fn parameters(&mut self) -> Result<(), GrammarError> {
        let (root, style) = (self.root, self.style.arguments);
        for keyword in root.as_object().into_iter().flat_map(Map::keys).filter(|key| !KNOWN.contains(&key.as_str())) {
            self.leave_open(format!(".{keyword}"))?;
        }
        if root.get("additionalProperties").is_some_and(Value::is_object) {
            self.leave_open(".additionalProperties".to_owned())?;
        }
        let properties = root.get("properties").and_then(Value::as_object).filter(|properties| !properties.is_empty());
        let Some(properties) = properties else {
            if root.get("additionalProperties") != Some(&json!(false)) {
                self.written.expression = undescribed(style);
            }
            return Ok(());
        };
        let required = names(root.get("required"));
        if !matches!(style, ArgumentStyle::Tagged(_)) && !self.has_rules(2 * properties.len()) {
            return self.leave_all_open();
        }
        if required.iter().any(|name| !properties.contains_key(*name)) {
            self.leave_open(".required".to_owned())?;
        }
        let mut parameters = Vec::new();
        let is_possible =
            |(name, schema): &(&String, &Value)| *schema != &json!(false) || required.contains(&name.as_str());
        for (name, schema) in self.style.ordered(properties).into_iter().filter(is_possible) {
            let pointer = schema::child("/properties", name);
            let is_required = required.contains(&name.as_str());
            let parameter = match style {
                ArgumentStyle::Tagged(tags) => Some(self.tagged_parameter(name, schema, &pointer, tags)?),
                _ => self.literal_parameter(name, schema, &pointer, is_required)?,
            };
            parameters.extend(parameter.map(|parameter| (parameter, is_required)));
        }
        self.written.expression = match style {
            ArgumentStyle::Tagged(_) => tagged::sequence(&parameters),
            _ if parameters.is_empty() => String::new(),
            _ => self.literal_sequence(&parameters),
        };
        Ok(())
    }
}
