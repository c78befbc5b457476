use std::time::{Duration, Instant};

use outpost::ids::KeyId;
use outpost::service::Secret;
use reqwest::Method;

use crate::server::{Response, Server};
use crate::tiny_model::TinyModel;

/// Starts a server that trusts the forwarded addresses of this process.
fn start_behind_proxy() -> Server {
    Server::start_configured(&TinyModel::default(), |config| {
        config.trusted_proxies = vec!["127.0.0.0/8".parse().unwrap()]
    })
}

fn call(server: &Server, forwarded: &str, path: &str, key: Option<&str>) -> Response {
    server.raw(Method::GET, path, key, &[("x-forwarded-for", forwarded)], None)
}

fn attempt(server: &Server, forwarded: &str, key: &str) -> Response {
    call(server, forwarded, "/v1/models", Some(key))
}

/// A well-formed key that does not exist.
fn unknown_key(server: &Server) -> String {
    Secret::generate(KeyId::generate(&*server.clock), &*server.clock).expose().to_owned()
}

fn assert_invalid(response: &Response) {
    assert_eq!(response.error_fields(), (401, "invalid_api_key".to_owned(), None));
}

fn assert_throttled(response: &Response) {
    assert_eq!(response.error_fields(), (429, "rate_limit_exceeded".to_owned(), None), "{}", response.text);
    let wait: u64 = response.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    assert!(response.text.contains(&format!("try again in {wait} seconds")), "{}", response.text);
}

fn fail_twenty_times(server: &Server, forwarded: &str) {
    for _ in 0..20 {
        assert_invalid(&attempt(server, forwarded, &unknown_key(server)));
    }
}

#[test]
fn the_first_twenty_invalid_keys_in_a_minute_are_401_and_further_ones_429() {
    let server = start_behind_proxy();
    let address = "203.0.113.9";
    let (_, _, unused) = server.tenant("unused");
    fail_twenty_times(&server, address);
    for path in ["/v1/models", "/openai/v1/models", "/v1/nothing/here", "/metrics"] {
        assert_throttled(&call(&server, address, path, Some(&unknown_key(&server))));
        assert_throttled(&call(&server, address, path, Some("opk_nonsense")));
        let without = call(&server, address, path, None);
        assert_eq!(
            without.error_fields(),
            (401, "missing_api_key".to_owned(), None),
            "a missing key does not count as a guess"
        );
    }
    assert_eq!(attempt(&server, address, &server.admin).status, 200, "a recently used key still works");
    assert_throttled(&attempt(&server, address, &unused));
    fail_twenty_times(&server, "203.0.113.10");

    server.clock.pass(Duration::from_secs(60));
    assert_eq!(attempt(&server, address, &unused).status, 200);
    fail_twenty_times(&server, address);
    assert_throttled(&attempt(&server, address, &unknown_key(&server)));
}

#[test]
fn repeating_a_mistyped_key_does_not_block_other_keys() {
    let server = start_behind_proxy();
    let (_, _, unused) = server.tenant("unused");
    let mistyped = server.admin.replace("opk_", "opk-");
    for _ in 0..20 {
        assert_invalid(&attempt(&server, "203.0.113.9", &mistyped));
    }
    assert_throttled(&attempt(&server, "203.0.113.9", &mistyped));
    assert_eq!(attempt(&server, "203.0.113.9", &unused).status, 200);
}

#[test]
fn neither_missing_nor_revoked_keys_are_counted() {
    let server = start_behind_proxy();
    let (_, id, revoked) = server.tenant("revoked");
    server.delete(&format!("/v1/api-keys/{id}")).ok();
    for _ in 0..25 {
        assert_eq!(attempt(&server, "203.0.113.9", &revoked).error_fields().1, "revoked_api_key");
        assert_eq!(call(&server, "203.0.113.9", "/v1/models", None).error_fields().1, "missing_api_key");
    }
    fail_twenty_times(&server, "203.0.113.9");
}

#[test]
fn forwarded_addresses_set_by_a_client_are_ignored() {
    let server = start_behind_proxy();
    for turn in 0..20 {
        let forwarded = format!("198.51.100.{turn}, 203.0.113.9, 127.0.0.2");
        assert_invalid(&attempt(&server, &forwarded, &unknown_key(&server)));
    }
    assert_throttled(&attempt(&server, "203.0.113.9", &unknown_key(&server)));
    assert_invalid(&attempt(&server, "198.51.100.1", &unknown_key(&server)));
}

#[test]
fn an_ipv6_network_is_one_address() {
    let server = start_behind_proxy();
    for turn in 0..20 {
        assert_invalid(&attempt(&server, &format!("2001:db8:0:1::{turn}"), &unknown_key(&server)));
    }
    assert_throttled(&attempt(&server, "2001:db8:0:1:ffff::", &unknown_key(&server)));
    assert_invalid(&attempt(&server, "2001:db8:0:2::", &unknown_key(&server)));
}

#[test]
fn forwarded_addresses_from_an_untrusted_peer_are_ignored() {
    let server = Server::start();
    for _ in 0..30 {
        // The peer is loopback, which has a higher limit.
        assert_invalid(&attempt(&server, "203.0.113.9", &unknown_key(&server)));
    }
}

/// `tests/storage/auth_timing.rs` measures the same without HTTP.
#[test]
#[ignore = "measures time; run it on a quiet machine"]
fn an_unknown_key_id_takes_as_long_as_a_known_one_over_http() {
    let server = start_behind_proxy();
    let admin: KeyId = server.get("/v1/me").ok()["id"].as_str().unwrap().parse().unwrap();
    let mut times = [Vec::new(), Vec::new()];
    for turn in 0..4_400 {
        // The order alternates from pair to pair.
        let known = (turn % 4 == 0) | (turn % 4 == 3);
        let id = if known { admin } else { KeyId::generate(&*server.clock) };
        let key = Secret::generate(id, &*server.clock);
        let started = Instant::now();
        // A proxy that forwards no address is not throttled.
        let response = server.call(Method::GET, "/v1/models", Some(key.expose()), None);
        let elapsed = started.elapsed();
        assert_invalid(&response);
        if turn >= 400 {
            times[usize::from(known)].push(elapsed);
        }
    }
    let [unknown, known] = times;
    let above: usize = known.iter().map(|one| unknown.iter().filter(|other| *other < one).count()).sum();
    let area = above as f64 / (known.len() * unknown.len()) as f64;
    println!("known and unknown over HTTP: AUC {area:.3}");
    assert!((0.45..=0.55).contains(&area), "known and unknown key IDs are distinguishable: AUC {area}");
}
