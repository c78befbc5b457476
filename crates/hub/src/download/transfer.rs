//! Fetches the missing parts of one file.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use http1::StatusCode;
use http1::header::{CONTENT_LENGTH, CONTENT_RANGE, ETAG};
use hyper::body::Incoming;
use tokio::task::JoinSet;

use super::body_reader::BodyReader;
use super::client::{Client, Head, Request};
use super::error::DownloadError;
use super::location::Location;
use super::part_file::PartFile;
use super::retry::{Attempts, Next};
use outpost_common::clock_rng::ClockRng;

/// Bytes that count as progress. After that, attempts are counted from the beginning.
const PROGRESS_BYTES: u64 = 1 << 20;
/// Number of times that an expired URL of a redirect may be resolved again.
const MAX_EXPIRED: u32 = 5;

/// Messages of workers to the thread that waits for them.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Bytes received or verified; those of a repeated part are taken back.
    pub bytes: AtomicU64,
    /// The result is no longer wanted.
    pub is_cancelled: AtomicBool,
    pub notes: Mutex<Vec<String>>,
}

impl Shared {
    pub fn note(&self, text: String) {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }
}

/// The transfer of one file.
pub(super) struct Transfer {
    pub client: Arc<Client>,
    pub clock_rng: Arc<dyn ClockRng>,
    pub request: Request,
    pub length: u64,
    /// Set if parts of several answers certainly belong to the same file, so that a download can be resumed.
    pub is_versioned: bool,
    pub file: Arc<PartFile>,
    pub shared: Arc<Shared>,
    /// The target of the redirects, so that each part does not ask the hub again.
    pub resolved: Mutex<Option<Location>>,
}

/// A part of the file.
struct Part {
    start: u64,
    length: u64,
}

impl Transfer {
    /// Fetches the missing parts over several connections.
    pub async fn run(self: &Arc<Self>) -> Result<(), DownloadError> {
        let missing: VecDeque<_> = self.file.missing().into();
        let workers = missing.len().min(self.client.settings.connections.max(1));
        let queue = Arc::new(Mutex::new(missing));
        let mut tasks = JoinSet::new();
        for _ in 0..workers {
            let (transfer, queue) = (Arc::clone(self), Arc::clone(&queue));
            tasks.spawn(async move { transfer.work(&queue).await });
        }
        // The first error ends the others, because the set is dropped.
        while let Some(ended) = tasks.join_next().await {
            ended.map_err(|error| DownloadError::Setup(error.to_string()))??;
        }
        Ok(())
    }

    async fn work(&self, queue: &Mutex<VecDeque<(u64, u64, u64)>>) -> Result<(), DownloadError> {
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        while let Some((index, start, length)) = next() {
            self.fetch_part(&Part { start, length }).await?;
            if self.file.finish(index, self.client.settings.record_bytes) {
                let file = Arc::clone(&self.file);
                let recorded = tokio::task::spawn_blocking(move || file.record()).await;
                recorded.map_err(|error| DownloadError::Setup(error.to_string()))??;
            }
        }
        Ok(())
    }

    /// Fetches a part, with further attempts for what is missing of it.
    async fn fetch_part(&self, part: &Part) -> Result<(), DownloadError> {
        let settings = &self.client.settings;
        let (mut attempts, mut expired, mut done) = (Attempts::default(), 0, 0);
        while done < part.length {
            let (before, resolved) = (done, self.resolved());
            let Err(error) = self.attempt(part, resolved.as_ref(), &mut done).await else { continue };
            if done.saturating_sub(before) >= PROGRESS_BYTES {
                attempts.reset();
            }
            if resolved.is_some() && is_gone(&error) && expired < MAX_EXPIRED {
                expired += 1;
                self.forget(resolved.as_ref());
                continue;
            }
            match attempts.after(&error, settings.attempts, settings, self.clock_rng.as_ref()) {
                Next::Fail => return Err(error),
                Next::Wait { wait, asked } => {
                    if asked {
                        self.shared
                            .note(format!("the server allows no more requests for {} s; waiting", wait.as_secs()));
                    }
                    tokio::time::sleep(wait).await;
                }
            }
        }
        Ok(())
    }

