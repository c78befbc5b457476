//! API keys: authentication, and the life cycle of a key.
//!
//! A wrong secret takes the same reads whether its key exists or not: each refusal of a well-formed key takes two
//! lookups, one of which finds a record, that of the key or of another one in its place. Otherwise response times would
//! reveal which IDs exist. Caching IDs that do not exist would not help, because an attacker tries each ID only once.
//! Only a key whose secret was correct is loaded into memory.
//!
//! Keys that no request asks for are created by [`setup`] (the first key, and those for the owner of the data folder),
//! [`sign_in`] (the dashboard's) and [`keyless`] (that of requests without one).

mod auth_throttle;
mod base62;
mod cache;
pub mod keyless;
mod monotonic_time;
pub mod secret;
pub mod setup;
pub mod sign_in;

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use self::auth_throttle::{AuthFailure, AuthThrottle};
use self::cache::{CachedKey, InsertToken, KeyCache};
use self::monotonic_time::MonotonicTime;
use self::secret::Secret;
use super::access::authorize;
use super::access::{Access, Scope, Scopes};
use super::audit::AuditEntry;
use super::limits::quotas::{self, QuotaKind};
use super::pagination::{Listing, Page, PageRequest, page};
use super::projects::Project;
use super::validation;
use super::writes::patch::Patch;
use crate::clock_rng::{ClockRng, Timestamp};
use crate::error::{Code, Error, Result};
use crate::ids::{KeyId, ProjectId};
pub use crate::storage::keys::KeyFields;
use crate::storage::keys::{self as stored, KeyRecord, PreviousSecret};
use crate::storage::{Digest, Pepper, ReadTx, Reader, Store, Watcher, WriteTx, latest_time, projects};

/// A key without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    pub id: KeyId,
    pub project: ProjectId,
    pub name: String,
    #[serde(flatten)]
    pub fields: KeyFields,
    /// End of the grace period of the last rotation, if it had one.
    pub previous_valid_until: Option<Timestamp>,
    /// When a request last came with the key.
    pub last_used_at: Option<Timestamp>,
}

impl Key {
    pub(super) fn new(id: KeyId, record: KeyRecord) -> Self {
        let KeyRecord { project, name, previous, fields, digest: _ } = record;
        // A rotation without grace period ends the previous secret at once.
        let grace = previous.filter(|previous| Some(previous.valid_until) != fields.rotated_at);
        let previous_valid_until = grace.map(|previous| previous.valid_until);
        Self { id, project, name, fields, previous_valid_until, last_used_at: None }
    }

    /// An existing key, with its last use.
    fn with_last_use(tx: &impl Reader, (id, record): (KeyId, KeyRecord)) -> Result<Self> {
        Ok(Self { last_used_at: stored::last_use(tx, id)?, ..Self::new(id, record) })
    }

    /// `active`, `expired` or `revoked`.
    pub fn state(&self, now: Timestamp) -> &'static str {
        match (self.fields.revoked_at, self.fields.expires_at) {
            (Some(_), _) => "revoked",
            (None, Some(time)) if time <= now => "expired",
            _ => "active",
        }
    }
}

/// The fields of a new key.
#[derive(Clone, Debug)]
pub struct NewKey {
    pub name: String,
    pub project: ProjectId,
    pub expires_at: Option<Timestamp>,
    /// Default: `project` and `inference`, as far as the caller holds them.
    pub scopes: Option<Vec<String>>,
    /// Models that may be called. Default: those that the caller may call.
    pub models: Option<Vec<String>>,
}

/// How a secret is replaced.
#[derive(Clone, Debug, Default)]
pub struct Rotation {
    /// How long the old secret stays valid: 0 to 2,592,000, default 0.
    pub grace_period_seconds: Option<i64>,
    /// For the audit log.
    pub reason: Option<String>,
}

/// The keys service.
pub struct Keys {
    store: Store,
    clock_rng: Arc<dyn ClockRng>,
    cache: Arc<KeyCache>,
    monotonic: MonotonicTime,
    throttle: AuthThrottle,
    /// A stored key that is read in place of one that does not exist.
    decoy: Arc<OnceLock<KeyId>>,
}

