//! Damaged records, disk errors, missing files, and databases of newer versions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use outpost::error::Code;
use outpost::storage::{LAYOUT, OpenError, Store, check};
use redb::backends::FileBackend;
use redb::{Database, ReadableDatabase as _, StorageBackend, TableDefinition};

use super::fixture::{Clock, Fixture, dir, new_key, settings};

fn table(name: &str) -> TableDefinition<'_, &'static [u8], &'static [u8]> {
    TableDefinition::new(name)
}

/// Edits the closed database directly.
fn tamper(dir: &std::path::Path, name: &str, key: &[u8], edit: impl FnOnce(&mut Vec<u8>)) {
    let db = Database::open(dir.join("outpost.redb")).unwrap();
    let mut value =
        db.begin_read().unwrap().open_table(table(name)).unwrap().get(key).unwrap().unwrap().value().to_vec();
    edit(&mut value);
    let tx = db.begin_write().unwrap();
    tx.open_table(table(name)).unwrap().insert(key, value.as_slice()).unwrap();
    tx.commit().unwrap();
}

#[tokio::test]
async fn a_damaged_key_record_is_refused_and_check_finds_it() {
    let Fixture { store, first, keys, projects, _dir: dir, clock, .. } = Fixture::new().await;
    drop((keys, projects));
    store.shutdown();
    let key = first.key.id.to_bytes();
    for bit in 0..8 {
        tamper(dir.path(), "keys", &key, |value| value[20] ^= 1 << bit);
        let store = Store::open(settings(dir.path()), clock.clone()).unwrap();
        let keys = outpost::service::Keys::new(store.clone(), clock.clone());
        let refused = keys.authenticate(first.secret.expose()).await.unwrap_err();
        assert_eq!(refused.code(), Code::StorageUnavailable);
        assert_eq!(store.verify().unwrap().problems.len(), 2, "the record and its index entry");
        store.shutdown();
        assert!(!check(dir.path()).unwrap().is_clean());
        tamper(dir.path(), "keys", &key, |value| value[20] ^= 1 << bit);
    }
    assert!(check(dir.path()).unwrap().is_clean());
}

#[tokio::test]
async fn a_newer_layout_and_a_missing_or_wrong_pepper_are_refused_with_a_remedy() {
    let Fixture { store, keys, projects, _dir: dir, clock, .. } = Fixture::new().await;
    drop((keys, projects));
    store.shutdown();
    let open = || Store::open(settings(dir.path()), clock.clone()).err().unwrap();
    tamper(dir.path(), "meta", b"layout_version", |value| *value.last_mut().unwrap() = 9);
    assert!(matches!(open(), OpenError::NewerLayout { found: 9, known: LAYOUT }));
    tamper(dir.path(), "meta", b"layout_version", |value| *value.last_mut().unwrap() = LAYOUT as u8);
    let pepper = dir.path().join("pepper");
    let saved = std::fs::read(&pepper).unwrap();
    std::fs::write(&pepper, [1; 32]).unwrap();
    assert!(matches!(open(), OpenError::WrongPepper { .. }));
    std::fs::remove_file(&pepper).unwrap();
    let missing = open();
    assert!(matches!(missing, OpenError::MissingPepper { .. }) && missing.to_string().contains("backup"));
    std::fs::write(&pepper, saved).unwrap();
    assert!(Store::open(settings(dir.path()), clock.clone()).is_ok());
    std::fs::write(dir.path().join("outpost.redb"), [7; 9000]).unwrap();
    assert!(matches!(open(), OpenError::Corrupt { .. }));
    std::fs::write(dir.path().join("outpost.redb"), []).unwrap();
    assert!(matches!(open(), OpenError::Corrupt { .. }));
}

