//! A cache of key records, so that authentication does not read the disk.
//!
//! Invariant: once a change of a key or its project has been acknowledged, no lookup returns the earlier state. (If it was
//! made by another node: no lookup more than 0.75 seconds later, because [`Store::is_current`](crate::storage::Store)
//! guards the cache.) The
//! storage announces each change after its commit and before its acknowledgement. The announcement removes the entry
//! and increments the shard's generation under the shard's lock. A loader notes the generation before its snapshot
//! begins and inserts only if it is unchanged. If the change was committed after the snapshot, either the generation
//! has moved or the entry has been removed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quick_cache::unsync::Cache;

use crate::ids::KeyId;
use crate::service::access::Access;
use crate::storage::keys::KeyRecord;
use crate::storage::projects::ProjectRecord;
use crate::storage::{Digest, Record, Table, Watcher};

const SHARDS: usize = 16;
/// Keys per shard: at most 16 × 2048 in memory.
const SHARD_CAPACITY: usize = 2048;

/// The fields of a key that authentication needs.
pub(super) struct CachedKey {
    pub record: KeyRecord,
    pub access: Access,
    pub project_archived: bool,
}

impl CachedKey {
    /// True if the digest is that of the key's current or previous secret.
    pub fn is_named_by(&self, digest: &Digest) -> bool {
        let previous = self.record.previous.as_ref();
        self.record.digest.matches(digest) || previous.is_some_and(|previous| previous.digest.matches(digest))
    }
}

struct Shard {
    generation: u64,
    keys: Cache<KeyId, Arc<CachedKey>>,
}

impl Default for Shard {
    fn default() -> Self {
        Self { generation: 0, keys: Cache::new(SHARD_CAPACITY) }
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
        let shard = self.shard(id);
        shard.keys.get(&id).cloned().ok_or(InsertToken(shard.generation))
    }

    /// A token for inserting the entry after loading, whether there is one or not.
    pub fn miss(&self, id: KeyId) -> InsertToken {
        InsertToken(self.shard(id).generation)
    }

    pub fn insert(&self, id: KeyId, token: InsertToken, known: Arc<CachedKey>) {
        let mut shard = self.shard(id);
        if shard.generation == token.0 {
            shard.keys.insert(id, known);
        }
    }

    fn retain(&self, predicate: impl Fn(&KeyId, &CachedKey) -> bool) {
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.generation += 1;
            shard.keys.retain(|id, key| predicate(id, key));
        }
    }
}

impl Watcher for KeyCache {
    fn changed(&self, table: Table, key: &[u8]) {
        if table != KeyRecord::TABLE && table != ProjectRecord::TABLE {
            return; // it is not cached
        }
        let Ok(id) = <[u8; 16]>::try_from(key) else { return self.changes_unknown() };
        if table == KeyRecord::TABLE {
            let id = KeyId::from_bytes(id);
            let mut shard = self.shard(id);
            shard.generation += 1;
            shard.keys.remove(&id);
        } else {
            self.retain(|_, known| known.record.project.to_bytes() != id);
        }
    }

    fn changes_unknown(&self) {
        self.retain(|_, _| false);
    }
}
