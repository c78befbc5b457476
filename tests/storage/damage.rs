//! A database file damaged anywhere: a clear error or a correct answer, never a wrong decision.

use std::path::Path;
use std::sync::Arc;

use outpost::error::Code;
use outpost::service::{Keys, Secret};
use outpost::storage::{Store, check};

use super::fixture::{Clock, Fixture, settings};
use crate::rng::TestRng;

/// A place in something of this length.
fn place(rng: &mut TestRng, length: usize) -> usize {
    rng.below(length as u64) as usize
}

fn damage(whole: &[u8], rng: &mut TestRng, kind: usize) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    match kind {
        0 => (0..64).for_each(|_| bytes[place(rng, whole.len())] ^= 1 << place(rng, 8)),
        1 => bytes.truncate(place(rng, whole.len())),
        _ => {
            let (one, other) = (place(rng, whole.len() / 4096) * 4096, place(rng, whole.len() / 4096) * 4096);
            bytes[other..other + 4096].copy_from_slice(&whole[one..one + 4096]);
        }
    }
    bytes
}

async fn decide(dir: &Path, clock: Arc<Clock>, live: &Secret, dead: &Secret) {
    let Ok(store) = Store::open(settings(dir), clock.clone()) else { return };
    let keys = Keys::new(store.clone(), clock);
    if let Err(error) = keys.authenticate(live.expose()).await {
        // A row may be gone with its page. It may not become someone else's.
        assert!(matches!(
            error.code(),
            Code::StorageUnavailable | Code::Internal | Code::InvalidApiKey | Code::RevokedApiKey
        ));
    }
    assert!(keys.authenticate(dead.expose()).await.is_err(), "damage brought a revoked key back");
    let _ = store.verify();
    store.shutdown();
}

#[tokio::test]
async fn a_damaged_file_never_leads_to_a_wrong_decision_on_a_key() {
    let fixture = Fixture::new().await;
    let home = fixture.first.project.id;
    for _ in 0..50 {
        fixture.key(home, &[]).await;
    }
    let (doomed, dead) = fixture.key(home, &[]).await;
    fixture.keys.revoke(&fixture.admin, doomed.id).await.unwrap();
    let Fixture { store, keys, projects, first, clock, dir, _dir, .. } = fixture;
    drop((keys, projects));
    store.shutdown();
    let file = dir.join("outpost.redb");
    let whole = std::fs::read(&file).unwrap();
    let mut rng = TestRng(7);
    for round in 0..60 {
        std::fs::write(&file, damage(&whole, &mut rng, round % 3)).unwrap();
        decide(&dir, clock.clone(), &first.secret, &dead).await;
        let _ = check(&dir);
    }
    std::fs::write(&file, whole).unwrap();
    assert!(check(&dir).unwrap().is_clean());
}
