//! Backups taken while the server writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use outpost::error::Code;
use outpost::service::{Keys, NewProject, Projects};
use outpost::storage::{BackupError, RestoreError, Store, check, keys, projects, restore};

use super::fixture::{Clock, Fixture, dir, new_key, settings};

/// Creates projects with a key each until `stop` is set.
async fn write_pairs(fixture: Arc<Fixture>, stop: Arc<AtomicBool>) {
    while !stop.load(SeqCst) {
        let project = fixture.project("pair").await;
        fixture.keys.create(&fixture.admin, new_key(project.id, &[])).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_during_writes_is_consistent_and_accepts_the_same_keys() {
    let fixture = Arc::new(Fixture::new().await);
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        writers.spawn(write_pairs(fixture.clone(), stop.clone()));
    }
    let (revoked, dead) = fixture.key(fixture.first.project.id, &[]).await;
    fixture.keys.revoke(&fixture.admin, revoked.id).await.unwrap();
    let target = fixture.dir.join("copy.outpost");
    let report = {
        let (store, target) = (fixture.store.clone(), target.clone());
        tokio::task::spawn_blocking(move || store.backup(&target)).await.unwrap().unwrap()
    };
    assert!(matches!(fixture.store.backup(&target), Err(BackupError::TargetExists { .. })));
    stop.store(true, SeqCst);
    while let Some(done) = writers.join_next().await {
        done.unwrap();
    }

    let fresh = dir();
    let restored = restore(&target, fresh.path()).unwrap();
    assert_eq!(restored.records["keys"], report.records["keys"]);
    assert!(matches!(restore(&target, fresh.path()), Err(RestoreError::NotEmpty { .. })));
    let found = check(fresh.path()).unwrap();
    assert!(found.is_clean(), "{:?}", found.problems);
    let clock = Clock::new();
    let store = Store::open(settings(fresh.path()), clock.clone()).unwrap();
    // Each of the four writer tasks has at most one project without its key.
    let (projects, keys) = store
        .read(|tx| {
            let mut count = 0;
            keys::any(tx, |_, _| {
                count += 1;
                Ok(false)
            })?;
            Ok((projects::newest(tx, None, usize::MAX)?.len(), count))
        })
        .await
        .unwrap();
    assert!((0..=4).contains(&(projects as i64 + 1 - keys)), "{projects} projects, {keys} keys");
    let service = Keys::new(store.clone(), clock.clone());
    let admin = service.authenticate(fixture.first.secret.expose()).await.unwrap();
    assert_eq!(service.authenticate(dead.expose()).await.unwrap_err().code(), Code::RevokedApiKey);
    let new = NewProject { name: "after".into(), ..NewProject::default() };
    Projects::new(store, clock).create(&admin, new).await.unwrap();
}

#[tokio::test]
async fn a_damaged_backup_is_refused_and_nothing_is_left_behind() {
    let fixture = Fixture::new().await;
    let target = fixture.dir.join("copy.outpost");
    fixture.store.backup(&target).unwrap();
    let whole = std::fs::read(&target).unwrap();
    for (at, bytes) in [(0, &whole[..0]), (1, &whole[..whole.len() / 2]), (2, &[9; 5000][..])] {
        let bad = fixture.dir.join(format!("bad{at}"));
        std::fs::write(&bad, bytes).unwrap();
        let fresh = dir();
        assert!(matches!(restore(&bad, fresh.path()), Err(RestoreError::BadBackup { .. })));
        let left: Vec<_> = std::fs::read_dir(fresh.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
        assert_eq!(left, ["lock"]);
    }
}
