//! The duration of a refusal does not reveal why a key was refused. The tests measure time and are ignored by default:
//!
//! ```sh
//! cargo test --test storage auth_timing -- --ignored --nocapture
//! ```
#![expect(clippy::disallowed_methods, clippy::print_stdout, reason = "a measurement of real time")]

use std::time::{Duration, Instant};

use outpost::ids::KeyId;
use outpost::service::Secret;

use crate::fixture::Fixture;

/// Pairs of attempts per comparison.
const PAIRS: usize = 2_000;

/// The probability that a value of `left` exceeds one of `right`, where ties count half (area under the ROC curve). At
/// 0.5, the two are indistinguishable.
fn area_under_curve(left: &[Duration], right: &[Duration]) -> f64 {
    let mut sorted = right.to_vec();
    sorted.sort_unstable();
    let below = |value: &Duration| {
        let (less, up_to) = (
            sorted.partition_point(|left_time| left_time < value),
            sorted.partition_point(|left_time| left_time <= value),
        );
        (less + up_to) as f64 / 2.
    };
    left.iter().map(below).sum::<f64>() / (left.len() * right.len()) as f64
}

fn median(times: &[Duration]) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2]
}

async fn time_refusal(fixture: &Fixture, secret: &Secret) -> Duration {
    let started = Instant::now();
    let outcome = fixture.keys.authenticate(secret.expose()).await;
    let elapsed = started.elapsed();
    assert!(outcome.is_err());
    elapsed
}

/// Measures refusals of both kinds in pairs, whose order alternates, and returns the area under the curve.
async fn compare(
    fixture: &Fixture,
    name: &str,
    mut left: impl FnMut() -> Secret,
    mut right: impl FnMut() -> Secret,
) -> f64 {
    let (mut lefts, mut rights) = (Vec::new(), Vec::new());
    for pair in 0..PAIRS + 200 {
        let (left_secret, right_secret) = (left(), right());
        let (left_time, right_time) = if pair % 2 == 0 {
            let left_time = time_refusal(fixture, &left_secret).await;
            (left_time, time_refusal(fixture, &right_secret).await)
        } else {
            let right_time = time_refusal(fixture, &right_secret).await;
            (time_refusal(fixture, &left_secret).await, right_time)
        };
        // The first pairs warm up.
        if pair >= 200 {
            lefts.push(left_time);
            rights.push(right_time);
        }
    }
    let area = area_under_curve(&lefts, &rights);
    println!("{name}: medians {:?} and {:?}, AUC {area:.3}", median(&lefts), median(&rights));
    area
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures time; run it on a quiet machine"]
async fn an_unknown_key_id_takes_as_long_as_a_known_one() {
    let fixture = Fixture::new().await;
    let clock_rng = &*fixture.clock;
    let mut known = Vec::new();
    for _ in 0..3 {
        let project = fixture.project("timing").await;
        for _ in 0..800 {
            known.push(fixture.key(project.id, &[]).await.0.id);
        }
    }
    let wrong = |id: KeyId| Secret::generate(id, clock_rng);
    let unknown = || wrong(KeyId::generate(clock_rng));

    let cached = fixture.first.key.id;
    let in_memory = compare(&fixture, "known and in memory, against unknown", || wrong(cached), unknown).await;
    // A wrong secret loads its key into the cache, so each key is tried once.
    let mut fresh = known.into_iter();
    let stored = compare(&fixture, "known and only stored, against unknown", || wrong(fresh.next().unwrap()), unknown);
    let stored = stored.await;
    for area in [in_memory, stored] {
        assert!((0.45..=0.55).contains(&area), "the two are distinguishable: AUC {area}");
    }
}
