//! Rotation with a grace period, expiry and revocation of keys, also when the clock jumps.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use outpost::error::Code;
use outpost::service::{Audit, AuditFilter, PageRequest, Patch};

use super::fixture::{Fixture, error_fields, new_key};

const HOUR: i64 = 3600;
const YEAR: i64 = 365 * 24 * HOUR;

#[tokio::test]
async fn rotation_without_grace_ends_the_old_secret_at_once() {
    let fixture = Fixture::new().await;
    let (key, old) = fixture.key(fixture.first.project.id, &[]).await;
    assert_eq!(fixture.code(&old).await, None);
    let (rotated, new) = fixture.rotate(&key, 0).await.unwrap();
    assert_eq!(fixture.code(&old).await, Some(Code::RevokedApiKey));
    assert_eq!(fixture.code(&new).await, None);
    assert_eq!((rotated.id, rotated.project, &rotated.name), (key.id, key.project, &key.name));
    assert_eq!(rotated.previous_valid_until, None);
}

#[tokio::test]
async fn rotated_key_works_until_its_grace_period_ends() {
    let fixture = Fixture::new().await;
    for (grace, last) in [(1, 999), (2_592_000, 2_592_000_000 - 1)] {
        let (key, old) = fixture.key(fixture.first.project.id, &[]).await;
        let (rotated, new) = fixture.rotate(&key, grace).await.unwrap();
        assert!(rotated.previous_valid_until.is_some());
        fixture.clock.pass(Duration::from_millis(last));
        assert_eq!(fixture.code(&old).await, None);
        fixture.clock.pass(Duration::from_millis(1));
        assert_eq!(fixture.code(&old).await, Some(Code::RevokedApiKey));
        assert_eq!(fixture.code(&new).await, None);
    }
}

#[tokio::test]
async fn a_grace_period_out_of_range_is_refused() {
    let fixture = Fixture::new().await;
    let (key, old) = fixture.key(fixture.first.project.id, &[]).await;
    for grace in [-1, 2_592_001, i64::MAX, i64::MIN] {
        let expected = (Code::InvalidParameter, Some("grace_period_seconds".into()));
        assert_eq!(error_fields(fixture.rotate(&key, grace).await), expected, "{grace}");
    }
    assert_eq!(fixture.code(&old).await, None);
}

#[tokio::test]
async fn an_expired_secret_stays_invalid_when_the_clock_is_set_back() {
    for jump in [HOUR, YEAR] {
        let fixture = Fixture::new().await;
        let (key, old) = fixture.key(fixture.first.project.id, &[]).await;
        fixture.rotate(&key, 1).await.unwrap();
        fixture.clock.jump(jump);
        assert_eq!(fixture.code(&old).await, Some(Code::RevokedApiKey));
        fixture.clock.jump(-jump);
        assert_eq!(fixture.code(&old).await, Some(Code::RevokedApiKey), "the old secret is valid again after {jump} s");
        // It stays invalid after a restart, with an empty cache.
        let keys = outpost::service::Keys::new(fixture.store.clone(), fixture.clock.clone());
        assert!(keys.authenticate(old.expose()).await.is_err());
    }
}

#[tokio::test]
async fn setting_the_clock_back_does_not_lengthen_a_grace_period() {
    for jump in [HOUR, YEAR] {
        let fixture = Fixture::new().await;
        let (key, old) = fixture.key(fixture.first.project.id, &[]).await;
        fixture.rotate(&key, 60).await.unwrap();
        fixture.clock.jump(-jump);
        fixture.clock.pass(Duration::from_secs(59));
        assert_eq!(fixture.code(&old).await, None);
        fixture.clock.pass(Duration::from_secs(1));
        assert_eq!(fixture.code(&old).await, Some(Code::RevokedApiKey));
    }
}

#[tokio::test]
async fn at_most_one_previous_secret_is_valid() {
    let fixture = Fixture::new().await;
    let (key, first) = fixture.key(fixture.first.project.id, &[]).await;
    let (_, second) = fixture.rotate(&key, 3600).await.unwrap();
    let (_, third) = fixture.rotate(&key, 3600).await.unwrap();
    assert_eq!(fixture.code(&first).await, Some(Code::InvalidApiKey));
    assert_eq!(fixture.code(&second).await, None);
    assert_eq!(fixture.code(&third).await, None);
}

