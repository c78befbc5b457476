//! How long a refusal takes says nothing of what was wrong with the key. Measurements, so not part of the usual run:
//!
//! ```sh
//! cargo test --test storage auth_timing -- --ignored --nocapture
//! ```
#![expect(clippy::disallowed_methods, clippy::print_stdout, reason = "a measurement of real time")]

use std::time::{Duration, Instant};

use outpost::ids::KeyId;
use outpost::service::Secret;

use crate::fixture::Fixture;

/// Pairs of tries of each comparison.
const PAIRS: usize = 2_000;

/// How often a value of `left` is above one of `right`, ties by half: 0.5 means that they cannot be told apart.
fn area_under_curve(left: &[Duration], right: &[Duration]) -> f64 {
    let mut sorted = right.to_vec();
    sorted.sort_unstable();
    let below = |value: &Duration| {
        let (less, up_to) = (sorted.partition_point(|one| one < value), sorted.partition_point(|one| one <= value));
        (less + up_to) as f64 / 2.
    };
    left.iter().map(below).sum::<f64>() / (left.len() * right.len()) as f64
}

fn median(times: &[Duration]) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2]
}

async fn refused_in(fixture: &Fixture, secret: &Secret) -> Duration {
    let started = Instant::now();
    let outcome = fixture.keys.authenticate(secret.expose()).await;
    let took = started.elapsed();
    assert!(outcome.is_err());
    took
}

/// Times refusals of both kinds in turn, the first of each pair alternating.
async fn compare(
    fixture: &Fixture,
    name: &str,
    mut left: impl FnMut() -> Secret,
    mut right: impl FnMut() -> Secret,
) -> f64 {
    let (mut lefts, mut rights) = (Vec::new(), Vec::new());
    for pair in 0..PAIRS + 200 {
        let (one, other) = (left(), right());
        let (one, other) = if pair % 2 == 0 {
            let took = refused_in(fixture, &one).await;
            (took, refused_in(fixture, &other).await)
        } else {
            let took = refused_in(fixture, &other).await;
            (refused_in(fixture, &one).await, took)
        };
        // The first ones warm up.
        if pair >= 200 {
            lefts.push(one);
            rights.push(other);
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
    // A wrong secret brings its key into memory, so each of these is tried once.
    let mut fresh = known.into_iter();
    let stored = compare(&fixture, "known and only stored, against unknown", || wrong(fresh.next().unwrap()), unknown);
    let stored = stored.await;
    for area in [in_memory, stored] {
        assert!((0.45..=0.55).contains(&area), "the two can be told apart: {area}");
    }
}
