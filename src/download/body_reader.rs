//! Reads the body of an answer, and notices when almost nothing arrives.

use std::error::Error;

use http_body_util::BodyExt;
use hyper::body::{Bytes, Incoming};
use tokio::time::{Instant, timeout_at};

use super::error::DownloadError;
use super::location::Location;
use super::settings::Settings;

pub(super) struct BodyReader<'a> {
    location: &'a Location,
    body: Incoming,
    settings: &'a Settings,
    /// When the current time window ends.
    window_end: Instant,
    /// Bytes in the current window.
    received: u64,
}

impl<'a> BodyReader<'a> {
    pub fn new(location: &'a Location, body: Incoming, settings: &'a Settings) -> Self {
        Self { location, body, settings, window_end: Instant::now() + settings.stall_timeout, received: 0 }
    }

    /// The next bytes; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, DownloadError> {
        loop {
            match timeout_at(self.window_end, self.body.frame()).await {
                Ok(None) => return Ok(None),
                Ok(Some(frame)) => {
                    // Trailers are not data.
                    if let Ok(bytes) = frame.map_err(|error| self.interrupted(&error))?.into_data() {
                        self.received += bytes.len() as u64;
                        return Ok(Some(bytes));
                    }
                }
                Err(_) if self.received < self.settings.stall_bytes => {
                    let (location, limit) = (self.location.clone(), self.settings.stall_timeout);
                    return Err(DownloadError::Stalled { location, limit });
                }
                Err(_) => {
                    self.received = 0;
                    self.window_end = Instant::now() + self.settings.stall_timeout;
                }
            }
        }
    }

    fn interrupted(&self, error: &hyper::Error) -> DownloadError {
        let cause = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        DownloadError::Interrupted { location: self.location.clone(), cause }
    }
}
