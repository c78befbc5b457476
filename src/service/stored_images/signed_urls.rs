//! Signed URLs of stored images. The signature is a MAC over the image's ID and the expiry time.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::error::{Code, Error, Result};
use crate::ids::StoredImageId;
use crate::storage::{Digest, Store};

/// The parts of a signed URL. It is valid until `expires`, in Unix seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedUrl {
    pub id: StoredImageId,
    pub expires: i64,
    pub signature: String,
}

impl SignedUrl {
    /// Signs the URL of an image.
    pub(super) fn sign(store: &Store, id: StoredImageId, expires: i64) -> Self {
        Self { id, expires, signature: URL_SAFE_NO_PAD.encode(mac(store, id, expires).to_bytes()) }
    }
}

/// Verifies the untrusted parts of a URL and returns its expiry time. 403 if the signature is not valid. Does not check
/// whether the URL has expired.
pub(super) fn verify(store: &Store, id: StoredImageId, expires: &str, signature: &str) -> Result<i64> {
    let parsed = expires.parse().ok().filter(|seconds: &i64| seconds.to_string() == expires);
    parsed.filter(|expires| is_valid(store, id, *expires, signature)).ok_or_else(|| {
        let text =
            "The URL's signature is not valid. Use the URL as it was returned, including everything after the '?'.";
        Error::new(Code::InvalidSignature, text)
    })
}

fn is_valid(store: &Store, id: StoredImageId, expires: i64, signature: &str) -> bool {
    let found = URL_SAFE_NO_PAD.decode(signature).ok().and_then(|bytes| bytes.try_into().ok());
    found.is_some_and(|found| mac(store, id, expires).matches(&Digest::from_bytes(found)))
}

/// The ID determines the project, so the project need not be signed.
fn mac(store: &Store, id: StoredImageId, expires: i64) -> Digest {
    store.pepper().url_mac(&[b"stored_image", &id.to_bytes(), &expires.to_be_bytes()])
}
