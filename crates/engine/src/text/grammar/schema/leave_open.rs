//! Removes from a schema what the grammar cannot enforce.

use serde_json::{Map, Value, json};

use super::schema_error::{Fault, SchemaError};
use super::subschemas::{allows_type, child, visit_schemas};

/// A part of a schema that may be what the compiler rejects.
pub(in crate::text::grammar) struct Suspect {
    /// Compiles alone unless it is.
    pub part: Value,
    /// The pointer of the schema.
    pub pointer: String,
    /// The pointers of the keywords to remove if the part does not compile.
    pub keywords: Vec<String>,
    /// Set if the part contains other suspects, which must be tried first.
    pub has_others: bool,
}

/// Removes what `error` is about. `oneOf` becomes `anyOf`, which allows what several alternatives match.
pub(super) fn remove(schema: &mut Value, error: &SchemaError) {
    match error.fault {
        Fault::Invalid => {}
        Fault::Keyword => remove_keyword(schema, &error.pointer),
        Fault::Schema => open_at(schema, &error.pointer),
    }
}

pub(in crate::text::grammar) fn remove_keyword(schema: &mut Value, pointer: &str) {
    let Some((parent, keyword)) = pointer.rsplit_once('/') else { return };
    let Some(Value::Object(fields)) = schema.pointer_mut(parent) else { return };
    match keyword {
        "oneOf" => {
            let Some(alternatives) = fields.shift_remove("oneOf") else { return };
            if !fields.contains_key("anyOf") {
                fields.insert("anyOf".to_owned(), alternatives);
            } else if let Value::Array(all) = fields.entry("allOf").or_insert_with(|| json!([])) {
                all.push(json!({ "anyOf": alternatives }));
            }
        }
        "if" => fields.retain(|name, _| !matches!(name.as_str(), "if" | "then" | "else")),
        // The types of the values remain.
        "const" | "enum" => {
            let Some(values) = fields.shift_remove(keyword) else { return };
            let types = types_of(if keyword == "const" { std::slice::from_ref(&values) } else { list(&values) });
            fields.entry("type").or_insert(types);
        }
        "contains" => fields.retain(|name, _| !matches!(name.as_str(), "contains" | "minContains" | "maxContains")),
        keyword => {
            fields.shift_remove(keyword);
        }
    }
}

fn list(values: &Value) -> &[Value] {
    values.as_array().map_or(&[], Vec::as_slice)
}

