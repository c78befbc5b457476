//! References among the alternatives of a `oneOf` become what they refer to.
//!
//! The compiler enforces `oneOf` where it sees that no two alternatives can both hold, and it does
//! not look behind references, which is how tools write unions of objects with a tag.

use serde_json::Value;

use super::common::target;

/// Schemas that are put in at most; what is over stays a reference.
const MAX_INLINED: usize = 500;
/// A reference may lead to a reference.
const MAX_CHAIN: usize = 8;

/// Works on a schema that was checked.
pub(super) fn expand_references(schema: &mut Value) {
    let root = schema.clone();
    visit(schema, &root, &mut 0);
}

/// Visits what was there, not what is put in: recursive types come to an end.
fn visit(value: &mut Value, root: &Value, count: &mut usize) {
    match value {
        Value::Array(all) => all.iter_mut().for_each(|one| visit(one, root, count)),
        Value::Object(fields) => {
            fields.values_mut().for_each(|one| visit(one, root, count));
            for one in fields.get_mut("oneOf").and_then(Value::as_array_mut).into_iter().flatten() {
                resolve(one, root, count);
            }
        }
        _ => {}
    }
}

fn resolve(alternative: &mut Value, root: &Value, count: &mut usize) {
    for _ in 0..MAX_CHAIN {
        let Some(name) = sole_reference(alternative) else { return };
        let Some(found) = target(root, name) else { return };
        *count += 1;
        if *count > MAX_INLINED {
            return;
        }
        *alternative = found.clone();
    }
}

/// The reference of a schema that is nothing else.
fn sole_reference(schema: &Value) -> Option<&str> {
    let fields = schema.as_object()?;
    fields.get("$ref").filter(|_| fields.len() == 1)?.as_str()
}
