//! Files arrive complete, in parts, and resume where they stopped.

use std::process::Command;
use std::time::Duration;

use outpost::app::SystemClockRng;
use outpost::clock_rng::ClockRng;
use outpost::download::{Checksum, DownloadError, FileSpec, Location, Request};
use outpost::progress::{Progress, Silent};
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

use crate::hub_server::{Fault, HubServer};
use crate::rng::TestRng;
use crate::support::*;
use crate::wait::until;

/// The ranges that a server was asked for, without the probe, sorted.
fn ranges(server: &HubServer, path: &str) -> Vec<(usize, usize)> {
    let requests = server.requests_for(path);
    let mut ranges: Vec<_> = requests.iter().filter_map(|request| request.range()).filter(|it| *it != (0, 0)).collect();
    ranges.sort_unstable();
    ranges
}

#[test]
fn a_file_is_fetched_in_parts_and_verified() {
    let (server, target, file) = (HubServer::start(), Target::new(), content(3 * PART + 7));
    server.add("/f", file.clone());
    let finished = target.fetch(&downloader(&[&server]), request(&server, "/f"), &file).unwrap();
    assert_eq!((finished.sha256, finished.resumed), (sha256(&file), 0));
    assert_eq!(target.content().unwrap(), file);
    assert_eq!(ranges(&server, "/f"), [(0, 999), (1000, 1999), (2000, 2999), (3000, 3006)]);
    assert!(target.leftovers().is_empty());
}

/// Is cancelled when so many bytes have arrived.
struct CancelAfter {
    bytes: u64,
    limit: u64,
}

impl Progress for CancelAfter {
    fn start(&mut self, _: &str, _: u64) {}
    fn done(&mut self) {}
    fn note(&mut self, _: &str) {}

    fn advance(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    fn is_cancelled(&self) -> bool {
        self.bytes >= self.limit
    }
}

#[test]
fn a_cancelled_download_ends_at_once_and_keeps_its_parts() {
    let (server, target, file) = (HubServer::start(), Target::new(), content(4 * PART));
    server.add("/f", file.clone());
    // The probe and two parts succeed.
    let fine = || Fault::CutAfter(1 << 30);
    server.fail_next("/f", [fine(), fine(), fine(), Fault::StallAfter(10), Fault::StallAfter(10)]);
    let patient = outpost::download::Settings { stall_timeout: Duration::from_secs(60), ..settings() };
    let slow =
        downloader_with(policy(&[&server]), patient, hyper_util::client::proxy::matcher::Matcher::builder().build());
    let checksum = Checksum::Sha256(sha256(&file));
    let spec = FileSpec { name: "f".to_owned(), request: request(&server, "/f"), length: file.len() as u64, checksum };
    let clock = SystemClockRng::new();
    let mut progress = CancelAfter { bytes: 0, limit: 2020 };
    let error = slow.fetch(&spec, &target.parts(), &target.path(), &mut progress).unwrap_err();
    assert!(matches!(error, DownloadError::Cancelled) && clock.uptime() < Duration::from_secs(10), "{error}");
    drop(slow);
    server.forget_requests();
    let finished = target.fetch(&downloader(&[&server]), request(&server, "/f"), &file).unwrap();
    assert_eq!((finished.resumed, ranges(&server, "/f").len()), (2000, 2));
}

#[test]
fn a_wait_that_a_server_asks_for_can_be_cancelled() {
    let server = HubServer::start();
    server.add("/f", b"x");
    server.fail_always("/f", Some(Fault::Status(429, vec![("Retry-After", "200".to_owned())])));
    let clock = SystemClockRng::new();
    let mut cancelled = CancelAfter { bytes: 0, limit: 0 };
    let error = downloader(&[&server]).get(&request(&server, "/f"), 10, &mut cancelled).unwrap_err();
    assert!(matches!(error, DownloadError::Cancelled) && clock.uptime() < Duration::from_secs(10), "{error}");
}

#[test]
fn files_of_all_sizes_arrive() {
    let server = HubServer::start();
    for size in [0, 1, PART - 1, PART, PART + 1, 2 * PART] {
        let (target, file) = (Target::new(), content(size));
        server.add("/f", file.clone());
        target.fetch(&downloader(&[&server]), request(&server, "/f"), &file).unwrap();
        assert_eq!(target.content().unwrap(), file, "{size} bytes");
    }
}

#[test]
fn a_server_without_ranges_sends_the_whole_file() {
    let (server, target, file) = (HubServer::start(), Target::new(), content(3 * PART));
    server.add("/f", file.clone());
    server.fail_next("/f", [Fault::IgnoreRange, Fault::CutAfter(10), Fault::IgnoreRange]);
    server.fail_always("/f", Some(Fault::IgnoreRange));
    target.fetch(&downloader(&[&server]), request(&server, "/f"), &file).unwrap();
    assert_eq!(target.content().unwrap(), file);
}

#[test]
fn a_second_attempt_fetches_only_what_is_missing() {
    let (server, target, file) = (HubServer::start(), Target::new(), content(5 * PART));
    server.add("/f", file.clone());
    let one = outpost::download::Settings { connections: 1, ..settings() };
    let slow = downloader_with(policy(&[&server]), one, hyper_util::client::proxy::matcher::Matcher::builder().build());
    // The probe and three parts succeed.
    server.fail_next(
        "/f",
        [Fault::CutAfter(1), Fault::CutAfter(1 << 20), Fault::CutAfter(1 << 20), Fault::CutAfter(1 << 20)],
    );
    server.fail_always("/f", Some(Fault::Status(404, Vec::new())));
    let error = target.fetch(&slow, request(&server, "/f"), &file).unwrap_err();
    assert_eq!(error.refusal().unwrap().status, 404);
    assert_eq!(target.content(), None);

    server.fail_always("/f", None);
    server.forget_requests();
    let finished = target.fetch(&downloader(&[&server]), request(&server, "/other-name"), &file);
    assert!(finished.is_err(), "the other name does not exist");
    server.add("/other-name", file.clone());
    let finished = target.fetch(&downloader(&[&server]), request(&server, "/other-name"), &file).unwrap();
    assert_eq!(finished.resumed, 3 * PART as u64);
    assert_eq!(ranges(&server, "/other-name"), [(3000, 3999), (4000, 4999)]);
    assert_eq!(target.content().unwrap(), file);
}

#[test]
fn a_killed_download_goes_on_where_it_stopped() {
    let (server, file) = (HubServer::start(), content(40 * PART));
    server.add("/f", file.clone());
    let mut rng = TestRng(7);
    for _ in 0..4 {
        let target = Target::new();
        server.forget_requests();
        // The probe and some parts succeed; then the server is silent, and the child is killed.
        let good = 1 + usize::try_from(rng.below(30)).unwrap();
        server.fail_next("/f", vec![Fault::CutAfter(1 << 20); good]);
        server.fail_always("/f", Some(Fault::StallAfter(500)));
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "download::downloading_child", "--ignored"])
            .env("HUB_URL", server.url("/f"))
            .env("HUB_FOLDER", target.path().parent().unwrap())
            .spawn()
            .unwrap();
        until(|| "a silent server", || server.requests_for("/f").len() > good);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(target.content(), None);

