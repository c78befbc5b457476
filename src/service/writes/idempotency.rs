//! Idempotency: a management write with an `Idempotency-Key` takes effect once.
//!
//! The result is stored in the transaction of the effect, so a crash leaves both or neither. The writer runs closures
//! one at a time: of concurrent requests with one key, the first takes effect and the others find its result.
//!
//! There is no state "in flight". The key is passed in `Access` to the one function that all management writes call.
//! The stored value is the service's result and not the response, because each mount renders it in its own format. A
//! replay requires that the API key could still make the request now; the code of each write states the required
//! access.

use std::sync::atomic::{AtomicBool, Ordering};

use ring::digest::{Context, SHA256};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::clock_rng::Timestamp;
use crate::error::{Code, Error, Result};
use crate::ids::KeyId;
use crate::storage::WriteTx;
use crate::storage::idempotency_keys::{self as stored, IdempotencyRecord};

const MAX_KEY_LENGTH: usize = 255;

/// An idempotency key and its request.
#[derive(Debug)]
pub struct IdempotencyKey {
    /// SHA-256 of API key and idempotency key.
    id: [u8; 32],
    /// SHA-256 of the request.
    request: [u8; 32],
    replayed: AtomicBool,
}

impl IdempotencyKey {
    /// Validates the header; all parts of `request` must be equal for a replay.
    pub fn new(owner: KeyId, key: &str, request: &[&[u8]]) -> Result<Self> {
        let plain = key.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
        if key.is_empty() || key.len() > MAX_KEY_LENGTH || !plain {
            let text = format!(
                "The header 'Idempotency-Key' must have 1 to {MAX_KEY_LENGTH} printable ASCII characters, such as a UUID."
            );
            return Err(Error::invalid("Idempotency-Key", text));
        }
        let id = digest(&[&owner.to_bytes(), key.as_bytes()]);
        Ok(Self { id, request: digest(request), replayed: AtomicBool::new(false) })
    }

    /// True if the result is that of an earlier request.
    pub fn is_replayed(&self) -> bool {
        self.replayed.load(Ordering::Relaxed)
    }

    pub(in crate::service) fn replay<T: DeserializeOwned>(&self, tx: &WriteTx, now: Timestamp) -> Result<Option<T>> {
        // The closure may run more than once.
        self.replayed.store(false, Ordering::Relaxed);
        let Some(found) = stored::find(tx, &self.id, now)? else { return Ok(None) };
        if found.request != self.request {
            let text = "This Idempotency-Key was used before with another request. Send the same request again, or use a new key.";
            return Err(Error::new(Code::IdempotencyConflict, text).param("Idempotency-Key"));
        }
        self.replayed.store(true, Ordering::Relaxed);
        serde_json::from_str(&found.result).map(Some).map_err(Error::internal)
    }

    pub(in crate::service) fn store_result(&self, tx: &WriteTx, now: Timestamp, result: &impl Serialize) -> Result<()> {
        let result = serde_json::to_string(result).map_err(Error::internal)?;
        stored::put(tx, &self.id, &IdempotencyRecord { at: now, request: self.request, result })
    }
}

fn digest(parts: &[&[u8]]) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    for part in parts {
        // Lengths keep ("ab", "c") and ("a", "bc") apart.
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    let mut out = [0; 32];
    out.copy_from_slice(context.finish().as_ref());
    out
}
