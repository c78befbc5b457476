//! A downloader with small limits, and files with known hashes.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper_util::client::proxy::matcher::Matcher;
use outpost::app::SystemClockRng;
use outpost::display::hex;
use outpost::download::{
    AddressPolicy, Authorization, Checksum, DownloadError, Downloader, FileSpec, Finished, Location, Request, Settings,
};
use outpost::progress::Silent;
use ring::digest::{SHA256, digest};
use tempfile::TempDir;

use crate::hub_server::HubServer;
use crate::rng::TestRng;

/// The size of a part.
pub const PART: usize = 1000;

/// Small parts and short waits.
pub fn settings() -> Settings {
    Settings {
        part_bytes: PART as u64,
        record_bytes: PART as u64,
        stall_timeout: Duration::from_secs(1),
        stall_bytes: 1,
        first_wait: Duration::from_millis(1),
        ..Settings::default()
    }
}

/// Bytes that differ everywhere.
pub fn content(length: usize) -> Vec<u8> {
    let mut rng = TestRng(length as u64);
    (0..length).map(|_| u8::try_from(rng.below(256)).unwrap()).collect()
}

pub fn sha256(bytes: &[u8]) -> String {
    hex(digest(&SHA256, bytes).as_ref())
}

/// Allows these servers, although they are on this machine.
pub fn policy(servers: &[&HubServer]) -> AddressPolicy {
    AddressPolicy { allowed: servers.iter().map(|server| server.address.to_string().parse().unwrap()).collect() }
}

pub fn downloader_with(policy: AddressPolicy, settings: Settings, proxies: Matcher) -> Downloader {
    Downloader::with_proxies(policy, settings, Arc::new(SystemClockRng::new()), proxies).unwrap()
}

pub fn downloader(servers: &[&HubServer]) -> Downloader {
    downloader_with(policy(servers), settings(), Matcher::builder().build())
}

pub fn request(server: &HubServer, path: &str) -> Request {
    Request::new(Location::parse(&server.url(path)).unwrap(), None)
}

pub fn with_token(server: &HubServer, path: &str, token: &str) -> Request {
    Request { authorization: Authorization::bearer(token), ..request(server, path) }
}

/// A folder for a download.
pub struct Target {
    folder: TempDir,
}

impl Target {
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub fn parts(&self) -> PathBuf {
        self.folder.path().join("parts")
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("file")
    }

    pub fn content(&self) -> Option<Vec<u8>> {
        fs::read(self.path()).ok()
    }

    /// The names of the files that unfinished downloads have left.
    pub fn leftovers(&self) -> Vec<String> {
        names(&self.parts())
    }

    /// Downloads a file that should have this content.
    pub fn fetch(&self, from: &Downloader, request: Request, expected: &[u8]) -> Result<Finished, DownloadError> {
        self.fetch_checked(from, request, expected.len(), Checksum::Sha256(sha256(expected)))
    }

    pub fn fetch_checked(
        &self,
        from: &Downloader,
        request: Request,
        length: usize,
        checksum: Checksum,
    ) -> Result<Finished, DownloadError> {
        let spec = FileSpec { name: "a file".to_owned(), request, length: length as u64, checksum };
        from.fetch(&spec, &self.parts(), &self.path(), &mut Silent)
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
}
