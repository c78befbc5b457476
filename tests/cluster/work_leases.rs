//! Leases of two processes that share a store.

use std::sync::Arc;

use outpost::app::SystemClockRng;
use outpost::error::Result;
use outpost::ids::BatchId;
use outpost::storage::work_leases::{self, Work};
use outpost::storage::{NodeProcess, Peers, Store, StoreSettings, WriteTx};
use outpost_testing::needs_postgres;

use crate::database::Database;
use crate::wait::until;

fn work() -> Work {
    Work::Batch(BatchId::from_bytes([1; 16]))
}

fn write<T: Send + 'static>(store: &Store, write: impl FnMut(&WriteTx) -> Result<T> + Send + 'static) -> Result<T> {
    store.enqueue(write).unwrap().blocking_recv().unwrap()
}

fn claim(store: &Store) -> bool {
    let peers = store.peers();
    write(store, move |tx| work_leases::claim(tx, work(), |process| peers.is_alive(process))).unwrap()
}

fn require(store: &Store) -> Result<()> {
    write(store, |tx| work_leases::require(tx, work()))
}

/// The works that a process may begin.
fn available(store: &Store, peers: &Peers) -> Vec<Work> {
    let mut works = vec![work(), Work::Maintenance];
    store.read_blocking(|tx| work_leases::retain_available(tx, &mut works, |work| *work, peers)).unwrap();
    works
}

#[test]
fn one_of_two_processes_has_the_work_and_the_other_gets_it_when_it_is_given_up() {
    needs_postgres!();
    let database = Database::new();
    let ([a, b], _folders) = database.open_two_stores();
    until(|| "the processes see each other", || [&a, &b].iter().all(|store| store.cluster().unwrap().alive() == 2));
    assert!(work_leases::is_taken_over(&require(&a).unwrap_err()), "nothing is claimed yet");
    assert!(claim(&a) && claim(&a) && !claim(&b));
    require(&a).unwrap();
    assert!(work_leases::is_taken_over(&require(&b).unwrap_err()));
    assert_eq!(available(&a, &a.peers()), [work(), Work::Maintenance]);
    assert_eq!(available(&b, &b.peers()), [Work::Maintenance]);
    write(&b, |tx| work_leases::release(tx, work())).unwrap();
    require(&a).expect("only its own process gives a lease up");
    write(&a, |tx| work_leases::release(tx, work())).unwrap();
    assert!(claim(&b) && !claim(&a));
    [a, b].into_iter().for_each(Store::shutdown);
}

#[test]
fn work_that_was_taken_over_has_no_effect_any_more() {
    needs_postgres!();
    let database = Database::new();
    let ([a, b], _folders) = database.open_two_stores();
    assert!(claim(&a));
    // As if the other process were dead.
    assert!(write(&b, |tx| work_leases::claim(tx, work(), |_| false)).unwrap());
    assert!(work_leases::is_taken_over(&require(&a).unwrap_err()));
    let checked = a.read_blocking(|tx| work_leases::check(tx, work(), &a.peers()));
    assert!(work_leases::is_taken_over(&checked.unwrap_err()));
    write(&a, |tx| work_leases::release(tx, work())).unwrap();
    require(&b).unwrap();
    [a, b].into_iter().for_each(Store::shutdown);
}

#[test]
fn two_processes_that_claim_at_once_do_not_both_get_the_work() {
    needs_postgres!();
    let database = Database::new();
    let ([a, b], _folders) = database.open_two_stores();
    until(|| "the processes see each other", || [&a, &b].iter().all(|store| store.cluster().unwrap().alive() == 2));
    for number in 0..20 {
        let work = Work::Batch(BatchId::from_bytes([number; 16]));
        let claims = [&a, &b].map(|store| {
            let peers = store.peers();
            store.enqueue(move |tx| work_leases::claim(tx, work, |process| peers.is_alive(process))).unwrap()
        });
        let claimed = claims.map(|claim| claim.blocking_recv().unwrap().unwrap());
        assert_eq!(claimed.iter().filter(|claimed| **claimed).count(), 1);
    }
    [a, b].into_iter().for_each(Store::shutdown);
}

#[test]
fn the_work_of_a_process_that_has_stopped_is_free_at_once_and_its_leases_are_removed() {
    needs_postgres!();
    let database = Database::new();
    let ([a, b], _folders) = database.open_two_stores();
    until(|| "the processes see each other", || [&a, &b].iter().all(|store| store.cluster().unwrap().alive() == 2));
    assert!(claim(&a) && !claim(&b));
    let gone: NodeProcess = a.cluster().unwrap().process();
    let (kept, peers) = (Work::Maintenance, b.peers());
    write(&b, move |tx| work_leases::claim(tx, kept, |process| peers.is_alive(process))).unwrap();
    a.shutdown();
    until(|| "the process is gone", || !b.peers().is_alive(gone));
    let peers = b.peers();
    let dead = b.read_blocking(|tx| work_leases::dead(tx, |process| peers.is_alive(process))).unwrap();
    assert_eq!(dead.len(), 1, "only the lease of the process that is gone");
    write(&b, move |tx| work_leases::remove_dead(tx, &dead, |process| peers.is_alive(process))).unwrap();
    assert_eq!(database.number("SELECT count(*) FROM outpost_work_leases"), 1);
    assert!(claim(&b));
    b.shutdown();
}

#[test]
fn a_process_that_has_the_store_for_itself_needs_no_leases() {
    let folder = tempfile::tempdir().unwrap();
    let settings =
        StoreSettings { dir: folder.path().to_owned(), cache_bytes: 1 << 20, queue: 16, min_free_disk: Some(0) };
    let store = Store::open(settings, Arc::new(SystemClockRng::new())).unwrap();
    require(&store).unwrap();
    assert!(claim(&store));
    assert_eq!(available(&store, &store.peers()), [work(), Work::Maintenance]);
    assert!(store.read_blocking(|tx| work_leases::dead(tx, |_| false)).unwrap().is_empty(), "no row is written");
    store.shutdown();
}