#[tokio::test]
async fn a_database_of_an_unreleased_build_is_refused_with_a_remedy_and_not_changed() {
    let Fixture { store, keys, projects, _dir: dir, clock, .. } = Fixture::new().await;
    drop((keys, projects));
    store.shutdown();
    let file = dir.path().join("outpost.redb");
    let db = Database::open(&file).unwrap();
    let tx = db.begin_write().unwrap();
    {
        // As these builds stored it.
        let mut meta = tx.open_table(table("meta")).unwrap();
        meta.remove(b"layout_version".as_slice()).unwrap();
        meta.insert(b"layout".as_slice(), [1, 0, 0, 0, 7].as_slice()).unwrap();
    }
    tx.commit().unwrap();
    drop(db);
    let refused = [
        Store::open(settings(dir.path()), clock.clone()).err().unwrap().to_string(),
        check(dir.path()).unwrap_err().to_string(),
    ];
    for text in refused {
        assert!(text.contains("an unreleased build") && text.contains("move the data folder"), "{text}");
        assert!(text.contains(&*dir.path().to_string_lossy()), "{text}");
    }
    let db = Database::open(&file).unwrap();
    let layout = db.begin_read().unwrap().open_table(table("meta")).unwrap().get(b"layout".as_slice()).unwrap();
    assert_eq!(layout.unwrap().value(), [1, 0, 0, 0, 7]);
}

/// A disk that fails while `broken` is set.
#[derive(Debug)]
struct Disk {
    file: FileBackend,
    broken: Arc<AtomicBool>,
}

impl Disk {
    fn check(&self) -> std::io::Result<()> {
        if self.broken.load(SeqCst) { Err(std::io::Error::other("disk full")) } else { Ok(()) }
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> std::io::Result<u64> {
        self.check()?;
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.check()?;
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> std::io::Result<()> {
        self.check()?;
        self.file.set_len(len)
    }

    fn sync_data(&self) -> std::io::Result<()> {
        self.check()?;
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        self.check()?;
        self.file.write(offset, data)
    }

    fn close(&self) -> std::io::Result<()> {
        self.file.close()
    }
}

#[tokio::test]
async fn after_a_disk_error_the_store_refuses_writes_and_then_recovers() {
    let (dir, clock, broken) = (dir(), Clock::new(), Arc::new(AtomicBool::new(false)));
    let disk = broken.clone();
    let opener = Box::new(move |builder: &redb::Builder, path: &std::path::Path| {
        let file = std::fs::File::options().read(true).write(true).open(path)?;
        builder.create_with_backend(Disk { file: FileBackend::new(file)?, broken: disk.clone() })
    });
    let store = Store::open_with(settings(dir.path()), clock.clone(), opener).unwrap();
    let fixture = Fixture::with_store(dir, clock, store).await;
    let (_, before) = fixture.key(fixture.first.project.id, &[]).await;
    for _ in 0..3 {
        broken.store(true, SeqCst);
        for _ in 0..3 {
            let refused =
                fixture.keys.create(&fixture.admin, new_key(fixture.first.project.id, &[])).await.unwrap_err();
            assert_eq!(refused.code(), Code::StorageUnavailable);
        }
        assert_eq!(
            fixture.code(&before).await,
            Some(Code::StorageUnavailable),
            "the cache must be empty after a failure"
        );
        broken.store(false, SeqCst);
        let mut tries = 0;
        while fixture.keys.create(&fixture.admin, new_key(fixture.first.project.id, &[])).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
            tries += 1;
            assert!(tries < 250, "not writable again within 5 s");
        }
        assert_eq!(fixture.code(&before).await, None);
    }
    assert!(fixture.store.verify().unwrap().is_clean());
}

#[tokio::test]
async fn the_first_start_happens_once_and_the_owner_can_create_another_admin_key() {
    let fixture = Fixture::new().await;
    let clock_rng: Arc<dyn outpost::clock_rng::ClockRng> = fixture.clock.clone();
    assert!(outpost::service::first_start(&fixture.store, &clock_rng).await.unwrap().is_none());
    let found = outpost::service::new_admin_key(&fixture.store, &clock_rng).await.unwrap();
    assert_eq!(found.project.id, fixture.first.project.id);
    assert!(fixture.keys.authenticate(found.secret.expose()).await.unwrap().is_admin());
}
