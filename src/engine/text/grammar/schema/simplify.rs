//! Rewrites keywords that the compiler does not know into equivalent ones that it does.
//!
//! Schema generators write them for ordinary types: zod describes a record with `propertyNames`, for example.

use serde_json::{Map, Value, json};

use super::subschemas::{allows_type, visit_schemas};
use crate::engine::text::grammar::regex_escape::escape;

/// The `$schema` values that select a set of keywords.
const DIALECTS: [&str; 5] = [
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-04/schema",
];

/// Rewrites a schema. Values that have the wrong type stay for the check to report.
pub(super) fn simplify(schema: &mut Value) {
    let id = schema.get("$id").or_else(|| schema.get("id")).and_then(Value::as_str);
    let id = id.map(|id| id.trim_end_matches('#').to_owned());
    visit_schemas(schema, "", &mut |schema, _| {
        let Some(fields) = schema.as_object_mut() else { return };
        if fields.get("not").is_some_and(|not| *not == true || *not == json!({})) {
            *schema = Value::Bool(false);
            return;
        }
        remove_without_effect(fields);
        if let Some(id) = &id {
            make_reference_local(fields, id);
        }
        close_unevaluated(fields);
        expand_property_names(fields);
    });
}

/// Removes keywords that constrain nothing.
fn remove_without_effect(fields: &mut Map<String, Value>) {
    let is_dialect = |value: &Value| value.as_str().is_some_and(|url| DIALECTS.contains(&url.trim_end_matches('#')));
    let at_most_one_item = fields.get("maxItems").and_then(Value::as_u64).is_some_and(|max| max <= 1);
    let (has_if, has_contains) = (fields.contains_key("if"), fields.contains_key("contains"));
    let has_branch = fields.contains_key("then") || fields.contains_key("else");
    let may_be_text = allows_type(fields, "string");
    fields.retain(|keyword, value| match keyword.as_str() {
        "$schema" => is_dialect(value),
        "$id" | "id" => !value.is_string(),
        "uniqueItems" => *value != false && !at_most_one_item,
        "if" => has_branch,
        "then" | "else" => has_if,
        "minContains" | "maxContains" => has_contains,
        "unevaluatedItems" | "unevaluatedProperties" => *value != true,
        // Generators write the machine type of a number, such as int32.
        "format" => may_be_text,
        _ => true,
    });
}

/// Turns a reference to the schema's own `$id` into one within the document.
fn make_reference_local(fields: &mut Map<String, Value>, id: &str) {
    let Some(Value::String(reference)) = fields.get_mut("$ref") else { return };
    if let Some(rest) = reference.strip_prefix(id)
        && (rest.is_empty() || rest.starts_with('#'))
    {
        *reference = if rest.is_empty() { "#".to_owned() } else { rest.to_owned() };
    }
}

/// `unevaluatedProperties` and `unevaluatedItems` differ from their older relatives only if other schemas are applied to
/// the same value.
fn close_unevaluated(fields: &mut Map<String, Value>) {
    let applies_others = ["$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"]
        .iter()
        .any(|keyword| fields.contains_key(*keyword));
    if applies_others {
        return;
    }
    for (unevaluated, other) in [("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")] {
        if let Some(value) = fields.shift_remove(unevaluated) {
            fields.entry(other).or_insert(value);
        }
    }
}

/// Expresses `propertyNames` through `patternProperties`, if the object names no properties otherwise.
fn expand_property_names(fields: &mut Map<String, Value>) {
    let Some(names) = fields.get("propertyNames") else { return };
    let Some(pattern) = name_pattern(names) else { return };
    let Some(pattern) = pattern else {
        fields.shift_remove("propertyNames");
        return;
    };
    if fields.contains_key("properties") || fields.contains_key("patternProperties") {
        return;
    }
    fields.shift_remove("propertyNames");
    let value = fields.insert("additionalProperties".to_owned(), json!(false)).unwrap_or(json!(true));
    fields.insert("patternProperties".to_owned(), json!({ pattern: value }));
}

/// The pattern that a schema of property names is equal to: `Some(None)` if it allows all strings, `None` if there is no
/// such pattern.
fn name_pattern(names: &Value) -> Option<Option<String>> {
    let fields = match names {
        Value::Bool(true) => return Some(None),
        Value::Object(fields) => fields,
        _ => return None,
    };
    let annotations = ["title", "description", "$comment", "examples", "default"];
    let mut keywords = fields.iter().filter(|(keyword, value)| {
        let is_string_type = *keyword == "type" && *value == "string";
        !annotations.contains(&keyword.as_str()) && !is_string_type
    });
    match (keywords.next(), keywords.next()) {
        (None, _) => Some(None),
        (Some((keyword, value)), None) => match (keyword.as_str(), value) {
            ("pattern", Value::String(pattern)) => Some(Some(pattern.clone())),
            ("enum", Value::Array(values)) => {
                let names = values.iter().map(|value| value.as_str().map(escape)).collect::<Option<Vec<_>>>()?;
                Some(Some(format!("^(?:{})$", names.join("|"))))
            }
            ("const", Value::String(name)) => Some(Some(format!("^{}$", escape(name)))),
            _ => None,
        },
        _ => None,
    }
}
