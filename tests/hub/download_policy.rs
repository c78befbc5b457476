//! Where requests and tokens go.

use hyper_util::client::proxy::matcher::Matcher;
use outpost::download::{AddressPolicy, DownloadError};
use outpost::progress::Silent;

use crate::hub_server::{Fault, HubServer};
use crate::support::*;

const TOKEN: &str = "hf_secret";

#[test]
fn a_token_stays_with_its_origin() {
    let (hub, cdn, target, file) = (HubServer::start(), HubServer::start(), Target::new(), content(3 * PART));
    cdn.add("/blob", file.clone());
    hub.redirect("/a", "/b".to_owned(), Vec::new());
    hub.redirect("/b", cdn.url("/blob?Signature=s"), Vec::new());
    target.fetch(&downloader(&[&hub, &cdn]), with_token(&hub, "/a", TOKEN), &file).unwrap();
    assert_eq!(target.content().unwrap(), file);
    assert!(hub.requests().iter().all(|it| it.header("authorization") == Some("Bearer hf_secret")));
    assert!(cdn.requests().iter().all(|it| it.header("authorization").is_none()));
    // The redirects are followed once, not for each part.
    assert_eq!((hub.requests_for("/a").len(), cdn.requests().len()), (1, 4));
}

#[test]
fn a_token_is_not_sent_again_after_a_redirect_to_another_origin() {
    let (hub, other) = (HubServer::start(), HubServer::start());
    hub.add("/end", "x");
    hub.redirect("/a", other.url("/back"), Vec::new());
    other.redirect("/back", hub.url("/end"), Vec::new());
    downloader(&[&hub, &other]).get(&with_token(&hub, "/a", TOKEN), 10, &mut Silent).unwrap();
    assert_eq!(hub.requests_for("/end")[0].header("authorization"), None);
}

#[test]
fn an_expired_url_is_resolved_again() {
    let (hub, cdn, target, file) = (HubServer::start(), HubServer::start(), Target::new(), content(4 * PART));
    cdn.add("/blob", file.clone());
    hub.redirect("/f", cdn.url("/blob"), Vec::new());
    cdn.fail_next("/blob", [Fault::CutAfter(1), Fault::Status(403, Vec::new())]);
    target.fetch(&downloader(&[&hub, &cdn]), request(&hub, "/f"), &file).unwrap();
    assert!(hub.requests_for("/f").len() >= 2);
    cdn.fail_always("/blob", Some(Fault::Status(403, Vec::new())));
    let error = Target::new().fetch(&downloader(&[&hub, &cdn]), request(&hub, "/f"), &file).unwrap_err();
    assert_eq!(error.refusal().unwrap().status, 403);
}

#[test]
fn redirects_end() {
    let hub = HubServer::start();
    hub.redirect("/loop", "/loop".to_owned(), Vec::new());
    let error = downloader(&[&hub]).get(&request(&hub, "/loop"), 10, &mut Silent).unwrap_err();
    assert!(matches!(error, DownloadError::BadRedirect { .. }), "{error}");
    assert_eq!(hub.requests().len(), 6);
    hub.redirect("/file", "file:///etc/passwd".to_owned(), Vec::new());
    let error = downloader(&[&hub]).get(&request(&hub, "/file"), 10, &mut Silent).unwrap_err();
    assert!(matches!(error, DownloadError::BadRedirect { .. }), "{error}");
}

#[test]
fn private_addresses_are_not_reached_by_redirects_or_names() {
    let (hub, inner) = (HubServer::start(), HubServer::start());
    inner.add("/secret", "x");
    hub.redirect("/a", inner.url("/secret"), Vec::new());
    // Also by a name that leads to this machine.
    hub.redirect("/b", format!("http://localhost:{}/secret", inner.address.port()), Vec::new());
    for path in ["/a", "/b"] {
        let error = downloader(&[&hub]).get(&request(&hub, path), 10, &mut Silent).unwrap_err();
        assert!(matches!(error, DownloadError::PrivateAddress { .. }), "{error}");
    }
    assert!(inner.requests().is_empty());
    let strict = downloader_with(AddressPolicy::default(), settings(), Matcher::builder().build());
    assert!(matches!(strict.get(&request(&hub, "/a"), 10, &mut Silent), Err(DownloadError::PrivateAddress { .. })));
}

#[test]
fn a_proxy_of_the_environment_is_used() {
    let (proxy, hub) = (HubServer::start(), HubServer::start());
    proxy.add("http://hub.invalid/f", "through the proxy");
    let url = format!("http://user:pass@{}", proxy.address);
    let proxies = Matcher::builder().all(url).no("127.0.0.1").build();
    let from = downloader_with(policy(&[&hub]), settings(), proxies);
    let request_at =
        |url: &str| outpost::download::Request::new(outpost::download::Location::parse(url).unwrap(), None);
    let (_, body) = from.get(&request_at("http://hub.invalid/f"), 100, &mut Silent).unwrap();
    assert_eq!(body, b"through the proxy");
    assert_eq!(proxy.requests()[0].header("proxy-authorization"), Some("Basic dXNlcjpwYXNz"));
    hub.add("/g", "direct");
    assert_eq!(from.get(&request(&hub, "/g"), 100, &mut Silent).unwrap().1, b"direct");
    assert_eq!(hub.requests()[0].header("proxy-authorization"), None);
    // https needs a tunnel, which this proxy refuses.
    let error = from.get(&request_at("https://hub.invalid/f"), 100, &mut Silent).unwrap_err().to_string();
    assert!(error.contains("the proxy refuses with status 404"), "{error}");
    let socks = downloader_with(policy(&[&hub]), settings(), Matcher::builder().all("socks5://127.0.0.1:1").build());
    let error = socks.get(&request_at("http://hub.invalid/f"), 100, &mut Silent).unwrap_err().to_string();
    assert!(error.contains("SOCKS"), "{error}");
}