impl Keys {
    pub fn new(store: Store, clock_rng: Arc<dyn ClockRng>) -> Self {
        let cache = Arc::new(KeyCache::default());
        let watcher: Arc<dyn Watcher> = cache.clone();
        store.watch(Arc::downgrade(&watcher));
        let monotonic = MonotonicTime::default();
        // Starts the clock, so that a wall clock set back before the first request is noticed.
        monotonic.now(&*clock_rng);
        Self { store, clock_rng, cache, monotonic, throttle: AuthThrottle::default(), decoy: Arc::default() }
    }

    /// The access that a secret grants. Takes one HMAC and, if the key is cached, one lookup in memory.
    pub async fn authenticate(&self, secret: &str) -> Result<Access> {
        self.authenticate_from(None, secret).await
    }

    /// Authenticates a secret from `address`, whose failures are limited.
    ///
    /// A secret of a revoked, rotated or expired key is not counted as a failure, because it was not guessed.
    pub async fn authenticate_from(&self, address: Option<IpAddr>, secret: &str) -> Result<Access> {
        let id = secret::parse(secret)
            .map_err(|error| self.throttle.record(address, AuthFailure::Malformed, self.clock_rng.uptime(), error))?;
        let digest = self.store.pepper().digest(secret);
        let (cached, token) = match self.cached(id) {
            Ok(known) => (Some(known), None),
            Err(token) => (None, Some(token)),
        };
        let known = match cached.filter(|known| known.is_named_by(&digest)) {
            Some(known) => known,
            None => self.look_up(address, id, &digest, token).await?,
        };
        if !known.record.digest.matches(&digest) {
            self.check_previous_secret(id, &known, &digest).await?;
        }
        // Only the holder of the secret learns the state of the key.
        authorize::check_usable(&known.record.fields, known.project_archived, self.clock_rng.now())?;
        Ok(known.access.clone())
    }

    /// The cached key, or a token for inserting it. What is cached counts only while changes by other nodes are known.
    fn cached(&self, id: KeyId) -> std::result::Result<Arc<CachedKey>, InsertToken> {
        if self.store.is_current() { self.cache.get(id) } else { Err(self.cache.miss(id)) }
    }

    /// The access of requests that come without a key, which is that of the key `id`.
    pub async fn authenticate_keyless(&self, id: KeyId) -> Result<Access> {
        let known = match self.cached(id) {
            Ok(known) => known,
            Err(token) => {
                let found = self.load(id).await?.filter(|(_, exists)| *exists);
                let (known, _) = found.ok_or_else(secret::invalid)?;
                self.cache.insert(id, token, known.clone());
                known
            }
        };
        let usable = authorize::check_usable(&known.record.fields, known.project_archived, self.clock_rng.now());
        usable.map_err(|error| {
            let text = format!("Requests without an API key are not accepted any more: {}", error.message());
            Error::new(error.code(), text)
        })?;
        Ok(known.access.clone())
    }

    /// Counts a failed sign-in by other means than a key like one with a key. Returns the error to answer with.
    pub(super) fn refuse(&self, address: Option<IpAddr>, error: Error) -> Error {
        self.throttle.record(address, AuthFailure::Malformed, self.clock_rng.uptime(), error)
    }

    /// The stored key, if `digest` is that of its current or previous secret.
    ///
    /// Every refusal takes the same read even if the cache has the key, so that the response time does not reveal which
    /// ids exist. A wrong secret does not add a key to the cache.
    async fn look_up(
        &self,
        address: Option<IpAddr>,
        id: KeyId,
        digest: &Digest,
        token: Option<InsertToken>,
    ) -> Result<Arc<CachedKey>> {
        let now = self.clock_rng.uptime();
        self.throttle.admit(address, now)?;
        // The digest is compared in both cases, but another key's secret gives no access.
        let found = self.load(id).await?.filter(|(known, exists)| known.is_named_by(digest) & *exists);
        let refused = || self.throttle.record(address, AuthFailure::Unknown, now, secret::invalid());
        let (known, _) = found.ok_or_else(refused)?;
        if let Some(token) = token {
            self.cache.insert(id, token, known.clone());
        }
        Ok(known)
    }