/// The `type` of a schema for these values.
fn types_of(values: &[Value]) -> Value {
    let mut types: Vec<&str> = values.iter().map(type_of).collect();
    types.sort_unstable();
    types.dedup();
    if types.contains(&"number") {
        types.retain(|kind| *kind != "integer");
    }
    json!(types)
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.as_f64().is_some_and(|number| number.fract() == 0.) => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Removes everything but the type from the schema at `pointer`.
fn open_at(schema: &mut Value, pointer: &str) {
    if let Some(schema) = schema.pointer_mut(pointer) {
        open(schema);
    }
}

/// True for a schema without keywords besides a type.
pub(super) fn is_open(schema: &Value) -> bool {
    schema.as_object().is_none_or(|fields| fields.keys().all(|keyword| keyword == "type"))
}

/// Removes everything but the type, and the options of the compiler.
pub(in crate::text::grammar) fn open(schema: &mut Value) {
    match schema.as_object_mut() {
        Some(fields) => fields.retain(|keyword, _| matches!(keyword.as_str(), "type" | "x-guidance")),
        None => *schema = json!({}),
    }
}

/// The parts of a prepared schema that the compiler may reject, each with what it refers to. The order is that in which
/// to try them.
pub(in crate::text::grammar) fn suspects(schema: &mut Value) -> Vec<Suspect> {
    let definitions = schema.as_object().map(definitions).unwrap_or_default();
    let options = schema.get("x-guidance").cloned().unwrap_or_default();
    let mut suspects: Vec<Suspect> = Vec::new();
    visit_schemas(schema, "", &mut |schema, pointer| {
        let Some(fields) = schema.as_object() else { return };
        for group in groups(fields) {
            let mut part = group.part;
            if group.refers {
                part.extend(definitions.clone());
            }
            part.insert("x-guidance".to_owned(), options.clone());
            let keywords = group.keywords.iter().map(|keyword| child(pointer, keyword)).collect();
            let part = Value::Object(part);
            suspects.push(Suspect { part, pointer: pointer.to_owned(), keywords, has_others: group.refers });
        }
    });
    suspects.sort_by_key(|suspect| suspect.has_others);
    suspects
}

fn definitions(fields: &Map<String, Value>) -> Map<String, Value> {
    let kept = fields.iter().filter(|(keyword, _)| matches!(keyword.as_str(), "$defs" | "definitions"));
    kept.map(|(keyword, value)| (keyword.clone(), value.clone())).collect()
}

/// Keywords of one schema that may fail together.
struct Group {
    part: Map<String, Value>,
    keywords: Vec<&'static str>,
    /// Whether the part has references.
    refers: bool,
}

fn groups(fields: &Map<String, Value>) -> Vec<Group> {
    let has = |keyword: &str| fields.contains_key(keyword);
    let part = |kind: Option<&str>, keywords: &[&str]| -> Map<String, Value> {
        let kind = kind.map(|kind| ("type".to_owned(), json!(kind)));
        let chosen = keywords.iter().filter_map(|keyword| Some(((*keyword).to_owned(), fields.get(*keyword)?.clone())));
        kind.into_iter().chain(chosen).collect()
    };
    let plain = |kind, all: &[&str], keywords: &[&'static str]| Group {
        part: part(Some(kind), all),
        keywords: keywords.iter().copied().filter(|keyword| fields.contains_key(*keyword)).collect(),
        refers: false,
    };
    let mut groups = Vec::new();
    if has("pattern") {
        groups.push(plain("string", &["pattern"], &["pattern"]));
    }
    let has_length = has("minLength") || has("maxLength");
    if has("pattern") && has("format") {
        groups.push(plain("string", &["pattern", "format"], &["pattern"]));
    }
    if has_length && (has("pattern") || has("format")) {
        let all = ["pattern", "format", "minLength", "maxLength"];
        groups.push(plain("string", &all, &["minLength", "maxLength"]));
    }
    let bounds = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];
    if bounds.iter().any(|bound| has(bound)) {
        let kind = if allows_type(fields, "number") { "number" } else { "integer" };
        groups.push(plain(kind, &bounds, &bounds));
    }
    if has("multipleOf") && allows_type(fields, "number") {
        let all = ["multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];
        groups.push(plain("number", &all, &["multipleOf"]));
    }
    if let Some(Value::Object(patterns)) = fields.get("patternProperties") {
        let names: Map<String, Value> = patterns.keys().map(|pattern| (pattern.clone(), json!(true))).collect();
        let mut group = plain("object", &[], &["patternProperties", "additionalProperties"]);
        group.part.insert("patternProperties".to_owned(), names.into());
        groups.push(group);
    }
    if has("minProperties") || has("maxProperties") {
        let all = ["required", "minProperties", "maxProperties"];
        let mut group = plain("object", &all, &["minProperties", "maxProperties"]);
        let names = fields.get("properties").and_then(Value::as_object).into_iter().flat_map(Map::keys);
        let names: Map<String, Value> = names.map(|name| (name.clone(), json!(true))).collect();
        group.part.insert("properties".to_owned(), names.into());
        let is_closed = fields.get("additionalProperties").is_some_and(|value| *value == false);
        group.part.insert("additionalProperties".to_owned(), json!(!is_closed));
        groups.push(group);
    }
    if has("oneOf") {
        groups.push(Group { part: part(None, &["oneOf"]), keywords: vec!["oneOf"], refers: true });
    }
    groups
}
