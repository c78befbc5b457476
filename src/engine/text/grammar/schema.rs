//! JSON schemas before they are compiled: bounded, free of what cannot be enforced, made ready.
//!
//! An error names the place as a path inside of the schema, such as `.properties.tags.uniqueItems`.

mod dates;
mod ends;
mod inline;
mod multiples;
mod patterns;
mod together;

use serde_json::{Map, Value, json};

pub(super) use self::multiples::Multiples;
use self::together::MOST_STEPS_INSIDE;
use crate::display::shorten;

/// Levels of JSON, and schemas inside of a schema. They bound the compiler's recursion.
const DEEPEST: usize = 64;
const MOST_SCHEMAS: usize = 5_000;
const MOST_BYTES: usize = 256 << 10;
const MOST_VALUES: usize = 10_000;
/// Pairs of alternatives of a `oneOf` are compared.
const MOST_ALTERNATIVES: usize = 100;
const MOST_PROPERTIES: usize = 1_000;
/// Each is compared with each.
const MOST_NAME_PATTERNS: usize = 10;
const LONGEST_PATTERN: usize = 1_000;
/// Each item or character up to a bound is a state.
const MOST_COUNTED: u64 = 10_000;

/// White space between tokens of JSON: a blank, or a line break with an indent. Without a bound a
/// small model may never get out of it.
pub(super) const WHITE_SPACE: &str = "[ ]|\\n[ ]{0,40}";
/// Without `\u` every string has but one spelling, so no name can pass for another.
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

/// What is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SchemaError {
    pub path: String,
    pub what: String,
}

fn wrong<T>(path: &str, what: impl Into<String>) -> Result<T, SchemaError> {
    Err(SchemaError { path: path.to_owned(), what: what.into() })
}

/// The schema as the compiler takes it. `multiples`: those of the request's other schemas.
pub(super) fn prepare(schema: &Value, multiples: &mut Multiples) -> Result<Value, SchemaError> {
    let mut schema = match schema {
        Value::Bool(true) => json!({}),
        other => other.clone(),
    };
    let written = schema.to_string();
    let bytes = written.len();
    if bytes > MOST_BYTES {
        return wrong("", format!("has {bytes} bytes; {MOST_BYTES} are the most"));
    }
    let patterned = ["\"pattern\":", "\"format\":"].iter().any(|word| written.contains(word));
    let multiples = written.contains("\"multipleOf\":").then_some(multiples);
    let mut checker = Checker { root: &schema, patterned, multiples, schemas: 0, left: MOST_STEPS_INSIDE };
    checker.check(&schema, "", 0)?;
    if !ends::can_end(&schema) {
        return wrong("", "can never be fulfilled: it demands values inside of values without end");
    }
    inline::alternatives(&mut schema);
    dates::spell_out(&mut schema);
    let Some(fields) = schema.as_object_mut() else { return wrong("", "must be an object") };
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
    /// Whether there are patterns or formats anywhere.
    patterned: bool,
    /// Where there are any.
    multiples: Option<&'a mut Multiples>,
    schemas: usize,
    /// Steps of walks to what is inside of values.
    left: u32,
}

impl Checker<'_> {
    fn check(&mut self, schema: &Value, path: &str, depth: usize) -> Result<(), SchemaError> {
        self.schemas += 1;
        if self.schemas > MOST_SCHEMAS {
            return wrong("", format!("has more than {MOST_SCHEMAS} schemas inside"));
        }
        if depth > DEEPEST {
            return wrong("", format!("is nested more than {DEEPEST} levels deep"));
        }
        let fields = match schema {
            Value::Bool(_) => return Ok(()),
            Value::Object(fields) => fields,
            _ => return wrong(path, "must be an object, true or false"),
        };
        if self.patterned {
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
            name if UNSUPPORTED.contains(&name) => wrong(path, "is a keyword that this server cannot enforce"),
            "properties" if value.as_object().is_some_and(|all| all.len() > MOST_PROPERTIES) => {
                wrong(path, format!("has more than {MOST_PROPERTIES} properties"))
            }
            "patternProperties" if value.as_object().is_some_and(|all| all.len() > MOST_NAME_PATTERNS) => {
                wrong(path, format!("has more than {MOST_NAME_PATTERNS} patterns"))
            }
            "properties" | "patternProperties" | "$defs" | "definitions" => self.named(value, path, depth),
            "items" if value.is_array() => self.list(value, path, depth),
            "items" | "additionalItems" | "additionalProperties" => self.check(value, path, depth + 1),
            "oneOf" if value.as_array().is_some_and(|all| all.len() > MOST_ALTERNATIVES) => {
                wrong(path, format!("has more than {MOST_ALTERNATIVES} alternatives"))
            }
            "prefixItems" | "anyOf" | "oneOf" | "allOf" => self.list(value, path, depth),
            "enum" => values(value, path),
            "pattern" if value.as_str().is_some_and(|text| text.len() > LONGEST_PATTERN) => {
                wrong(path, format!("is longer than {LONGEST_PATTERN} bytes"))
            }
            "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties" => {
                counted(fields, name, value, path)
            }
            "$ref" => self.reference(value, path),
            _ => Ok(()),
        }
    }

    fn named(&mut self, value: &Value, path: &str, depth: usize) -> Result<(), SchemaError> {
        match value.as_object() {
            Some(all) => all.iter().try_for_each(|(name, one)| {
                let name = shorten(name);
                self.check(one, &format!("{path}.{name}"), depth + 1)
            }),
            None => wrong(path, "must be an object of schemas"),
        }
    }

    fn list(&mut self, value: &Value, path: &str, depth: usize) -> Result<(), SchemaError> {
        match value.as_array() {
            Some(all) if !all.is_empty() => {
                all.iter().enumerate().try_for_each(|(at, one)| self.check(one, &format!("{path}[{at}]"), depth + 1))
            }
            _ => wrong(path, "must be an array of at least one schema"),
        }
    }

    fn reference(&self, value: &Value, path: &str) -> Result<(), SchemaError> {
        match value.as_str() {
            Some(text) if target(self.root, text).is_some() => Ok(()),
            Some(text) => {
                let text = shorten(text);
                wrong(
                    path,
                    format!("is '{text}', which is no place in this schema. References look like '#/$defs/name'"),
                )
            }
            None => wrong(path, "must be a string"),
        }
    }
}

/// What a reference refers to, if it lies in this schema. Escapes are not read: no compiler's are.
fn target<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    match reference.strip_prefix('#')? {
        "" | "/" => Some(root),
        path if path.contains(['~', '%']) => None,
        path => root.pointer(path),
    }
}

fn values(value: &Value, path: &str) -> Result<(), SchemaError> {
    match value.as_array() {
        Some(all) if all.len() > MOST_VALUES => wrong(path, format!("has more than {MOST_VALUES} values")),
        Some(all) if !all.is_empty() => Ok(()),
        _ => wrong(path, "must be an array of at least one value"),
    }
}

fn counted(fields: &Map<String, Value>, name: &str, value: &Value, path: &str) -> Result<(), SchemaError> {
    let required = fields.get("required").and_then(Value::as_array).map_or(0, |names| names.len() as u64);
    match value.as_u64() {
        None => wrong(path, "must be a whole number from 0 on"),
        Some(count) if count > MOST_COUNTED => wrong(path, format!("is {count}; {MOST_COUNTED} is the most")),
        // The same name twice would count as one.
        Some(count) if name == "minProperties" && count > required + 1 => {
            wrong(path, format!("is {count}, which cannot be enforced: name the properties in 'required'"))
        }
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests;
