//! Downloads for threads that wait: the connections belong to threads of its own.

use std::fs::File;
use std::future::Future;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http1::StatusCode;
use http1::header::{CONTENT_LENGTH, CONTENT_RANGE};
use hyper::body::Incoming;
use hyper_util::client::proxy::matcher::Matcher;
use tokio::runtime::{Handle, Runtime};

use super::address_policy::AddressPolicy;
use super::body_reader::{BodyReader, read_all};
use super::checksum::{Checksum, digests};
use super::client::{Client, Head, Request};
use super::error::DownloadError;
use super::part_file::PartFile;
use super::retry::{Attempts, Next};
use super::settings::Settings;
use super::transfer::{Shared, Transfer};
use outpost_common::clock_rng::ClockRng;
use outpost_common::progress::Progress;

/// Threads for connections.
const THREADS: usize = 2;
/// Attempts in a row for an answer that is not a file.
const SHORT_ATTEMPTS: u32 = 3;
/// How often progress is reported.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// Gets answers and files. Everything blocks the calling thread.
pub struct Downloader {
    handle: Handle,
    /// Taken when it is dropped.
    runtime: Option<Runtime>,
    client: Arc<Client>,
    clock_rng: Arc<dyn ClockRng>,
}

/// A file to download.
#[derive(Clone, Debug)]
pub struct FileSpec {
    /// For progress and errors.
    pub name: String,
    pub request: Request,
    /// In bytes.
    pub length: u64,
    pub checksum: Checksum,
}

impl FileSpec {
    /// True if parts from different requests certainly belong to the same file, so that a download can be resumed.
    fn is_versioned(&self) -> bool {
        self.checksum != Checksum::None || self.request.etag.is_some()
    }

    /// Names the content in a folder of unfinished files. The names of its files there are the key, a dot and an ending.
    pub fn key(&self) -> String {
        let version = || {
            let (location, etag) = (&self.request.location, self.request.etag.as_deref().unwrap_or_default());
            let text = format!("{location}\n{etag}\n{}", self.name);
            outpost_common::display::hex(ring::digest::digest(&ring::digest::SHA256, text.as_bytes()).as_ref())
        };
        self.checksum.key().map_or_else(version, str::to_owned)
    }
}

/// A file that was downloaded and verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Lower-case hex.
    pub sha256: String,
    /// Bytes that an earlier attempt had left.
    pub resumed: u64,
}

/// What [`Downloader::probe`] found out about a file.
#[derive(Clone, Debug)]
pub struct Probe {
    pub head: Head,
    /// In bytes, if the server says it.
    pub length: Option<u64>,
    /// Set if the server accepts range requests for it.
    pub has_ranges: bool,
}

impl Downloader {
    /// A downloader with the proxies of the environment.
    ///
    /// # Errors
    /// If the operating system cannot start threads.
    pub fn new(policy: AddressPolicy, settings: Settings, clock_rng: Arc<dyn ClockRng>) -> Result<Self, DownloadError> {
        Self::with_proxies(policy, settings, clock_rng, Matcher::from_env())
    }

    /// A downloader with other proxies.
    pub fn with_proxies(
        policy: AddressPolicy,
        settings: Settings,
        clock_rng: Arc<dyn ClockRng>,
        proxies: Matcher,
    ) -> Result<Self, DownloadError> {
        let built = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("download")
            .enable_all()
            .build();
        let runtime = built.map_err(|error| DownloadError::Setup(error.to_string()))?;
        let (handle, runtime) = (runtime.handle().clone(), Some(runtime));
        Ok(Self { handle, runtime, client: Arc::new(Client::new(policy, proxies, settings)), clock_rng })
    }

    /// Gets an answer of at most `limit` bytes.
    pub fn get(
        &self,
        request: &Request,
        limit: u64,
        progress: &mut dyn Progress,
    ) -> Result<(Head, Vec<u8>), DownloadError> {
        self.with_retries(progress, || async move {
            let (head, body) = self.client.send(request, None).await?;
            let bytes = read_all(&head.location, body, limit, &self.client.settings).await?;
            Ok((head, bytes))
        })
    }

