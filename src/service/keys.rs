//! API keys: who a caller is, and the life of a key from creation to revocation.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::access::{Access, Scope, Scopes};
use super::audit::Note;
use super::cache::{Cache, Known, Ticket};
use super::change::Change;
use super::failures::{Failure, Failures};
use super::grace::Steady;
use super::holdings::{self, Holding};
use super::page::{Listing, Page, PageRequest, page};
use super::projects::Project;
use super::secrets::{self, Secret};
use super::{authority, claim, fields};
use crate::clock_rng::{ClockRng, Timestamp};
use crate::error::{Code, Error, Result};
use crate::ids::{KeyId, ProjectId};
use crate::storage::keys::{self as stored, KeyRecord, PreviousSecret};
use crate::storage::{Digest, Pepper, ReadTx, Reader, Store, Watcher, WriteTx, latest_time, projects};

/// A key as its users see it; never its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    pub id: KeyId,
    pub project: ProjectId,
    pub name: String,
    pub scopes: Scopes,
    pub models: Option<Vec<String>>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    pub revoked_at: Option<Timestamp>,
    pub rotated_at: Option<Timestamp>,
    /// End of the grace period of the last rotation, if it had one.
    pub previous_valid_until: Option<Timestamp>,
    /// When a request last came with the key.
    pub last_used_at: Option<Timestamp>,
    /// A form of the secret that may be shown.
    pub redacted: String,
}

impl Key {
    pub(super) fn new(id: KeyId, record: KeyRecord) -> Self {
        // A rotation without grace ends the previous secret at the moment of the rotation itself.
        let grace = record.previous.filter(|previous| Some(previous.valid_until) != record.rotated_at);
        Self {
            id,
            project: record.project,
            name: record.name,
            scopes: Scopes::from_bits(record.scopes),
            models: record.models,
            created_at: record.created_at,
            updated_at: record.updated_at,
            expires_at: record.expires_at,
            revoked_at: record.revoked_at,
            rotated_at: record.rotated_at,
            previous_valid_until: grace.map(|previous| previous.valid_until),
            last_used_at: None,
            redacted: record.redacted,
        }
    }

    /// A key that was there before.
    fn seen(tx: &impl Reader, (id, record): (KeyId, KeyRecord)) -> Result<Self> {
        Ok(Self { last_used_at: stored::last_use(tx, id)?, ..Self::new(id, record) })
    }

    /// `active`, `expired` or `revoked`.
    pub fn state(&self, now: Timestamp) -> &'static str {
        match (self.revoked_at, self.expires_at) {
            (Some(_), _) => "revoked",
            (None, Some(moment)) if moment <= now => "expired",
            _ => "active",
        }
    }
}

/// What a new key is made of.
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

/// A new label and, if wanted, another expiry.
#[derive(Clone, Debug)]
pub struct KeyChange {
    pub name: String,
    pub expires_at: Change<Timestamp>,
}

/// How a secret is replaced.
#[derive(Clone, Debug, Default)]
pub struct Rotation {
    /// How long the old secret goes on working: 0 to 2,592,000, default 0.
    pub grace_period_seconds: Option<i64>,
    /// For the audit log.
    pub reason: Option<String>,
}

/// The rules of keys.
pub struct Keys {
    store: Store,
    clock_rng: Arc<dyn ClockRng>,
    cache: Arc<Cache>,
    steady: Steady,
    failures: Failures,
    /// Some stored key, which is read in place of one that does not exist.
    decoy: Arc<OnceLock<KeyId>>,
}

impl Keys {
    pub fn new(store: Store, clock_rng: Arc<dyn ClockRng>) -> Self {
        let cache = Arc::new(Cache::default());
        let watcher: Arc<dyn Watcher> = cache.clone();
        store.watch(Arc::downgrade(&watcher));
        let steady = Steady::default();
        // From now on it counts: a clock that is set back before the first request is noticed too.
        steady.now(&*clock_rng);
        Self { store, clock_rng, cache, steady, failures: Failures::default(), decoy: Arc::default() }
    }

    /// The access that a secret gives: one HMAC and one lookup in memory if the key was used lately.
    pub async fn authenticate(&self, secret: &str) -> Result<Access> {
        self.authenticate_from(None, secret).await
    }