    /// The stored key, and whether it has this id. For an id that does not exist, another key is read, so that both
    /// cases take the same time.
    async fn load(&self, id: KeyId) -> Result<Option<(Arc<CachedKey>, bool)>> {
        let decoy = self.decoy.clone();
        let read = self.store.read(move |tx| {
            let found = stored::find(tx, id)?;
            let exists = found.is_some();
            // Exactly one of the two lookups finds a record.
            let other = if exists { absent(id) } else { decoy_of(tx, &decoy).unwrap_or(id) };
            // An error of another key does not concern this request.
            let other = stored::find(tx, other).ok().flatten();
            let Some(record) = found.or(other) else { return Ok(None) };
            let project = match projects::find(tx, record.project) {
                Err(error) if exists => return Err(error),
                project => project.ok().flatten(),
            };
            let archived = project.is_none_or(|project| project.archived_at.is_some());
            Ok(Some((record, archived, latest_time::latest(tx)?, exists)))
        });
        let Some((record, project_archived, latest, exists)) = read.await? else { return Ok(None) };
        if let Some(latest) = latest {
            self.monotonic.reach(latest, &*self.clock_rng);
        }
        let models = record.fields.models.as_deref().map(Arc::from);
        let access = Access::new(id, record.project, record.fields.scopes, models);
        Ok(Some((Arc::new(CachedKey { record, access, project_archived }), exists)))
    }

    /// Ok if this is the previous secret and its grace period has not ended.
    async fn check_previous_secret(&self, id: KeyId, known: &CachedKey, digest: &Digest) -> Result<()> {
        let previous = known.record.previous.as_ref().filter(|previous| previous.digest.matches(digest));
        let previous = previous.ok_or_else(secret::invalid)?;
        let now = self.monotonic.now(&*self.clock_rng);
        if !previous.ended && now < previous.valid_until {
            return Ok(());
        }
        if !previous.ended {
            self.end_grace_period(id, previous.valid_until, now).await;
        }
        let text =
            "This secret was replaced when the API key was rotated, and its grace period is over. Use the new secret.";
        Err(Error::new(Code::RevokedApiKey, text))
    }

    /// Makes an observed end final, regardless of later clock changes.
    async fn end_grace_period(&self, id: KeyId, valid_until: Timestamp, now: Timestamp) {
        let written = self.store.write(move |tx| {
            let Some(mut record) = stored::find(tx, id)? else { return Ok(()) };
            match &mut record.previous {
                Some(previous) if previous.valid_until == valid_until && !previous.ended => previous.ended = true,
                _ => return Ok(()),
            }
            latest_time::advance(tx, now)?;
            stored::replace(tx, id, &record)
        });
        if let Err(error) = written.await {
            tracing::warn!(key = %id, %error, "the end of a grace period is not on disk yet");
        }
    }

    /// Creates a key. Its secret is returned only here, not even on a replay of the idempotency key.
    pub async fn create(&self, access: &Access, new: NewKey) -> Result<(Key, Option<Secret>)> {
        let now = self.clock_rng.now();
        let id = KeyId::generate(&*self.clock_rng);
        let secret = Secret::generate(id, &*self.clock_rng);
        let record = self.new_record(access, new, &secret, now)?;
        let project = record.project;
        let entry = self.audit_entry(access, "api_key.created");
        let (scopes, models) = (record.fields.scopes, record.fields.models.clone());
        let permit = move |_: &WriteTx, caller: &Access| {
            caller.require(project, Scope::Project)?;
            caller.require_grantable(scopes, models.as_deref())
        };
        let written = authorize::write(&self.store, access, now, permit, move |tx, caller| {
            let KeyFields { scopes, models, expires_at, .. } = &record.fields;
            // Not earlier, because a repeated request gets the first result even after this time.
            expires_at.map_or(Ok(()), |expires_at| validation::expires_at(expires_at, now))?;
            let project = authorize::named_project(tx, caller, record.project)?;
            authorize::require_active(&project).map_err(|error| error.param("project_id"))?;
            caller.require_grantable(*scopes, models.as_deref())?;
            quotas::charge(tx, record.project, now, QuotaKind::ApiKey, 1, 0)?;
            stored::insert(tx, id, &record)?;
            let detail = json!({ "name": record.name, "scopes": scopes, "models": models });
            entry.write(tx, record.project, id, &detail)?;
            Ok(Key::new(id, record.clone()))
        });
        Ok((written.await?, unless_replay(access, secret)))
    }

