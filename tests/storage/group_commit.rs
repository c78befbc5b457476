//! Group commit: writes of a group share a transaction, but do not affect each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use outpost::clock_rng::{ClockRng, Timestamp};
use outpost::error::{Code, Error, Result};
use outpost::ids::ProjectId;
use outpost::storage::projects::{self, ProjectRecord};
use outpost::storage::{OpenError, Store, WriteTx};
use outpost_testing::needs_postgres;

use super::fixture::{Clock, dir, settings};
use crate::database::Database;

fn record(name: &str) -> ProjectRecord {
    let now = Timestamp::from_millis(1);
    ProjectRecord {
        name: name.into(),
        environment: None,
        metadata: None,
        created_at: now,
        updated_at: now,
        archived_at: None,
    }
}

fn id(number: u128) -> ProjectId {
    ProjectId::from_bytes(number.to_be_bytes())
}

fn put_and_fail(tx: &WriteTx, number: u128) -> Result<()> {
    projects::put(tx, id(number), &record("ghost"))?;
    Err(Error::new(Code::Conflict, "changed my mind"))
}

async fn exists(store: &Store, number: u128) -> bool {
    store.read(move |tx| projects::find(tx, id(number))).await.unwrap().is_some()
}

/// Blocks the writer, so that writes that are submitted meanwhile become one group.
async fn hold(store: &Store) -> std::sync::mpsc::Sender<()> {
    let (release, wait) = std::sync::mpsc::channel::<()>();
    let (begun, started) = tokio::sync::oneshot::channel();
    let mut begun = Some(begun);
    let store = store.clone();
    let mut blocker = tokio::task::JoinSet::new();
    blocker.spawn(async move {
        store
            .write(move |_| {
                begun.take().map(|begun| begun.send(()));
                let _ = wait.recv();
                Ok(())
            })
            .await
    });
    started.await.unwrap();
    blocker.detach_all();
    release
}

#[tokio::test]
async fn a_failing_closure_leaves_no_trace_and_the_others_commit() {
    let dir = dir();
    let store = Store::open(settings(dir.path()), Clock::new()).unwrap();
    let release = hold(&store).await;
    let runs = Arc::new(AtomicU64::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..30_u128 {
        let (store, runs) = (store.clone(), runs.clone());
        tasks.spawn(async move {
            let written = store
                .write(move |tx| {
                    runs.fetch_add(1, SeqCst);
                    match number % 10 {
                        3 => put_and_fail(tx, number),
                        7 => {
                            projects::put(tx, id(number), &record("ghost"))?;
                            panic!("on purpose")
                        }
                        _ => projects::put(tx, id(number), &record("kept")),
                    }
                })
                .await;
            (number, written.map_err(|error| error.code()))
        });
        tokio::task::yield_now().await;
    }
    drop(release);
    while let Some(done) = tasks.join_next().await {
        let (number, written) = done.unwrap();
        let expected = match number % 10 {
            3 => Err(Code::Conflict),
            7 => Err(Code::Internal),
            _ => Ok(()),
        };
        assert_eq!(written, expected, "{number}");
        assert_eq!(exists(&store, number).await, expected.is_ok(), "{number}");
    }
    assert!(runs.load(SeqCst) > 30, "the other closures were not run again");
    assert_eq!(store.stats().writes, 24);
    assert_eq!(store.stats().commits, 1, "24 waiting writes share one commit");
}

#[tokio::test]
async fn a_full_queue_refuses_at_once_and_a_dropped_future_still_commits() {
    let dir = dir();
    let store =
        Store::open(outpost::storage::StoreSettings { queue: 2, ..settings(dir.path()) }, Clock::new()).unwrap();
    let release = hold(&store).await;
    for number in [1, 2] {
        let write = store.write(move |tx| projects::put(tx, id(number), &record("left")));
        assert!(futures_util::FutureExt::now_or_never(write).is_none());
    }
    let refused = store.write(|tx| projects::put(tx, id(3), &record("late"))).await.unwrap_err();
    assert_eq!(refused.code(), Code::Overloaded);
    assert!(refused.wait().is_some());
    drop(release);
    while store.write(|tx| projects::put(tx, id(4), &record("last"))).await.is_err() {
        tokio::task::yield_now().await;
    }
    assert!(exists(&store, 1).await && exists(&store, 2).await && !exists(&store, 3).await);
}

#[tokio::test]
async fn a_second_open_gets_a_lock_error_and_shutdown_frees_the_folder() {
    let dir = dir();
    let store = Store::open(settings(dir.path()), Clock::new()).unwrap();
    let clone = store.clone();
    let second = Store::open(settings(dir.path()), Clock::new()).err().unwrap();
    assert!(matches!(second, OpenError::Locked { .. }) && second.to_string().contains("Another outpost process"));
    store.write(|tx| projects::put(tx, id(1), &record("kept"))).await.unwrap();
    store.shutdown();
    assert_eq!(clone.write(|_| Ok(())).await.unwrap_err().code(), Code::ShuttingDown);
    assert_eq!(clone.read(|_| Ok(())).await.unwrap_err().code(), Code::ShuttingDown);
    let again = Store::open(settings(dir.path()), Clock::new()).unwrap();
    assert!(exists(&again, 1).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn over_postgresql_a_shutdown_frees_the_folder_although_reads_have_not_ended() {
    needs_postgres!();
    let database = Database::new();
    let dir = dir();
    let open = || Store::open_postgres(settings(dir.path()), &database.location("a"), Clock::new());
    let store = open().unwrap();
    let (reading, is_reading) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let clone = store.clone();
    let mut reads = tokio::task::JoinSet::new();
    reads.spawn(async move {
        clone
            .read(move |_| {
                let _receiver = (reading.send(()), ended.recv());
                Ok(())
            })
            .await
    });
    is_reading.recv().unwrap();
    assert!(matches!(open().err().unwrap(), OpenError::Locked { .. }));
    store.shutdown();
    drop(open().unwrap());
    drop(end);
    reads.join_next().await.unwrap().unwrap().unwrap();
}

#[cfg(unix)]
#[test]
fn only_the_owner_can_read_the_files() {
    use std::os::unix::fs::PermissionsExt as _;
    let parent = dir();
    let dir = parent.path().join("data");
    let clock: Arc<dyn ClockRng> = Clock::new();
    drop(Store::open(settings(&dir), clock).unwrap());
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&dir), 0o700);
    for file in std::fs::read_dir(&dir).unwrap() {
        let path = file.unwrap().path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
}
