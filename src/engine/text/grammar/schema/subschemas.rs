//! The schemas inside a schema, and their JSON pointers.

use serde_json::{Map, Value};

/// `pointer` followed by a property name or an index.
pub fn child(pointer: &str, name: &str) -> String {
    format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1"))
}

/// Calls `visit` with each schema inside `schema`, innermost first and itself last, and its JSON pointer.
/// Constants, examples and property names are not schemas.
pub fn visit_schemas(schema: &mut Value, pointer: &str, visit: &mut dyn FnMut(&mut Value, &str)) {
    if let Some(fields) = schema.as_object_mut() {
        for (keyword, value) in fields.iter_mut() {
            let pointer = child(pointer, keyword);
            match keyword.as_str() {
                "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas" => {
                    visit_map(value, &pointer, visit);
                }
                "items" | "prefixItems" | "anyOf" | "oneOf" | "allOf" if value.is_array() => {
                    visit_list(value, &pointer, visit);
                }
                "items"
                | "additionalItems"
                | "additionalProperties"
                | "contains"
                | "not"
                | "if"
                | "then"
                | "else"
                | "propertyNames"
                | "unevaluatedItems"
                | "unevaluatedProperties" => {
                    visit_schemas(value, &pointer, visit);
                }
                _ => {}
            }
        }
    }
    visit(schema, pointer);
}

fn visit_map(schemas: &mut Value, pointer: &str, visit: &mut dyn FnMut(&mut Value, &str)) {
    for (name, schema) in schemas.as_object_mut().into_iter().flatten() {
        visit_schemas(schema, &child(pointer, name), visit);
    }
}

fn visit_list(schemas: &mut Value, pointer: &str, visit: &mut dyn FnMut(&mut Value, &str)) {
    for (index, schema) in schemas.as_array_mut().into_iter().flatten().enumerate() {
        visit_schemas(schema, &format!("{pointer}/{index}"), visit);
    }
}

/// Whether a value of this type can satisfy the schema, judging by its `type` alone.
pub fn allows_type(fields: &Map<String, Value>, name: &str) -> bool {
    match fields.get("type") {
        Some(Value::String(only)) => only == name,
        Some(Value::Array(types)) => types.iter().any(|one| one == name),
        _ => true,
    }
}
