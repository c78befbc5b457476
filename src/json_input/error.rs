//! Why JSON could not be read.

use serde_json::Value;

use crate::error::{Code, Error};

#[derive(Debug, PartialEq, Eq)]
pub enum InputError {
    /// The text is not JSON. `problem` is a clause; line and column count from 1.
    Syntax { problem: &'static str, line: usize, column: usize },
    /// A value does not fit. `path` is empty for the whole input. `problem` is a predicate with a full stop, such as
    /// `must be a number.`
    Value { path: String, problem: String },
}

impl InputError {
    /// The first syntax error of `text`, which a parser has refused.
    pub(super) fn of_syntax(text: &str) -> Self {
        serde_json::from_str::<Value>(text).map_or_else(|error| Self::from(&error), |_| Self::unreadable())
    }

    /// The error for a value that the parser cannot represent.
    pub(super) fn unreadable() -> Self {
        Self::Value { path: String::new(), problem: "cannot be read.".to_owned() }
    }
}

impl From<&serde_json::Error> for InputError {
    /// Puts the parser's error in plain words.
    fn from(error: &serde_json::Error) -> Self {
        let text = error.to_string();
        let reason = text.split(" at line ").next().unwrap_or_default();
        let problem = match reason {
            _ if error.is_eof() => "it ends too early",
            "expected value" => "expected a value",
            "expected ident" => "expected true, false or null",
            "key must be a string" => "expected a name in double quotes",
            "trailing comma" => "nothing follows a comma",
            "trailing characters" => "something follows the JSON value",
            "invalid escape" => "a string has an unknown escape",
            "invalid number" => "a number is malformed",
            "number out of range" => "a number is too large",
            "recursion limit exceeded" => "it is nested too deeply",
            "invalid unicode code point" | "lone leading surrogate in hex escape" | "unexpected end of hex escape" => {
                "an escape \\u is not a character"
            }
            control if control.starts_with("control character") => {
                "a string has a control character, such as a line break"
            }
            "expected `:`" => "expected ':'",
            "expected `,` or `]`" => "expected ',' or ']'",
            "expected `,` or `}`" => "expected ',' or '}'",
            _ => "it is malformed",
        };
        Self::Syntax { problem, line: error.line(), column: error.column() }
    }
}

impl InputError {
    /// The error for a request's body.
    pub fn in_body(self) -> Error {
        match self {
            Self::Syntax { problem, line, column } => Error::new(
                Code::InvalidParameter,
                format!("The body is not valid JSON: {problem} at line {line}, column {column}."),
            ),
            Self::Value { path, problem } if path.is_empty() => {
                Error::new(Code::InvalidParameter, format!("The body {problem}"))
            }
            Self::Value { path, problem } => named(path, &problem),
        }
    }

    /// The error for the JSON of a field.
    pub fn in_field(self, field: &str) -> Error {
        match self {
            Self::Syntax { problem, .. } => named(field.to_owned(), &format!("cannot be read: {problem}.")),
            Self::Value { path, problem } if path.is_empty() || path.starts_with('[') => {
                named(format!("{field}{path}"), &problem)
            }
            Self::Value { path, problem } => named(format!("{field}.{path}"), &problem),
        }
    }
}

fn named(path: String, problem: &str) -> Error {
    let message = format!("'{path}' {problem}");
    Error::invalid(path, message)
}
