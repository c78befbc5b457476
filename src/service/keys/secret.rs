//! The secret of an API key: `opk_`, then the key's id, 256 random bits and a checksum in base62.
//!
//! The id finds the record with one lookup. The checksum (a CRC-32) allows refusing typos and noise without a database
//! read; it is no proof of validity.

use std::borrow::Cow;
use std::fmt;

use zeroize::Zeroizing;

use super::base62;
use crate::clock_rng::ClockRng;
use crate::error::{Code, Error, Result};
use crate::ids::KeyId;

const PREFIX: &str = "opk_";
const ID_DIGITS: usize = 22;
const RANDOM_DIGITS: usize = 43;
/// Levels of percent-encoding in which secrets are found.
const MAX_ENCODINGS: u8 = 3;
const CHECK_DIGITS: usize = 6;
const LENGTH: usize = PREFIX.len() + ID_DIGITS + RANDOM_DIGITS + CHECK_DIGITS;

/// A plaintext secret. It cannot be printed by accident and is zeroed on drop.
#[derive(Clone)]
pub struct Secret(Zeroizing<String>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// A new secret for `key`.
    pub fn generate(key: KeyId, clock_rng: &dyn ClockRng) -> Self {
        let mut random = Zeroizing::new([0; 32]);
        clock_rng.fill(random.as_mut());
        let id = base62::encode(&key.to_bytes(), ID_DIGITS);
        let random = Zeroizing::new(base62::encode(random.as_ref(), RANDOM_DIGITS));
        let mut text = Zeroizing::new(String::with_capacity(LENGTH));
        text.extend([PREFIX, &id, &random]);
        let check = check(text.as_bytes());
        text.push_str(&check);
        Self(text)
    }

    /// The text, for the one response that contains it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// A redacted form for lists, enough to recognise a key.
    pub fn redacted(&self) -> String {
        format!("{}…{}", &self.0[..PREFIX.len() + 4], &self.0[LENGTH - 4..])
    }
}

fn check(text: &[u8]) -> String {
    base62::encode(&crc32fast::hash(text).to_be_bytes(), CHECK_DIGITS)
}

/// Redacts whole or partial secrets in `text`, because clients may send secrets in wrong places, which errors and logs
/// would repeat. Also finds secrets of which some or all characters are percent-encoded, even repeatedly.
pub fn redact(text: &str) -> Cow<'_, str> {
    let bytes = text.as_bytes();
    let (mut copied, mut at, mut safe) = (0, 0, String::new());
    while at < bytes.len() {
        let Some(span) = secret_at(bytes, at) else {
            at += 1;
            continue;
        };
        // The id alone is not secret.
        if span.letters > ID_DIGITS {
            safe.extend([text.get(copied..span.shown).unwrap_or_default(), "…"]);
            copied = span.end;
        }
        at = span.end;
    }
    if safe.is_empty() { Cow::Borrowed(text) } else { Cow::Owned(safe + text.get(copied..).unwrap_or_default()) }
}

/// The position of a secret in the text.
struct SecretSpan {
    letters: usize,
    /// End of the part that may be shown.
    shown: usize,
    end: usize,
}

/// The secret that begins at `at`. Adjacent secrets are one span.
fn secret_at(text: &[u8], at: usize) -> Option<SecretSpan> {
    let mut end = at;
    for expected in PREFIX.bytes() {
        let (letter, length) = letter(text, end, MAX_ENCODINGS)?;
        (letter == expected).then_some(())?;
        end += length;
    }
    let mut span = SecretSpan { letters: 0, shown: end, end };
    while let Some((letter, length)) = letter(text, span.end, MAX_ENCODINGS)
        && (letter == b'_' || base62::digit(letter).is_some())
    {
        span.letters += 1;
        span.end += length;
        if span.letters <= 4 {
            span.shown = span.end;
        }
    }
    Some(span)
}

/// The character at a position of a text that is percent-encoded up to `times` times, and its length in bytes.
fn letter(text: &[u8], at: usize, times: u8) -> Option<(u8, usize)> {
    let Some(fewer) = times.checked_sub(1) else { return text.get(at).map(|letter| (*letter, 1)) };
    let (first, length) = letter(text, at, fewer)?;
    let encoded = || {
        let (high, more) = letter(text, at + length, fewer)?;
        let (low, most) = letter(text, at + length + more, fewer)?;
        let digit = |letter: u8| char::from(letter).to_digit(16);
        let value = u8::try_from(digit(high)? * 16 + digit(low)?).ok()?;
        Some((value, length + more + most))
    };
    if first == b'%' { encoded().or(Some((first, length))) } else { Some((first, length)) }
}