    /// Gets a range of a file. It must lie inside the file.
    pub fn range(
        &self,
        request: &Request,
        range: Range<u64>,
        progress: &mut dyn Progress,
    ) -> Result<Vec<u8>, DownloadError> {
        let wanted = &range;
        let length = wanted.end.saturating_sub(wanted.start);
        self.with_retries(progress, || async move {
            let (head, body) = self.client.send(request, Some(wanted)).await?;
            let mut bytes = match head.status {
                // No ranges: the file is read up to the end of the range, if it begins at its start.
                StatusCode::OK if wanted.start == 0 => self.read_start(&head, body, length).await?,
                StatusCode::OK => return Err(DownloadError::protocol(&head.location, "it has no ranges")),
                _ => read_all(&head.location, body, length, &self.client.settings).await?,
            };
            bytes.truncate(usize::try_from(length).unwrap_or(usize::MAX));
            match bytes.len() as u64 == length {
                true => Ok(bytes),
                false => Err(DownloadError::protocol(&head.location, format!("it sent fewer than {length} bytes"))),
            }
        })
    }

    /// Asks for one byte of a file, to learn its length, where it is, and whether ranges work. A HEAD request would do,
    /// but some mirrors answer it wrongly.
    pub fn probe(&self, request: &Request, progress: &mut dyn Progress) -> Result<Probe, DownloadError> {
        self.with_retries(progress, || async move {
            // The body is dropped unread.
            let (head, _) = self.client.send(request, Some(&(0..1))).await?;
            let header = |name| head.headers.get(name).and_then(|value: &http1::HeaderValue| value.to_str().ok());
            let has_ranges = head.status == StatusCode::PARTIAL_CONTENT;
            let length = match has_ranges {
                true => header(CONTENT_RANGE).and_then(|text| text.rsplit_once('/')?.1.parse().ok()),
                false => header(CONTENT_LENGTH).and_then(|text| text.parse().ok()),
            };
            Ok(Probe { length, has_ranges, head })
        })
    }

    /// Downloads a file to `to` and verifies it. Unfinished parts are in `folder`, which must belong to this process
    /// alone and be on the same file system; a later call resumes from them. A file that is there already is only verified.
    pub fn fetch(
        &self,
        spec: &FileSpec,
        folder: &Path,
        to: &Path,
        progress: &mut dyn Progress,
    ) -> Result<Finished, DownloadError> {
        if let Some(sha256) = self.verify_existing(spec, to, progress)? {
            return Ok(Finished { sha256, resumed: spec.length });
        }
        let settings = &self.client.settings;
        let has_parts = spec.is_versioned() && spec.length > settings.part_bytes;
        let probe = if has_parts { Some(self.probe(&spec.request, progress)?) } else { None };
        let part_bytes = match &probe {
            Some(Probe { has_ranges: true, .. }) => settings.part_bytes,
            _ => spec.length.max(1),
        };
        let file = match spec.is_versioned() {
            true => PartFile::open(folder, &spec.key(), spec.length, part_bytes)?,
            false => PartFile::begin(folder, &spec.key(), spec.length)?,
        };
        let file = Arc::new(file);
        let resumed = file.done_bytes();
        let resolved = probe.map(|probe| probe.head.location).filter(|found| *found != spec.request.location);
        let transfer = Arc::new(Transfer {
            client: Arc::clone(&self.client),
            clock_rng: Arc::clone(&self.clock_rng),
            request: spec.request.clone(),
            length: spec.length,
            is_versioned: spec.is_versioned(),
            file: Arc::clone(&file),
            shared: Arc::default(),
            resolved: Mutex::new(resolved),
        });
        progress.start(&spec.name, spec.length);
        progress.advance(resumed);
        let ran = self.wait(transfer.run(), &transfer.shared, progress);
        progress.done();
        // Parts that have arrived are kept in every case.
        let recorded = file.record();
        ran.and(recorded)?;
        drop(transfer);
        let sha256 = file.reader().and_then(|reader| self.verify(spec, reader, progress));
        let file = Arc::into_inner(file).ok_or_else(|| DownloadError::Setup("the file is still in use".to_owned()))?;
        match sha256 {
            Ok(sha256) => file.publish(to).map(|()| Finished { sha256, resumed }),
            Err(error @ DownloadError::Mismatch { .. }) => file.discard().and(Err(error)),
            Err(error) => Err(error),
        }
    }

    /// The sha256 of the file at `to`, if it is the right one. Another one will be replaced.
    fn verify_existing(
        &self,
        spec: &FileSpec,
        to: &Path,
        progress: &mut dyn Progress,
    ) -> Result<Option<String>, DownloadError> {
        let is_there = to.symlink_metadata().is_ok_and(|it| it.is_file() && it.len() == spec.length);
        if !is_there || spec.checksum == Checksum::None {
            return Ok(None);
        }
        let reader = File::open(to).map_err(DownloadError::at(to))?;
        match self.verify(spec, reader, progress) {
            Err(DownloadError::Mismatch { .. }) => Ok(None),
            verified => verified.map(Some),
        }
    }

