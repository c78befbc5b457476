//! Encoding of stored values: a version byte, the record in bincode, and a check value over table, key, version and
//! payload. The check value is a MAC for records that decide access, and a CRC-32 for others, which detects damage but
//! not forgery. Only this file uses bincode.
//!
//! redb's normal reads verify no page checksum, so without the CRC a flipped bit in a message was returned as text. A
//! MAC on all records would cost more for every usage record and add no protection: a process that can write to the
//! file can also replace it with an older copy.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Code, Error, Result};
use crate::pepper::{Pepper, TAG_BYTES};
use crate::tables::Table;

/// Max size of a record, and of allocations while decoding damaged bytes.
const MAX_RECORD_BYTES: usize = 16 << 20;

/// Bytes of a CRC-32.
const CHECKSUM_BYTES: usize = 4;

/// A type that is stored in one table.
///
/// bincode is not self-describing: a record has no `flatten`, `untagged`, `skip` or free JSON
/// values (JSON is kept as text), and a change of its fields needs a new `VERSION` and a migration. IDs are stored as 16
/// bytes and times as milliseconds, although clients get text.
pub trait Record: Serialize + DeserializeOwned {
    const TABLE: Table;
    const VERSION: u8;
    /// Set for records that decide access. They have a MAC.
    const SEALED: bool = false;
    /// Announces changes to the store's watchers, on every node.
    const WATCHED: bool = false;
}

fn config() -> impl bincode::config::Config {
    bincode::config::standard().with_limit::<MAX_RECORD_BYTES>()
}

pub(super) fn encode<R: Record>(pepper: &Pepper, key: &[u8], record: &R) -> Result<Vec<u8>> {
    let mut bytes = vec![R::VERSION];
    let size = bincode::serde::encode_into_std_write(record, &mut bytes, config()).map_err(Error::internal)?;
    if size > MAX_RECORD_BYTES {
        return Err(Error::internal(format!("a record of {size} bytes for {}", R::TABLE.name())));
    }
    if R::SEALED {
        let tag = pepper.seal(&[R::TABLE.name().as_bytes(), key, &bytes]);
        bytes.extend_from_slice(&tag);
    } else {
        bytes.extend_from_slice(&checksum(R::TABLE, key, &bytes));
    }
    Ok(bytes)
}

pub(super) fn decode<R: Record>(pepper: &Pepper, key: &[u8], bytes: &[u8]) -> Result<R> {
    let damaged = |reason: &str| damaged(R::TABLE, key, reason);
    let body = if R::SEALED {
        unseal::<R>(pepper, key, bytes).ok_or_else(|| damaged("its MAC does not fit"))?
    } else {
        without_checksum(R::TABLE, key, bytes).ok_or_else(|| damaged("its checksum does not fit"))?
    };
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
    let (body, tag) = bytes.split_at_checked(bytes.len().checked_sub(TAG_BYTES)?)?;
    pepper.is_sealed(&[R::TABLE.name().as_bytes(), key, body], tag).then_some(body)
}

fn without_checksum<'a>(table: Table, key: &[u8], bytes: &'a [u8]) -> Option<&'a [u8]> {
    let (body, found) = bytes.split_at_checked(bytes.len().checked_sub(CHECKSUM_BYTES)?)?;
    (checksum(table, key, body) == found).then_some(body)
}

fn checksum(table: Table, key: &[u8], body: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let mut hasher = crc32fast::Hasher::new();
    [table.name().as_bytes(), key, body].into_iter().for_each(|part| hasher.update(part));
    hasher.finalize().to_le_bytes()
}

/// The error for records that contradict each other, because a page was damaged or lost.
pub(super) fn inconsistent(reason: impl Into<String>) -> Error {
    refused(reason.into())
}

/// The error for a damaged record. A damaged record is never treated as absent, because that could make a revoked key
/// or an archived project usable.
fn damaged(table: Table, key: &[u8], reason: &str) -> Error {
    let key_hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    refused(format!("record {key_hex} of table {}: {reason}", table.name()))
}

