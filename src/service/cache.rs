//! Key records in memory, so that authentication does not touch the disk.
//!
//! Invariant: once a change of a key or its project has been answered, no lookup returns the
//! state before it. The storage tells of each change after its commit and before its answer; that
//! drops the entry and raises the shard's generation under the shard's lock. A loader notes the
//! generation before its snapshot begins and may insert only if it is still the same: had the
//! change been committed after the snapshot, the generation would have moved or the entry, put
//! in earlier, would have been dropped.
//!
//! Bounded by two halves: a full young half becomes the old one, whose entries either are used
//! again and move over, or vanish with it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::access::Access;
use crate::ids::KeyId;
use crate::storage::keys::KeyRecord;
use crate::storage::projects::ProjectRecord;
use crate::storage::{Digest, Record, Table, Watcher};

const SHARDS: usize = 16;
/// Per half of a shard: at most 16 × 2 × 1024 keys in memory.
const HALF: usize = 1024;

/// What authentication needs to know of a key.
pub(super) struct Known {
    pub record: KeyRecord,
    pub access: Access,
    pub project_archived: bool,
}

impl Known {
    /// Whether a secret with this digest is the key's, or was before the last rotation.
    pub fn is_named_by(&self, digest: &Digest) -> bool {
        let previous = self.record.previous.as_ref();
        self.record.digest.matches(digest) || previous.is_some_and(|previous| previous.digest.matches(digest))
    }
}

#[derive(Default)]
struct Shard {
    generation: u64,
    young: HashMap<KeyId, Arc<Known>>,
    old: HashMap<KeyId, Arc<Known>>,
}

impl Shard {
    fn insert(&mut self, id: KeyId, known: Arc<Known>) {
        if self.young.len() >= HALF {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(id, known);
    }

    fn remove(&mut self, id: KeyId) {
        self.generation += 1;
        self.young.remove(&id);
        self.old.remove(&id);
    }

    fn retain(&mut self, keep: impl Fn(&KeyId, &Known) -> bool) {
        self.generation += 1;
        self.young.retain(|id, known| keep(id, known));
        self.old.retain(|id, known| keep(id, known));
    }
}

/// The generation of a shard at the time of a miss.
#[derive(Clone, Copy)]
pub(super) struct Ticket(u64);

#[derive(Default)]
pub(super) struct Cache {
    shards: [Mutex<Shard>; SHARDS],
}

impl Cache {
    fn shard(&self, id: KeyId) -> MutexGuard<'_, Shard> {
        let [.., last] = id.to_bytes();
        self.shards[usize::from(last) % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The entry, or a ticket to insert what is loaded from now on.
    pub fn get(&self, id: KeyId) -> Result<Arc<Known>, Ticket> {
        let mut shard = self.shard(id);
        if let Some(known) = shard.young.get(&id) {
            return Ok(known.clone());
        }
        let known = shard.old.remove(&id).ok_or(Ticket(shard.generation))?;
        shard.insert(id, known.clone());
        Ok(known)
    }

    pub fn insert(&self, id: KeyId, ticket: Ticket, known: Arc<Known>) {
        let mut shard = self.shard(id);
        if shard.generation == ticket.0 {
            shard.insert(id, known);
        }
    }

    fn retain(&self, keep: impl Fn(&KeyId, &Known) -> bool) {
        for shard in &self.shards {
            shard.lock().unwrap_or_else(PoisonError::into_inner).retain(&keep);
        }
    }
}

impl Watcher for Cache {
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
