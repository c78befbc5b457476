//! Idempotency: a management write that carries an `Idempotency-Key` happens once.
//!
//! The result is kept in the transaction of the effect itself, so a crash leaves both or neither.
//! The writer runs one closure after the other: of many requests at once with one key, the first
//! has the effect and the others find its result.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ring::digest::{Context, SHA256};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::access::Access;
use super::authority;
use crate::clock_rng::Timestamp;
use crate::error::{Code, Error, Result};
use crate::ids::KeyId;
use crate::storage::idempotency::{self, IdempotencyRecord};
use crate::storage::{Store, WriteTx};

const LONGEST: usize = 255;

/// An idempotency key with the request that it came with.
#[derive(Debug)]
pub struct Claim {
    /// SHA-256 of API key and idempotency key.
    place: [u8; 32],
    /// SHA-256 of the request.
    request: [u8; 32],
    replayed: AtomicBool,
}

impl Claim {
    /// Checks the header's text; `request` is what must be equal for a replay, part by part.
    pub fn new(owner: KeyId, key: &str, request: &[&[u8]]) -> Result<Self> {
        let plain = key.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
        if key.is_empty() || key.len() > LONGEST || !plain {
            let text = format!(
                "The header 'Idempotency-Key' must have 1 to {LONGEST} printable ASCII characters, such as a UUID."
            );
            return Err(Error::invalid("Idempotency-Key", text));
        }
        let place = digest(&[&owner.to_bytes(), key.as_bytes()]);
        Ok(Self { place, request: digest(request), replayed: AtomicBool::new(false) })
    }

    /// Whether the result came from an earlier request.
    pub fn replayed(&self) -> bool {
        self.replayed.load(Ordering::Relaxed)
    }

    fn recall<T: DeserializeOwned>(&self, tx: &WriteTx, now: Timestamp) -> Result<Option<T>> {
        // The closure may run again after another attempt.
        self.replayed.store(false, Ordering::Relaxed);
        let Some(found) = idempotency::find(tx, &self.place, now)? else { return Ok(None) };
        if found.request != self.request {
            let text = "This Idempotency-Key was used before with another request. Send the same request again, or use a new key.";
            return Err(Error::new(Code::IdempotencyConflict, text).param("Idempotency-Key"));
        }
        self.replayed.store(true, Ordering::Relaxed);
        serde_json::from_str(&found.result).map(Some).map_err(Error::internal)
    }

    fn keep(&self, tx: &WriteTx, now: Timestamp, result: &impl Serialize) -> Result<()> {
        let result = serde_json::to_string(result).map_err(Error::internal)?;
        idempotency::put(tx, &self.place, &IdempotencyRecord { at: now, request: self.request, result })
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

/// The frame of every management write: confirms the caller's key inside the transaction, and
/// runs `f` once for all requests with one idempotency key. Equal requests get an equal result, as long as the caller
/// still has the permission that `permit` asks for. Both get the access that the key gives now.
pub(super) async fn write<T, P, F>(store: &Store, access: &Access, now: Timestamp, permit: P, mut f: F) -> Result<T>
where
    T: Serialize + DeserializeOwned + Send + 'static,
    P: Fn(&WriteTx, &Access) -> Result<()> + Send + 'static,
    F: FnMut(&WriteTx, &Access) -> Result<T> + Send + 'static,
{
    let access = access.clone();
    let claim: Option<Arc<Claim>> = access.claim().cloned();
    let run = move |tx: &WriteTx| {
        let access = authority::confirm(tx, &access, now)?;
        let Some(claim) = &claim else { return f(tx, &access) };
        if let Some(result) = claim.recall(tx, now)? {
            return permit(tx, &access).map(|()| result);
        }
        let result = f(tx, &access)?;
        claim.keep(tx, now, &result)?;
        Ok(result)
    };
    store.write(run).await
}
