//! Reads the body of an answer, and notices when almost nothing arrives.

use std::error::Error;
use std::pin::Pin;

use http_body_util::BodyExt;
use hyper::body::{Bytes, Incoming};
use tokio::time::{Sleep, sleep};

use super::error::DownloadError;
use super::location::Location;
use super::settings::Settings;

pub(super) struct BodyReader<'a> {
    location: &'a Location,
    body: Incoming,
    settings: &'a Settings,
    /// Ends with the current time window.
    window: Pin<Box<Sleep>>,
    /// Bytes in the current window.
    received: u64,
}

impl<'a> BodyReader<'a> {
    pub fn new(location: &'a Location, body: Incoming, settings: &'a Settings) -> Self {
        Self { location, body, settings, window: Box::pin(sleep(settings.stall_timeout)), received: 0 }
    }

    /// The next bytes; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, DownloadError> {
        loop {
            let arrived = tokio::select! {
                biased;
                frame = self.body.frame() => Some(frame),
                () = &mut self.window => None,
            };
            match arrived {
                Some(None) => return Ok(None),
                Some(Some(frame)) => {
                    // Trailers are not data.
                    if let Ok(bytes) = frame.map_err(|error| self.interrupted(&error))?.into_data() {
                        self.received += bytes.len() as u64;
                        return Ok(Some(bytes));
                    }
                }
                None if self.received < self.settings.stall_bytes => {
                    let (location, limit) = (self.location.clone(), self.settings.stall_timeout);
                    return Err(DownloadError::Stalled { location, limit });
                }
                None => {
                    self.received = 0;
                    self.window = Box::pin(sleep(self.settings.stall_timeout));
                }
            }
        }
    }

    fn interrupted(&self, error: &hyper::Error) -> DownloadError {
        let cause = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        DownloadError::Interrupted { location: self.location.clone(), cause }
    }
}

/// The whole body of an answer, of at most `limit` bytes.
pub(super) async fn read_all(
    location: &Location,
    body: Incoming,
    limit: u64,
    settings: &Settings,
) -> Result<Vec<u8>, DownloadError> {
    let mut body = BodyReader::new(location, body, settings);
    let mut whole = Vec::new();
    while let Some(bytes) = body.next().await? {
        if (whole.len() + bytes.len()) as u64 > limit {
            return Err(DownloadError::TooLong { location: location.clone(), limit });
        }
        whole.extend_from_slice(&bytes);
    }
    Ok(whole)
}
