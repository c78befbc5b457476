//! Closes objects: where a schema names properties and says nothing about others, the output has no others.
//!
//! JSON Schema allows them, and a small model invents some. A schema that is applied together with another one, as in
//! `allOf`, stays open, because the other one may name further properties.

use std::collections::{HashMap, VecDeque};

use serde_json::{Map, Value, json};

use super::references;
use super::subschemas::{allows_type, child};

const APPLICATORS: [&str; 4] = ["$ref", "allOf", "anyOf", "oneOf"];
const OBJECT_KEYWORDS: [&str; 6] =
    ["properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties"];

/// Closes the objects of a checked schema.
pub(super) fn close_objects(root: &mut Value) {
    for (pointer, combined) in find_schemas(root) {
        if let Some(Value::Object(fields)) = root.pointer_mut(&pointer)
            && !combined
        {
            close(fields);
        }
    }
}

/// The pointers of all schemas in use, and whether each is applied together with another one somewhere.
fn find_schemas(root: &Value) -> HashMap<String, bool> {
    let mut found = HashMap::new();
    let mut queue = VecDeque::from([(String::new(), false)]);
    while let Some((pointer, combined)) = queue.pop_front() {
        let Some(Value::Object(fields)) = root.pointer(&pointer) else { continue };
        match found.get(&pointer) {
            Some(known) if *known || !combined => continue,
            _ => found.insert(pointer.clone(), combined),
        };
        let applicators = APPLICATORS.iter().filter(|keyword| fields.contains_key(**keyword)).count();
        let names_properties = OBJECT_KEYWORDS.iter().any(|keyword| fields.contains_key(*keyword));
        let inner_combined = combined || applicators > 0;
        let applied_combined = combined || applicators > 1 || names_properties;
        for (keyword, value) in fields {
            let at = child(&pointer, keyword);
            match (keyword.as_str(), value) {
                ("properties" | "patternProperties", Value::Object(schemas)) => {
                    queue.extend(schemas.keys().map(|name| (child(&at, name), inner_combined)));
                }
                ("items" | "prefixItems", Value::Array(schemas)) => {
                    queue.extend((0..schemas.len()).map(|index| (format!("{at}/{index}"), inner_combined)));
                }
                ("items" | "additionalItems" | "additionalProperties", _) => queue.push_back((at, inner_combined)),
                ("allOf", Value::Array(schemas)) => {
                    let combined = applied_combined || schemas.len() > 1;
                    queue.extend((0..schemas.len()).map(|index| (format!("{at}/{index}"), combined)));
                }
                ("anyOf" | "oneOf", Value::Array(schemas)) => {
                    queue.extend((0..schemas.len()).map(|index| (format!("{at}/{index}"), applied_combined)));
                }
                ("$ref", Value::String(reference)) => {
                    queue.extend(references::pointer(reference).map(|target| (target.into_owned(), applied_combined)));
                }
                _ => {}
            }
        }
    }
    found
}

fn close(fields: &mut Map<String, Value>) {
    let is_combined = APPLICATORS.iter().any(|keyword| fields.contains_key(*keyword));
    if is_combined || fields.contains_key("additionalProperties") || !allows_type(fields, "object") {
        return;
    }
    let required: Vec<String> = fields
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    if !fields.contains_key("patternProperties") {
        let Some(Value::Object(properties)) = fields.get_mut("properties") else { return };
        for name in required {
            properties.entry(name).or_insert(json!({}));
        }
        let count = properties.len() as u64;
        if fields.get("minProperties").and_then(Value::as_u64).is_some_and(|min| min > count) {
            return;
        }
    } else if fields.contains_key("minProperties") || !required.is_empty() {
        return;
    }
    fields.insert("additionalProperties".to_owned(), json!(false));
}
