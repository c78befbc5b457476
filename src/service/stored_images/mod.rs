//! Generated images that are stored for a limited time. A client with the signed URL can fetch an image without a key
//! until the URL expires.
//!
//! They are in the database, because they are small compared with uploads and expire soon. Files would need a sweeper
//! for folders, a second durability mechanism, and paths derived from requests.

mod signed_urls;

use std::sync::Arc;
use std::time::Duration;

pub use self::signed_urls::SignedUrl;
use super::access::Access;
use super::access::authorize;
use super::limits::quotas::{self, signed};
use crate::clock_rng::{ClockRng, Timestamp};
use crate::disk_space::DataClass;
use crate::error::{Code, Error, Result};
use crate::ids::StoredImageId;
use crate::storage::Store;
use crate::storage::stored_images::{self, StoredImageRecord};

/// How long an image stays after its URL has expired, so that a download in progress completes.
const FETCH_GRACE: Duration = Duration::from_secs(5 * 60);
/// Images per step of the sweep.
const SWEEP_BATCH: usize = 64;

/// The file format of an image. The number is stored.
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

/// A stored image, read chunk by chunk.
pub struct StoredImage {
    pub format: Format,
    pub bytes: u64,
    /// Remaining validity of the URL.
    pub left: Duration,
    store: Store,
    id: StoredImageId,
    next: u32,
    chunks: u32,
}

impl StoredImage {
    /// The next chunk; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>> {
        if self.next == self.chunks {
            return Ok(None);
        }
        let (id, at) = (self.id, self.next);
        let chunk = self.store.read(move |tx| stored_images::chunk(tx, id, at)).await?;
        self.next += 1;
        chunk.map(Some).ok_or_else(|| not_stored(id))
    }
}

/// The stored images service.
#[derive(Clone)]
pub struct StoredImages {
    store: Store,
    clock_rng: Arc<dyn ClockRng>,
    ttl: Duration,
}

impl StoredImages {
    /// URLs are valid for `ttl`.
    pub fn new(store: Store, clock_rng: Arc<dyn ClockRng>, ttl: Duration) -> Self {
        Self { store, clock_rng, ttl }
    }

    /// Checks the disk's space and the caller's storage quota before images are generated.
    pub async fn admit(&self, access: &Access) -> Result<()> {
        self.store.require_space(DataClass::Bulk, 1)?;
        let project = access.project();
        self.store.read(move |tx| quotas::check_bytes(tx, project, 1)).await
    }

    /// Stores an image for the caller's project. It counts against the project's storage quota until it is removed.
    pub async fn store(&self, access: &Access, format: Format, content: Vec<u8>) -> Result<SignedUrl> {
        let (id, project, now) = (StoredImageId::generate(&*self.clock_rng), access.project(), self.clock_rng.now());
        // Expiry is in whole seconds.
        let expires = now.after(self.ttl).as_seconds();
        let expires_at = Timestamp::from_millis(expires.saturating_mul(1000)).after(FETCH_GRACE);
        let written = self.store.write(move |tx| {
            authorize::require_active_owner(tx, project)?;
            quotas::charge_bytes(tx, project, now, signed(content.len() as u64))?;
            stored_images::insert(tx, id, (project, format as u8), &content, expires_at)
        });
        written.await?;
        Ok(SignedUrl::sign(&self.store, id, expires))
    }

    /// Opens the image of a URL: 403 if the signature is not valid, which costs no read; 404 if the URL has expired.
    pub async fn open(&self, id: StoredImageId, expires: &str, signature: &str) -> Result<StoredImage> {
        let expires = signed_urls::verify(&self.store, id, expires, signature)?;
        let (now, end) = (self.clock_rng.now(), Timestamp::from_millis(expires.saturating_mul(1000)));
        if end <= now {
            let text =
                format!("This URL expired at {end}. Generate the image again, and fetch it before its URL expires.");
            return Err(Error::new(Code::NotFound, text));
        }
        let record = self.store.read(move |tx| stored_images::find(tx, id)).await?.ok_or_else(|| not_stored(id))?;
        let StoredImageRecord { format, bytes, chunks, .. } = record;
        let format =
            Format::from_number(format).ok_or_else(|| Error::internal("a stored image of an unknown format"))?;
        Ok(StoredImage { format, bytes, left: now.until(end), store: self.store.clone(), id, next: 0, chunks })
    }

    /// Removes expired images; returns their number.
    pub async fn sweep(&self) -> Result<usize> {
        let mut swept = 0;
        loop {
            let now = self.clock_rng.now();
            let ended = self.store.read(move |tx| stored_images::expired(tx, now, SWEEP_BATCH)).await?;
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
            quotas::charge_bytes(tx, record.project, now, -signed(record.bytes))?;
            stored_images::remove(tx, id, &record)
        });
        removed.await
    }
}

fn not_stored(id: StoredImageId) -> Error {
    Error::new(Code::NotFound, format!("The image '{id}' no longer exists. Generate it again."))
}
