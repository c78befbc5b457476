//! The pepper: 32 random bytes in a separate file, and the keys derived from them.
//!
//! A copy of the database alone is useless to a thief: secret digests, record MACs, list cursors, URL signatures and
//! the prefix cache on disk all use keys derived from the pepper.

use std::path::{Path, PathBuf};

use ring::hmac;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::private_files;
use crate::store_error::OpenError;
use outpost_common::clock_rng::ClockRng;

const LENGTH: usize = 32;
pub(super) const TAG_BYTES: usize = 32;

/// The stored digest of a secret, or a URL signature. Compared in constant time only.
#[derive(Clone, Copy, serde::Serialize, serde::Deserialize)]
pub struct Digest([u8; 32]);

impl Digest {
    /// From an untrusted signature.
    pub fn from_bytes(bytes: [u8; TAG_BYTES]) -> Self {
        Self(bytes)
    }

    /// For a signature to send.
    pub fn to_bytes(self) -> [u8; TAG_BYTES] {
        self.0
    }

    /// Constant-time comparison.
    pub fn matches(&self, other: &Digest) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Digest(..)")
    }
}

/// Separate keys for the uses of the pepper.
pub struct Pepper {
    raw: Zeroizing<[u8; LENGTH]>,
    secrets: hmac::Key,
    records: hmac::Key,
    cursors: hmac::Key,
    urls: hmac::Key,
}

impl std::fmt::Debug for Pepper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pepper(..)")
    }
}

impl Pepper {
    pub(super) fn from_bytes(raw: [u8; LENGTH]) -> Self {
        let root = hmac::Key::new(hmac::HMAC_SHA256, &raw);
        let derive = |label: &[u8]| hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&root, label).as_ref());
        Self {
            secrets: derive(b"outpost secrets 1"),
            records: derive(b"outpost records 1"),
            cursors: derive(b"outpost cursors 1"),
            urls: derive(b"outpost urls 1"),
            raw: Zeroizing::new(raw),
        }
    }

    pub(super) fn raw(&self) -> &[u8] {
        self.raw.as_ref()
    }

    /// The digest of a secret.
    pub fn digest(&self, secret: &str) -> Digest {
        Digest(tag(&self.secrets, &[secret.as_bytes()]))
    }

    /// The MAC of a record, over all `parts` with their lengths.
    pub(super) fn seal(&self, parts: &[&[u8]]) -> [u8; TAG_BYTES] {
        tag(&self.records, parts)
    }

    /// Verifies `found` as the MAC of these parts.
    pub(super) fn is_sealed(&self, parts: &[&[u8]], found: &[u8]) -> bool {
        self.seal(parts).ct_eq(found).into()
    }

    /// Authenticates a list position; half a MAC suffices for short-lived cursors.
    pub fn cursor_tag(&self, parts: &[&[u8]]) -> [u8; 16] {
        let mut half = [0; 16];
        half.copy_from_slice(&tag(&self.cursors, parts)[..16]);
        half
    }

    /// The MAC of a URL that works without a key.
    pub fn url_mac(&self, parts: &[&[u8]]) -> Digest {
        Digest(tag(&self.urls, parts))
    }

    /// The secret from which the keys of the prefix cache on disk derive.
    pub fn prefix_cache_key(&self) -> [u8; TAG_BYTES] {
        let root = hmac::Key::new(hmac::HMAC_SHA256, self.raw());
        let mut key = [0; TAG_BYTES];
        key.copy_from_slice(hmac::sign(&root, b"outpost prefix cache 1").as_ref());
        key
    }

    /// Stored in the database to detect a wrong pepper.
    pub(super) fn check_value(&self) -> [u8; TAG_BYTES] {
        self.seal(&[b"pepper check"])
    }
}

fn tag(key: &hmac::Key, parts: &[&[u8]]) -> [u8; TAG_BYTES] {
    let mut context = hmac::Context::with_key(key);
    for part in parts {
        // Lengths keep ("ab", "c") and ("a", "bc") apart.
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    let mut out = [0; TAG_BYTES];
    out.copy_from_slice(context.sign().as_ref());
    out
}

pub(super) fn path(dir: &Path) -> PathBuf {
    dir.join(private_files::PEPPER)
}

/// Loads the pepper, or creates one if there is no database yet.
pub(super) fn load_or_create(dir: &Path, has_database: bool, clock_rng: &dyn ClockRng) -> Result<Pepper, OpenError> {
    if let Some(pepper) = load(dir)? {
        return Ok(pepper);
    }
    if has_database {
        return Err(OpenError::MissingPepper { path: path(dir) });
    }
    let mut raw = Zeroizing::new([0; LENGTH]);
    clock_rng.fill(raw.as_mut());
    let pepper = Pepper::from_bytes(*raw);
    save(dir, &pepper)?;
    Ok(pepper)
}

/// Removes a pepper that nothing needs.
pub(super) fn remove(dir: &Path) -> Result<(), OpenError> {
    let path = path(dir);
    std::fs::remove_file(&path).map_err(|error| OpenError::io(&path, error))
}

pub(super) fn load(dir: &Path) -> Result<Option<Pepper>, OpenError> {
    let path = path(dir);
    private_files::protect_secret(&path, "if the database may have been read as well, rotate all API keys");
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => Zeroizing::new(bytes),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(OpenError::io(&path, error)),
    };
    match <[u8; LENGTH]>::try_from(bytes.as_slice()) {
        Ok(raw) => Ok(Some(Pepper::from_bytes(raw))),
        Err(_) => Err(OpenError::WrongPepper { path }),
    }
}

pub(super) fn save(dir: &Path, pepper: &Pepper) -> Result<(), OpenError> {
    let path = path(dir);
    private_files::write_private(&path, pepper.raw()).map_err(|error| OpenError::io(&path, error))
}
