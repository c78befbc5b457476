//! Bytes of a stored value: a version, the bincode of the record, and for records that decide
//! access a MAC over table, key, version and payload. The only file that knows bincode.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::pepper::{Pepper, TAG};
use super::tables::Table;
use crate::error::{Code, Error, Result};

/// No record is larger; decoding damaged bytes cannot allocate more either.
const LIMIT: usize = 16 << 20;

/// A type that is stored in one table.
///
/// bincode is not self-describing: a record has no `flatten`, `untagged`, `skip` or free JSON
/// values (JSON is kept as text), and a change of its fields needs a new `VERSION` and a migration.
pub trait Record: Serialize + DeserializeOwned {
    const TABLE: Table;
    const VERSION: u8;
    /// Whether the record decides access and so carries a MAC.
    const SEALED: bool = false;
}

fn config() -> impl bincode::config::Config {
    bincode::config::standard().with_limit::<LIMIT>()
}

pub(super) fn encode<R: Record>(pepper: &Pepper, key: &[u8], record: &R) -> Result<Vec<u8>> {
    let mut bytes = vec![R::VERSION];
    let size = bincode::serde::encode_into_std_write(record, &mut bytes, config()).map_err(Error::internal)?;
    if size > LIMIT {
        return Err(Error::internal(format!("a record of {size} bytes for {}", R::TABLE.name())));
    }
    if R::SEALED {
        let tag = pepper.seal(&[R::TABLE.name().as_bytes(), key, &bytes]);
        bytes.extend_from_slice(&tag);
    }
    Ok(bytes)
}

pub(super) fn decode<R: Record>(pepper: &Pepper, key: &[u8], bytes: &[u8]) -> Result<R> {
    let damaged = |reason: &str| damaged(R::TABLE, key, reason);
    let body =
        if R::SEALED { unseal::<R>(pepper, key, bytes).ok_or_else(|| damaged("its MAC does not fit"))? } else { bytes };
    let (version, payload) = body.split_first().ok_or_else(|| damaged("it is empty"))?;
    if *version != R::VERSION {
        return Err(damaged(&format!("its version is {version}")));
    }
    match bincode::serde::decode_from_slice(payload, config()) {
        Ok((record, read)) if read == payload.len() => Ok(record),
        Ok(_) => Err(damaged("bytes follow its end")),
        Err(error) => Err(damaged(&error.to_string())),
    }
}

fn unseal<'a, R: Record>(pepper: &Pepper, key: &[u8], bytes: &'a [u8]) -> Option<&'a [u8]> {
    let (body, tag) = bytes.split_at_checked(bytes.len().checked_sub(TAG)?)?;
    pepper.is_sealed(&[R::TABLE.name().as_bytes(), key, body], tag).then_some(body)
}

/// A damaged record stops the request that needs it. It is never taken for an absent one: that
/// could turn a revoked key or an archived project into something else.
fn damaged(table: Table, key: &[u8], reason: &str) -> Error {
    let place: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    Error::new(
        Code::StorageUnavailable,
        "A stored record is damaged. The operator should run `outpost check` and restore a backup.",
    )
    .because(format!("record {place} of table {}: {reason}", table.name()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::{Deserialize, Serialize};

    use super::{Record, decode, encode};
    use crate::error::Code;
    use crate::storage::pepper::Pepper;
    use crate::storage::tables::{KEYS, Table};

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Sample {
        text: String,
        number: i64,
        list: Option<Vec<String>>,
        bytes: [u8; 16],
    }

    impl Record for Sample {
        const TABLE: Table = KEYS;
        const VERSION: u8 = 3;
        const SEALED: bool = true;
    }

    fn samples() -> impl Strategy<Value = Sample> {
        (any::<String>(), any::<i64>(), any::<Option<Vec<String>>>(), any::<[u8; 16]>())
            .prop_map(|(text, number, list, bytes)| Sample { text, number, list, bytes })
    }

    proptest! {
        #[test]
        fn a_record_is_read_as_it_was_written(sample in samples(), key: [u8; 16]) {
            let pepper = Pepper::from_bytes([7; 32]);
            let bytes = encode(&pepper, &key, &sample).unwrap();
            prop_assert_eq!(decode::<Sample>(&pepper, &key, &bytes).unwrap(), sample);
        }

        #[test]
        fn any_flipped_bit_of_a_sealed_record_is_refused(sample in samples(), at: prop::sample::Index, bit in 0..8_u8) {
            let pepper = Pepper::from_bytes([7; 32]);
            let mut bytes = encode(&pepper, b"key", &sample).unwrap();
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert_eq!(decode::<Sample>(&pepper, b"key", &bytes).unwrap_err().code(), Code::StorageUnavailable);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            prop_assert!(decode::<Sample>(&Pepper::from_bytes([7; 32]), b"key", &bytes).is_err());
        }
    }

    #[test]
    fn a_sealed_record_moved_to_another_key_is_refused() {
        let pepper = Pepper::from_bytes([7; 32]);
        let sample = Sample { text: "a".into(), number: 1, list: None, bytes: [0; 16] };
        let bytes = encode(&pepper, b"here", &sample).unwrap();
        assert!(decode::<Sample>(&pepper, b"there", &bytes).is_err());
        assert!(decode::<Sample>(&Pepper::from_bytes([8; 32]), b"here", &bytes).is_err());
    }
}