    /// The same for a secret that came from `address`, whose failures are bounded.
    ///
    /// The secret of a key that was revoked, replaced or has expired is no failure: it is not guessed.
    pub async fn authenticate_from(&self, address: Option<IpAddr>, secret: &str) -> Result<Access> {
        let id = secrets::parse(secret)
            .map_err(|error| self.failures.count(address, Failure::Malformed, self.clock_rng.uptime(), error))?;
        let digest = self.store.pepper().digest(secret);
        let (cached, ticket) = match self.cache.get(id) {
            Ok(known) => (Some(known), None),
            Err(ticket) => (None, Some(ticket)),
        };
        let known = match cached.filter(|known| known.is_named_by(&digest)) {
            Some(known) => known,
            None => self.look_up(address, id, &digest, ticket).await?,
        };
        if !known.record.digest.matches(&digest) {
            self.admit_previous(id, &known, &digest).await?;
        }
        // Only who holds the secret learns what became of the key.
        authority::usable(&known.record, known.project_archived, self.clock_rng.now())?;
        Ok(known.access.clone())
    }

    /// The stored key, if `digest` is that of its secret or of the one before.
    ///
    /// Every refusal takes the same read, also where memory would have told: how long it takes does not say which ids
    /// exist. A secret that is wrong brings no key into memory.
    async fn look_up(
        &self,
        address: Option<IpAddr>,
        id: KeyId,
        digest: &Digest,
        ticket: Option<Ticket>,
    ) -> Result<Arc<Known>> {
        let now = self.clock_rng.uptime();
        self.failures.admit(address, now)?;
        // Compared in either case; the digest of another key's secret gives no access.
        let found = self.load(id).await?.filter(|(known, exists)| known.is_named_by(digest) & *exists);
        let refused = || self.failures.count(address, Failure::Guess, now, secrets::invalid());
        let (known, _) = found.ok_or_else(refused)?;
        if let Some(ticket) = ticket {
            self.cache.insert(id, ticket, known.clone());
        }
        Ok(known)
    }

