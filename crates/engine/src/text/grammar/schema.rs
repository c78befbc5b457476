//! Checks and rewrites JSON schemas before they are compiled: limits, unsupported keywords, formats and references.
//!
//! A schema that is strict must be enforceable as a whole. From any other, what cannot be enforced is removed, and the
//! caller is told its path, such as `.properties.tags.uniqueItems`.
//!
//! The work that a schema causes is bounded by counting its content before compilation, not by a clock, so the same
//! schema is accepted or refused on every machine and under any load. (A limit of 150 ms refused a schema on a slow
//! machine that usually compiles in 2 ms.) The most expensive accepted schema takes about 2 seconds. A request that
//! waits 10 seconds for a grammar gets a 503, not a 400.

mod closed_objects;
mod control_characters;
mod dates;
mod finite_pattern;
mod leave_open;
mod merged_constraints;
mod multiples;
mod numbers;
mod patterns;
mod references;
mod satisfiability;
mod schema_error;
mod simplify;
mod subschemas;

use std::collections::HashSet;

use serde_json::{Map, Value, json};

pub(super) use self::control_characters::is_written;
pub(super) use self::leave_open::{open, remove_keyword, suspects};
use self::merged_constraints::MAX_NESTED_STEPS;
pub(super) use self::multiples::Multiples;
pub(super) use self::references::resolve;
use self::references::segments;
pub(super) use self::schema_error::SchemaError;
use self::schema_error::{Fault, invalid, unenforceable, unenforceable_schema};
pub(super) use self::subschemas::child;
use self::subschemas::count_of;
use outpost_common::display::shorten;

/// Max nesting of schemas, which bounds the compiler's recursion, and max number of subschemas.
const MAX_DEPTH: usize = 64;
const MAX_SCHEMAS: usize = 5_000;
const MAX_BYTES: usize = 256 << 10;
const MAX_VALUES: usize = 10_000;
/// Max alternatives of a `oneOf`; the compiler compares all pairs.
const MAX_ALTERNATIVES: usize = 100;
const MAX_PROPERTIES: usize = 1_000;
/// Any of them may come next, so each is an alternative for the parser.
const MAX_OPTIONAL_PROPERTIES: usize = 500;
/// The compiler compares all pairs.
const MAX_NAME_PATTERNS: usize = 10;
/// Max value of a count or length bound; each item or character up to it is a state.
const MAX_BOUND: u64 = 10_000;

/// Whitespace between JSON tokens: a space, or a line break with an indent. Bounded, as a small model may otherwise
/// generate whitespace endlessly.
pub(super) const WHITE_SPACE: &str = "[ ]|\\n[ ]{0,40}";
/// Without `\u`, every string has only one spelling, so no property name has an alias. Most control characters have none.
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

