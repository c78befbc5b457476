//! The rate limiter under many threads, on a clock that the test moves.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use outpost::clock_rng::ClockRng;
use outpost::service::change::Change;
use outpost::service::limits::{Limits, LimitsChange, RatesChange};
use outpost::service::usage::{Meter, Outcome};

use super::world::World;

const THREADS: usize = 64;

fn rate(requests: i64, burst: i64) -> LimitsChange {
    let own = RatesChange {
        requests_per_minute: Change::Set(requests),
        burst_limit: Change::Set(burst),
        ..RatesChange::default()
    };
    LimitsChange::own(own)
}

/// Ten minutes in steps; in each of them 64 threads ask until they are refused.
fn admitted_in_ten_minutes(world: &World, limits: &Limits, step: Duration) -> u64 {
    let project = world.first.project.id;
    let steps = 600_000 / u64::try_from(step.as_millis()).unwrap();
    let (barrier, admitted) = (Barrier::new(THREADS + 1), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                for _ in 0..=steps {
                    barrier.wait();
                    while runtime.block_on(limits.admit(project)).unwrap().1.is_ok() {
                        admitted.fetch_add(1, SeqCst);
                    }
                    barrier.wait();
                }
            });
        }
        for round in 0..=steps {
            barrier.wait();
            barrier.wait();
            if round < steps {
                world.clock.pass(step);
            }
        }
    });
    admitted.load(SeqCst)
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_threads_get_the_burst_and_the_rate_and_nothing_more() {
    for (requests, burst, step) in [(600, 100, 5_000), (7, 7, 10_000), (59_999, 60_000, 5_000)] {
        let world = World::new().await;
        let clock_rng: Arc<dyn ClockRng> = world.clock.clone();
        let limits = Limits::new(world.store.clone(), clock_rng);
        limits.update(&world.admin, world.first.project.id, rate(requests, burst)).await.unwrap();
        // The first request makes the bucket; it is one of those that are counted.
        assert!(limits.admit(world.first.project.id).await.unwrap().1.is_ok());
        let got =
            1 + tokio::task::block_in_place(|| admitted_in_ten_minutes(&world, &limits, Duration::from_millis(step)));
        assert_eq!(got, u64::try_from(burst + 10 * requests).unwrap(), "{requests} a minute, burst {burst}");
    }
}

#[tokio::test]
async fn a_restart_or_a_changed_limit_gives_nothing_away() {
    let world = World::new().await;
    let clock_rng: Arc<dyn ClockRng> = world.clock.clone();
    let (home, store) = (world.first.project.id, world.store.clone());
    let limits = Limits::new(store.clone(), clock_rng.clone());
    let meter = Meter::new(store.clone(), clock_rng.clone(), limits.clone());
    limits.update(&world.admin, home, rate(60, 10)).await.unwrap();
    for _ in 0..10 {
        assert!(limits.admit(home).await.unwrap().1.is_ok());
        meter.open(&world.admin, "GET /models".into()).close(Outcome::Succeeded).await.unwrap();
    }
    limits.update(&world.admin, home, rate(60, 600)).await.unwrap();
    let refused = limits.admit(home).await.unwrap().1.unwrap_err();
    assert_eq!(refused.wait(), Some(Duration::from_secs(1)));
    // Another limiter on the same store is what a restart makes.
    let restarted = Limits::new(store.clone(), clock_rng.clone());
    assert!(restarted.admit(home).await.unwrap().1.is_err());
    world.clock.jump(-3600);
    let restarted = Limits::new(store.clone(), clock_rng.clone());
    assert!(restarted.admit(home).await.unwrap().1.is_err(), "a clock set back gives nothing");
    world.clock.jump(3600);
    world.clock.pass(Duration::from_secs(2));
    let restarted = Limits::new(store, clock_rng);
    assert!(restarted.admit(home).await.unwrap().1.is_ok(), "time that has passed counts");
}
