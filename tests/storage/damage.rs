//! A database file with damage at any position: a clear error or a correct result, never a wrong decision.

use std::path::Path;
use std::sync::Arc;

use outpost::error::Code;
use outpost::service::{Keys, Secret};
use outpost::storage::{Store, check};

use super::fixture::{Clock, Fixture, settings};
use crate::rng::TestRng;

/// A random index below `length`.
fn random_index(rng: &mut TestRng, length: usize) -> usize {
    rng.below(length as u64) as usize
}

fn damage(whole: &[u8], rng: &mut TestRng, kind: usize) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    match kind {
        0 => (0..64).for_each(|_| bytes[random_index(rng, whole.len())] ^= 1 << random_index(rng, 8)),
        1 => bytes.truncate(random_index(rng, whole.len())),
        _ => {
            let (source, target) =
                (random_index(rng, whole.len() / 4096) * 4096, random_index(rng, whole.len() / 4096) * 4096);
            bytes[target..target + 4096].copy_from_slice(&whole[source..source + 4096]);
        }
    }
    bytes
}

async fn check_decisions(dir: &Path, clock: Arc<Clock>, active: &Secret, revoked: &Secret) {
    let Ok(store) = Store::open(settings(dir), clock.clone()) else { return };
    let keys = Keys::new(store.clone(), clock);
    if let Err(error) = keys.authenticate(active.expose()).await {
        // A row may be lost with its page. It must not become that of another key.
        assert!(matches!(
            error.code(),
            Code::StorageUnavailable | Code::Internal | Code::InvalidApiKey | Code::RevokedApiKey
        ));
    }
    assert!(keys.authenticate(revoked.expose()).await.is_err(), "damage made a revoked key valid");
    let _ = store.verify();
    store.shutdown();
}

#[tokio::test]
async fn a_damaged_file_never_causes_a_wrong_decision_about_a_key() {
    let fixture = Fixture::new().await;
    let home = fixture.first.project.id;
    for _ in 0..50 {
        fixture.key(home, &[]).await;
    }
    let (doomed, revoked) = fixture.key(home, &[]).await;
    fixture.keys.revoke(&fixture.admin, doomed.id).await.unwrap();
    let Fixture { store, keys, projects, first, clock, dir, _dir, .. } = fixture;
    drop((keys, projects));
    store.shutdown();
    let file = dir.join("outpost.redb");
    let whole = std::fs::read(&file).unwrap();
    let mut rng = TestRng(7);
    for round in 0..60 {
        std::fs::write(&file, damage(&whole, &mut rng, round % 3)).unwrap();
        check_decisions(&dir, clock.clone(), &first.secret, &revoked).await;
        let _ = check(&dir);
    }
    std::fs::write(&file, whole).unwrap();
    assert!(check(&dir).unwrap().is_clean());
}
