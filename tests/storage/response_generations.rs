//! Nodes over one database follow each other's responses.

use std::sync::Arc;

use outpost::app::SystemClockRng;
use outpost::clock_rng::ClockRng;
use outpost::ids::ResponseId;
use outpost::service::Access;
use outpost::service::responses::{
    BackgroundRequest, Chain, ChainLink, GenerationParts, GenerationProgress, Responses, StoredResponse,
};
use outpost::storage::Store;
use outpost_testing::needs_postgres;
use tempfile::TempDir;

use crate::database::Database;
use crate::fixture::{Clock, Fixture};

/// Two nodes over one database.
struct Nodes {
    fixture: Fixture,
    access: Access,
    one: Responses,
    two: Responses,
    second: Store,
    _dir: TempDir,
}

async fn nodes() -> Nodes {
    let database = Database::new();
    let [(first, first_dir), (second, second_dir)] =
        ["one", "two"].map(|node| database.open_store(node, Arc::new(SystemClockRng::new())));
    while first.cluster().unwrap().alive() < 2 {
        tokio::task::yield_now().await;
    }
    let fixture = Fixture::with_store(first_dir, Clock::new(), first).await;
    let project = fixture.project("responses").await.id;
    let access = fixture.access(project, &["inference"]).await;
    let service = |store: &Store| Responses::new(store.clone(), fixture.clock.clone());
    let (one, two) = (service(&fixture.store), service(&second));
    Nodes { access, one, two, second, _dir: second_dir, fixture }
}

/// A response that is to be generated.
async fn queued(service: &Responses, access: &Access, clock: &Clock) -> ResponseId {
    let id = ResponseId::generate(clock);
    let stored = StoredResponse { id, input: vec!["{}".to_owned()], response: "{}".to_owned() };
    let request = BackgroundRequest { json: "{}".to_owned(), keeps_steps: true };
    let link = ChainLink::from(&Chain::default());
    service.create_in_background(access, stored, link, clock.now(), request).await.unwrap();
    id
}

/// The number, the parts, and whether there are more.
fn running(progress: GenerationProgress) -> (u64, Vec<String>, bool) {
    match progress {
        GenerationProgress::Running(GenerationParts { number, parts, has_more }) => (number, parts, has_more),
        other => panic!("{other:?}"),
    }
}

