//! The error of all schema checks.

/// What is invalid, and the path to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaError {
    pub path: String,
    pub what: String,
}

pub fn invalid<T>(path: &str, what: impl Into<String>) -> Result<T, SchemaError> {
    Err(SchemaError { path: path.to_owned(), what: what.into() })
}
