//! Files whose hash is not known: parts of different versions must not be mixed.

use outpost::download::{Checksum, DownloadError, Request};

use crate::hub_server::{Fault, HubServer};
use crate::support::*;

const PROBED: Fault = Fault::CutAfter(1);

fn server(etag: &str) -> (HubServer, Vec<u8>) {
    let (server, file) = (HubServer::start(), content(3 * PART));
    server.add_with_headers("/f", file.clone(), vec![("ETag", etag.to_owned())]);
    (server, file)
}

fn with_etag(server: &HubServer) -> Request {
    Request { etag: Some("\"v1\"".to_owned()), ..request(server, "/f") }
}

#[test]
fn a_file_with_a_version_is_resumed() {
    let (server, file) = server("\"v1\"");
    let target = Target::new();
    let fetch = || target.fetch_checked(&downloader(&[&server]), with_etag(&server), file.len(), Checksum::None);
    server.fail_next("/f", [PROBED]);
    server.fail_always("/f", Some(Fault::Status(404, Vec::new())));
    fetch().unwrap_err();
    server.fail_always("/f", None);
    let finished = fetch().unwrap();
    assert_eq!((target.content().unwrap(), finished.sha256), (file.clone(), sha256(&file)));
    let parts = server.requests_for("/f");
    assert!(parts.iter().filter(|it| it.range().is_some()).all(|it| it.header("if-range") == Some("\"v1\"")));
}

#[test]
fn a_file_that_changes_meanwhile_is_refused() {
    let (server, file) = server("\"v2\"");
    let target = Target::new();
    let error = target.fetch_checked(&downloader(&[&server]), with_etag(&server), file.len(), Checksum::None);
    let error = error.unwrap_err();
    assert!(matches!(error, DownloadError::Protocol { .. }), "{error}");
    assert!(error.to_string().contains("has changed"), "{error}");
    assert_eq!(target.content(), None);
}

#[test]
fn a_file_without_a_version_begins_again() {
    let (server, file) = server("W/\"weak\"");
    let target = Target::new();
    server.fail_next("/f", [Fault::CutAfter(400)]);
    let from = downloader(&[&server]);
    target.fetch_checked(&from, request(&server, "/f"), file.len(), Checksum::None).unwrap();
    assert_eq!(target.content().unwrap(), file);
    // One connection, and no ranges.
    assert!(server.requests_for("/f").iter().all(|it| it.range().is_none()));
    assert_eq!(server.requests_for("/f").len(), 2);
}