    fn resolved(&self) -> Option<Location> {
        self.resolved.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The hub must be asked for another URL, unless another worker has done so.
    fn forget(&self, expired: Option<&Location>) {
        let mut resolved = self.resolved.lock().unwrap_or_else(PoisonError::into_inner);
        if resolved.as_ref() == expired {
            *resolved = None;
        }
    }

    /// One request, to the URL where redirects ended before, if there is one.
    async fn attempt(&self, part: &Part, resolved: Option<&Location>, done: &mut u64) -> Result<(), DownloadError> {
        if !self.is_versioned {
            self.begin_again(done);
        }
        let range = part.start + *done..part.start + part.length;
        let is_whole = range == (0..self.length);
        let request = resolved.map_or_else(|| self.request.clone(), |location| self.request.redirected(location));
        let (head, body) = self.client.send(&request, (!is_whole).then_some(&range)).await?;
        check_version(&head, request.etag.as_deref())?;
        let start = match (head.status, is_whole) {
            (StatusCode::OK, true) => 0,
            // The server has no ranges: the only part begins anew.
            (StatusCode::OK, false) if part.length == self.length => {
                self.begin_again(done);
                0
            }
            _ => self.check_range(&head, &range)?,
        };
        *self.resolved.lock().unwrap_or_else(PoisonError::into_inner) =
            (head.location != self.request.location).then(|| head.location.clone());
        check_length(&head, part.start + part.length - start)?;
        self.receive(&head.location, body, part, done).await
    }

    /// Checks a 206 answer. Returns its first byte in the file.
    fn check_range(&self, head: &Head, range: &Range<u64>) -> Result<u64, DownloadError> {
        let section = self.request.section.as_ref().map(|section| (section.absolute(Some(range)), section.whole));
        let (asked, whole) = section.unwrap_or_else(|| (range.clone(), self.length));
        check_range(head, &asked, whole).map(|()| range.start)
    }

    fn begin_again(&self, done: &mut u64) {
        self.shared.bytes.fetch_sub(std::mem::take(done), Ordering::Relaxed);
    }

    async fn receive(
        &self,
        location: &Location,
        body: Incoming,
        part: &Part,
        done: &mut u64,
    ) -> Result<(), DownloadError> {
        let mut body = BodyReader::new(location, body, &self.client.settings);
        while let Some(bytes) = body.next().await? {
            let count = bytes.len() as u64;
            if *done + count > part.length {
                return Err(DownloadError::protocol(location, "it sends more bytes than it announced"));
            }
            self.file.write_at(&bytes, part.start + *done)?;
            *done += count;
            self.shared.bytes.fetch_add(count, Ordering::Relaxed);
        }
        match *done == part.length {
            true => Ok(()),
            false => Err(DownloadError::Interrupted {
                location: location.clone(),
                cause: "the connection ended early".to_owned(),
            }),
        }
    }
}

/// Detects an expired URL of a redirect, which must be resolved again.
fn is_gone(error: &DownloadError) -> bool {
    error.refusal().is_some_and(|refusal| matches!(refusal.status.as_u16(), 400 | 401 | 403 | 404 | 410))
}

/// The ETag must be that of the other parts.
fn check_version(head: &Head, etag: Option<&str>) -> Result<(), DownloadError> {
    let found = head.headers.get(ETAG).and_then(|value| value.to_str().ok());
    match etag.is_none() || found == etag {
        true => Ok(()),
        false => Err(DownloadError::protocol(&head.location, "the file has changed; try again")),
    }
}

/// Checks that the answer has exactly this range.
fn check_range(head: &Head, range: &Range<u64>, length: u64) -> Result<(), DownloadError> {
    let wrong = |why: String| DownloadError::protocol(&head.location, why);
    if head.status != StatusCode::PARTIAL_CONTENT {
        return Err(wrong(format!("it has no ranges: it answers with status {}", head.status)));
    }
    let text = head.headers.get(CONTENT_RANGE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let expected = format!("bytes {}-{}/{length}", range.start, range.end - 1);
    match text == expected {
        true => Ok(()),
        false => Err(wrong(format!("Content-Range is '{text}', not '{expected}'"))),
    }
}

fn check_length(head: &Head, expected: u64) -> Result<(), DownloadError> {
    let Some(length) = head.headers.get(CONTENT_LENGTH) else { return Ok(()) };
    match length.to_str().ok().and_then(|text| text.parse::<u64>().ok()) == Some(expected) {
        true => Ok(()),
        false => Err(DownloadError::protocol(&head.location, format!("its length is not {expected} bytes"))),
    }
}