fn texts(parts: &[&str]) -> Vec<String> {
    parts.iter().copied().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn another_node_reads_the_parts_of_a_generation() {
    needs_postgres!();
    let Nodes { fixture, access, one, two, second, .. } = nodes().await;
    let id = queued(&one, &access, &fixture.clock).await;
    assert!(matches!(two.progress(id, None, 0).await.unwrap(), GenerationProgress::Waiting));
    assert!(!two.get_with_state(&access, id, u64::MAX).await.unwrap().read().unwrap().1.unwrap().is_running);
    assert!(!one.begin_generation(id, 7).await.unwrap(), "it is not claimed yet");
    assert!(one.claim(id).await.unwrap());
    assert!(one.begin_generation(id, 7).await.unwrap());
    for node in [&one, &two] {
        assert!(node.get_with_state(&access, id, u64::MAX).await.unwrap().read().unwrap().1.unwrap().is_running);
    }
    for (part, json) in ["a", "b", "c"].into_iter().enumerate() {
        for attempt in ["", "again"] {
            // A part that an earlier attempt has stored is not stored again.
            let json = format!("{json}{attempt}");
            assert!(one.append_part(id, 7, part as u32, json).await.unwrap());
        }
    }
    assert_eq!(running(two.progress(id, None, 0).await.unwrap()), (7, texts(&["a", "b", "c"]), false));
    assert_eq!(running(two.progress(id, Some(7), 2).await.unwrap()), (7, texts(&["c"]), false));
    assert!(matches!(one.progress(id, None, 0).await.unwrap(), GenerationProgress::Waiting), "it has them itself");
    assert!(second.verify().unwrap().is_clean());

    // It is generated again.
    one.release(id).await;
    assert!(two.claim(id).await.unwrap());
    assert!(two.begin_generation(id, 8).await.unwrap());
    assert!(!one.append_part(id, 7, 3, "late".to_owned()).await.unwrap());
    assert!(two.append_part(id, 8, 0, "x".to_owned()).await.unwrap());
    assert_eq!(
        running(one.progress(id, Some(7), 3).await.unwrap()),
        (8, vec![], false),
        "other parts are not mixed in"
    );
    assert_eq!(running(one.progress(id, None, 0).await.unwrap()), (8, texts(&["x"]), false));
    let report = second.verify().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    assert_eq!(report.records["response_steps"], 1, "the parts of the first generation are removed");

    // More than are read at once.
    for part in 1..100 {
        assert!(two.append_part(id, 8, part, part.to_string()).await.unwrap());
    }
    let (_, first, has_more) = running(one.progress(id, None, 0).await.unwrap());
    let next = first.len() as u32;
    assert!(has_more && next < 100);
    let (_, rest, has_more) = running(one.progress(id, Some(8), next).await.unwrap());
    assert_eq!((first.len() + rest.len(), has_more), (100, false));
    assert_eq!(rest.last().unwrap(), "99");

    one.cancel(&access, id, |_| Ok("{}".to_owned())).await.unwrap();
    let ended = two.progress(id, Some(8), 100).await.unwrap();
    assert!(matches!(&ended, GenerationProgress::Ended { steps: Some(steps) } if steps.is_empty()), "{ended:?}");
    assert!(!two.append_part(id, 8, 100, "late".to_owned()).await.unwrap());
    assert!(!two.begin_generation(id, 9).await.unwrap(), "it has ended");
    let report = second.verify().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    assert_eq!((report.records["response_steps"], report.records["response_generations"]), (1, 0));
    one.delete(&access, id).await.unwrap();
    let deleted = two.progress(id, Some(8), 100).await.unwrap();
    assert!(matches!(deleted, GenerationProgress::Ended { steps: None }), "{deleted:?}");
    second.shutdown();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_generation_of_a_node_that_has_stopped_is_interrupted() {
    needs_postgres!();
    let Nodes { fixture, access, one, two, second, .. } = nodes().await;
    let id = queued(&one, &access, &fixture.clock).await;
    assert!(one.claim(id).await.unwrap());
    one.begin_generation(id, 7).await.unwrap();
    one.append_part(id, 7, 0, "a".to_owned()).await.unwrap();
    fixture.store.shutdown();
    let mut progress = two.progress(id, Some(7), 1).await.unwrap();
    while matches!(progress, GenerationProgress::Running(_)) {
        tokio::task::yield_now().await;
        progress = two.progress(id, Some(7), 1).await.unwrap();
    }
    assert!(matches!(progress, GenerationProgress::Interrupted), "{progress:?}");
    assert!(
        !two.get_with_state(&access, id, u64::MAX).await.unwrap().read().unwrap().1.unwrap().is_running,
        "it waits again"
    );
    two.delete(&access, id).await.unwrap();
    let report = second.verify().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    assert_eq!((report.records["response_steps"], report.records["response_generations"]), (0, 0));
    second.shutdown();
}

#[tokio::test]
async fn a_process_that_has_the_store_for_itself_stores_no_generations() {
    let fixture = Fixture::in_folder().await;
    let service = Responses::new(fixture.store.clone(), fixture.clock.clone());
    let id = queued(&service, &fixture.admin, &fixture.clock).await;
    assert!(!service.is_shared() && !service.begin_generation(id, 7).await.unwrap());
    assert!(!service.append_part(id, 7, 0, "a".to_owned()).await.unwrap());
    assert!(matches!(service.progress(id, None, 0).await.unwrap(), GenerationProgress::Waiting));
    let report = fixture.store.verify().unwrap();
    assert_eq!((report.records["response_steps"], report.records["response_generations"]), (0, 0));
}