    /// Hashes the whole file from the disk. Returns its sha256.
    fn verify(&self, spec: &FileSpec, reader: File, progress: &mut dyn Progress) -> Result<String, DownloadError> {
        progress.start(&format!("verifying {}", spec.name), spec.length);
        let checksum = spec.checksum.clone();
        let shared = Arc::new(Shared::default());
        let (counted, length) = (Arc::clone(&shared), spec.length);
        let hashing = self.handle.spawn_blocking(move || {
            digests(&reader, length, &checksum, |bytes| {
                counted.bytes.fetch_add(bytes, Ordering::Relaxed);
                match counted.is_cancelled.load(Ordering::Relaxed) {
                    true => Err(std::io::ErrorKind::Interrupted.into()),
                    false => Ok(()),
                }
            })
        });
        let hashed = async { hashing.await.map_err(|error| DownloadError::Setup(error.to_string())) };
        let hashed = self.wait(hashed, &shared, progress);
        progress.done();
        let found = hashed?.map_err(|error| DownloadError::Setup(format!("cannot read {}: {error}", spec.name)))?;
        match spec.checksum.mismatch(&found) {
            None => Ok(found.sha256),
            Some((expected, found)) => Err(DownloadError::Mismatch { name: spec.name.clone(), expected, found }),
        }
    }

    /// Reads at least `length` bytes, or up to the end.
    async fn read_start(&self, head: &Head, body: Incoming, length: u64) -> Result<Vec<u8>, DownloadError> {
        let mut body = BodyReader::new(&head.location, body, &self.client.settings);
        let mut start = Vec::new();
        while (start.len() as u64) < length
            && let Some(bytes) = body.next().await?
        {
            start.extend_from_slice(&bytes);
        }
        Ok(start)
    }

    /// Tries until there is an answer, or an error that another attempt does not change.
    fn with_retries<T, F>(&self, progress: &mut dyn Progress, work: impl Fn() -> F) -> Result<T, DownloadError>
    where
        F: Future<Output = Result<T, DownloadError>>,
    {
        let settings = &self.client.settings;
        let limit = settings.attempts.min(SHORT_ATTEMPTS);
        let mut attempts = Attempts::default();
        loop {
            let error = match self.wait(work(), &Shared::default(), progress) {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            match attempts.after(&error, limit, settings, self.clock_rng.as_ref()) {
                Next::Fail => return Err(error),
                Next::Wait { wait, asked } => {
                    if asked {
                        progress.note(&format!("the server allows no more requests for {} s; waiting", wait.as_secs()));
                    }
                    let sleep = async {
                        tokio::time::sleep(wait).await;
                        Ok(())
                    };
                    self.wait(sleep, &Shared::default(), progress)?;
                }
            }
        }
    }

    /// Waits for `work` and reports its progress meanwhile. Gives it up when the progress is cancelled.
    fn wait<T>(
        &self,
        work: impl Future<Output = Result<T, DownloadError>>,
        shared: &Shared,
        progress: &mut dyn Progress,
    ) -> Result<T, DownloadError> {
        let mut reported = 0;
        let mut report = |progress: &mut dyn Progress| {
            let bytes = shared.bytes.load(Ordering::Relaxed);
            progress.advance(bytes.saturating_sub(reported));
            reported = reported.max(bytes);
            let notes = std::mem::take(&mut *shared.notes.lock().unwrap_or_else(PoisonError::into_inner));
            notes.iter().for_each(|note| progress.note(note));
        };
        self.handle.block_on(async {
            tokio::pin!(work);
            loop {
                if let Ok(done) = tokio::time::timeout(REPORT_INTERVAL, &mut work).await {
                    report(progress);
                    return done;
                }
                report(progress);
                if progress.is_cancelled() {
                    shared.is_cancelled.store(true, Ordering::Relaxed);
                    return Err(DownloadError::Cancelled);
                }
            }
        })
    }
}

impl Drop for Downloader {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Dropping it would wait for lookups of names, which cannot be cancelled.
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use outpost_common::clock_rng::StoppedClock;

    #[test]
    fn a_dropped_downloader_waits_for_no_lookup() {
        let downloader = Downloader::new(AddressPolicy::default(), Settings::default(), Arc::new(StoppedClock));
        let downloader = downloader.unwrap();
        let (started, has_started) = channel();
        let (end, ended) = channel();
        // Lookups run in such tasks.
        downloader.handle.spawn_blocking(move || {
            started.send(()).unwrap();
            let _ = ended.recv_timeout(Duration::from_secs(10));
        });
        has_started.recv().unwrap();
        drop(downloader);
        assert!(end.send(()).is_ok(), "the task still runs");
    }
}
