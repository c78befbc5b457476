//! The error of all schema checks.

/// An error in a schema, and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaError {
    /// The JSON pointer of the keyword or schema.
    pub pointer: String,
    pub what: String,
    pub fault: Fault,
}

/// The part that an error concerns. It decides how a schema that is not strict is used without that part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The schema is invalid.
    Invalid,
    /// A keyword cannot be enforced.
    Keyword,
    /// A schema cannot be enforced, but for its type.
    Schema,
}

pub fn invalid<T>(pointer: &str, what: impl Into<String>) -> Result<T, SchemaError> {
    Err(SchemaError { pointer: pointer.to_owned(), what: what.into(), fault: Fault::Invalid })
}

pub fn unenforceable<T>(pointer: &str, what: impl Into<String>) -> Result<T, SchemaError> {
    Err(SchemaError { pointer: pointer.to_owned(), what: what.into(), fault: Fault::Keyword })
}

pub fn unenforceable_schema<T>(pointer: &str, what: impl Into<String>) -> Result<T, SchemaError> {
    Err(SchemaError { pointer: pointer.to_owned(), what: what.into(), fault: Fault::Schema })
}