    /// Checks the fields of a new key and fills in defaults.
    fn new_record(&self, access: &Access, new: NewKey, secret: &Secret, now: Timestamp) -> Result<KeyRecord> {
        validation::name(&new.name)?;
        let scopes = match &new.scopes {
            Some(names) => Scopes::from_names(names)?,
            None if access.is_admin() => Scopes::DEFAULT,
            None => Scopes::DEFAULT.and(access.scopes()),
        };
        let models = validation::models(new.models)?.or_else(|| access.models().map(<[String]>::to_vec));
        let mut record = key_record(new.project, new.name, scopes, secret, self.store.pepper(), now);
        (record.fields.expires_at, record.fields.models) = (new.expires_at, models);
        Ok(record)
    }

    /// A page of a project's keys, newest first.
    pub async fn list(&self, access: &Access, project: ProjectId, request: PageRequest) -> Result<Page<Key>> {
        let listing = Listing { name: "keys", owner: Some(project.to_bytes()) };
        let window = request.window(self.store.pepper(), listing, KeyId::to_bytes)?;
        let access = access.clone();
        let rows = self.store.read(move |tx| {
            authorize::named_project(tx, &access, project)?;
            let rows = stored::newest(tx, project, window.before, window.rows())?;
            let ids: Vec<_> = rows.iter().map(|(id, _)| *id).collect();
            let uses = stored::last_uses(tx, &ids)?;
            let keys = rows.into_iter().zip(uses);
            Ok(keys.map(|((id, record), last_used_at)| Key { last_used_at, ..Key::new(id, record) }).collect())
        });
        let items = rows.await?;
        Ok(page(self.store.pepper(), listing, window, items, |key: &Key| key.id.to_bytes()))
    }

    pub async fn get(&self, access: &Access, id: KeyId) -> Result<Key> {
        let access = access.clone();
        self.store.read(move |tx| Key::with_last_use(tx, (id, authorize::key(tx, &access, id)?))).await
    }

    /// The caller's own key and its project; needs no scope.
    pub async fn own(&self, access: &Access) -> Result<(Key, Project)> {
        let (id, project) = (access.key(), access.project());
        let read = self.store.read(move |tx| {
            let record = stored::find(tx, id)?.ok_or_else(secret::invalid)?;
            let owner = projects::find(tx, project)?.ok_or_else(|| Error::not_found("project", project))?;
            Ok((Key::with_last_use(tx, (id, record))?, Project { id: project, record: owner }))
        });
        read.await
    }

    /// Changes label and expiry; secret, project and scopes stay.
    pub async fn update(&self, access: &Access, id: KeyId, name: String, expires_at: Patch<Timestamp>) -> Result<Key> {
        let now = self.clock_rng.now();
        validation::name(&name)?;
        self.change(access, id, "api_key.updated", now, move |record| {
            if let Patch::Set(expires_at) = expires_at {
                validation::expires_at(expires_at, now)?;
            }
            require_unrevoked(record)?;
            let shown = |record: &KeyRecord| json!({ "name": record.name, "expires_at": record.fields.expires_at });
            let old = shown(record);
            record.name.clone_from(&name);
            record.fields.expires_at = expires_at.apply_to(record.fields.expires_at);
            clamp_grace_period(record);
            Ok(json!({ "old": old, "new": shown(record) }))
        })
        .await
    }