    /// What is stored of a key, and whether it is really that of this key. For an id that does not exist another key is
    /// read, so that both take the same work.
    async fn load(&self, id: KeyId) -> Result<Option<(Arc<Known>, bool)>> {
        let decoy = self.decoy.clone();
        let read = self.store.read(move |tx| {
            let found = stored::find(tx, id)?;
            let exists = found.is_some();
            // Of the two lookups, one always finds a record and the other none.
            let other = if exists { absent(id) } else { decoy_of(tx, &decoy).unwrap_or(id) };
            // Whatever is wrong with another key is not this request's.
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
            self.steady.reach(latest, &*self.clock_rng);
        }
        let models = record.models.as_deref().map(Arc::from);
        let access = Access::new(id, record.project, Scopes::from_bits(record.scopes), models);
        Ok(Some((Arc::new(Known { record, access, project_archived }), exists)))
    }

    /// Ok if the secret is the previous one and its grace period still runs.
    async fn admit_previous(&self, id: KeyId, known: &Known, digest: &Digest) -> Result<()> {
        let previous = known.record.previous.as_ref().filter(|previous| previous.digest.matches(digest));
        let previous = previous.ok_or_else(secrets::invalid)?;
        let now = self.steady.now(&*self.clock_rng);
        if !previous.ended && now < previous.valid_until {
            return Ok(());
        }
        if !previous.ended {
            self.bury_previous(id, previous.valid_until, now).await;
        }
        let text =
            "This secret was replaced when the API key was rotated, and its grace period is over. Use the new secret.";
        Err(Error::new(Code::RevokedApiKey, text))
    }

    /// Makes an observed end final, whatever the clock says later.
    async fn bury_previous(&self, id: KeyId, valid_until: Timestamp, now: Timestamp) {
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

    /// Makes a key. The secret is returned here and never again: not even for a request that is
    /// repeated under its idempotency key.
    pub async fn create(&self, access: &Access, new: NewKey) -> Result<(Key, Option<Secret>)> {
        let now = self.clock_rng.now();
        let id = KeyId::generate(&*self.clock_rng);
        let secret = Secret::generate(id, &*self.clock_rng);
        let record = self.new_record(access, new, &secret, now)?;
        let project = record.project;
        let note = self.note(access, "api_key.created");
        let (scopes, models) = (Scopes::from_bits(record.scopes), record.models.clone());
        let permit = move |_: &WriteTx, caller: &Access| {
            caller.require(project, Scope::Project)?;
            caller.require_grantable(scopes, models.as_deref())
        };
        let written = claim::write(&self.store, access, now, permit, move |tx, caller| {
            let project = authority::named_project(tx, caller, record.project)?;
            authority::living(&project).map_err(|error| error.param("project_id"))?;
            caller.require_grantable(Scopes::from_bits(record.scopes), record.models.as_deref())?;
            holdings::charge(tx, record.project, now, Holding::ApiKey, 1, 0)?;
            stored::insert(tx, id, &record)?;
            let scopes = Scopes::from_bits(record.scopes);
            note.write(
                tx,
                record.project,
                id,
                &json!({ "name": record.name, "scopes": scopes, "models": record.models }),
            )?;
            Ok(Key::new(id, record.clone()))
        });
        Ok((written.await?, unless_replayed(access, secret)))
    }

    /// Checks the fields of a new key and fills in defaults.
    fn new_record(&self, access: &Access, new: NewKey, secret: &Secret, now: Timestamp) -> Result<KeyRecord> {
        fields::name(&new.name)?;
        new.expires_at.map_or(Ok(()), |moment| fields::expires_at(moment, now))?;
        let scopes = match &new.scopes {
            Some(names) => Scopes::from_names(names)?,
            None if access.is_admin() => Scopes::DEFAULT,
            None => Scopes::DEFAULT.and(access.scopes()),
        };
        let models = fields::models(new.models)?.or_else(|| access.models().map(<[String]>::to_vec));
        let record = key_record(new.project, new.name, scopes, secret, self.store.pepper(), now);
        Ok(KeyRecord { expires_at: new.expires_at, models, ..record })
    }

    /// A page of a project's keys, the newest first.
    pub async fn list(&self, access: &Access, project: ProjectId, request: PageRequest) -> Result<Page<Key>> {
        let listing = Listing { name: "keys", owner: Some(project.to_bytes()) };
        let window = request.window(self.store.pepper(), listing, KeyId::to_bytes)?;
        let access = access.clone();
        let rows = self.store.read(move |tx| {
            authority::named_project(tx, &access, project)?;
            let rows = stored::newest(tx, project, window.before, window.rows())?;
            rows.into_iter().map(|row| Key::seen(tx, row)).collect::<Result<Vec<_>>>()
        });
        let items = rows.await?;
        Ok(page(self.store.pepper(), listing, window, items, |key: &Key| key.id.to_bytes()))
    }

    pub async fn get(&self, access: &Access, id: KeyId) -> Result<Key> {
        let access = access.clone();
        self.store.read(move |tx| Key::seen(tx, (id, authority::key(tx, &access, id)?))).await
    }

    /// The caller's own key and its project, whatever the key may do.
    pub async fn own(&self, access: &Access) -> Result<(Key, Project)> {
        let (id, project) = (access.key(), access.project());
        let read = self.store.read(move |tx| {
            let record = stored::find(tx, id)?.ok_or_else(secrets::invalid)?;
            let owner = projects::find(tx, project)?.ok_or_else(|| Error::not_found("project", project))?;
            Ok((Key::seen(tx, (id, record))?, Project::new(project, owner)))
        });
        read.await
    }

    /// Changes label and expiry; secret, project and scopes stay.
    pub async fn update(&self, access: &Access, id: KeyId, change: KeyChange) -> Result<Key> {
        let now = self.clock_rng.now();
        fields::name(&change.name)?;
        if let Change::Set(moment) = change.expires_at {
            fields::expires_at(moment, now)?;
        }
        self.change(access, id, "api_key.updated", now, move |record| {
            unrevoked(record)?;
            let old = json!({ "name": record.name, "expires_at": record.expires_at });
            record.name.clone_from(&change.name);
            record.expires_at = change.expires_at.applied(record.expires_at);
            cap_grace(record);
            Ok(json!({ "old": old, "new": { "name": record.name, "expires_at": record.expires_at } }))
        })
        .await
    }

    /// Replaces the secret; the old one works on for the grace period.
    pub async fn rotate(&self, access: &Access, id: KeyId, rotation: Rotation) -> Result<(Key, Option<Secret>)> {
        let grace = fields::grace(rotation.grace_period_seconds)?;
        fields::reason(rotation.reason.as_deref())?;
        let now = self.clock_rng.now();
        let secret = Secret::generate(id, &*self.clock_rng);
        let (digest, redacted) = (self.store.pepper().digest(secret.expose()), secret.redacted());
        let valid_until = if grace.is_zero() { now } else { self.steady.now(&*self.clock_rng).after(grace) };
        let rotated = self.change(access, id, "api_key.rotated", now, move |record| {
            unrevoked(record)?;
            unexpired(record, now)?;
            record.previous = Some(PreviousSecret { digest: record.digest, valid_until, ended: grace.is_zero() });
            record.digest = digest;
            record.redacted.clone_from(&redacted);
            record.rotated_at = Some(now);
            cap_grace(record);
            Ok(json!({ "grace_period_seconds": grace.as_secs(), "reason": rotation.reason }))
        });
        Ok((rotated.await?, unless_replayed(access, secret)))
    }

    /// Ends a key for good, from the next request on. Repeating it changes nothing.
    pub async fn revoke(&self, access: &Access, id: KeyId) -> Result<Key> {
        let now = self.clock_rng.now();
        let note = self.note(access, "api_key.revoked");
        let written = claim::write(&self.store, access, now, authority::manages_key(id), move |tx, caller| {
            let mut record = authority::key_to_change(tx, caller, id)?;
            if record.revoked_at.is_some() {
                return Key::seen(tx, (id, record));
            }
            let admin = Scopes::from_bits(record.scopes).contains(Scope::Admin);
            if admin && !authority::another_admin(tx, id, now)? {
                let text = "This is the last usable admin key; without it nobody could operate this installation. Create another admin key first.";
                return Err(Error::new(Code::Conflict, text));
            }
            record.revoked_at = Some(now);
            record.updated_at = now;
            holdings::charge(tx, record.project, now, Holding::ApiKey, -1, 0)?;
            stored::replace(tx, id, &record)?;
            note.write(tx, record.project, id, &json!({ "name": record.name }))?;
            Key::seen(tx, (id, record))
        });
        written.await
    }

    /// The frame of update and rotation. `change` edits the record and returns the audit detail.
    async fn change(
        &self,
        access: &Access,
        id: KeyId,
        action: &'static str,
        now: Timestamp,
        mut change: impl FnMut(&mut KeyRecord) -> Result<Value> + Send + 'static,
    ) -> Result<Key> {
        let (note, moment) = (self.note(access, action), self.steady.now(&*self.clock_rng));
        let written = claim::write(&self.store, access, now, authority::manages_key(id), move |tx, caller| {
            let mut record = authority::key_to_change(tx, caller, id)?;
            let project = projects::find(tx, record.project)?;
            project.as_ref().map_or(Ok(()), authority::living)?;
            let detail = change(&mut record)?;
            record.updated_at = now;
            stored::replace(tx, id, &record)?;
            latest_time::advance(tx, moment)?;
            note.write(tx, record.project, id, &detail)?;
            Key::seen(tx, (id, record))
        });
        written.await
    }

    /// Keeps the moment of a clean stop: a clock that is set back meanwhile revives no secret.
    pub async fn keep_time(&self) -> Result<()> {
        let moment = self.steady.now(&*self.clock_rng);
        self.store.write(move |tx| latest_time::advance(tx, moment)).await
    }

    fn note(&self, access: &Access, action: &'static str) -> Note {
        Note::new(&self.clock_rng, Some(access), action)
    }
}

/// An id beside `id` that no key has: ids end in random bits.
fn absent(id: KeyId) -> KeyId {
    KeyId::from_bytes((u128::from_be_bytes(id.to_bytes()) ^ u128::from(u32::MAX)).to_be_bytes())
}

/// A key that exists: keys are never removed. Looked for once.
fn decoy_of(tx: &ReadTx, decoy: &OnceLock<KeyId>) -> Option<KeyId> {
    if decoy.get().is_none() {
        let mut first = None;
        stored::any(tx, |id, _| Ok(first.replace(id).is_none())).ok()?;
        return first.map(|id| *decoy.get_or_init(|| id));
    }
    decoy.get().copied()
}

/// A replay found what an earlier request did; its secret is that request's and was told then.
fn unless_replayed(access: &Access, secret: Secret) -> Option<Secret> {
    (!access.claim().is_some_and(|claim| claim.replayed())).then_some(secret)
}

/// A fresh record without expiry and allow-list.
pub(super) fn key_record(
    project: ProjectId,
    name: String,
    scopes: Scopes,
    secret: &Secret,
    pepper: &Pepper,
    now: Timestamp,
) -> KeyRecord {
    KeyRecord {
        project,
        name,
        digest: pepper.digest(secret.expose()),
        previous: None,
        scopes: scopes.to_bits(),
        models: None,
        created_at: now,
        updated_at: now,
        expires_at: None,
        revoked_at: None,
        rotated_at: None,
        redacted: secret.redacted(),
    }
}

fn unrevoked(record: &KeyRecord) -> Result<()> {
    record.revoked_at.map_or(Ok(()), |moment| {
        let text = format!("This API key was revoked at {moment} and cannot change any more. Create a new key.");
        Err(Error::new(Code::Conflict, text))
    })
}

fn unexpired(record: &KeyRecord, now: Timestamp) -> Result<()> {
    match record.expires_at {
        Some(moment) if moment <= now => {
            let text = format!("This API key expired at {moment}. Extend its 'expires_at' first, then rotate it.");
            Err(Error::new(Code::Conflict, text))
        }
        _ => Ok(()),
    }
}

/// A grace period never outlives its key.
fn cap_grace(record: &mut KeyRecord) {
    if let (Some(previous), Some(expiry)) = (&mut record.previous, record.expires_at) {
        previous.valid_until = previous.valid_until.min(expiry);
    }
}