#[tokio::test]
async fn a_key_expires_on_time_and_ends_its_grace_period() {
    let fixture = Fixture::new().await;
    let mut new = new_key(fixture.first.project.id, &[]);
    let soon = outpost::clock_rng::ClockRng::now(&*fixture.clock).after(Duration::from_secs(10));
    new.expires_at = Some(soon);
    let (key, old) = fixture.keys.create(&fixture.admin, new).await.unwrap();
    let (rotated, secret) = fixture.rotate(&key, 3600).await.unwrap();
    assert_eq!(rotated.previous_valid_until, Some(soon));
    fixture.clock.pass(Duration::from_secs(10));
    assert_eq!(fixture.code(&secret).await, Some(Code::ExpiredApiKey));
    assert_eq!(fixture.code(&old.unwrap()).await, Some(Code::RevokedApiKey));
    assert_eq!(error_fields(fixture.rotate(&key, 0).await).0, Code::Conflict);
    fixture.keys.update(&fixture.admin, key.id, "longer".into(), Patch::Clear).await.unwrap();
    assert_eq!(fixture.code(&secret).await, None);
}

#[tokio::test]
async fn an_expiry_in_the_past_is_refused() {
    let fixture = Fixture::new().await;
    let mut new = new_key(fixture.first.project.id, &[]);
    new.expires_at = Some(outpost::clock_rng::ClockRng::now(&*fixture.clock));
    let expected = (Code::InvalidParameter, Some("expires_at".into()));
    assert_eq!(error_fields(fixture.keys.create(&fixture.admin, new).await), expected);
}

#[tokio::test]
async fn a_revoked_key_cannot_change_and_revoking_is_idempotent() {
    let fixture = Fixture::new().await;
    let (key, secret) = fixture.key(fixture.first.project.id, &[]).await;
    let revoked = fixture.keys.revoke(&fixture.admin, key.id).await.unwrap();
    assert_eq!(fixture.keys.revoke(&fixture.admin, key.id).await.unwrap(), revoked);
    assert_eq!(fixture.code(&secret).await, Some(Code::RevokedApiKey));
    assert_eq!(error_fields(fixture.rotate(&key, 0).await).0, Code::Conflict);
    let renamed = fixture.keys.update(&fixture.admin, key.id, "x".into(), Patch::Keep).await;
    assert_eq!(error_fields(renamed).0, Code::Conflict);
}

#[tokio::test]
async fn archiving_a_project_disables_its_keys_at_once() {
    let fixture = Fixture::new().await;
    let project = fixture.project("old").await;
    let (_, secret) = fixture.key(project.id, &[]).await;
    assert_eq!(fixture.code(&secret).await, None);
    let archived = fixture.projects.archive(&fixture.admin, project.id).await.unwrap();
    assert_eq!(fixture.projects.archive(&fixture.admin, project.id).await.unwrap(), archived);
    assert_eq!(fixture.code(&secret).await, Some(Code::RevokedApiKey));
    let created = fixture.keys.create(&fixture.admin, new_key(project.id, &[])).await;
    assert_eq!(error_fields(created), (Code::Conflict, Some("project_id".into())));
    assert_eq!(
        error_fields(fixture.projects.archive(&fixture.admin, fixture.first.project.id).await).0,
        Code::Conflict
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_revocation_applies_at_once_under_concurrent_authentication() {
    let fixture = std::sync::Arc::new(Fixture::new().await);
    for _ in 0..40 {
        let (key, secret) = fixture.key(fixture.first.project.id, &[]).await;
        let revoked = std::sync::Arc::new(AtomicBool::new(false));
        let mut readers = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let (fixture, secret, revoked) = (fixture.clone(), secret.clone(), revoked.clone());
            readers.spawn(async move {
                loop {
                    // Read before the request begins: a revocation that was acknowledged by then must apply.
                    let known = revoked.load(SeqCst);
                    let admitted = fixture.keys.authenticate(secret.expose()).await.is_ok();
                    assert!(!(known && admitted), "a revoked key was admitted");
                    if known {
                        return;
                    }
                    tokio::task::yield_now().await;
                }
            });
        }
        fixture.keys.revoke(&fixture.admin, key.id).await.unwrap();
        revoked.store(true, SeqCst);
        while let Some(done) = readers.join_next().await {
            done.unwrap();
        }
    }
}

#[tokio::test]
async fn every_change_writes_an_audit_row_with_its_reason() {
    let fixture = Fixture::new().await;
    let (key, _) = fixture.key(fixture.first.project.id, &[]).await;
    fixture.rotate(&key, 0).await.unwrap();
    fixture.clock.pass(Duration::from_millis(5));
    fixture.keys.revoke(&fixture.admin, key.id).await.unwrap();
    let audit = Audit::new(fixture.store.clone());
    for project in [None, Some(fixture.first.project.id)] {
        let filter = AuditFilter { project, ..AuditFilter::default() };
        let page = audit.list(&fixture.admin, filter, PageRequest::default()).await.unwrap();
        assert_eq!(page.items.len(), 5);
        assert_eq!(page.items[0].action, "api_key.revoked");
        let rotated = page.items.iter().find(|event| event.action == "api_key.rotated").unwrap();
        assert!(rotated.detail.as_ref().unwrap().contains("leaked"));
        assert_eq!((rotated.actor, &rotated.target), (Some(fixture.first.key.id), &key.id.to_string()));
    }
}