    /// Replaces the secret; the old one stays valid for the grace period.
    pub async fn rotate(&self, access: &Access, id: KeyId, rotation: Rotation) -> Result<(Key, Option<Secret>)> {
        let grace = validation::grace_period(rotation.grace_period_seconds)?;
        validation::reason(rotation.reason.as_deref())?;
        let now = self.clock_rng.now();
        let secret = Secret::generate(id, &*self.clock_rng);
        let (digest, redacted) = (self.store.pepper().digest(secret.expose()), secret.redacted());
        let valid_until = if grace.is_zero() { now } else { self.monotonic.now(&*self.clock_rng).after(grace) };
        let rotated = self.change(access, id, "api_key.rotated", now, move |record| {
            require_unrevoked(record)?;
            require_unexpired(record, now)?;
            record.previous = Some(PreviousSecret { digest: record.digest, valid_until, ended: grace.is_zero() });
            record.digest = digest;
            record.fields.redacted.clone_from(&redacted);
            record.fields.rotated_at = Some(now);
            clamp_grace_period(record);
            Ok(json!({ "grace_period_seconds": grace.as_secs(), "reason": rotation.reason }))
        });
        Ok((rotated.await?, unless_replay(access, secret)))
    }

    /// Revokes a key, effective from the next request. Idempotent.
    pub async fn revoke(&self, access: &Access, id: KeyId) -> Result<Key> {
        let now = self.clock_rng.now();
        let entry = self.audit_entry(access, "api_key.revoked");
        let permit = authorize::manage_key(id);
        let written = authorize::write(&self.store, access, now, permit, move |tx, caller| {
            let mut record = authorize::key_to_change(tx, caller, id)?;
            if record.fields.revoked_at.is_some() {
                return Key::with_last_use(tx, (id, record));
            }
            let admin = record.fields.scopes.contains(Scope::Admin);
            if admin && !authorize::has_other_admin(tx, id, now)? {
                let text = "This is the last usable admin key; without it this installation could not be administered. Create another admin key first.";
                return Err(Error::new(Code::Conflict, text));
            }
            (record.fields.revoked_at, record.fields.updated_at) = (Some(now), now);
            quotas::charge(tx, record.project, now, QuotaKind::ApiKey, -1, 0)?;
            stored::replace(tx, id, &record)?;
            entry.write(tx, record.project, id, &json!({ "name": record.name }))?;
            Key::with_last_use(tx, (id, record))
        });
        written.await
    }

    /// Common part of update and rotation. `change` edits the record and returns the audit detail.
    async fn change(
        &self,
        access: &Access,
        id: KeyId,
        action: &'static str,
        now: Timestamp,
        mut change: impl FnMut(&mut KeyRecord) -> Result<Value> + Send + 'static,
    ) -> Result<Key> {
        let (entry, time) = (self.audit_entry(access, action), self.monotonic.now(&*self.clock_rng));
        let permit = authorize::manage_key(id);
        let written = authorize::write(&self.store, access, now, permit, move |tx, caller| {
            let mut record = authorize::key_to_change(tx, caller, id)?;
            let project = projects::find(tx, record.project)?;
            project.as_ref().map_or(Ok(()), authorize::require_active)?;
            let detail = change(&mut record)?;
            record.fields.updated_at = now;
            stored::replace(tx, id, &record)?;
            latest_time::advance(tx, time)?;
            entry.write(tx, record.project, id, &detail)?;
            Key::with_last_use(tx, (id, record))
        });
        written.await
    }

    /// Stores the time of a clean stop, so that a clock set back meanwhile revives no secret.
    pub async fn persist_time(&self) -> Result<()> {
        let time = self.monotonic.now(&*self.clock_rng);
        self.store.write(move |tx| latest_time::advance(tx, time)).await
    }