/// True for texts that could be meant as a key, even a mistyped one.
pub fn looks_like_key(text: &str) -> bool {
    text.to_ascii_lowercase().contains(PREFIX)
}

/// The key id in a well-formed secret; 401 for any other text, without a database read.
pub fn parse(text: &str) -> Result<KeyId> {
    parts(text.as_bytes()).ok_or_else(invalid)
}

fn parts(text: &[u8]) -> Option<KeyId> {
    if text.len() != LENGTH {
        return None;
    }
    let (body, found) = text.split_at(LENGTH - CHECK_DIGITS);
    let digits = body.strip_prefix(PREFIX.as_bytes())?;
    let (id, random) = digits.split_at(ID_DIGITS);
    random.iter().all(|byte| base62::digit(*byte).is_some()).then_some(())?;
    (check(body).as_bytes() == found).then_some(())?;
    base62::decode(id).map(|id| KeyId::from_bytes(id.to_be_bytes()))
}

/// The error for every unknown secret, whatever is wrong with it.
pub(in crate::service) fn invalid() -> Error {
    let text = "The API key is not valid. Check that it was copied whole (it starts with 'opk_'), or create a new key.";
    Error::new(Code::InvalidApiKey, text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{MAX_ENCODINGS, Secret, letter, parse, redact};
    use crate::clock_rng::{ClockRng, Timestamp};
    use crate::ids::KeyId;

    struct Fixed([u8; 32]);

    impl ClockRng for Fixed {
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
        fn arbitrary_text_is_rejected_without_a_panic(text: String) {
            prop_assert!(parse(&text).is_err());
        }
    }

    #[test]
    fn every_character_at_every_position_is_checked() {
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
    fn secrets_in_text_are_redacted() {
        let secret = Secret::generate(KeyId::from_bytes([9; 16]), &Fixed([3; 32]));
        let (secret, short) = (secret.expose(), &secret.expose()[..8]);
        let text = format!("/a/{secret}?b={}é opk_short {secret}{secret}", &secret[..40]);
        assert_eq!(redact(&text), format!("/a/{short}…?b={short}…é opk_short {short}…"));
        assert_eq!(redact("opk_ and opk"), "opk_ and opk");
    }

    #[test]
    fn percent_encoded_secrets_are_redacted() {
        let secret = Secret::generate(KeyId::from_bytes([9; 16]), &Fixed([3; 32]));
        let secret = secret.expose();
        let encoded = |text: &str, upper: bool| -> String {
            let byte = |byte: u8| if upper { format!("%{byte:02X}") } else { format!("%{byte:02x}") };
            text.bytes().map(byte).collect()
        };
        let again = |text: &str| text.replace('%', "%25");
        let decoded = |text: &str| -> String {
            let (mut at, mut plain) = (0, Vec::new());
            while let Some((letter, length)) = letter(text.as_bytes(), at, MAX_ENCODINGS) {
                plain.push(letter);
                at += length;
            }
            String::from_utf8_lossy(&plain).into_owned()
        };
        let first = format!("%6f{}", &secret[1..]);
        let mixed = format!("o%70{}_{}", &encoded("k", true), &secret[4..]);
        let inside = format!("{}{}", &secret[..30], encoded(&secret[30..], false));
        let (lower, upper) = (encoded(secret, false), encoded(secret, true));
        let twice = encoded(&lower, true);
        let forms = [&first, &mixed, &inside, &lower, &upper, &again(&lower), &again(&again(&upper)), &twice];
        for form in forms {
            let shown = redact(form);
            assert!(shown.len() < form.len() && shown.ends_with('…'), "{shown}");
            let text = format!("/v1/{form}?é=%zz%6");
            assert_eq!(redact(&text), format!("/v1/{shown}?é=%zz%6"));
            assert!(!decoded(&redact(&text)).contains(&secret[8..12]), "{text}");
        }
        let harmless = "/v1/%6fpk_%41 100%25 %6f%70%6b %";
        assert_eq!(redact(harmless), harmless);
    }

    #[test]
    fn a_secret_is_not_printed() {
        let secret = Secret::generate(KeyId::from_bytes([9; 16]), &Fixed([3; 32]));
        assert_eq!(format!("{secret:?}"), "Secret(..)");
        assert!(secret.redacted().chars().count() == 13 && secret.redacted().starts_with("opk_"));
    }
}
