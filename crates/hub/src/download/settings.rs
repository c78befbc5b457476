//! Limits of downloads.

use std::time::Duration;

/// Sizes, times and counts of a [`Downloader`](super::Downloader).
#[derive(Clone, Debug)]
pub struct Settings {
    /// Connections of one file.
    pub connections: usize,
    /// Bytes of a part, the unit in which a download resumes.
    pub part_bytes: u64,
    /// Finished parts are recorded after this many bytes at the latest.
    pub record_bytes: u64,
    /// For a connection with its TLS handshake.
    pub connect_timeout: Duration,
    /// From a request to the head of its response.
    pub head_timeout: Duration,
    /// A connection that transfers fewer than [`Self::stall_bytes`] in this time has stalled.
    pub stall_timeout: Duration,
    pub stall_bytes: u64,
    /// Consecutive attempts without progress, before a download fails.
    pub attempts: u32,
    /// The wait after the first failed attempt; it doubles with each one.
    pub first_wait: Duration,
    pub max_wait: Duration,
    /// The longest wait that a server may ask for.
    pub max_server_wait: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            connections: 4,
            part_bytes: 32 << 20,
            record_bytes: 64 << 20,
            connect_timeout: Duration::from_secs(10),
            head_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(30),
            stall_bytes: 30 << 10,
            attempts: 8,
            first_wait: Duration::from_secs(1),
            max_wait: Duration::from_secs(60),
            max_server_wait: Duration::from_secs(310),
        }
    }
}
