//! Content is refused when only the reserve of the disk is left.

use std::time::Duration;

use outpost::error::Code;
use outpost::service::stored_images::{Format, StoredImages};
use outpost::storage::{BackupError, Store, StoreSettings};

use super::fixture::{Clock, Fixture, dir, settings};

const HOUR: Duration = Duration::from_secs(3600);

/// Keeps so many bytes of the disk free.
fn reserving(settings: StoreSettings, bytes: u64) -> StoreSettings {
    StoreSettings { min_free_disk: Some(bytes), ..settings }
}

fn images(fixture: &Fixture) -> StoredImages {
    StoredImages::new(fixture.store.clone(), fixture.clock.clone(), HOUR)
}

#[tokio::test]
async fn below_the_reserve_content_is_refused_and_the_rest_goes_on() {
    let (dir, clock) = (dir(), Clock::new());
    let store = Store::open(settings(dir.path()), clock.clone()).unwrap();
    let fixture = Fixture::with_store(dir, clock, store).await;
    let image = images(&fixture).store(&fixture.admin, Format::Png, vec![7; 10_000]).await.unwrap();
    let Fixture { dir, clock, store, keys, projects, first, _dir, .. } = fixture;
    drop((keys, projects));
    store.shutdown();

    // No disk has so much space.
    let store = Store::open(reserving(settings(&dir), u64::MAX), clock.clone()).unwrap();
    let keys = std::sync::Arc::new(outpost::service::Keys::new(store.clone(), clock.clone()));
    let projects = outpost::service::Projects::new(store.clone(), clock.clone());
    let admin = keys.authenticate(first.secret.expose()).await.unwrap();
    let fixture = Fixture { dir, clock, store, keys, projects, first, admin, _dir };
    let images = images(&fixture);
    let refused = [
        images.admit(&fixture.admin).await.unwrap_err(),
        images.store(&fixture.admin, Format::Png, vec![7; 10_000]).await.unwrap_err(),
    ];
    for error in refused {
        assert_eq!(error.code(), Code::InsufficientStorage);
        assert!(error.message().contains("nearly full") && error.message().contains("kept back"), "{error}");
    }
    let mut stored = images.open(image.id, &image.expires.to_string(), &image.signature).await.unwrap();
    assert_eq!(stored.next().await.unwrap().map(|chunk| chunk.len()), Some(10_000), "what is stored can be read");
    let project = fixture.project("new").await;
    let (key, secret) = fixture.key(project.id, &["inference"]).await;
    assert_eq!(fixture.code(&secret).await, None);
    fixture.rotate(&key, 0).await.unwrap();
    fixture.clock.pass(2 * HOUR);
    assert_eq!(images.sweep().await.unwrap(), 1, "content can be removed");

    let target = fixture.dir.join("backup.redb");
    let error = fixture.store.backup(&target).unwrap_err();
    assert!(matches!(error, BackupError::NoSpace { .. }), "{error}");
    assert!(!target.exists() && error.to_string().contains("choose another disk"), "{error}");
}

#[tokio::test]
async fn a_write_that_is_refused_for_space_does_not_affect_those_that_share_its_transaction() {
    let (dir, clock) = (dir(), Clock::new());
    let store = Store::open(reserving(settings(dir.path()), u64::MAX), clock.clone()).unwrap();
    let fixture = Fixture::with_store(dir, clock, store).await;
    let images = images(&fixture);
    let store_image = |number: u8| images.store(&fixture.admin, Format::Png, vec![number; 1000]);
    let (refused, project, refused_too) = tokio::join!(store_image(1), fixture.project("beside"), store_image(2));
    assert!(
        [refused, refused_too].into_iter().all(|one| one.is_err_and(|error| error.code() == Code::InsufficientStorage))
    );
    assert_eq!(fixture.projects.get(&fixture.admin, project.id).await.unwrap().record.name, "beside");
    let report = fixture.store.verify().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    assert_eq!(report.records["stored_images"], 0);
}
