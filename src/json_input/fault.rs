//! Errors of values: the error type of the wrapped deserializers.

use std::fmt::{self, Display};

use serde::de::{self, Expected, Unexpected};

use crate::display::{one_of, shorten};
use crate::spelling;

/// Longer strings are not quoted in messages.
const MAX_QUOTED_CHARS: usize = 40;

/// Why a value cannot be read. The problems are predicates with a full stop.
#[derive(Debug, PartialEq, Eq)]
pub enum Fault {
    /// About the value itself.
    Value(String),
    /// About a field of the object.
    Field { name: String, problem: String },
    /// The parser failed.
    Syntax,
}

impl Fault {
    fn field(name: &str, problem: String) -> Self {
        Self::Field { name: name.to_owned(), problem }
    }
}

impl Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(problem) => write!(f, "it {problem}"),
            Self::Field { name, problem } => write!(f, "'{name}' {problem}"),
            Self::Syntax => f.write_str("it is not valid JSON."),
        }
    }
}

impl std::error::Error for Fault {}

impl de::Error for Fault {
    /// `problem`: a predicate without a full stop.
    fn custom<T: Display>(problem: T) -> Self {
        Self::Value(format!("{problem}."))
    }

    fn invalid_type(given: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let expected = expected.to_string();
        Self::Value(match (given, integer_range(&expected)) {
            (Unexpected::Float(number), Some(range)) if number.fract() == 0.0 => out_of_range(&number, range),
            _ => format!("must be {}, not {}.", plain(&expected), shown(given)),
        })
    }

    fn invalid_value(given: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let expected = expected.to_string();
        Self::Value(match (given, integer_range(&expected)) {
            (Unexpected::Signed(number), Some(range)) => out_of_range(&number, range),
            (Unexpected::Unsigned(number), Some(range)) => out_of_range(&number, range),
            _ => format!("must be {}, not {}.", plain(&expected), shown(given)),
        })
    }

    fn invalid_length(length: usize, expected: &dyn Expected) -> Self {
        Self::Value(format!("has {length} entries; it must be {}.", plain(&expected.to_string())))
    }

    fn unknown_variant(given: &str, variants: &'static [&'static str]) -> Self {
        Self::Value(format!("is '{}'; it must be {}.", shorten(given), one_of(variants)))
    }

    fn unknown_field(name: &str, fields: &'static [&'static str]) -> Self {
        Self::field(name, spelling::unknown_field(name, fields))
    }

    fn missing_field(name: &'static str) -> Self {
        Self::field(name, "is missing.".to_owned())
    }

    fn duplicate_field(name: &'static str) -> Self {
        Self::field(name, "is given more than once. Give it once.".to_owned())
    }
}

/// The range of an integer type, by the name that serde gives it.
fn integer_range(expected: &str) -> Option<(i128, i128)> {
    Some(match expected {
        "u8" => (0, u8::MAX.into()),
        "u16" => (0, u16::MAX.into()),
        "u32" => (0, u32::MAX.into()),
        "u64" | "usize" => (0, u64::MAX.into()),
        "i8" => (i8::MIN.into(), i8::MAX.into()),
        "i16" => (i16::MIN.into(), i16::MAX.into()),
        "i32" => (i32::MIN.into(), i32::MAX.into()),
        "i64" | "isize" => (i64::MIN.into(), i64::MAX.into()),
        _ => return None,
    })
}

fn out_of_range(number: &(impl fmt::Debug + PartialOrd + Copy + ToI128), (min, max): (i128, i128)) -> String {
    match number.to_i128() {
        // A whole number with a decimal point or an exponent.
        within if (min..=max).contains(&within) => format!("must be a whole number, not {number:?}."),
        below if below < 0 && min == 0 => format!("is {number:?}; it must not be negative."),
        below if below < min => format!("is {number:?}; it must be at least {min}."),
        _ => format!("is {number:?}; it must be at most {max}."),
    }
}

trait ToI128 {
    fn to_i128(&self) -> i128;
}

impl ToI128 for i64 {
    fn to_i128(&self) -> i128 {
        (*self).into()
    }
}

impl ToI128 for u64 {
    fn to_i128(&self) -> i128 {
        (*self).into()
    }
}

impl ToI128 for f64 {
    fn to_i128(&self) -> i128 {
        *self as i128
    }
}

/// Translates serde's expectation into JSON's terms. Other texts are our own.
fn plain(expected: &str) -> &str {
    match expected {
        "a boolean" => "true or false",
        "f32" | "f64" => "a number",
        "a sequence" => "an array",
        "a map" => "an object",
        "unit" => "null",
        integer if integer_range(integer).is_some() => "a whole number",
        structure if structure.starts_with("struct ") => "an object",
        other => other,
    }
}

/// The given value, if it is short, or its kind.
fn shown(given: Unexpected<'_>) -> String {
    match given {
        Unexpected::Bool(value) => value.to_string(),
        Unexpected::Unsigned(number) => number.to_string(),
        Unexpected::Signed(number) => number.to_string(),
        Unexpected::Float(number) => format!("{number:?}"),
        Unexpected::Str(text) if text.chars().nth(MAX_QUOTED_CHARS).is_none() => format!("\"{text}\""),
        Unexpected::Str(_) | Unexpected::Char(_) | Unexpected::Bytes(_) => "a string".to_owned(),
        Unexpected::Unit | Unexpected::Option => "null".to_owned(),
        Unexpected::Seq => "an array".to_owned(),
        Unexpected::Map => "an object".to_owned(),
        _ => "another value".to_owned(),
    }
}
