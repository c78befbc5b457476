//! The secret of an API key: `opk_`, the key's id, 256 random bits and a check part, in base62.
//!
//! The id finds the record by one lookup. The check part (CRC-32 of all before it) lets typos and
//! noise be refused without a database read; it proves nothing.

use std::borrow::Cow;
use std::fmt;

use zeroize::Zeroizing;

use super::base62;
use crate::ambient::Ambient;
use crate::error::{Code, Error, Result};
use crate::ids::KeyId;

const PREFIX: &str = "opk_";
const ID: usize = 22;
const RANDOM: usize = 43;
const CHECK: usize = 6;
const LENGTH: usize = PREFIX.len() + ID + RANDOM + CHECK;

/// A secret in the clear. It cannot be printed by accident and is wiped when dropped.
#[derive(Clone)]
pub struct Secret(Zeroizing<String>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// A new secret for `key`.
    pub fn generate(key: KeyId, ambient: &dyn Ambient) -> Self {
        let mut random = Zeroizing::new([0; 32]);
        ambient.fill(random.as_mut());
        let id = base62::encode(&key.to_bytes(), ID);
        let random = Zeroizing::new(base62::encode(random.as_ref(), RANDOM));
        let mut text = Zeroizing::new(String::with_capacity(LENGTH));
        text.extend([PREFIX, &id, &random]);
        let check = check(text.as_bytes());
        text.push_str(&check);
        Self(text)
    }

    /// The text, for the one answer that carries it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// A form for lists: enough to recognise a key, of no use to a thief.
    pub fn redacted(&self) -> String {
        format!("{}…{}", &self.0[..PREFIX.len() + 4], &self.0[LENGTH - 4..])
    }
}

fn check(text: &[u8]) -> String {
    base62::encode(&crc32fast::hash(text).to_be_bytes(), CHECK)
}

/// `text` with every secret in it cut short, whole or in part: callers write secrets where none
/// belong, and what they wrote is repeated to them in errors and written to the log.
pub fn redact(text: &str) -> Cow<'_, str> {
    let (mut rest, mut safe) = (text, String::new());
    while let Some(at) = rest.find(PREFIX) {
        let (before, after) = rest.split_at(at + PREFIX.len());
        // Two secrets in a row are one run.
        let run = after.bytes().take_while(|byte| *byte == b'_' || base62::digit(*byte).is_some()).count();
        // The id alone is no secret.
        let (shown, mark) = if run > ID { (4, "…") } else { (run, "") };
        safe.extend([before, &after[..shown], mark]);
        rest = &after[run..];
    }
    if safe.is_empty() { Cow::Borrowed(text) } else { Cow::Owned(safe + rest) }
}

/// The key that a well-formed secret names; 401 for any other text, without a database read.
pub fn parse(text: &str) -> Result<KeyId> {
    parts(text.as_bytes()).ok_or_else(invalid)
}

fn parts(text: &[u8]) -> Option<KeyId> {
    if text.len() != LENGTH {
        return None;
    }
    let (body, found) = text.split_at(LENGTH - CHECK);
    let digits = body.strip_prefix(PREFIX.as_bytes())?;
    let (id, random) = digits.split_at(ID);
    random.iter().all(|byte| base62::digit(*byte).is_some()).then_some(())?;
    (check(body).as_bytes() == found).then_some(())?;
    base62::decode(id).map(|id| KeyId::from_bytes(id.to_be_bytes()))
}

/// The one answer to every secret that is not known, whatever is wrong with it.
pub(super) fn invalid() -> Error {
    let text = "The API key is not valid. Check that it was copied whole (it starts with 'opk_'), or create a new key.";
    Error::new(Code::InvalidApiKey, text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Secret, parse, redact};
    use crate::ambient::{Ambient, Timestamp};
    use crate::ids::KeyId;

    struct Fixed([u8; 32]);

    impl Ambient for Fixed {
        fn now(&self) -> Timestamp {
            Timestamp::from_millis(0)
        }

        fn uptime(&self) -> std::time::Duration {
            std::time::Duration::ZERO
        }

        fn fill(&self, bytes: &mut [u8]) {
            bytes.copy_from_slice(&self.0[..bytes.len()]);
        }
    }

    proptest! {
        #[test]
        fn a_secret_names_its_key(id: [u8; 16], random: [u8; 32]) {
            let secret = Secret::generate(KeyId::from_bytes(id), &Fixed(random));
            prop_assert_eq!(secret.expose().len(), 75);
            prop_assert_eq!(parse(secret.expose()).unwrap(), KeyId::from_bytes(id));
        }

        #[test]
        fn any_change_of_one_character_fails_the_check(id: [u8; 16], random: [u8; 32], at in 0..75_usize, other: char) {
            let secret = Secret::generate(KeyId::from_bytes(id), &Fixed(random));
            let mut text: Vec<char> = secret.expose().chars().collect();
            prop_assume!(text[at] != other);
            text[at] = other;
            prop_assert!(parse(&text.into_iter().collect::<String>()).is_err());
        }

        #[test]
        fn any_text_is_refused_without_a_panic(text: String) {
            prop_assert!(parse(&text).is_err());
        }
    }

    #[test]
    fn every_letter_in_every_place_is_checked() {
        let secret = Secret::generate(KeyId::from_bytes([9; 16]), &Fixed([255; 32]));
        for at in 0..75 {
            for other in b'!'..=b'~' {
                let mut text = secret.expose().as_bytes().to_vec();
                if std::mem::replace(&mut text[at], other) != other {
                    assert!(parse(std::str::from_utf8(&text).unwrap()).is_err());
                }
            }
        }
    }

    #[test]
    fn secrets_in_a_text_are_cut_short() {
        let secret = Secret::generate(KeyId::from_bytes([9; 16]), &Fixed([3; 32]));
        let (secret, short) = (secret.expose(), &secret.expose()[..8]);
        let text = format!("/a/{secret}?b={}é opk_short {secret}{secret}", &secret[..40]);
        assert_eq!(redact(&text), format!("/a/{short}…?b={short}…é opk_short {short}…"));
        assert_eq!(redact("opk_ and opk"), "opk_ and opk");
    }

    #[test]
    fn a_secret_is_not_printed() {
        let secret = Secret::generate(KeyId::from_bytes([9; 16]), &Fixed([3; 32]));
        assert_eq!(format!("{secret:?}"), "Secret(..)");
        assert!(secret.redacted().chars().count() == 13 && secret.redacted().starts_with("opk_"));
    }
}
