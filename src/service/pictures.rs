//! Pictures that a project has had painted and that are kept for a while: whoever has the signed link
//! of one can fetch it, without a key, until its time is over.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::access::Access;
use super::authority;
use super::holdings::{self, signed};
use crate::clock_rng::{ClockRng, Timestamp};
use crate::error::{Code, Error, Result};
use crate::ids::StoredImageId;
use crate::storage::stored_images::{self, StoredImageRecord};
use crate::storage::{Digest, Store};

/// How long a picture stays once its link has ended: who began to fetch it in time gets it whole.
const GRACE: Duration = Duration::from_secs(5 * 60);
/// Pictures looked up at once by the sweep.
const SWEPT: usize = 64;

/// How a picture is written. The number is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Format {
    #[default]
    Png = 1,
    Jpeg = 2,
    WebP = 3,
}

impl Format {
    pub const ALL: [Format; 3] = [Format::Png, Format::Jpeg, Format::WebP];

    pub fn as_str(self) -> &'static str {
        match self {
            Format::Png => "png",
            Format::Jpeg => "jpeg",
            Format::WebP => "webp",
        }
    }

    pub fn media_type(self) -> &'static str {
        match self {
            Format::Png => "image/png",
            Format::Jpeg => "image/jpeg",
            Format::WebP => "image/webp",
        }
    }

    fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|format| *format as u8 == number)
    }
}

/// What opens a picture, until `expires`; Unix seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub id: StoredImageId,
    pub expires: i64,
    pub signature: String,
}

/// A kept picture, whose content comes chunk by chunk.
pub struct Kept {
    pub format: Format,
    pub bytes: u64,
    /// How long its link still holds.
    pub left: Duration,
    store: Store,
    id: StoredImageId,
    next: u32,
    chunks: u32,
}

impl Kept {
    /// The next chunk; none at the end.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>> {
        if self.next == self.chunks {
            return Ok(None);
        }
        let (id, at) = (self.id, self.next);
        let chunk = self.store.read(move |tx| stored_images::chunk(tx, id, at)).await?;
        self.next += 1;
        chunk.map(Some).ok_or_else(|| gone(id))
    }
}

/// The rules of kept pictures. Clones share them.
#[derive(Clone)]
pub struct Pictures {
    store: Store,
    clock_rng: Arc<dyn ClockRng>,
    kept_for: Duration,
}

impl Pictures {
    /// Links hold for `kept_for`.
    pub fn new(store: Store, clock_rng: Arc<dyn ClockRng>, kept_for: Duration) -> Self {
        Self { store, clock_rng, kept_for }
    }

    /// Whether the caller's project may keep anything more: asked before work is put into pictures.
    pub async fn admit(&self, access: &Access) -> Result<()> {
        let project = access.project();
        self.store.read(move |tx| holdings::admit_bytes(tx, project, 1)).await
    }

    /// Keeps a picture for the caller's project; it weighs on the project's storage until it goes.
    pub async fn keep(&self, access: &Access, format: Format, content: Vec<u8>) -> Result<Link> {
        let (id, project, now) = (StoredImageId::generate(&*self.clock_rng), access.project(), self.clock_rng.now());
        // A link ends with a whole second.
        let expires = now.after(self.kept_for).as_seconds();
        let ends_at = Timestamp::from_millis(expires.saturating_mul(1000)).after(GRACE);
        let written = self.store.write(move |tx| {
            authority::living_owner(tx, project)?;
            holdings::charge_bytes(tx, project, now, signed(content.len() as u64))?;
            stored_images::insert(tx, id, (project, format as u8), &content, ends_at)
        });
        written.await?;
        Ok(Link { id, expires, signature: URL_SAFE_NO_PAD.encode(self.sign(id, expires).to_bytes()) })
    }

    /// The picture of a link: 403 unless the link is ours, 404 once its time is over. A link that is
    /// not ours costs no read.
    pub async fn open(&self, id: StoredImageId, expires: &str, signature: &str) -> Result<Kept> {
        let read = expires.parse().ok().filter(|seconds: &i64| seconds.to_string() == expires);
        let expires = read.filter(|expires| self.is_signed(id, *expires, signature)).ok_or_else(forged)?;
        let (now, end) = (self.clock_rng.now(), Timestamp::from_millis(expires.saturating_mul(1000)));
        if end <= now {
            let text = format!("This link ended at {end}. Ask for the picture again, and fetch it in time.");
            return Err(Error::new(Code::NotFound, text));
        }
        let record = self.store.read(move |tx| stored_images::find(tx, id)).await?.ok_or_else(|| gone(id))?;
        let StoredImageRecord { format, bytes, chunks, .. } = record;
        let format = Format::from_number(format).ok_or_else(|| Error::internal("a picture of an unknown format"))?;
        Ok(Kept { format, bytes, left: now.until(end), store: self.store.clone(), id, next: 0, chunks })
    }

    /// Removes pictures whose time is over; returns how many.
    pub async fn sweep(&self) -> Result<usize> {
        let mut swept = 0;
        loop {
            let now = self.clock_rng.now();
            let ended = self.store.read(move |tx| stored_images::expired(tx, now, SWEPT)).await?;
            if ended.is_empty() {
                return Ok(swept);
            }
            for id in ended {
                self.remove(id, now).await?;
                swept += 1;
            }
        }
    }

    async fn remove(&self, id: StoredImageId, now: Timestamp) -> Result<()> {
        let removed = self.store.write(move |tx| {
            let Some(record) = stored_images::find(tx, id)? else { return Ok(()) };
            holdings::charge_bytes(tx, record.project, now, -signed(record.bytes))?;
            stored_images::remove(tx, id, &record)
        });
        removed.await
    }

    /// An id belongs to one project for ever, so it stands for the project, too.
    fn sign(&self, id: StoredImageId, expires: i64) -> Digest {
        self.store.pepper().link_tag(&[b"picture", &id.to_bytes(), &expires.to_be_bytes()])
    }

    fn is_signed(&self, id: StoredImageId, expires: i64, signature: &str) -> bool {
        let found = URL_SAFE_NO_PAD.decode(signature).ok().and_then(|bytes| bytes.try_into().ok());
        found.is_some_and(|found| self.sign(id, expires).matches(&Digest::from_bytes(found)))
    }
}

fn forged() -> Error {
    let text = "The link's signature is not valid. Use the link as it was given, with all that follows the '?'.";
    Error::new(Code::InvalidSignature, text)
}

fn gone(id: StoredImageId) -> Error {
    Error::new(Code::NotFound, format!("The picture '{id}' is no longer there. Ask for it again."))
}
