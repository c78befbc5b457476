use std::net::IpAddr;
use std::time::Duration;

use futures_util::FutureExt;
use outpost::error::{Code, Error};
use outpost::ids::KeyId;
use outpost::service::{Access, Secret};

use crate::fixture::Fixture;

fn parse_address(address: &str) -> Option<IpAddr> {
    Some(address.parse().unwrap())
}

/// The outcome of an attempt that completes without waiting, so without a read. `None` if it needs a read.
fn without_a_read(fixture: &Fixture, address: Option<IpAddr>, secret: &str) -> Option<Result<Access, Error>> {
    fixture.keys.authenticate_from(address, secret).now_or_never()
}

fn code_without_a_read(fixture: &Fixture, address: Option<IpAddr>, secret: &str) -> Option<Code> {
    without_a_read(fixture, address, secret).and_then(|outcome| outcome.err().map(|error| error.code()))
}

#[tokio::test]
async fn invalid_check_digits_cost_no_read_and_a_wrong_secret_always_one() {
    let fixture = Fixture::new().await;
    let valid = fixture.first.secret.expose();
    let mut bad = valid.to_owned();
    let last = if bad.pop() == Some('0') { '1' } else { '0' };
    bad.push(last);
    for text in [&*bad, "", "opk_", "opk_nonsense"] {
        assert_eq!(code_without_a_read(&fixture, None, text), Some(Code::InvalidApiKey), "{text}");
    }
    assert!(matches!(without_a_read(&fixture, None, valid), Some(Ok(_))), "a recently used key");
    for id in [fixture.first.key.id, KeyId::generate(&*fixture.clock)] {
        let wrong = Secret::generate(id, &*fixture.clock);
        // The reading thread may finish before the first poll, but not every time.
        let reads = (0..200).any(|_| without_a_read(&fixture, None, wrong.expose()).is_none());
        assert!(reads, "a known and an unknown key ID both need a read");
        assert_eq!(fixture.code(&wrong).await, Some(Code::InvalidApiKey));
    }
}

#[tokio::test]
async fn nothing_is_read_for_a_throttled_address() {
    let fixture = Fixture::new().await;
    let project = fixture.project("p").await.id;
    let (_, unused) = fixture.key(project, &[]).await;
    let (revoked_key, revoked) = fixture.key(project, &[]).await;
    fixture.keys.revoke(&fixture.admin, revoked_key.id).await.unwrap();
    let address = parse_address("203.0.113.9");
    let attempt =
        async |secret: &str| fixture.keys.authenticate_from(address, secret).await.err().map(|error| error.code());
    // A correct secret of a revoked key does not count as a guess.
    for _ in 0..30 {
        assert_eq!(attempt(revoked.expose()).await, Some(Code::RevokedApiKey));
    }
    let wrong = |id| Secret::generate(id, &*fixture.clock);
    for _ in 0..10 {
        assert_eq!(attempt(wrong(fixture.first.key.id).expose()).await, Some(Code::InvalidApiKey));
        assert_eq!(attempt(wrong(KeyId::generate(&*fixture.clock)).expose()).await, Some(Code::InvalidApiKey));
    }
    for secret in [wrong(fixture.first.key.id), wrong(KeyId::generate(&*fixture.clock)), unused.clone()] {
        assert_eq!(code_without_a_read(&fixture, address, secret.expose()), Some(Code::RateLimited));
    }
    let valid = fixture.first.secret.expose();
    assert!(matches!(without_a_read(&fixture, address, valid), Some(Ok(_))), "a recently used key still works");
    assert_eq!(code_without_a_read(&fixture, address, revoked.expose()), Some(Code::RevokedApiKey));
    for other in [None, parse_address("203.0.113.10"), parse_address("127.0.0.1")] {
        let outcome = fixture.keys.authenticate_from(other, wrong(fixture.first.key.id).expose()).await;
        assert_eq!(outcome.unwrap_err().code(), Code::InvalidApiKey);
    }
    fixture.clock.pass(Duration::from_secs(60));
    assert_eq!(attempt(unused.expose()).await, None);
    assert_eq!(attempt(wrong(fixture.first.key.id).expose()).await, Some(Code::InvalidApiKey));
}
