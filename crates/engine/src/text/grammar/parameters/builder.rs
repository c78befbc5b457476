//! What the grammars of all styles of arguments are written with.

use llguidance::api::GrammarWithLexer;
use serde_json::{Value, json};

use super::literal_style::LiteralStyle;
use crate::text::grammar::error::GrammarError;
use crate::text::grammar::part::{Part, Unenforced};
use crate::text::grammar::schema::{self, Multiples};
use crate::text::tools::Tool;

/// Max bytes of schemas of values that a request has copies of.
const MAX_COPIES: usize = 4 << 20;
/// Max bytes of definitions that the schemas of a tool's parameters have copies of.
const MAX_DEFINITIONS: usize = 1 << 20;
/// Max parameters that no schema describes.
pub(super) const MAX_UNDESCRIBED: usize = 16;

/// The grammar of one tool's arguments.
#[derive(Default)]
pub struct ParameterGrammar {
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

/// What the grammars of all tools of a request have taken so far. It is never given back, so it bounds the work, too.
#[derive(Debug, Default)]
pub struct Budget {
    /// Schemas that were read for literals.
    pub(super) values: usize,
    /// Lists, dicts and unions of literals.
    pub(super) nested: usize,
    /// Rules of literals.
    pub(super) rules: usize,
    /// Bytes of schemas that were copied.
    copied: usize,
}

impl Budget {
    /// Counts copies of a schema. False: there would be too many bytes.
    pub(super) fn may_copy(&mut self, schema: &Value, count: usize) -> bool {
        if self.copied < MAX_COPIES {
            self.copied = self.copied.saturating_add(schema.to_string().len().saturating_mul(count));
        }
        self.copied < MAX_COPIES
    }
}

/// Writes the grammar of one tool's arguments.
pub(super) struct Builder<'a> {
    pub(super) style: LiteralStyle,
    pub(super) index: usize,
    pub(super) tool: &'a Tool,
    /// The schema of all arguments.
    pub(super) root: &'a Value,
    pub(super) multiples: &'a mut Multiples,
    pub(super) written: ParameterGrammar,
    /// Bytes of definitions that were copied.
    pub(super) definitions: usize,
    pub(super) budget: &'a mut Budget,
    /// Of literals: rules of the tool, and whether the current parameter must be JSON.
    pub(super) rules: usize,
    pub(super) is_json: bool,
}

impl Builder<'_> {
    /// The path of a part of the schema, for messages.
    pub(super) fn path(&self, pointer: &str) -> String {
        schema::display(self.root, pointer)
    }

    pub(super) fn error(&self, pointer: &str, what: &str) -> GrammarError {
        GrammarError::schema(Some(self.index), self.path(pointer), what.to_owned())
    }

    /// Adds the schema of a value that is written as JSON. Returns the expression for it.
    pub(super) fn json(&mut self, schema: &Value, pointer: &str) -> Result<String, GrammarError> {
        let path = self.path(pointer);
        let copy = if self.budget.may_copy(schema, 1) { self.with_definitions(schema) } else { None };
        let schema = match copy {
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
    pub(super) fn with_definitions(&mut self, schema: &Value) -> Option<Value> {
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
    pub(super) fn leave_open(&mut self, path: String) -> Result<(), GrammarError> {
        if self.tool.strict {
            let what = "cannot be enforced in this model's format of calls".to_owned();
            return Err(GrammarError::schema(Some(self.index), path, what));
        }
        self.written.unenforced.push(Unenforced { tool: Some(self.index), path });
        Ok(())
    }
}

/// A list of names.
pub(super) fn names(list: Option<&Value>) -> Vec<&str> {
    list.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Where the references of a schema lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum References {
    None,
    /// To definitions.
    Definitions,
    /// To some other part.
    Others,
}

const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

pub(super) fn references(schema: &Value) -> References {
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
