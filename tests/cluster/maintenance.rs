//! One of the processes that share a store removes what has expired.

use std::sync::Arc;
use std::time::Duration;

use outpost::app::SystemClockRng;
use outpost::clock_rng::{ClockRng, Timestamp};
use outpost::service::maintenance::Maintenance;
use outpost::storage::WriteTx;
use outpost::storage::idempotency_keys::{self, IdempotencyRecord, RETENTION};
use outpost_testing::needs_postgres;

use crate::database::Database;
use crate::wait::until;

const KEYS: &str = "SELECT count(*) FROM outpost_idempotency_keys";
const INDEX: &str = "SELECT count(*) FROM outpost_idempotency_keys_by_age";

#[test]
fn one_process_removes_expired_idempotency_keys_and_another_one_when_that_has_stopped() {
    needs_postgres!();
    let database = Database::new();
    let ([a, b], _folders) = database.open_two_stores();
    let clock: Arc<dyn ClockRng> = Arc::new(SystemClockRng::new());
    let now = clock.now();
    let old = Timestamp::from_millis(now.as_millis() - i64::try_from(RETENTION.as_millis()).unwrap() - 1);
    let put = move |tx: &WriteTx| {
        (0..300_u16).chain([u16::MAX]).try_for_each(|number| {
            let mut digest = [0; 32];
            digest[..2].copy_from_slice(&number.to_be_bytes());
            let at = if number == u16::MAX { now } else { old };
            idempotency_keys::put(tx, &digest, &IdempotencyRecord { at, request: [0; 32], result: "{}".to_owned() })
        })
    };
    a.enqueue(put).unwrap().blocking_recv().unwrap().unwrap();
    assert_eq!(database.number(KEYS), 301, "requests do not remove those of others");
    let [first, second] = [&a, &b].map(|store| Maintenance::new(store.clone(), clock.clone()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert!(runtime.block_on(first.is_due_here()));
    until(|| "the processes see each other", || b.cluster().unwrap().alive() == 2);
    assert!(!runtime.block_on(second.is_due_here()));
    runtime.block_on(first.sweep()).unwrap();
    assert_eq!((database.number(KEYS), database.number(INDEX)), (1, 1));
    drop(first);
    a.shutdown();
    until(|| "the other process does it", || runtime.block_on(second.is_due_here()));
    runtime.shutdown_timeout(Duration::from_secs(60));
    drop(second);
    b.shutdown();
}
