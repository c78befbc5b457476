//! A cache of key records, so that authentication does not read the disk.
//!
//! Invariant: once a change of a key or its project has been acknowledged, no lookup returns the earlier state. The
//! storage announces each change after its commit and before its acknowledgement. The announcement removes the entry
//! and increments the shard's generation under the shard's lock. A loader notes the generation before its snapshot
//! begins and inserts only if it is unchanged. If the change was committed after the snapshot, either the generation
//! has moved or the entry has been removed.
//!
//! Bounded by two halves: a full young half replaces the old one. Entries of the old half move to the young one when
//! they are used again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::access::Access;
use crate::ids::KeyId;
use crate::storage::keys::KeyRecord;
use crate::storage::projects::ProjectRecord;
use crate::storage::{Digest, Record, Table, Watcher};

const SHARDS: usize = 16;
/// Per half of a shard: at most 16 × 2 × 1024 keys in memory.
const HALF_CAPACITY: usize = 1024;

/// What authentication needs of a key.
pub(super) struct CachedKey {
    pub record: KeyRecord,
    pub access: Access,
    pub project_archived: bool,
}

impl CachedKey {
    /// Whether the digest is that of the key's current or previous secret.
    pub fn is_named_by(&self, digest: &Digest) -> bool {
        let previous = self.record.previous.as_ref();
        self.record.digest.matches(digest) || previous.is_some_and(|previous| previous.digest.matches(digest))
    }
}

#[derive(Default)]
struct Shard {
    generation: u64,
    young: HashMap<KeyId, Arc<CachedKey>>,
    old: HashMap<KeyId, Arc<CachedKey>>,
}

impl Shard {
    fn insert(&mut self, id: KeyId, known: Arc<CachedKey>) {
        if self.young.len() >= HALF_CAPACITY {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(id, known);
    }

    fn remove(&mut self, id: KeyId) {
        self.generation += 1;
        self.young.remove(&id);
        self.old.remove(&id);
    }

    fn retain(&mut self, keep: impl Fn(&KeyId, &CachedKey) -> bool) {
        self.generation += 1;
        self.young.retain(|id, known| keep(id, known));
        self.old.retain(|id, known| keep(id, known));
    }
}

/// The generation of a shard at a cache miss.
#[derive(Clone, Copy)]
pub(super) struct InsertToken(u64);

#[derive(Default)]
pub(super) struct KeyCache {
    shards: [Mutex<Shard>; SHARDS],
}

impl KeyCache {
    fn shard(&self, id: KeyId) -> MutexGuard<'_, Shard> {
        let [.., last] = id.to_bytes();
        self.shards[usize::from(last) % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The entry, or a token for inserting it after loading.
    pub fn get(&self, id: KeyId) -> Result<Arc<CachedKey>, InsertToken> {
        let mut shard = self.shard(id);
        if let Some(known) = shard.young.get(&id) {
            return Ok(known.clone());
        }
        let known = shard.old.remove(&id).ok_or(InsertToken(shard.generation))?;
        shard.insert(id, known.clone());
        Ok(known)
    }

    pub fn insert(&self, id: KeyId, token: InsertToken, known: Arc<CachedKey>) {
        let mut shard = self.shard(id);
        if shard.generation == token.0 {
            shard.insert(id, known);
        }
    }

    fn retain(&self, keep: impl Fn(&KeyId, &CachedKey) -> bool) {
        for shard in &self.shards {
            shard.lock().unwrap_or_else(PoisonError::into_inner).retain(&keep);
        }
    }
}

impl Watcher for KeyCache {
    fn changed(&self, table: Table, key: &[u8]) {
        if table != KeyRecord::TABLE && table != ProjectRecord::TABLE {
            return; // nothing of it is kept here
        }
        let Ok(id) = <[u8; 16]>::try_from(key) else { return self.changes_unknown() };
        if table == KeyRecord::TABLE {
            let id = KeyId::from_bytes(id);
            self.shard(id).remove(id);
        } else {
            self.retain(|_, known| known.record.project.to_bytes() != id);
        }
    }

    fn changes_unknown(&self) {
        self.retain(|_, _| false);
    }
}