fn refused(cause: String) -> Error {
    Error::new(
        Code::StorageUnavailable,
        "A stored record is damaged. The operator should run `outpost check` and restore a backup.",
    )
    .with_cause(cause)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::{Deserialize, Serialize};

    use outpost_common::clock_rng::Timestamp;

    use super::{Record, decode, encode};
    use crate::error::Code;
    use crate::ids::ProjectId;
    use crate::pepper::Pepper;
    use crate::tables::{KEYS, MESSAGES, Table};

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

    /// Like the record above, without a MAC.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Open(Sample);

    impl Record for Open {
        const TABLE: Table = MESSAGES;
        const VERSION: u8 = 3;
    }

    fn samples() -> impl Strategy<Value = Sample> {
        (any::<String>(), any::<i64>(), any::<Option<Vec<String>>>(), any::<[u8; 16]>())
            .prop_map(|(text, number, list, bytes)| Sample { text, number, list, bytes })
    }

    proptest! {
        #[test]
        fn records_round_trip(sample in samples(), key: [u8; 16]) {
            let pepper = Pepper::from_bytes([7; 32]);
            let bytes = encode(&pepper, &key, &sample).unwrap();
            prop_assert_eq!(decode::<Sample>(&pepper, &key, &bytes).unwrap(), sample);
        }

        #[test]
        fn any_flipped_bit_of_a_sealed_record_is_rejected(sample in samples(), at: prop::sample::Index, bit in 0..8_u8) {
            let pepper = Pepper::from_bytes([7; 32]);
            let mut bytes = encode(&pepper, b"key", &sample).unwrap();
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert_eq!(decode::<Sample>(&pepper, b"key", &bytes).unwrap_err().code(), Code::StorageUnavailable);
        }

        #[test]
        fn any_flipped_bit_of_an_open_record_is_detected(sample in samples(), at: prop::sample::Index, bit in 0..8_u8) {
            let pepper = Pepper::from_bytes([7; 32]);
            let mut bytes = encode(&pepper, b"key", &Open(sample.clone())).unwrap();
            prop_assert_eq!(&decode::<Open>(&pepper, b"key", &bytes).unwrap().0, &sample);
            prop_assert!(decode::<Open>(&pepper, b"other key", &bytes).is_err());
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert_eq!(decode::<Open>(&pepper, b"key", &bytes).unwrap_err().code(), Code::StorageUnavailable);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            let pepper = Pepper::from_bytes([7; 32]);
            prop_assert!(decode::<Sample>(&pepper, b"key", &bytes).is_err());
            drop(decode::<Open>(&pepper, b"key", &bytes));
        }
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Typed(ProjectId, Option<Timestamp>);

    impl Record for Typed {
        const TABLE: Table = MESSAGES;
        const VERSION: u8 = 1;
    }

    #[test]
    fn ids_and_times_are_stored_as_bytes_and_milliseconds() {
        let pepper = Pepper::from_bytes([7; 32]);
        let typed = Typed(ProjectId::from_bytes([9; 16]), Some(Timestamp::from_millis(3)));
        let bytes = encode(&pepper, b"key", &typed).unwrap();
        let plain = [&[1][..], &[9; 16], &[1, 6]].concat();
        assert_eq!(bytes[..bytes.len() - 4], plain);
        assert_eq!(decode::<Typed>(&pepper, b"key", &bytes).unwrap(), typed);
    }

    #[test]
    fn a_sealed_record_under_another_key_is_rejected() {
        let pepper = Pepper::from_bytes([7; 32]);
        let sample = Sample { text: "a".into(), number: 1, list: None, bytes: [0; 16] };
        let bytes = encode(&pepper, b"here", &sample).unwrap();
        assert!(decode::<Sample>(&pepper, b"there", &bytes).is_err());
        assert!(decode::<Sample>(&Pepper::from_bytes([8; 32]), b"here", &bytes).is_err());
    }
}
