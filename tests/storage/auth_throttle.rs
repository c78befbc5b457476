use std::net::IpAddr;
use std::time::Duration;

use futures_util::FutureExt;
use outpost::error::{Code, Error};
use outpost::ids::KeyId;
use outpost::service::{Access, Secret};

use crate::fixture::Fixture;

fn from(address: &str) -> Option<IpAddr> {
    Some(address.parse().unwrap())
}

/// The outcome of an attempt that awaits nothing, and so reads nothing.
fn without_a_read(fixture: &Fixture, address: Option<IpAddr>, secret: &str) -> Option<Result<Access, Error>> {
    fixture.keys.authenticate_from(address, secret).now_or_never()
}

fn code_without_a_read(fixture: &Fixture, address: Option<IpAddr>, secret: &str) -> Option<Code> {
    without_a_read(fixture, address, secret).and_then(|outcome| outcome.err().map(|error| error.code()))
}

#[tokio::test]
async fn a_bad_check_part_costs_no_read_and_a_wrong_secret_always_one() {
    let fixture = Fixture::new().await;
    let valid = fixture.first.secret.expose();
    let mut bad = valid.to_owned();
    let last = if bad.pop() == Some('0') { '1' } else { '0' };
    bad.push(last);
    for text in [&*bad, "", "opk_", "opk_nonsense"] {
        assert_eq!(code_without_a_read(&fixture, None, text), Some(Code::InvalidApiKey), "{text}");
    }
    assert!(matches!(without_a_read(&fixture, None, valid), Some(Ok(_))), "a key that was used lately");
    for id in [fixture.first.key.id, KeyId::generate(&*fixture.clock)] {
        let wrong = Secret::generate(id, &*fixture.clock);
        // The thread that reads may be done before the first look, but not each time.
        let reads = (0..200).any(|_| without_a_read(&fixture, None, wrong.expose()).is_none());
        assert!(reads, "known or not, it takes a read");
        assert_eq!(fixture.code(&wrong).await, Some(Code::InvalidApiKey));
    }
}

#[tokio::test]
async fn nothing_is_read_for_an_address_that_has_spent_its_guesses() {
    let fixture = Fixture::new().await;
    let project = fixture.project("p").await.id;
    let (_, unused) = fixture.key(project, &[]).await;
    let (revoked_key, revoked) = fixture.key(project, &[]).await;
    fixture.keys.revoke(&fixture.admin, revoked_key.id).await.unwrap();
    let address = from("203.0.113.9");
    let attempt =
        async |secret: &str| fixture.keys.authenticate_from(address, secret).await.err().map(|error| error.code());
    // Who has the secret guesses nothing.
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
    assert!(matches!(without_a_read(&fixture, address, valid), Some(Ok(_))), "a key that was used lately works on");
    assert_eq!(code_without_a_read(&fixture, address, revoked.expose()), Some(Code::RevokedApiKey));
    for other in [None, from("203.0.113.10"), from("127.0.0.1")] {
        let outcome = fixture.keys.authenticate_from(other, wrong(fixture.first.key.id).expose()).await;
        assert_eq!(outcome.unwrap_err().code(), Code::InvalidApiKey);
    }
    fixture.clock.pass(Duration::from_secs(60));
    assert_eq!(attempt(unused.expose()).await, None);
    assert_eq!(attempt(wrong(fixture.first.key.id).expose()).await, Some(Code::InvalidApiKey));
}
