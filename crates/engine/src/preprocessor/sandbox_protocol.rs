//! The protocol between the server and a sandbox: frames over pipes.
//!
//! A frame is the length of its content, the request ID, and the content in bincode. Both ends are the same program, so
//! the format may change with every version.

use std::io::{self, Read, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bincode::config::standard;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The longest frame; bytes. Requests to the server are shorter, and a sandbox cannot hold more.
const MAX_FRAME_BYTES: u64 = 512 << 20;

/// The last byte of a response's content.
const SUCCEEDED: u8 = 1;
const FAILED: u8 = 0;

/// A message and its request ID.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame {
    pub id: u64,
    pub content: Vec<u8>,
}

pub fn write(output: &mut impl Write, id: u64, content: &[u8]) -> io::Result<()> {
    // A small frame is one write, so that the reader wakes only once.
    let mut head = Vec::with_capacity(16 + content.len().min(32 << 10));
    head.extend((content.len() as u64).to_le_bytes());
    head.extend(id.to_le_bytes());
    let (first, rest) = content.split_at_checked(32 << 10).unwrap_or((content, &[]));
    head.extend(first);
    output.write_all(&head)?;
    output.write_all(rest)?;
    output.flush()
}

/// The next frame; `None` at the end of the input.
pub fn read(input: &mut impl Read) -> io::Result<Option<Frame>> {
    let (mut length, mut id) = ([0; 8], [0; 8]);
    match input.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        outcome => outcome?,
    }
    input.read_exact(&mut id)?;
    let (length, id) = (u64::from_le_bytes(length), u64::from_le_bytes(id));
    if length > MAX_FRAME_BYTES {
        return Err(io::Error::other(format!("a frame of {length} bytes")));
    }
    let mut content = Vec::with_capacity(usize::try_from(length).unwrap_or_default());
    if input.take(length).read_to_end(&mut content)? as u64 != length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some(Frame { id, content }))
}

/// The content of a response's frame.
pub fn encode_response(response: Result<Vec<u8>, String>) -> Vec<u8> {
    let (kind, mut content) = match response {
        Ok(response) => (SUCCEEDED, response),
        Err(reason) => (FAILED, reason.into_bytes()),
    };
    content.push(kind);
    content
}

/// Parses a frame's content as a response; `None` if it is not one.
pub fn decode_response(mut content: Vec<u8>) -> Option<Result<Vec<u8>, String>> {
    match content.pop()? {
        SUCCEEDED => Some(Ok(content)),
        FAILED => String::from_utf8(content).ok().map(Err),
        _ => None,
    }
}

pub fn encode(value: &impl Serialize) -> Result<Vec<u8>, String> {
    bincode::serde::encode_to_vec(value, standard()).map_err(|error| error.to_string())
}

pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let decoded = bincode::serde::decode_from_slice(bytes, standard());
    decoded.map(|(value, _)| value).map_err(|error| error.to_string())
}

/// JSON values in bincode, which is not self-describing, so each value is tagged. For `#[serde(with)]`.
pub mod json {
    use std::borrow::Cow;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use serde_json::{Number, Value};

    #[derive(Serialize, Deserialize)]
    enum Tagged<'a> {
        Null,
        Bool(bool),
        Unsigned(u64),
        Signed(i64),
        Float(f64),
        Text(Cow<'a, str>),
        List(Vec<Tagged<'a>>),
        Object(Vec<(Cow<'a, str>, Tagged<'a>)>),
    }

    impl<'a> From<&'a Value> for Tagged<'a> {
        fn from(value: &'a Value) -> Self {
            match value {
                Value::Null => Self::Null,
                Value::Bool(value) => Self::Bool(*value),
                Value::Number(number) => match (number.as_u64(), number.as_i64()) {
                    (Some(number), _) => Self::Unsigned(number),
                    (_, Some(number)) => Self::Signed(number),
                    _ => Self::Float(number.as_f64().unwrap_or_default()),
                },
                Value::String(text) => Self::Text(text.into()),
                Value::Array(all) => Self::List(all.iter().map(Self::from).collect()),
                Value::Object(fields) => {
                    Self::Object(fields.iter().map(|(name, value)| (name.into(), value.into())).collect())
                }
            }
        }
    }

    impl From<Tagged<'_>> for Value {
        fn from(value: Tagged<'_>) -> Self {
            match value {
                Tagged::Null => Self::Null,
                Tagged::Bool(value) => Self::Bool(value),
                Tagged::Unsigned(number) => number.into(),
                Tagged::Signed(number) => number.into(),
                Tagged::Float(number) => Number::from_f64(number).map_or(Self::Null, Self::Number),
                Tagged::Text(text) => Self::String(text.into_owned()),
                Tagged::List(all) => Self::Array(all.into_iter().map(Self::from).collect()),
                Tagged::Object(fields) => {
                    Self::Object(fields.into_iter().map(|(name, value)| (name.into_owned(), value.into())).collect())
                }
            }
        }
    }

    pub fn serialize<S: Serializer>(value: &Value, serializer: S) -> Result<S::Ok, S::Error> {
        Tagged::from(value).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
        Tagged::deserialize(deserializer).map(Value::from)
    }
}

/// Max requests that a process handles at a time.
pub const MAX_CONCURRENT: usize = 4;

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};
    use serde_json::{Value, json};

    use super::{Frame, decode, encode, read, write};

    #[test]
    fn frames_round_trip() {
        let mut pipe = Vec::new();
        for (id, length) in [(1, 0), (2, 5), (u64::MAX, 100_000)] {
            write(&mut pipe, id, &vec![7; length]).unwrap();
        }
        let mut input = pipe.as_slice();
        for (id, length) in [(1, 0), (2, 5), (u64::MAX, 100_000)] {
            assert_eq!(read(&mut input).unwrap(), Some(Frame { id, content: vec![7; length] }));
        }
        assert_eq!(read(&mut input).unwrap(), None);
        assert!(read(&mut &pipe[..pipe.len() - 1][16 + 21..]).is_err(), "the end is missing");
        assert!(read(&mut [0xFF; 16].as_slice()).is_err(), "far too long");
    }

    #[test]
    fn json_round_trips_with_types_and_order() {
        #[derive(Serialize, Deserialize)]
        struct Holder(#[serde(with = "super::json")] Value);
        let value = json!({"z": [null, true, 1, -1, 0.1, 1.0, u64::MAX, 1e300], "a": {"": "é"}, "m": []});
        let back: Holder = decode(&encode(&Holder(value.clone())).unwrap()).unwrap();
        assert_eq!(back.0.to_string(), value.to_string());
    }
}