/// The formats of strings that are enforced.
const FORMATS: [&str; 10] =
    ["date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];
const TYPES: [&str; 7] = ["null", "boolean", "number", "integer", "string", "array", "object"];
/// Number of checks after something was removed from a schema, before the whole schema is given up.
const MAX_ROUNDS: usize = 8;

/// A schema for the compiler.
#[derive(Debug)]
pub(super) struct Prepared {
    pub schema: Value,
    /// The paths of what is not enforced, sorted.
    pub unenforced: Vec<String>,
}

/// Checks a schema and prepares it for the compiler. `strict`: whether everything must be enforced. `multiples`: the
/// sum over the request's schemas so far.
pub(super) fn prepare(schema: &Value, strict: bool, multiples: &mut Multiples) -> Result<Prepared, SchemaError> {
    let original = schema;
    let mut schema = match original {
        Value::Bool(true) => json!({}),
        other => other.clone(),
    };
    // Also before it is rewritten, because that takes time.
    let is_too_large = check_size(&schema.to_string()).is_err();
    if !is_too_large {
        patterns::check_syntax(&mut schema)?;
        simplify::simplify(&mut schema);
    }
    let unenforced = check(&mut schema, strict, multiples)?;
    let unenforced = unenforced.iter().map(|pointer| display(original, pointer)).collect();
    if !satisfiability::is_satisfiable(&schema) {
        return invalid("", "can never be satisfied: it requires values nested without end");
    }
    references::expand_references(&mut schema);
    dates::expand_formats(&mut schema);
    multiples::tighten_bounds(&mut schema);
    closed_objects::close_objects(&mut schema);
    control_characters::remove_from_classes(&mut schema);
    references::write_for_compiler(&mut schema);
    let Some(fields) = schema.as_object_mut() else { return invalid("", "must be an object") };
    fields.insert(
        "x-guidance".to_owned(),
        json!({
            "whitespace_pattern": WHITE_SPACE,
            "json_allowed_escapes": ESCAPES,
        }),
    );
    Ok(Prepared { schema, unenforced })
}

/// Checks a schema. If it is not strict, removes what cannot be enforced and returns the pointers, sorted.
fn check(schema: &mut Value, strict: bool, multiples: &mut Multiples) -> Result<Vec<String>, SchemaError> {
    let mut unenforced = Vec::new();
    let mut opened = Vec::new();
    for round in 0..=MAX_ROUNDS {
        let mut sum = multiples.clone();
        let mut found = find_unenforceable(schema, strict, &mut sum)?;
        if found.is_empty() {
            *multiples = sum;
            break;
        }
        if round == MAX_ROUNDS {
            found = vec![SchemaError { pointer: String::new(), what: String::new(), fault: Fault::Schema }];
        }
        for error in found {
            leave_open::remove(schema, &error);
            if error.fault == Fault::Schema {
                opened.push(error.pointer.clone());
            }
            unenforced.push(error.pointer);
        }
    }
    unenforced.retain(|pointer| !opened.iter().any(|schema| is_inside(pointer, schema)));
    unenforced.sort();
    unenforced.dedup();
    Ok(unenforced)
}

fn is_inside(pointer: &str, schema: &str) -> bool {
    pointer.strip_prefix(schema).is_some_and(|rest| rest.starts_with('/'))
}

fn check_size(written: &str) -> Result<(), SchemaError> {
    match written.len() {
        0..=MAX_BYTES => Ok(()),
        bytes => unenforceable_schema("", format!("has {bytes} bytes; the maximum is {MAX_BYTES}")),
    }
}

fn find_unenforceable(
    schema: &Value,
    strict: bool,
    multiples: &mut Multiples,
) -> Result<Vec<SchemaError>, SchemaError> {
    let written = schema.to_string();
    if let Err(error) = check_size(&written) {
        return if strict { Err(error) } else { Ok(vec![error]) };
    }
    let has_patterns = ["\"pattern\":", "\"format\":"].iter().any(|word| written.contains(word));
    let multiples = written.contains("\"multipleOf\":").then_some(multiples);
    let mut checker = Checker {
        root: schema,
        strict,
        has_patterns,
        multiples,
        schemas: 0,
        left: MAX_NESTED_STEPS,
        unenforceable: Vec::new(),
    };
    let checked = checker.check(schema, "", 0);
    checker.settle(checked)?;
    Ok(checker.unenforceable)
}

/// A JSON pointer as a path: `.properties.tags.anyOf[1]`. Where the pointer leads through an expanded reference, the path
/// is that of its target.
pub(super) fn display(schema: &Value, pointer: &str) -> String {
    let mut at = Some(schema);
    let mut path = String::new();
    for name in segments(pointer) {
        if let Some(Value::Object(fields)) = at
            && let Some(Value::String(reference)) = fields.get("$ref")
            && !fields.contains_key(&name)
            && let Some(target) = resolve(schema, reference)
        {
            at = Some(target);
            let target = references::pointer(reference).unwrap_or_default();
            path = segments(&target).map(|name| format!(".{}", shorten(&name))).collect();
        }
        match at {
            Some(Value::Array(_)) => path.push_str(&format!("[{name}]")),
            _ => path.push_str(&format!(".{}", shorten(&name))),
        }
        at = at.and_then(|at| match at {
            Value::Array(list) => list.get(name.parse::<usize>().ok()?),
            other => other.get(&name),
        });
    }
    path
}

struct Checker<'a> {
    root: &'a Value,
    strict: bool,
    /// Whether the schema has patterns or formats anywhere.
    has_patterns: bool,
    /// `None` if the schema has no `multipleOf`.
    multiples: Option<&'a mut Multiples>,
    schemas: usize,
    /// Steps left for walks into nested values.
    left: u32,
    /// The parts that cannot be enforced, if the schema is not strict.
    unenforceable: Vec<SchemaError>,
}

