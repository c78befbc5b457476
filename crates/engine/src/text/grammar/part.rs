//! Schemas in the grammar of an output format.

use serde_json::{Value, json};

use super::error::GrammarError;
use super::schema::{self, Multiples, SchemaError};
use crate::text::tools::Tool;

/// Max parts of a schema to try one by one if it does not compile, and how often.
const MAX_SUSPECTS: usize = 200;
const MAX_ROUNDS: usize = 4;

/// A schema in the grammar.
pub(super) struct Part {
    /// Its name in the grammar's Lark rules.
    pub name: String,
    /// As it was sent.
    original: Value,
    pub schema: Value,
    /// Set if the whole schema must be enforced.
    strict: bool,
    /// The path of the schema inside the tool's parameters.
    pub prefix: String,
    /// The paths inside the schema of what is not enforced.
    pub unenforced: Vec<String>,
    /// The index of the tool whose parameters these are; `None` for the text.
    pub tool: Option<usize>,
}

/// A part of a request's schemas that the output need not match, because the grammar cannot express it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unenforced {
    /// The index of the tool with the schema; `None` for the schema of the text.
    pub tool: Option<usize>,
    /// The path inside the schema; empty if only its type is enforced.
    pub path: String,
}

/// The schema of a tool's arguments. Its type is `object`.
pub(super) fn object_schema(index: usize, tool: &Tool) -> Result<Value, GrammarError> {
    let mut schema = match tool.parameters() {
        None => json!({ "type": "object", "properties": {}, "additionalProperties": false }),
        Some(parameters) => parameters.clone(),
    };
    match schema.as_object_mut().map(|fields| fields.entry("type").or_insert_with(|| json!("object"))) {
        Some(kind) if kind == "object" => Ok(schema),
        _ => {
            let what = "must describe an object: its type must be 'object'".to_owned();
            Err(GrammarError::schema(Some(index), String::new(), what))
        }
    }
}

impl Part {
    /// `prefix`: the path of the schema inside the tool's parameters.
    pub fn new(
        name: String,
        schema: &Value,
        prefix: String,
        strict: bool,
        tool: Option<usize>,
        multiples: &mut Multiples,
    ) -> Result<Self, GrammarError> {
        let invalid = |error: SchemaError| {
            GrammarError::schema(tool, prefix.clone() + &schema::display(schema, &error.pointer), error.what)
        };
        let prepared = schema::prepare(schema, strict, multiples).map_err(invalid)?;
        let original = schema.clone();
        Ok(Self { name, original, schema: prepared.schema, strict, prefix, unenforced: prepared.unenforced, tool })
    }

    pub fn is_strict(&self) -> bool {
        self.strict
    }

    /// Removes from a schema that does not compile the keywords for which `compiles` fails, or everything but the type
    /// if it still does not compile then.
    pub fn leave_open(&mut self, compiles: &dyn Fn(Value) -> bool) {
        for _ in 0..MAX_ROUNDS {
            let mut removed: Vec<String> = Vec::new();
            for suspect in schema::suspects(&mut self.schema).into_iter().take(MAX_SUSPECTS) {
                // Without what was removed from it, the part may compile: that is for the next round.
                let is_changed =
                    removed.iter().any(|pointer| suspect.has_others || pointer.starts_with(&suspect.pointer));
                if !is_changed && !compiles(suspect.part) {
                    removed.extend(suspect.keywords);
                }
            }
            for pointer in &removed {
                self.unenforced.push(schema::display(&self.original, pointer));
                schema::remove_keyword(&mut self.schema, pointer);
            }
            if removed.is_empty() {
                break;
            }
            if compiles(self.schema.clone()) {
                self.unenforced.sort();
                self.unenforced.dedup();
                return;
            }
        }
        schema::open(&mut self.schema);
        self.unenforced = vec![String::new()];
    }
}
