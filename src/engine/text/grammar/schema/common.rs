//! What all checks of a schema use.

use serde_json::Value;

/// What is invalid, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaError {
    pub path: String,
    pub what: String,
}

pub fn invalid<T>(path: &str, what: impl Into<String>) -> Result<T, SchemaError> {
    Err(SchemaError { path: path.to_owned(), what: what.into() })
}

/// What a reference refers to, if it lies in this schema. Escapes are not read: no compiler's are.
pub fn target<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    match reference.strip_prefix('#')? {
        "" | "/" => Some(root),
        path if path.contains(['~', '%']) => None,
        path => root.pointer(path),
    }
}
