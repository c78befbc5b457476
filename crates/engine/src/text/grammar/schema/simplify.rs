//! Rewrites keywords that the compiler does not know into equivalent ones that it does.
//!
//! Schema generators write them for ordinary types: zod describes a record with `propertyNames`, for example.

use serde_json::{Map, Value, json};

use super::finite_pattern;
use super::references::resolve;
use super::subschemas::{COUNTS, CopyBudget, allows_type, count_of, visit_schemas};

/// The `$schema` values that select a set of keywords.
const DIALECTS: [&str; 5] = [
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-04/schema",
];

/// Max property names that are listed instead of described.
const MAX_LISTED_NAMES: usize = 500;

/// Rewrites a schema. Values that have the wrong type stay for the check to report.
pub(super) fn simplify(schema: &mut Value) {
    let id = schema.get("$id").or_else(|| schema.get("id")).and_then(Value::as_str);
    let id = id.map(|id| id.trim_end_matches('#').to_owned());
    let root = schema.clone();
    let mut budget = CopyBudget::default();
    visit_schemas(schema, "", &mut |schema, _| {
        let Some(fields) = schema.as_object_mut() else { return };
        if fields.get("not").is_some_and(|not| *not == true || *not == json!({})) {
            *schema = Value::Bool(false);
            return;
        }
        remove_without_effect(fields);
        write_counts_as_integers(fields);
        if let Some(id) = &id {
            make_reference_local(fields, id);
        }
        close_unevaluated(fields);
        expand_property_names(fields, &root, &mut budget);
        expand_finite_patterns(fields, &mut budget);
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

/// JSON Schema takes `2.0` for an integer.
fn write_counts_as_integers(fields: &mut Map<String, Value>) {
    for keyword in COUNTS {
        if let Some(value) = fields.get_mut(keyword)
            && let Some(count) = count_of(value)
        {
            *value = count.into();
        }
    }
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

/// Expresses `propertyNames` through `properties` or `patternProperties`. `root`: what references in it refer to.
fn expand_property_names(fields: &mut Map<String, Value>, root: &Value, budget: &mut CopyBudget) {
    let Some(names) = fields.get("propertyNames").and_then(|names| allowed_names(names, root)) else { return };
    let has_patterns = fields.contains_key("patternProperties");
    match names {
        Names::Any => {}
        Names::Listed(names) if !has_patterns => {
            if names.len() > MAX_LISTED_NAMES || !budget.take(names.len(), fields.get("additionalProperties")) {
                return;
            }
            list_properties(fields, names);
        }
        Names::Matching(pattern) if !has_patterns && !fields.contains_key("properties") => {
            let value = fields.insert("additionalProperties".to_owned(), json!(false)).unwrap_or(json!(true));
            fields.insert("patternProperties".to_owned(), json!({ pattern: value }));
        }
        Names::Listed(_) | Names::Matching(_) => return,
    }
    fields.shift_remove("propertyNames");
}

/// Restricts an object to the properties `names`.
fn list_properties(fields: &mut Map<String, Value>, names: Vec<String>) {
    let others = fields.insert("additionalProperties".to_owned(), json!(false)).unwrap_or(json!(true));
    let mut known = match fields.shift_remove("properties") {
        Some(Value::Object(known)) => known,
        _ => Map::new(),
    };
    let listed = names.into_iter().map(|name| {
        let schema = known.shift_remove(&name).unwrap_or_else(|| others.clone());
        (name, schema)
    });
    let mut properties: Map<String, Value> = listed.collect();
    // A property that is both required and not allowed makes the schema unsatisfiable.
    let required = fields.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    for name in required.filter(|name| known.contains_key(*name)) {
        properties.insert(name.to_owned(), json!(false));
    }
    fields.insert("properties".to_owned(), properties.into());
}

/// The property names that a schema allows.
enum Names {
    Any,
    Listed(Vec<String>),
    Matching(String),
}

/// `None` if the names can be described in none of these ways.
fn allowed_names(names: &Value, root: &Value) -> Option<Names> {
    let fields = match names {
        Value::Bool(true) => return Some(Names::Any),
        Value::Object(fields) => fields,
        _ => return None,
    };
    let annotations = ["title", "description", "$comment", "examples", "default"];
    let mut keywords = fields.iter().filter(|(keyword, value)| {
        let is_string_type = *keyword == "type" && *value == "string";
        !annotations.contains(&keyword.as_str()) && !is_string_type
    });
    match (keywords.next(), keywords.next()) {
        (None, _) => Some(Names::Any),
        (Some((keyword, value)), None) => match (keyword.as_str(), value) {
            ("pattern", Value::String(pattern)) => Some(Names::Matching(pattern.clone())),
            ("enum", Value::Array(values)) => values
                .iter()
                .map(|value| value.as_str().map(str::to_owned))
                .collect::<Option<Vec<_>>>()
                .map(Names::Listed),
            ("const", Value::String(name)) => Some(Names::Listed(vec![name.clone()])),
            // The target is searched without its references, so a circle ends.
            ("$ref", Value::String(reference)) => allowed_names(resolve(root, reference)?, &Value::Null),
            _ => None,
        },
        _ => None,
    }
}

/// Replaces patterns of property names that only a few names match by these names. The compiler would otherwise expect
/// a further property when all of them are there.
fn expand_finite_patterns(fields: &mut Map<String, Value>, budget: &mut CopyBudget) {
    let Some(Value::Object(patterns)) = fields.get_mut("patternProperties") else { return };
    let mut listed = Vec::new();
    patterns.retain(|pattern, schema| match finite_pattern::matching_names(pattern) {
        Some(names) if budget.take(names.len(), Some(&*schema)) => {
            listed.extend(names.into_iter().map(|name| (name, schema.clone())));
            false
        }
        _ => true,
    });
    if patterns.is_empty() {
        fields.shift_remove("patternProperties");
    }
    if listed.is_empty() {
        return;
    }
    let Value::Object(properties) = fields.entry("properties").or_insert_with(|| json!({})) else { return };
    for (name, schema) in listed {
        match properties.get_mut(&name) {
            Some(known) => *known = json!({ "allOf": [known.take(), schema] }),
            None => {
                properties.insert(name, schema);
            }
        }
    }
}
