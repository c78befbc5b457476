//! Servers and connections that fail.

use outpost::download::DownloadError;
use outpost::progress::Silent;

use crate::hub_server::{Fault, HubServer};
use crate::support::*;

/// Fetches two parts from a server with faults. Returns the error and the number of requests.
fn fetch(faults: Vec<Fault>, lasting: Option<Fault>) -> (Result<(), DownloadError>, HubServer) {
    let (server, target, file) = (HubServer::start(), Target::new(), content(2 * PART));
    server.add("/f", file.clone());
    server.fail_next("/f", faults);
    server.fail_always("/f", lasting);
    let fetched = target.fetch(&downloader(&[&server]), request(&server, "/f"), &file);
    if fetched.is_ok() {
        assert_eq!(target.content().unwrap(), file);
    }
    (fetched.map(|_| ()), server)
}

/// The answer to the probe, which comes first.
const PROBED: Fault = Fault::CutAfter(1);

#[test]
fn a_connection_that_breaks_off_is_continued_at_its_last_byte() {
    let (fetched, server) = fetch(vec![PROBED, Fault::CutAfter(400), Fault::CutAfter(400)], None);
    fetched.unwrap();
    let starts: Vec<usize> =
        server.requests_for("/f").iter().filter_map(|it| it.range()).map(|(first, _)| first).collect();
    assert!(starts.contains(&400) && starts.contains(&1400), "{starts:?}");
}

#[test]
fn a_connection_that_stalls_is_given_up() {
    let (fetched, server) = fetch(vec![PROBED, Fault::StallAfter(300)], None);
    fetched.unwrap();
    assert!(server.requests_for("/f").len() >= 4);
}

#[test]
fn a_server_that_always_breaks_off_ends_the_download() {
    let (fetched, server) = fetch(vec![PROBED], Some(Fault::CutAfter(0)));
    assert!(matches!(fetched, Err(DownloadError::Interrupted { .. })), "{fetched:?}");
    assert!(server.requests_for("/f").len() <= 1 + 2 * 8);
}

#[test]
fn server_errors_are_retried_and_others_are_not() {
    let busy = |status| Fault::Status(status, Vec::new());
    fetch(vec![busy(503), busy(500), PROBED, busy(502), busy(429)], None).0.unwrap();
    let (fetched, server) = fetch(vec![], Some(busy(404)));
    assert_eq!(fetched.unwrap_err().refusal().unwrap().status, 404);
    assert_eq!(server.requests_for("/f").len(), 1);
}

#[test]
fn a_rate_limit_is_waited_for_if_it_is_short() {
    let limited = |seconds: u32| Fault::Status(429, vec![("RateLimit", format!("\"resolvers\";r=0;t={seconds}"))]);
    fetch(vec![limited(0), PROBED, limited(0)], None).0.unwrap();
    let (fetched, server) = fetch(vec![], Some(limited(1000)));
    let error = fetched.unwrap_err();
    assert_eq!(error.refusal().unwrap().wait.unwrap().as_secs(), 1000);
    assert_eq!(server.requests_for("/f").len(), 1);
}

#[test]
fn answers_that_are_not_what_was_asked_for_are_errors() {
    for fault in [Fault::WrongRange, Fault::Gzip] {
        let (fetched, _) = fetch(vec![PROBED], Some(fault.clone()));
        assert!(matches!(fetched, Err(DownloadError::Protocol { .. })), "{fault:?}: {fetched:?}");
    }
    let (server, target, file) = (HubServer::start(), Target::new(), content(PART));
    server.add("/f", file.clone());
    let error = target.fetch(&downloader(&[&server]), request(&server, "/f"), &content(PART - 1)).unwrap_err();
    assert!(error.to_string().contains("length"), "{error}");
}

#[test]
fn short_answers_have_a_limit() {
    let server = HubServer::start();
    server.add("/api", content(100));
    let get = |limit| downloader(&[&server]).get(&request(&server, "/api"), limit, &mut Silent);
    assert_eq!(get(100).unwrap().1, content(100));
    assert!(matches!(get(99), Err(DownloadError::TooLong { limit: 99, .. })));
}

#[test]
fn the_start_of_a_file_is_read_with_and_without_ranges() {
    let server = HubServer::start();
    server.add("/f", content(3000));
    let start = || downloader(&[&server]).range(&request(&server, "/f"), 0..10, &mut Silent).unwrap();
    assert_eq!(start(), content(3000)[..10]);
    server.fail_always("/f", Some(Fault::IgnoreRange));
    assert_eq!(start(), content(3000)[..10]);
}

#[test]
fn a_host_that_does_not_answer_is_named() {
    let server = HubServer::start();
    let (request, from) = (request(&server, "/f?Signature=secret"), downloader(&[&server]));
    drop(server);
    let error = from.get(&request, 10, &mut Silent).unwrap_err().to_string();
    assert!(error.contains("/f cannot be reached") && !error.contains("secret"), "{error}");
}
