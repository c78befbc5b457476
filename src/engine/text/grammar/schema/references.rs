//! Resolves `$ref`s, and expands those among the alternatives of a `oneOf`.
//!
//! The compiler enforces `oneOf` if it can tell that no two alternatives both match, but it does not follow
//! references. Schema generators write tagged unions with references.

use serde_json::Value;

/// Max references to expand; the rest stay references.
const MAX_EXPANDED: usize = 500;
/// Max length of a chain of references.
const MAX_CHAIN: usize = 8;

/// The target of a `$ref` within this schema. Escapes are not supported, as the compiler does not read them.
pub fn resolve<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    match reference.strip_prefix('#')? {
        "" | "/" => Some(root),
        path if path.contains(['~', '%']) => None,
        path => root.pointer(path),
    }
}

/// Expands references in a checked schema.
pub(super) fn expand_references(schema: &mut Value) {
    let root = schema.clone();
    visit(schema, &root, &mut 0);
}

/// Visits the original schema but not the expanded parts, so that recursive types terminate.
fn visit(value: &mut Value, root: &Value, count: &mut usize) {
    match value {
        Value::Array(all) => all.iter_mut().for_each(|one| visit(one, root, count)),
        Value::Object(fields) => {
            fields.values_mut().for_each(|one| visit(one, root, count));
            for alternative in fields.get_mut("oneOf").and_then(Value::as_array_mut).into_iter().flatten() {
                expand(alternative, root, count);
            }
        }
        _ => {}
    }
}

fn expand(alternative: &mut Value, root: &Value, count: &mut usize) {
    for _ in 0..MAX_CHAIN {
        let Some(name) = sole_reference(alternative) else { return };
        let Some(target) = resolve(root, name) else { return };
        *count += 1;
        if *count > MAX_EXPANDED {
            return;
        }
        *alternative = target.clone();
    }
}

/// The reference of a schema that consists of a `$ref` only.
fn sole_reference(schema: &Value) -> Option<&str> {
    let fields = schema.as_object()?;
    fields.get("$ref").filter(|_| fields.len() == 1)?.as_str()
}