impl Checker<'_> {
    /// Records an error of something that may be left open.
    fn settle(&mut self, checked: Result<(), SchemaError>) -> Result<(), SchemaError> {
        match checked {
            Err(error) if !self.strict && error.fault != Fault::Invalid => self.unenforceable.push(error),
            other => return other,
        }
        Ok(())
    }

    fn check(&mut self, schema: &Value, pointer: &str, depth: usize) -> Result<(), SchemaError> {
        self.schemas += 1;
        if self.schemas > MAX_SCHEMAS {
            return unenforceable_schema("", format!("has more than {MAX_SCHEMAS} subschemas"));
        }
        if depth > MAX_DEPTH && !leave_open::is_open(schema) {
            let pointer = if self.strict { "" } else { pointer };
            return unenforceable_schema(pointer, format!("is nested more than {MAX_DEPTH} levels deep"));
        }
        let fields = match schema {
            Value::Bool(_) => return Ok(()),
            Value::Object(fields) => fields,
            _ => return invalid(pointer, "must be an object, true or false"),
        };
        if self.has_patterns {
            let checked = patterns::check(self.root, fields, pointer, &mut self.left);
            self.settle(checked)?;
        }
        if let Some(multiples) = &mut self.multiples {
            let checked = multiples.check(self.root, fields, pointer, &mut self.left);
            self.settle(checked)?;
        }
        for (name, value) in fields {
            let checked = self.keyword(fields, name, value, &child(pointer, name), depth);
            self.settle(checked)?;
        }
        Ok(())
    }

    fn keyword(
        &mut self,
        fields: &Map<String, Value>,
        name: &str,
        value: &Value,
        pointer: &str,
        depth: usize,
    ) -> Result<(), SchemaError> {
        let parent = pointer.rsplit_once('/').map_or("", |(parent, _)| parent);
        match name {
            // Parts of another keyword, which is reported.
            "then" | "else" if fields.contains_key("if") => Ok(()),
            "minContains" | "maxContains" if fields.contains_key("contains") => Ok(()),
            name if UNSUPPORTED.contains(&name) => {
                unenforceable(pointer, "is a keyword that this server cannot enforce")
            }
            "type" => check_type(value, pointer),
            "required" => match value.as_array() {
                Some(names) if names.iter().all(Value::is_string) => Ok(()),
                _ => invalid(pointer, "must be an array of property names"),
            },
            "properties" if value.as_object().is_some_and(|all| all.len() > MAX_PROPERTIES) => {
                unenforceable_schema(parent, format!("has more than {MAX_PROPERTIES} properties"))
            }
            "properties" if has_many_optional_properties(fields, value) => unenforceable_schema(
                parent,
                format!("has more than {MAX_OPTIONAL_PROPERTIES} properties that are not required"),
            ),
            "patternProperties" if value.as_object().is_some_and(|all| all.len() > MAX_NAME_PATTERNS) => {
                unenforceable_schema(parent, format!("has more than {MAX_NAME_PATTERNS} patterns of property names"))
            }
            "patternProperties" if has_unwritten_names(value, pointer) => {
                let what =
                    "has a pattern of property names with control characters, which this server does not generate";
                unenforceable_schema(parent, what)
            }
            "properties" | "patternProperties" | "$defs" | "definitions" => self.check_map(value, pointer, depth),
            "items" if value.is_array() => self.check_list(value, pointer, depth),
            "items" | "additionalItems" | "additionalProperties" => self.check(value, pointer, depth + 1),
            "oneOf" if value.as_array().is_some_and(|all| all.len() > MAX_ALTERNATIVES) => {
                unenforceable(pointer, format!("has more than {MAX_ALTERNATIVES} alternatives"))
            }
            "prefixItems" | "anyOf" | "oneOf" | "allOf" => self.check_list(value, pointer, depth),
            "enum" => check_enum(value, pointer).and_then(|()| check_values(value, pointer)),
            "const" => check_values(value, pointer),
            "pattern" | "format" if !value.is_string() => invalid(pointer, "must be a string"),
            "pattern" if value.as_str().is_some_and(|text| text.len() > patterns::MAX_PATTERN_BYTES) => {
                unenforceable(pointer, format!("is longer than {} bytes", patterns::MAX_PATTERN_BYTES))
            }
            "pattern" => control_characters::check_pattern(value.as_str().unwrap_or_default(), pointer),
            "format" if value.as_str().is_some_and(|format| !FORMATS.contains(&format)) => {
                let format = shorten(value.as_str().unwrap_or_default());
                unenforceable(
                    pointer,
                    format!("is '{format}', which this server cannot enforce. It knows {}", FORMATS.join(", ")),
                )
            }
            "minimum" | "maximum" if !value.is_number() => invalid(pointer, "must be a number"),
            "exclusiveMinimum" | "exclusiveMaximum" if !value.is_number() && !value.is_boolean() => {
                invalid(pointer, "must be a number")
            }
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => match value {
                Value::Number(number) => numbers::check_bound(fields, name, number, pointer),
                _ => Ok(()),
            },
            "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties" => {
                check_bound(fields, name, value, pointer)
            }
            "$ref" => self.check_reference(value, pointer),
            _ => Ok(()),
        }
    }

    fn check_map(&mut self, value: &Value, pointer: &str, depth: usize) -> Result<(), SchemaError> {
        match value.as_object() {
            Some(schemas) => schemas.iter().try_for_each(|(name, schema)| {
                let checked = self.check(schema, &child(pointer, name), depth + 1);
                self.settle(checked)
            }),
            None => invalid(pointer, "must be an object of schemas"),
        }
    }

    fn check_list(&mut self, value: &Value, pointer: &str, depth: usize) -> Result<(), SchemaError> {
        match value.as_array() {
            Some(schemas) if !schemas.is_empty() => schemas.iter().enumerate().try_for_each(|(index, schema)| {
                let checked = self.check(schema, &format!("{pointer}/{index}"), depth + 1);
                self.settle(checked)
            }),
            _ => invalid(pointer, "must be an array of at least one schema"),
        }
    }

    fn check_reference(&self, value: &Value, pointer: &str) -> Result<(), SchemaError> {
        match value.as_str() {
            Some(text) if resolve(self.root, text).is_some() => Ok(()),
            Some(text) => {
                // A fragment that is no JSON pointer is the name of an anchor.
                let is_local = text.starts_with("#/");
                let text = shorten(text);
                let what =
                    format!("is '{text}', which does not exist in this schema. References look like '#/$defs/name'");
                if is_local { invalid(pointer, what) } else { unenforceable(pointer, what) }
            }
            None => invalid(pointer, "must be a string"),
        }
    }
}

