//! Finds schemas that require infinitely nested values, such as an object with a required property of its own type.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::references::resolve;

/// False if only infinitely nested values could satisfy a checked schema. True if unknown.
pub(super) fn is_satisfiable(root: &Value) -> bool {
    let mut search = Search { root, known: HashMap::new(), learned: false };
    // Each round proves at least one more reference satisfiable, or it is the last.
    loop {
        search.learned = false;
        search.known.retain(|_, satisfiable| *satisfiable);
        let satisfiable = search.satisfiable(root);
        if satisfiable || !search.learned {
            return satisfiable;
        }
    }
}

struct Search<'a> {
    root: &'a Value,
    /// References proven satisfiable (`true`), and those not proven in this round (`false`).
    known: HashMap<&'a str, bool>,
    learned: bool,
}

impl<'a> Search<'a> {
    fn satisfiable(&mut self, schema: &'a Value) -> bool {
        let Some(fields) = schema.as_object() else { return true };
        fields.iter().all(|(name, value)| match name.as_str() {
            "allOf" => list(value).all(|one| self.satisfiable(one)),
            "anyOf" | "oneOf" => list(value).any(|one| self.satisfiable(one)),
            "$ref" => value.as_str().is_none_or(|name| self.reference(name)),
            // Required contents of an object or an array. If the type is open, another type satisfies the schema.
            "required" if is(fields, "object") => self.properties(fields, value),
            "minItems" if is(fields, "array") && value.as_u64().is_some_and(|min| min > 0) => {
                fields.get("items").is_none_or(|items| items.is_array() || self.satisfiable(items))
            }
            _ => true,
        })
    }

    fn properties(&mut self, fields: &'a Map<String, Value>, required: &'a Value) -> bool {
        let properties = fields.get("properties").and_then(Value::as_object);
        let mut needed = list(required).filter_map(|name| properties?.get(name.as_str()?));
        needed.all(|one| self.satisfiable(one))
    }

    fn reference(&mut self, name: &'a str) -> bool {
        if let Some(known) = self.known.get(name) {
            return *known;
        }
        self.known.insert(name, false);
        let satisfiable = resolve(self.root, name).is_none_or(|schema| self.satisfiable(schema));
        if satisfiable {
            self.known.insert(name, true);
            self.learned = true;
        }
        satisfiable
    }
}

fn is(fields: &Map<String, Value>, kind: &str) -> bool {
    fields.get("type").is_some_and(|one| one == kind)
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}
