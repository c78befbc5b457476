//! Metadata values, and typed access to them.

use std::collections::HashMap;

use super::GgufError;
use super::cursor::Cursor;

/// Maximum depth of nested arrays. Known files have at most two levels.
const MAX_ARRAY_DEPTH: u32 = 4;

/// A scalar type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    U64,
    I64,
    F64,
}

impl Number {
    fn from_id(kind: u32) -> Option<Self> {
        use Number::{Bool, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
        Some(match kind {
            0 => U8,
            1 => I8,
            2 => U16,
            3 => I16,
            4 => U32,
            5 => I32,
            6 => F32,
            7 => Bool,
            10 => U64,
            11 => I64,
            12 => F64,
            _ => return None,
        })
    }

    fn width(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// Reads one number of this type from exactly `width` little-endian bytes.
    fn read(self, bytes: &[u8]) -> Value {
        let mut wide = [0; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        let bits = u64::from_le_bytes(wide);
        let shift = 64 - 8 * self.width() as u32;
        match self {
            Self::Bool => Value::Bool(bits != 0),
            Self::F32 => Value::Float(f64::from(f32::from_bits(bits as u32))),
            Self::F64 => Value::Float(f64::from_bits(bits)),
            Self::I8 | Self::I16 | Self::I32 | Self::I64 => Value::Signed((bits << shift).cast_signed() >> shift),
            Self::U8 | Self::U16 | Self::U32 | Self::U64 => Value::Unsigned(bits),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    Array(Array),
}

/// An array. Numbers are kept as the file's bytes, so that a header does not take more memory than in the file.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    Numbers(Number, Vec<u8>),
    Texts(Vec<String>),
    Arrays(Vec<Array>),
}

impl Value {
    pub(super) fn read(cursor: &mut Cursor<'_>, what: &dyn Fn() -> String) -> Result<Self, GgufError> {
        let kind = cursor.u32(what)?;
        match (kind, Number::from_id(kind)) {
            (_, Some(number)) => Ok(number.read(cursor.take(number.width() as u64, what)?)),
            (8, _) => Ok(Self::Text(cursor.text(what)?)),
            (9, _) => Ok(Self::Array(Array::read(cursor, what, 0)?)),
            _ => Err(GgufError::damaged(format!("{} has the unknown value type {kind}", what()))),
        }
    }
}

impl Array {
    fn read(cursor: &mut Cursor<'_>, what: &dyn Fn() -> String, depth: u32) -> Result<Self, GgufError> {
        if depth >= MAX_ARRAY_DEPTH {
            return Err(GgufError::damaged(format!("{} nests arrays deeper than {MAX_ARRAY_DEPTH}", what())));
        }
        let kind = cursor.u32(what)?;
        if let Some(number) = Number::from_id(kind) {
            let width = number.width() as u64;
            let count = cursor.count(width, what)? as u64;
            return Ok(Self::Numbers(number, cursor.take(count * width, what)?.to_vec()));
        }
        match kind {
            8 => read_items(cursor, 8, what, |cursor| cursor.text(what)).map(Self::Texts),
            9 => read_items(cursor, 12, what, |cursor| Self::read(cursor, what, depth + 1)).map(Self::Arrays),
            _ => Err(GgufError::damaged(format!("{} is an array of the unknown type {kind}", what()))),
        }
    }

    pub fn numbers(&self) -> Option<impl Iterator<Item = Value> + '_> {
        match self {
            Self::Numbers(number, bytes) => Some(bytes.chunks_exact(number.width()).map(|bytes| number.read(bytes))),
            _ => None,
        }
    }
}

fn read_items<T>(
    cursor: &mut Cursor<'_>,
    min_bytes: u64,
    what: &dyn Fn() -> String,
    mut read: impl FnMut(&mut Cursor<'_>) -> Result<T, GgufError>,
) -> Result<Vec<T>, GgufError> {
    let count = cursor.count(min_bytes, what)?;
    // Not `with_capacity(count)`: the bytes may be a prefix of the header.
    let mut items = Vec::new();
    for _ in 0..count {
        items.push(read(cursor)?);
    }
    Ok(items)
}

/// The key-value part of a header.
#[derive(Clone, Debug, Default)]
pub struct Metadata(pub(super) HashMap<String, Value>);

impl Metadata {
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }

    pub fn text(&self, key: &str) -> Option<&str> {
        match self.get(key) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// An integer of any width; `None` if it is absent, negative or not an integer.
    pub fn integer(&self, key: &str) -> Option<u64> {
        match self.get(key) {
            Some(Value::Unsigned(number)) => Some(*number),
            Some(Value::Signed(number)) => u64::try_from(*number).ok(),
            _ => None,
        }
    }

    pub fn float(&self, key: &str) -> Option<f64> {
        match self.get(key) {
            Some(Value::Float(number)) => Some(*number),
            _ => self.integer(key).map(|number| number as f64),
        }
    }

    pub fn flag(&self, key: &str) -> Option<bool> {
        match self.get(key) {
            Some(Value::Bool(flag)) => Some(*flag),
            _ => None,
        }
    }

    pub fn texts(&self, key: &str) -> Option<&[String]> {
        match self.get(key) {
            Some(Value::Array(Array::Texts(texts))) => Some(texts),
            _ => None,
        }
    }

    pub fn numbers(&self, key: &str) -> Option<Vec<i64>> {
        let Some(Value::Array(array)) = self.get(key) else { return None };
        let numbers = array.numbers()?.map(|number| match number {
            Value::Unsigned(number) => i64::try_from(number).ok(),
            Value::Signed(number) => Some(number),
            _ => None,
        });
        numbers.collect()
    }
}