fn has_many_optional_properties(fields: &Map<String, Value>, properties: &Value) -> bool {
    let count = properties.as_object().map_or(0, Map::len);
    // The names are looked up only if there are enough of them.
    count > MAX_OPTIONAL_PROPERTIES && {
        let required = fields.get("required").and_then(Value::as_array).into_iter().flatten();
        let required: HashSet<&str> = required.filter_map(Value::as_str).collect();
        let names = properties.as_object().into_iter().flat_map(Map::keys);
        names.filter(|name| !required.contains(name.as_str())).count() > MAX_OPTIONAL_PROPERTIES
    }
}

fn check_type(value: &Value, pointer: &str) -> Result<(), SchemaError> {
    let is_type = |value: &Value| value.as_str().is_some_and(|name| TYPES.contains(&name));
    let valid = match value {
        Value::Array(types) => !types.is_empty() && types.iter().all(is_type),
        one => is_type(one),
    };
    if valid { Ok(()) } else { invalid(pointer, format!("must be one or several of {}", TYPES.join(", "))) }
}

fn check_enum(value: &Value, pointer: &str) -> Result<(), SchemaError> {
    match value.as_array() {
        Some(values) if values.len() > MAX_VALUES => {
            unenforceable(pointer, format!("has more than {MAX_VALUES} values"))
        }
        Some(values) if !values.is_empty() => Ok(()),
        _ => invalid(pointer, "must be an array of at least one value"),
    }
}

/// Whether a name in `patternProperties` cannot be enforced because of control characters.
fn has_unwritten_names(schemas: &Value, pointer: &str) -> bool {
    let names = schemas.as_object().into_iter().flat_map(Map::keys);
    names.into_iter().any(|name| control_characters::check_pattern(name, pointer).is_err())
}

/// Checks the values of a `const` or an `enum`.
fn check_values(value: &Value, pointer: &str) -> Result<(), SchemaError> {
    numbers::check_values(value, pointer).and_then(|()| control_characters::check_values(value, pointer))
}

fn check_bound(fields: &Map<String, Value>, name: &str, value: &Value, pointer: &str) -> Result<(), SchemaError> {
    let required = fields.get("required").and_then(Value::as_array).map_or(0, |names| names.len() as u64);
    match count_of(value) {
        None => invalid(pointer, "must be a non-negative integer"),
        Some(count) if count > MAX_BOUND => unenforceable(pointer, format!("is {count}; the maximum is {MAX_BOUND}")),
        // Further properties may repeat a name and would then count as one.
        Some(count) if name == "minProperties" && count > required + 1 => {
            unenforceable(pointer, format!("is {count}, which cannot be enforced: name the properties in 'required'"))
        }
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests;
