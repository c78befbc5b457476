//! The rate limiter with many threads and a clock that the test controls.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use outpost::clock_rng::ClockRng;
use outpost::error::Code;
use outpost::service::limits::{Limits, LimitsPatch, RatesPatch};
use outpost::service::usage::{Meter, Outcome};
use outpost::service::writes::patch::Patch;

use super::fixture::Fixture;

const THREADS: usize = 64;

fn rate(requests: i64, burst: i64) -> LimitsPatch {
    let own = RatesPatch {
        requests_per_minute: Patch::Set(requests),
        burst_limit: Patch::Set(burst),
        ..RatesPatch::default()
    };
    LimitsPatch::own(own)
}

/// Advances ten minutes in steps. In each step, 64 threads send requests until they are refused.
fn admitted_in_ten_minutes(fixture: &Fixture, limits: &Limits, step: Duration) -> u64 {
    let project = fixture.first.project.id;
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
                fixture.clock.pass(step);
            }
        }
    });
    admitted.load(SeqCst)
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_threads_get_exactly_the_burst_and_the_rate() {
    for (requests, burst, step) in [(600, 100, 5_000), (7, 7, 10_000), (59_999, 60_000, 5_000)] {
        let fixture = Fixture::new().await;
        let clock_rng: Arc<dyn ClockRng> = fixture.clock.clone();
        let limits = Limits::new(fixture.store.clone(), clock_rng);
        limits.update(&fixture.admin, fixture.first.project.id, rate(requests, burst)).await.unwrap();
        // The first request creates the bucket and is counted.
        assert!(limits.admit(fixture.first.project.id).await.unwrap().1.is_ok());
        let got =
            1 + tokio::task::block_in_place(|| admitted_in_ten_minutes(&fixture, &limits, Duration::from_millis(step)));
        let exact = u64::try_from(burst + 10 * requests).unwrap();
        // Over a shared store, a lease may arrive after its requests were refused. It then ends unused with the step.
        let least = if limits.are_shared() { exact * 9 / 10 } else { exact };
        assert!((least..=exact).contains(&got), "{requests} a minute, burst {burst}: {got} of {exact}");
    }
}

#[tokio::test]
async fn a_restart_or_a_changed_limit_grants_nothing_extra() {
    let fixture = Fixture::new().await;
    let clock_rng: Arc<dyn ClockRng> = fixture.clock.clone();
    let (home, store) = (fixture.first.project.id, fixture.store.clone());
    let limits = Limits::new(store.clone(), clock_rng.clone());
    let meter = Meter::new(store.clone(), clock_rng.clone(), limits.clone());
    limits.update(&fixture.admin, home, rate(60, 10)).await.unwrap();
    for _ in 0..10 {
        assert!(limits.admit(home).await.unwrap().1.is_ok());
        meter.open(&fixture.admin, "GET /models".into()).close(Outcome::Succeeded).await.unwrap();
    }
    limits.update(&fixture.admin, home, rate(60, 600)).await.unwrap();
    let refused = limits.admit(home).await.unwrap().1.unwrap_err();
    assert_eq!(refused.wait(), Some(Duration::from_secs(1)));
    // Another limiter on the same store is equivalent to a restart.
    let restarted = Limits::new(store.clone(), clock_rng.clone());
    assert!(restarted.admit(home).await.unwrap().1.is_err());
    fixture.clock.jump(-3600);
    let restarted = Limits::new(store.clone(), clock_rng.clone());
    assert!(restarted.admit(home).await.unwrap().1.is_err(), "setting the clock back refills nothing");
    fixture.clock.jump(3600);
    fixture.clock.pass(Duration::from_secs(2));
    let restarted = Limits::new(store, clock_rng);
    assert!(restarted.admit(home).await.unwrap().1.is_ok(), "elapsed time refills the bucket");
}

/// Limits audio to `seconds` a minute.
async fn limit_audio(fixture: &Fixture, limits: &Limits, seconds: i64) {
    let own = RatesPatch { audio_seconds_per_minute: Patch::Set(seconds), ..RatesPatch::default() };
    limits.update(&fixture.admin, fixture.first.project.id, LimitsPatch::own(own)).await.unwrap();
    limits.status(fixture.first.project.id).await.unwrap();
}

#[tokio::test]
async fn audio_is_charged_before_it_is_processed_and_the_rest_is_refunded() {
    let fixture = Fixture::new().await;
    let clock_rng: Arc<dyn ClockRng> = fixture.clock.clone();
    let limits = Limits::new(fixture.store.clone(), clock_rng.clone());
    let meter = Meter::new(fixture.store.clone(), clock_rng, limits.clone());
    limit_audio(&fixture, &limits, 60).await;
    let project = fixture.first.project.id;
    let remaining = || async { limits.status(project).await.unwrap().audio.unwrap().remaining };
    let open = || meter.open(&fixture.admin, "POST /audio/transcriptions".to_owned());

    let whole = open();
    whole.charge_audio(40_000).await.unwrap();
    assert_eq!(remaining().await, 20);
    let refused = open().charge_audio(30_000).await.unwrap_err();
    assert_eq!((refused.code(), refused.wait()), (Code::RateLimited, Some(Duration::from_secs(10))));
    assert!(refused.to_string().contains("60 seconds of audio per minute"), "{refused}");
    whole.set_audio(40_000);
    whole.close(Outcome::Succeeded).await.unwrap();
    assert_eq!(remaining().await, 20);

    let left = open();
    left.charge_audio(15_000).await.unwrap();
    left.set_audio(5_000);
    drop(left);
    assert_eq!(remaining().await, 15, "a client that leaves is charged for what was processed");
    let failed = open();
    failed.charge_audio(15_000).await.unwrap();
    failed.set_audio(15_000);
    failed.close(Outcome::Failed).await.unwrap();
    assert_eq!(remaining().await, 15, "a failure of the server is not charged");

    // Speech is charged when it has been generated.
    let speech = open();
    speech.set_audio(20_000);
    speech.close(Outcome::Succeeded).await.unwrap();
    assert_eq!(remaining().await, 0);
    assert!(open().charge_audio(1).await.is_err());
    // Audio that is longer than the bucket is admitted when the bucket is full.
    fixture.clock.pass(Duration::from_secs(120));
    let long = open();
    long.charge_audio(3_600_000).await.unwrap();
    long.set_audio(3_600_000);
    long.close(Outcome::Succeeded).await.unwrap();
    fixture.clock.pass(Duration::from_secs(3_500));
    assert!(open().charge_audio(1_000).await.is_err());

    // A restart does not refill the bucket.
    let clock_rng: Arc<dyn ClockRng> = fixture.clock.clone();
    let restarted = Limits::new(fixture.store.clone(), clock_rng.clone());
    restarted.status(project).await.unwrap();
    let meter = Meter::new(fixture.store.clone(), clock_rng, restarted);
    let refused =
        meter.open(&fixture.admin, "POST /audio/transcriptions".to_owned()).charge_audio(1_000).await.unwrap_err();
    assert_eq!(refused.code(), Code::RateLimited);
}
