//! Checks and rewrites JSON schemas before they are compiled: limits, unsupported keywords, formats and references.
//!
//! An error has the path inside the schema, such as `.properties.tags.uniqueItems`.

mod dates;
mod merged_constraints;
mod multiples;
mod patterns;
mod references;
mod satisfiability;
mod schema_error;

use serde_json::{Map, Value, json};

use self::merged_constraints::MAX_NESTED_STEPS;
pub(super) use self::multiples::Multiples;
use self::references::resolve;
pub(super) use self::schema_error::SchemaError;
use self::schema_error::invalid;
use crate::display::shorten;

/// Max nesting of schemas, which bounds the compiler's recursion, and max number of subschemas.
const MAX_DEPTH: usize = 64;
const MAX_SCHEMAS: usize = 5_000;
const MAX_BYTES: usize = 256 << 10;
const MAX_VALUES: usize = 10_000;
/// Max alternatives of a `oneOf`; the compiler compares all pairs.
const MAX_ALTERNATIVES: usize = 100;
const MAX_PROPERTIES: usize = 1_000;
/// The compiler compares all pairs.
const MAX_NAME_PATTERNS: usize = 10;
const MAX_PATTERN_BYTES: usize = 1_000;
/// Max value of a count or length bound; each item or character up to it is a state.
const MAX_BOUND: u64 = 10_000;

/// Whitespace between JSON tokens: a space, or a line break with an indent. Bounded, as a small model may otherwise
/// generate whitespace endlessly.
pub(super) const WHITE_SPACE: &str = "[ ]|\\n[ ]{0,40}";
/// Without `\u`, every string has only one spelling, so no property name has an alias.
const ESCAPES: &str = "nrbtf\\\"";

const UNSUPPORTED: [&str; 20] = [
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
    "propertyNames",
    "dependentSchemas",
    "dependentRequired",
    "dependencies",
    "unevaluatedProperties",
    "unevaluatedItems",
    "$dynamicRef",
    "$dynamicAnchor",
    "$recursiveRef",
    "$recursiveAnchor",
    "extends",
    "x-guidance",
];

/// Checks a schema and prepares it for the compiler. `multiples`: the sum over the request's schemas so far.
pub(super) fn prepare(schema: &Value, multiples: &mut Multiples) -> Result<Value, SchemaError> {
    let mut schema = match schema {
        Value::Bool(true) => json!({}),
        other => other.clone(),
    };
    let written = schema.to_string();
    let bytes = written.len();
    if bytes > MAX_BYTES {
        return invalid("", format!("has {bytes} bytes; the maximum is {MAX_BYTES}"));
    }
    let has_patterns = ["\"pattern\":", "\"format\":"].iter().any(|word| written.contains(word));
    let multiples = written.contains("\"multipleOf\":").then_some(multiples);
    let mut checker = Checker { root: &schema, has_patterns, multiples, schemas: 0, left: MAX_NESTED_STEPS };
    checker.check(&schema, "", 0)?;
    if !satisfiability::is_satisfiable(&schema) {
        return invalid("", "can never be satisfied: it requires values nested without end");
    }
    references::expand_references(&mut schema);
    dates::expand_formats(&mut schema);
    let Some(fields) = schema.as_object_mut() else { return invalid("", "must be an object") };
    fields.insert(
        "x-guidance".to_owned(),
        json!({
            "whitespace_pattern": WHITE_SPACE,
            "json_allowed_escapes": ESCAPES,
        }),
    );
    Ok(schema)
}

struct Checker<'a> {
    root: &'a Value,
    /// Whether the schema has patterns or formats anywhere.
    has_patterns: bool,
    /// `None` if the schema has no `multipleOf`.
    multiples: Option<&'a mut Multiples>,
    schemas: usize,
    /// Steps left for walks into nested values.
    left: u32,
}

