//! Fields of a request that this server does not know.

use serde::de::value::Error as Stop;
use serde::de::{DeserializeOwned, Deserializer, Error as _, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Map, Value};
use utoipa::PartialSchema;
use utoipa::openapi::{RefOr, Schema};

use crate::display::shorten;
use crate::error::{Error, Result};
use crate::spelling;

/// The policy of model calls for unknown fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownFields {
    /// A 400 that names the field.
    Refused,
    /// They are left out and named in a header.
    Ignored,
}

impl UnknownFields {
    /// The names of the fields that are left out. `T`: the request. `rest`: its further fields. `known`: those that never
    /// change the output.
    pub fn left_out<T: PartialSchema>(self, rest: &Map<String, Value>, known: &[&str]) -> Result<Vec<String>> {
        self.left_out_unless::<T>(rest, |name, _| known.contains(&name))
    }

    /// Like [`Self::left_out`]. `is_idle`: whether a field with this value does not change the output.
    pub fn left_out_unless<T: PartialSchema>(
        self,
        rest: &Map<String, Value>,
        is_idle: impl Fn(&str, &Value) -> bool,
    ) -> Result<Vec<String>> {
        self.left_out_within::<T>("", rest, is_idle)
    }

    /// Like [`Self::left_out_unless`], for the fields of an object `T` in the request. `path`: its name and a dot.
    pub fn left_out_within<T: PartialSchema>(
        self,
        path: &str,
        rest: &Map<String, Value>,
        is_idle: impl Fn(&str, &Value) -> bool,
    ) -> Result<Vec<String>> {
        match self {
            Self::Refused => {
                unknown(rest, is_idle).next().map_or(Ok(Vec::new()), |name| Err(unsupported::<T>(path, name)))
            }
            Self::Ignored => Ok(unknown_names(rest, is_idle).into_iter().map(|name| format!("{path}{name}")).collect()),
        }
    }
}

/// The fields that ask for something unknown. `is_idle` as in [`UnknownFields::left_out_unless`].
fn unknown(rest: &Map<String, Value>, is_idle: impl Fn(&str, &Value) -> bool) -> impl Iterator<Item = &String> {
    rest.iter().filter(move |(name, value)| !value.is_null() && !is_idle(name, value)).map(|(name, _)| name)
}

/// The names of the fields that ask for something unknown, for APIs that never refuse them. `is_idle` as in
/// [`UnknownFields::left_out_unless`].
pub fn unknown_names(rest: &Map<String, Value>, is_idle: impl Fn(&str, &Value) -> bool) -> Vec<String> {
    unknown(rest, is_idle).map(|name| shorten(name)).collect()
}

/// The error for a field that the object `T` at `path` does not have.
fn unsupported<T: PartialSchema>(path: &str, name: &str) -> Error {
    let fields = schema_fields::<T>();
    let meant = spelling::nearest(name, fields.iter().map(String::as_str)).map(|meant| format!("{path}{meant}"));
    let name = format!("{path}{}", shorten(name));
    let message = match (name.as_str(), meant) {
        ("functions", _) => "'functions' is the older form of 'tools' and is not supported by this server. Send 'tools'.".to_owned(),
        ("function_call", _) => {
            "'function_call' is the older form of 'tool_choice' and is not supported by this server. Send 'tool_choice'.".to_owned()
        }
        (_, Some(meant)) => format!("'{name}' is unknown. Did you mean '{meant}'?"),
        (_, None) => format!("'{name}' is not supported by this server. Leave it out."),
    };
    Error::invalid(name, message)
}

/// The names of a request's fields, as `/openapi.json` lists them.
fn schema_fields<T: PartialSchema>() -> Vec<String> {
    match T::schema() {
        RefOr::T(Schema::Object(object)) => object.properties.into_keys().collect(),
        _ => Vec::new(),
    }
}

/// The names of a struct's fields, as its derived `Deserialize` asks for them. Empty for any other type.
pub fn known_fields<T: DeserializeOwned>() -> &'static [&'static str] {
    let mut fields: &'static [&'static str] = &[];
    let _stopped = T::deserialize(FieldNames(&mut fields));
    fields
}

/// Records the names of the fields and fails.
struct FieldNames<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for FieldNames<'_> {
    type Error = Stop;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Stop> {
        Err(Stop::custom("only the field names are needed"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Stop> {
        *self.0 = fields;
        self.deserialize_any(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::known_fields;

    #[derive(Deserialize)]
    struct Parameters {
        #[serde(rename = "limit")]
        _most: Option<u32>,
        #[serde(rename = "cursor")]
        _cursor: String,
    }

    #[test]
    fn struct_fields_have_their_serialized_names() {
        assert_eq!(known_fields::<Parameters>(), ["limit", "cursor"]);
        assert!(known_fields::<String>().is_empty());
    }
}