        server.fail_always("/f", None);
        server.forget_requests();
        target.fetch(&downloader(&[&server]), request(&server, "/f"), &file).unwrap();
        assert_eq!(target.content().unwrap(), file);
        let again: usize = ranges(&server, "/f").iter().map(|(first, last)| last + 1 - first).sum();
        // What was finished but not recorded, and what the four connections had begun.
        let allowed = 40 * PART - (good - 1) * PART + 5 * PART;
        assert!(again <= allowed, "{again} bytes after {good} answers");
    }
}

/// Downloads until it is killed.
#[test]
#[ignore = "another test starts it as a process"]
fn downloading_child() {
    let (url, folder) = (std::env::var("HUB_URL").unwrap(), std::env::var("HUB_FOLDER").unwrap());
    let location = Location::parse(&url).unwrap();
    let origin = location.origin();
    let policy =
        outpost::download::AddressPolicy { allowed: vec![format!("{}:{}", origin.host, origin.port).parse().unwrap()] };
    let patient = outpost::download::Settings { stall_timeout: std::time::Duration::from_secs(600), ..settings() };
    let downloader = downloader_with(policy, patient, hyper_util::client::proxy::matcher::Matcher::builder().build());
    let file = content(40 * PART);
    let (name, checksum) = ("a file".to_owned(), Checksum::Sha256(sha256(&file)));
    let spec = FileSpec { name, request: Request::new(location, None), length: file.len() as u64, checksum };
    let folder = std::path::Path::new(&folder);
    downloader.fetch(&spec, &folder.join("parts"), &folder.join("file"), &mut Silent).unwrap();
}

#[test]
fn a_wrong_file_is_removed() {
    let (server, target, file) = (HubServer::start(), Target::new(), content(3 * PART));
    server.add("/f", file.clone());
    server.fail_always("/f", Some(Fault::WrongBytes));
    let error = target.fetch(&downloader(&[&server]), request(&server, "/f"), &file).unwrap_err();
    assert!(matches!(&error, DownloadError::Mismatch { expected, .. } if *expected == sha256(&file)), "{error}");
    assert_eq!((target.content(), target.leftovers()), (None, Vec::new()));
    server.fail_always("/f", None);
    target.fetch(&downloader(&[&server]), request(&server, "/f"), &file).unwrap();
    assert_eq!(target.content().unwrap(), file);
}

#[test]
fn the_id_of_a_git_object_is_a_checksum() {
    let (server, file) = (HubServer::start(), content(30));
    server.add("/f", file.clone());
    let blob = [b"blob 30\0".as_slice(), &file].concat();
    let id = outpost::display::hex(digest(&SHA1_FOR_LEGACY_USE_ONLY, &blob).as_ref());
    let fetch = |id: &str| {
        let target = Target::new();
        target.fetch_checked(&downloader(&[&server]), request(&server, "/f"), 30, Checksum::GitBlob(id.to_owned()))
    };
    assert_eq!(fetch(&id).unwrap().sha256, sha256(&file));
    assert!(matches!(fetch(&"0".repeat(40)), Err(DownloadError::Mismatch { .. })));
}
