//! Resolves `$ref`s, expands those among the alternatives of a `oneOf`, and writes all of them as the compiler reads them.
//!
//! The compiler enforces `oneOf` if it can tell that no two alternatives both match, but it does not follow
//! references. Schema generators write tagged unions with references.

use std::borrow::Cow;
use std::collections::BTreeMap;

use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use super::subschemas::{CopyBudget, visit_schemas};

/// Max references to expand; the rest stay references.
const MAX_EXPANDED: usize = 500;
/// Max length of a chain of references.
const MAX_CHAIN: usize = 8;
/// The replacement of a slash in a name.
const SLASH: &str = "\u{2215}";

/// The JSON pointer in a reference within the schema: a fragment of a URI (RFC 6901, section 6).
pub fn pointer(reference: &str) -> Option<Cow<'_, str>> {
    let pointer = percent_decode_str(reference.strip_prefix('#')?).decode_utf8().ok()?;
    // Some generators write the root as `#/`.
    Some(if pointer == "/" { Cow::Borrowed("") } else { pointer })
}

/// The target of a `$ref` within this schema.
pub fn resolve<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    root.pointer(&pointer(reference)?)
}

/// The segments of a JSON pointer.
pub fn segments(pointer: &str) -> impl Iterator<Item = String> {
    pointer.split('/').skip(1).map(|segment| segment.replace("~1", "/").replace("~0", "~"))
}

/// Writes the references of a checked schema as the compiler reads them: it splits the text at each slash and knows no
/// escapes. A target with a slash in a name is copied to another name in `$defs`. Without the copy, which may be too large,
/// the schema does not compile, and the reference is left open.
pub(super) fn write_for_compiler(schema: &mut Value) {
    let mut copies = BTreeMap::new();
    visit_schemas(schema, "", &mut |schema, _| {
        let Some(Value::String(reference)) = schema.get_mut("$ref") else { return };
        let Some(target) = pointer(reference).map(Cow::into_owned) else { return };
        let names: Vec<String> = segments(&target).collect();
        if !names.iter().any(|name| name.contains('/')) {
            *reference = format!("#/{}", names.join("/"));
            return;
        }
        let name = target.replace('/', SLASH);
        *reference = format!("#/$defs/{name}");
        copies.insert(name, target);
    });
    let mut budget = CopyBudget::default();
    for (name, target) in copies {
        let Some(copy) = schema.pointer(&target).cloned() else { continue };
        let Some(fields) = schema.as_object_mut() else { return };
        if budget.take(1, Some(&copy))
            && let Value::Object(definitions) = fields.entry("$defs").or_insert_with(|| json!({}))
        {
            definitions.insert(name, copy);
        }
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
