//! Stored responses: quota usage, chains, expiry, and the problems that a check finds.

use std::time::Duration;

use outpost::clock_rng::ClockRng;
use outpost::error::Code;
use outpost::ids::{ProjectId, ResponseId};
use outpost::service::Access;
use outpost::service::responses::{Chain, ChainLink, MAX_CHAIN_BYTES, RETENTION, Responses, StoredResponse};
use outpost::storage::quota_usage;
use outpost::storage::responses;

use super::fixture::Fixture;

const DAY: Duration = Duration::from_secs(86_400);

async fn create_project(fixture: &Fixture) -> (ProjectId, Access) {
    let project = fixture.project("responses").await.id;
    (project, fixture.access(project, &["inference"]).await)
}

/// Stores a response that continues `chain`, with an input of `bytes` bytes.
async fn create(fixture: &Fixture, access: &Access, chain: &Chain, bytes: usize) -> ResponseId {
    let service = Responses::new(fixture.store.clone(), fixture.clock.clone());
    let now = fixture.clock.now();
    // Generated ids run ahead of this clock if another test has a later one.
    let (time, random) =
        (u128::try_from(now.as_millis()).unwrap() << 80, ResponseId::generate(&*fixture.clock).to_u128());
    let id = ResponseId::from_bytes((time | random & u128::from(u64::MAX)).to_be_bytes());
    let stored = StoredResponse { id, input: vec!["x".repeat(bytes)], response: "{}".to_owned() };
    service.create(access, stored, ChainLink::from(chain), now).await.unwrap();
    id
}

#[tokio::test]
async fn a_chain_is_read_in_order_and_has_a_limit() {
    let fixture = Fixture::new().await;
    let service = Responses::new(fixture.store.clone(), fixture.clock.clone());
    let (project, access) = create_project(&fixture).await;
    let (mut chain, mut ids) = (Chain::default(), Vec::new());
    for _ in 0..3 {
        let last = create(&fixture, &access, &chain, 98).await;
        ids.push(last);
        chain = service.chain(&access, last).await.unwrap();
        assert_eq!(chain.responses.iter().map(|response| response.id).collect::<Vec<_>>(), ids);
    }
    let held = fixture.store.read(move |tx| quota_usage::of(tx, project)).await.unwrap();
    assert_eq!(held.bytes, 300);
    let large = create(&fixture, &access, &chain, usize::try_from(MAX_CHAIN_BYTES).unwrap()).await;
    let refused = service.chain(&access, large).await.unwrap_err();
    assert_eq!((refused.code(), refused.param_name()), (Code::InvalidParameter, Some("previous_response_id")));
    service.delete(&access, ids[1]).await.unwrap();
    assert_eq!(service.chain(&access, ids[2]).await.unwrap_err().code(), Code::PreviousResponseNotFound);
    assert_eq!(service.chain(&access, ids[0]).await.unwrap().responses.len(), 1);
}

#[tokio::test]
async fn a_response_expires_after_its_retention() {
    let fixture = Fixture::new().await;
    let service = Responses::new(fixture.store.clone(), fixture.clock.clone());
    let (project, access) = create_project(&fixture).await;
    let early = create(&fixture, &access, &Chain::default(), 10).await;
    fixture.clock.pass(DAY);
    let late = create(&fixture, &access, &Chain::default(), 10).await;
    assert_eq!(service.sweep().await.unwrap(), 0);
    fixture.clock.pass(RETENTION - DAY / 2);
    assert_eq!(service.sweep().await.unwrap(), 1);
    assert_eq!(service.get(&access, early, u64::MAX).await.unwrap_err().code(), Code::NotFound);
    service.get(&access, late, u64::MAX).await.unwrap();
    fixture.clock.pass(DAY);
    assert_eq!(service.sweep().await.unwrap(), 1);
    let held = fixture.store.read(move |tx| quota_usage::of(tx, project)).await.unwrap();
    assert_eq!(held.bytes, 0);
    assert!(fixture.store.verify().unwrap().is_clean());
}

#[tokio::test]
async fn a_check_finds_a_response_with_another_size() {
    let fixture = Fixture::new().await;
    let (_, access) = create_project(&fixture).await;
    let id = create(&fixture, &access, &Chain::default(), 10).await;
    assert!(fixture.store.verify().unwrap().is_clean());
    let damaged = fixture.store.write(move |tx| {
        let content = responses::ResponseContentRecord { input: Vec::new(), response: "{}".to_owned() };
        tx.put(&id.to_bytes(), &content)
    });
    damaged.await.unwrap();
    let problems = fixture.store.verify().unwrap().problems;
    assert_eq!(problems.len(), 1, "{problems:?}");
}
