//! Overload, fairness between tenants, and isolation of tenants against timing attacks.

use std::cell::Cell;
use std::time::{Duration, Instant};

use futures_util::future::{join, join_all};
use outpost_engine::{Generation, GenerationRequest, Refused};

use crate::harness::{Rig, greedy, pieces, request, slow};

#[expect(clippy::disallowed_methods, reason = "a measurement needs the real clock")]
fn now() -> Instant {
    Instant::now()
}

fn prompt(first: u32, count: u32) -> Vec<u32> {
    (0..count).map(|at| (first * 31 + at * 7) % 250).collect()
}

/// Ten times as many requests as the capacity.
#[tokio::test]
async fn excess_requests_are_refused_at_once_and_the_rest_complete() {
    let rig =
        slow(|settings| (settings.max_running, settings.max_queued_requests, settings.tenant_divisor) = (4, 16, 1));
    let (mut taken, mut refused) = (Vec::new(), Vec::new());
    for at in 0..200 {
        let began = now();
        match rig.engine.submit(&rig.model, request(prompt(at, 30), 20)) {
            Ok(ticket) => taken.push(ticket),
            Err(Refused::QueueFull { retry_after }) => {
                assert!(retry_after >= Duration::from_secs(1));
                // The speed is unknown at first, so the retry delay is a fixed default.
                assert!(!refused.is_empty() || retry_after <= Duration::from_secs(5), "{retry_after:?}");
                refused.push(began.elapsed());
            }
            Err(other) => panic!("{other}"),
        }
        assert!(rig.engine.load().queued <= 16 + 4 && rig.engine.load().running <= 4);
    }
    refused.sort_unstable();
    assert!(taken.len() >= 20 && refused.len() > 100, "{} taken, {} refused", taken.len(), refused.len());
    let median = refused[refused.len() / 2];
    assert!(median < Duration::from_millis(50), "a refusal is immediate: {median:?}");
    for ticket in taken {
        assert_eq!(pieces(ticket.deltas).await.unwrap().last().unwrap().generated, 20);
    }
    rig.wait_until_idle().await;
}

async fn count(mut ticket: Generation, counted: &Cell<usize>) {
    // Without speculation each delta is one token.
    while let Some(Ok(_)) = ticket.deltas.recv().await {
        counted.set(counted.get() + 1);
    }
}

/// Counts the tokens of both groups until there are `enough` in total.
async fn count_until([first, second]: [Vec<Generation>; 2], enough: usize) -> [usize; 2] {
    let counts = [Cell::new(0), Cell::new(0)];
    let of = |tickets: Vec<Generation>, at: usize| {
        join_all(tickets.into_iter().map(|ticket| count(ticket, &counts[at])).collect::<Vec<_>>())
    };
    let watch = async {
        while counts.iter().map(Cell::get).sum::<usize>() < enough {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        _ = join(of(first, 0), of(second, 1)) => panic!("all requests finished before enough tokens were counted"),
        () = watch => counts.map(Cell::into_inner),
    }
}

/// A tenant with many queued requests and one with fewer.
#[tokio::test]
async fn tenants_get_equal_shares() {
    let rig = slow(|settings| (settings.max_running, settings.max_queued_requests) = (8, 1_000));
    let request = |tenant, count: u32| -> Vec<Generation> {
        let one = |at| GenerationRequest { tenant, ..request(prompt(at, 10), 30) };
        (0..count).map(|at| rig.engine.submit(&rig.model, one(at)).unwrap()).collect()
    };
    // Enough tokens that a few sequences more or less do not matter.
    let counts = count_until([request(1, 300), request(2, 150)], 6_000).await;
    let ratio = counts[0] as f64 / counts[1] as f64;
    assert!((0.9..1.1).contains(&ratio), "{counts:?}");
    rig.wait_until_idle().await;
}

async fn first_token(rig: &Rig, tenant: u128, prompt: Vec<u32>) -> Duration {
    let began = now();
    let request = GenerationRequest { tenant, ..greedy(prompt, 1) };
    pieces(rig.engine.submit(&rig.model, request).unwrap().deltas).await.unwrap();
    began.elapsed()
}

/// The probability that a random duration of `first` is longer than a random one of `second`.
fn probability_longer(first: &[Duration], second: &[Duration]) -> f64 {
    let pairs = first.iter().flat_map(|one| second.iter().map(move |other| one.cmp(other)));
    let count: f64 = pairs.map(|order| [0., 0.5, 1.][(order as i8 + 1) as usize]).sum();
    count / (first.len() * second.len()) as f64
}

/// A tenant cannot infer from response times which prompts another tenant has sent.
async fn measure_timing(pairs: u32) -> (f64, f64) {
    let rig = slow(|_| ());
    let (mut fresh, mut foreign, mut own) = (Vec::new(), Vec::new(), Vec::new());
    for at in 0..pairs {
        let secret = prompt(2 * at, 300);
        first_token(&rig, 1, secret.clone()).await;
        fresh.push(first_token(&rig, 2, prompt(2 * at + 1, 300)).await);
        foreign.push(first_token(&rig, 2, secret.clone()).await);
        own.push(first_token(&rig, 1, secret).await);
    }
    (probability_longer(&fresh, &foreign), probability_longer(&fresh, &own))
}

#[tokio::test]
async fn timing_reveals_nothing_about_another_tenants_prompts() {
    let (foreign, own) = measure_timing(30).await;
    println!("probability that a fresh prompt takes longer: than another tenant's {foreign:.2}, than its own {own:.2}");
    assert!((0.3..0.7).contains(&foreign), "{foreign}");
    assert!(own > 0.9, "{own}");
}

/// The same with enough pairs to tell 0.55 from chance. Run by hand on an idle machine:
/// `cargo test --release --test engine -- --ignored timing --nocapture`.
#[tokio::test]
#[ignore = "takes long and needs an idle machine"]
async fn timing_with_200_pairs() {
    let (foreign, own) = measure_timing(200).await;
    println!("AUC across tenants {foreign:.3}, within one {own:.3}");
    assert!((0.45..=0.55).contains(&foreign) && own > 0.9);
}
