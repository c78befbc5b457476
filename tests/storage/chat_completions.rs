//! Stored chat completions: quota usage, expiry, and the problems that a check finds.

use std::time::Duration;

use outpost::clock_rng::ClockRng;
use outpost::error::Code;
use outpost::ids::{CompletionId, ProjectId};
use outpost::service::Access;
use outpost::service::chat_completions::{ChatCompletions, StoredChatCompletion};
use outpost::service::responses::RETENTION;
use outpost::storage::chat_completions::ChatCompletionContentRecord;
use outpost::storage::quota_usage;

use super::fixture::Fixture;

const DAY: Duration = Duration::from_secs(86_400);

fn service(fixture: &Fixture) -> ChatCompletions {
    ChatCompletions::new(fixture.store.clone(), fixture.clock.clone())
}

async fn create_project(fixture: &Fixture) -> (ProjectId, Access) {
    let project = fixture.project("completions").await.id;
    (project, fixture.access(project, &["inference"]).await)
}

/// Stores a completion with 100 bytes.
async fn create(fixture: &Fixture, access: &Access) -> CompletionId {
    let now = fixture.clock.now();
    // Generated ids run ahead of this clock if another test has a later one.
    let random = CompletionId::generate(&*fixture.clock).to_u128() & u128::from(u64::MAX);
    let id = CompletionId::from_bytes((CompletionId::first_at(now).to_u128() | random).to_be_bytes());
    let stored = StoredChatCompletion {
        id,
        model: "m".to_owned(),
        metadata: Some("{}".to_owned()),
        messages: vec!["x".repeat(96)],
        completion: "{}".to_owned(),
        created_at: now,
    };
    service(fixture).create(access, stored).await.unwrap();
    id
}

async fn held(fixture: &Fixture, project: ProjectId) -> (u64, u64) {
    let held = fixture.store.read(move |tx| quota_usage::of(tx, project)).await.unwrap();
    (held.responses, held.bytes)
}

#[tokio::test]
async fn a_completion_expires_after_its_retention() {
    let fixture = Fixture::new().await;
    let service = service(&fixture);
    let (project, access) = create_project(&fixture).await;
    let early = create(&fixture, &access).await;
    fixture.clock.pass(DAY);
    let late = create(&fixture, &access).await;
    assert_eq!(held(&fixture, project).await, (2, 200));
    assert_eq!(service.sweep().await.unwrap(), 0);
    fixture.clock.pass(RETENTION - DAY / 2);
    assert_eq!(service.sweep().await.unwrap(), 1);
    assert_eq!(service.get(&access, early, u64::MAX).await.unwrap_err().code(), Code::NotFound);
    service.get(&access, late, u64::MAX).await.unwrap();
    fixture.clock.pass(DAY);
    assert_eq!(service.sweep().await.unwrap(), 1);
    assert_eq!(held(&fixture, project).await, (0, 0));
    assert!(fixture.store.verify().unwrap().is_clean());
}

#[tokio::test]
async fn a_completion_that_does_not_fit_is_not_read() {
    let fixture = Fixture::new().await;
    let (_, access) = create_project(&fixture).await;
    let id = create(&fixture, &access).await;
    assert!(service(&fixture).get(&access, id, 99).await.unwrap().read().is_none());
    assert!(service(&fixture).get(&access, id, 100).await.unwrap().read().is_some());
}

#[tokio::test]
async fn a_check_finds_a_completion_with_another_size() {
    let fixture = Fixture::new().await;
    let (_, access) = create_project(&fixture).await;
    let id = create(&fixture, &access).await;
    assert!(fixture.store.verify().unwrap().is_clean());
    let damaged = fixture.store.write(move |tx| {
        let content = ChatCompletionContentRecord { messages: Vec::new(), completion: "{}".to_owned() };
        tx.put(&id.to_bytes(), &content)
    });
    damaged.await.unwrap();
    let problems = fixture.store.verify().unwrap().problems;
    assert_eq!(problems.len(), 1, "{problems:?}");
}
