//! Shared by all schema checks.

use serde_json::Value;

/// What is invalid, and the path to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaError {
    pub path: String,
    pub what: String,
}

pub fn invalid<T>(path: &str, what: impl Into<String>) -> Result<T, SchemaError> {
    Err(SchemaError { path: path.to_owned(), what: what.into() })
}

/// The target of a `$ref` within this schema. Escapes are not supported, as the compiler does not read them.
pub fn target<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    match reference.strip_prefix('#')? {
        "" | "/" => Some(root),
        path if path.contains(['~', '%']) => None,
        path => root.pointer(path),
    }
}
