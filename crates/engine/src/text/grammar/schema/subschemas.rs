//! The schemas inside a schema, their JSON pointers, and what several rewritings of them share.

use serde_json::{Map, Value};

/// Max bytes of the copies of schemas that a rewriting makes; schemas may be nested. What exceeds it stays as it is.
const MAX_COPIED_BYTES: usize = 256 << 10;

/// The keywords that bound a count or a length.
pub const COUNTS: [&str; 6] = ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"];

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

/// The value of a count, which may be written as `2.0`. One that is too large is the largest.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates; it is a whole number")]
pub fn count_of(value: &Value) -> Option<u64> {
    let whole = |number: &f64| *number >= 0. && number.fract() == 0.;
    value.as_u64().or_else(|| value.as_f64().filter(whole).map(|number| number as u64))
}

/// The bytes of copies that may still be made.
pub struct CopyBudget(usize);

impl Default for CopyBudget {
    fn default() -> Self {
        Self(MAX_COPIED_BYTES)
    }
}

impl CopyBudget {
    /// Takes what `copies` of a schema need. `false` if it is more than what is left.
    pub fn take(&mut self, copies: usize, schema: Option<&Value>) -> bool {
        let bytes = copies.saturating_mul(schema.map_or(0, |schema| schema.to_string().len()));
        let left = self.0.checked_sub(bytes);
        self.0 = left.unwrap_or(self.0);
        left.is_some()
    }
}
