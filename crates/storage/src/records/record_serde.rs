//! Serialisation of ids and times in records: ids as 16 bytes, times as milliseconds. (Their own `Serialize` writes
//! text for clients.) Used with `#[serde(with = "...")]`.

macro_rules! fields {
    ($($name:ident $($maybe:ident)? => $type:ty, $raw:ty, $out:expr, $back:expr;)+) => {$(
        pub mod $name {
            use serde::{Deserialize, Deserializer, Serialize, Serializer};

            pub fn serialize<S: Serializer>(value: &$type, serializer: S) -> Result<S::Ok, S::Error> {
                let raw: fn($type) -> $raw = $out;
                raw(*value).serialize(serializer)
            }

            pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<$type, D::Error> {
                let back: fn($raw) -> $type = $back;
                <$raw>::deserialize(deserializer).map(back)
            }
        }

        $(pub mod $maybe {
            use serde::{Deserialize, Deserializer, Serialize, Serializer};

            pub fn serialize<S: Serializer>(value: &Option<$type>, serializer: S) -> Result<S::Ok, S::Error> {
                let raw: fn($type) -> $raw = $out;
                value.map(raw).serialize(serializer)
            }

            pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<$type>, D::Error> {
                let back: fn($raw) -> $type = $back;
                Ok(Option::<$raw>::deserialize(deserializer)?.map(back))
            }
        })?
    )+};
}

/// Serialises bytes as one string rather than byte by byte.
pub mod bytes {
    use std::fmt;

    use serde::de::Visitor;
    use serde::{Deserializer, Serializer};

    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        struct Bytes;

        impl Visitor<'_> for Bytes {
            type Value = Vec<u8>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
                Ok(bytes.to_vec())
            }

            fn visit_byte_buf<E>(self, bytes: Vec<u8>) -> Result<Vec<u8>, E> {
                Ok(bytes)
            }
        }

        deserializer.deserialize_byte_buf(Bytes)
    }
}

fields! {
    time maybe_time => outpost_common::clock_rng::Timestamp, i64, |t| t.as_millis(), outpost_common::clock_rng::Timestamp::from_millis;
    project_id maybe_project_id => crate::ids::ProjectId, [u8; 16], |id| id.to_bytes(), crate::ids::ProjectId::from_bytes;
    key_id maybe_key_id => crate::ids::KeyId, [u8; 16], |id| id.to_bytes(), crate::ids::KeyId::from_bytes;
    job_id => crate::ids::JobId, [u8; 16], |id| id.to_bytes(), crate::ids::JobId::from_bytes;
    file_id maybe_file_id => crate::ids::FileId, [u8; 16], |id| id.to_bytes(), crate::ids::FileId::from_bytes;
}