impl Checker<'_> {
    fn check(&mut self, schema: &Value, path: &str, depth: usize) -> Result<(), SchemaError> {
        self.schemas += 1;
        if self.schemas > MAX_SCHEMAS {
            return invalid("", format!("has more than {MAX_SCHEMAS} subschemas"));
        }
        if depth > MAX_DEPTH {
            return invalid("", format!("is nested more than {MAX_DEPTH} levels deep"));
        }
        let fields = match schema {
            Value::Bool(_) => return Ok(()),
            Value::Object(fields) => fields,
            _ => return invalid(path, "must be an object, true or false"),
        };
        if self.has_patterns {
            patterns::check(self.root, fields, path, &mut self.left)?;
        }
        if let Some(multiples) = &mut self.multiples {
            multiples.check(self.root, fields, path, &mut self.left)?;
        }
        for (name, value) in fields {
            self.keyword(fields, name, value, &format!("{path}.{name}"), depth)?;
        }
        Ok(())
    }

    fn keyword(
        &mut self,
        fields: &Map<String, Value>,
        name: &str,
        value: &Value,
        path: &str,
        depth: usize,
    ) -> Result<(), SchemaError> {
        match name {
            "uniqueItems" if value == false => Ok(()),
            name if UNSUPPORTED.contains(&name) => invalid(path, "is a keyword that this server cannot enforce"),
            "properties" if value.as_object().is_some_and(|all| all.len() > MAX_PROPERTIES) => {
                invalid(path, format!("has more than {MAX_PROPERTIES} properties"))
            }
            "patternProperties" if value.as_object().is_some_and(|all| all.len() > MAX_NAME_PATTERNS) => {
                invalid(path, format!("has more than {MAX_NAME_PATTERNS} patterns"))
            }
            "properties" | "patternProperties" | "$defs" | "definitions" => self.check_map(value, path, depth),
            "items" if value.is_array() => self.check_list(value, path, depth),
            "items" | "additionalItems" | "additionalProperties" => self.check(value, path, depth + 1),
            "oneOf" if value.as_array().is_some_and(|all| all.len() > MAX_ALTERNATIVES) => {
                invalid(path, format!("has more than {MAX_ALTERNATIVES} alternatives"))
            }
            "prefixItems" | "anyOf" | "oneOf" | "allOf" => self.check_list(value, path, depth),
            "enum" => check_enum(value, path),
            "pattern" if value.as_str().is_some_and(|text| text.len() > MAX_PATTERN_BYTES) => {
                invalid(path, format!("is longer than {MAX_PATTERN_BYTES} bytes"))
            }
            "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties" => {
                check_bound(fields, name, value, path)
            }
            "$ref" => self.check_reference(value, path),
            _ => Ok(()),
        }
    }

    fn check_map(&mut self, value: &Value, path: &str, depth: usize) -> Result<(), SchemaError> {
        match value.as_object() {
            Some(all) => all.iter().try_for_each(|(name, one)| {
                let name = shorten(name);
                self.check(one, &format!("{path}.{name}"), depth + 1)
            }),
            None => invalid(path, "must be an object of schemas"),
        }
    }

    fn check_list(&mut self, value: &Value, path: &str, depth: usize) -> Result<(), SchemaError> {
        match value.as_array() {
            Some(all) if !all.is_empty() => {
                all.iter().enumerate().try_for_each(|(at, one)| self.check(one, &format!("{path}[{at}]"), depth + 1))
            }
            _ => invalid(path, "must be an array of at least one schema"),
        }
    }

    fn check_reference(&self, value: &Value, path: &str) -> Result<(), SchemaError> {
        match value.as_str() {
            Some(text) if resolve(self.root, text).is_some() => Ok(()),
            Some(text) => {
                let text = shorten(text);
                invalid(
                    path,
                    format!("is '{text}', which does not exist in this schema. References look like '#/$defs/name'"),
                )
            }
            None => invalid(path, "must be a string"),
        }
    }
}

fn check_enum(value: &Value, path: &str) -> Result<(), SchemaError> {
    match value.as_array() {
        Some(all) if all.len() > MAX_VALUES => invalid(path, format!("has more than {MAX_VALUES} values")),
        Some(all) if !all.is_empty() => Ok(()),
        _ => invalid(path, "must be an array of at least one value"),
    }
}

fn check_bound(fields: &Map<String, Value>, name: &str, value: &Value, path: &str) -> Result<(), SchemaError> {
    let required = fields.get("required").and_then(Value::as_array).map_or(0, |names| names.len() as u64);
    match value.as_u64() {
        None => invalid(path, "must be a non-negative integer"),
        Some(count) if count > MAX_BOUND => invalid(path, format!("is {count}; the maximum is {MAX_BOUND}")),
        // Further properties may repeat a name and would then count as one.
        Some(count) if name == "minProperties" && count > required + 1 => {
            invalid(path, format!("is {count}, which cannot be enforced: name the properties in 'required'"))
        }
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests;