    fn audit_entry(&self, access: &Access, action: &'static str) -> AuditEntry {
        AuditEntry::new(&self.clock_rng, Some(access), action)
    }
}

/// An id near `id` that no key has, because ids end in random bits.
fn absent(id: KeyId) -> KeyId {
    KeyId::from_bytes((id.to_u128() ^ u128::from(u32::MAX)).to_be_bytes())
}

/// Any existing key, looked up once. Keys are never removed.
fn decoy_of(tx: &ReadTx, decoy: &OnceLock<KeyId>) -> Option<KeyId> {
    if decoy.get().is_none() {
        let mut first = None;
        stored::any(tx, |id, _| Ok(first.replace(id).is_none())).ok()?;
        return first.map(|id| *decoy.get_or_init(|| id));
    }
    decoy.get().copied()
}

/// On a replay there is no secret: the earlier response contained it.
fn unless_replay(access: &Access, secret: Secret) -> Option<Secret> {
    (!access.idempotency_key().is_some_and(|key| key.is_replayed())).then_some(secret)
}

/// A new record without expiry and allow-list.
pub(super) fn key_record(
    project: ProjectId,
    name: String,
    scopes: Scopes,
    secret: &Secret,
    pepper: &Pepper,
    now: Timestamp,
) -> KeyRecord {
    let fields = KeyFields {
        scopes,
        models: None,
        created_at: now,
        updated_at: now,
        expires_at: None,
        revoked_at: None,
        rotated_at: None,
        redacted: secret.redacted(),
    };
    KeyRecord { project, name, digest: pepper.digest(secret.expose()), previous: None, fields }
}

fn require_unrevoked(record: &KeyRecord) -> Result<()> {
    record.fields.revoked_at.map_or(Ok(()), |time| {
        let text = format!("This API key was revoked at {time} and can no longer change. Create a new key.");
        Err(Error::new(Code::Conflict, text))
    })
}

fn require_unexpired(record: &KeyRecord, now: Timestamp) -> Result<()> {
    match record.fields.expires_at {
        Some(time) if time <= now => {
            let text = format!("This API key expired at {time}. Extend its 'expires_at' first, then rotate it.");
            Err(Error::new(Code::Conflict, text))
        }
        _ => Ok(()),
    }
}

/// A grace period ends with its key.
fn clamp_grace_period(record: &mut KeyRecord) {
    if let (Some(previous), Some(expiry)) = (&mut record.previous, record.fields.expires_at) {
        previous.valid_until = previous.valid_until.min(expiry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As it is stored under an idempotency key, by this and earlier versions of the program.
    #[test]
    fn a_keys_fields_stand_beside_the_others_in_json() {
        let at = Timestamp::from_millis(0);
        let fields = KeyFields {
            scopes: Scopes::DEFAULT,
            models: Some(vec!["small".to_owned()]),
            created_at: at,
            updated_at: at,
            expires_at: Some(at),
            revoked_at: None,
            rotated_at: None,
            redacted: "sk-…abcd".to_owned(),
        };
        let key = Key {
            id: KeyId::from_bytes([1; 16]),
            project: ProjectId::from_bytes([2; 16]),
            name: "ci".to_owned(),
            fields,
            previous_valid_until: None,
            last_used_at: Some(at),
        };
        let json = concat!(
            r#"{"id":"key_01010101010101010101010101010101","project":"proj_02020202020202020202020202020202","name":"ci","#,
            r#""scopes":["project","inference"],"models":["small"],"created_at":"1970-01-01T00:00:00.000Z","#,
            r#""updated_at":"1970-01-01T00:00:00.000Z","expires_at":"1970-01-01T00:00:00.000Z","revoked_at":null,"#,
            r#""rotated_at":null,"redacted":"sk-…abcd","previous_valid_until":null,"last_used_at":"1970-01-01T00:00:00.000Z"}"#
        );
        assert_eq!(serde_json::to_string(&key).unwrap(), json);
        assert_eq!(serde_json::from_str::<Key>(json).unwrap(), key);
    }
}
