//! More work than there is room for, tenants side by side, and what one can learn of another.

use std::cell::Cell;
use std::time::{Duration, Instant};

use futures_util::future::{join, join_all};
use outpost::engine::{Generation, GenerationRequest, Refused};

use crate::support::{Rig, greedy, pieces, request, slow};

#[expect(clippy::disallowed_methods, reason = "a measurement needs the real clock")]
fn now() -> Instant {
    Instant::now()
}

fn prompt(first: u32, count: u32) -> Vec<u32> {
    (0..count).map(|at| (first * 31 + at * 7) % 250).collect()
}

/// T7: ten times the capacity.
#[tokio::test]
async fn what_is_too_much_is_refused_at_once_and_the_rest_is_answered() {
    let rig =
        slow(|settings| (settings.max_running, settings.max_queued_requests, settings.tenant_divisor) = (4, 16, 1));
    let (mut taken, mut refused) = (Vec::new(), Vec::new());
    for at in 0..200 {
        let began = now();
        match rig.engine.submit(&rig.model, request(prompt(at, 30), 20)) {
            Ok(ticket) => taken.push(ticket),
            Err(Refused::QueueFull { retry_after }) => {
                assert!(retry_after >= Duration::from_secs(1));
                // Nothing is known yet: no guess at a thousand tokens, but a time after which more is known.
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
    assert!(median < Duration::from_millis(50), "a refusal waits for nothing: {median:?}");
    for ticket in taken {
        assert_eq!(pieces(ticket.pieces).await.unwrap().last().unwrap().generated, 20);
    }
    rig.settle().await;
}

async fn count(mut ticket: Generation, counted: &Cell<usize>) {
    // A piece is a token here: nothing is guessed ahead.
    while let Some(Ok(_)) = ticket.pieces.recv().await {
        counted.set(counted.get() + 1);
    }
}

/// Counts what comes of both sides' tickets until `enough` tokens came in all.
async fn share([ones, others]: [Vec<Generation>; 2], enough: usize) -> [usize; 2] {
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
        _ = join(of(ones, 0), of(others, 1)) => panic!("all is done before enough was counted"),
        () = watch => counts.map(Cell::into_inner),
    }
}

/// T9: a tenant with much work and one with less, both with work waiting.
#[tokio::test]
async fn tenants_get_equal_shares() {
    let rig = slow(|settings| (settings.max_running, settings.max_queued_requests) = (8, 1_000));
    let ask = |tenant, count: u32| -> Vec<Generation> {
        let one = |at| GenerationRequest { tenant, ..request(prompt(at, 10), 30) };
        (0..count).map(|at| rig.engine.submit(&rig.model, one(at)).unwrap()).collect()
    };
    // So many that four answers more or less are nothing.
    let counts = share([ask(1, 300), ask(2, 150)], 6_000).await;
    let ratio = counts[0] as f64 / counts[1] as f64;
    assert!((0.9..1.1).contains(&ratio), "{counts:?}");
    rig.settle().await;
}

async fn first_token(rig: &Rig, tenant: u128, prompt: Vec<u32>) -> Duration {
    let began = now();
    let ask = GenerationRequest { tenant, ..greedy(prompt, 1) };
    pieces(rig.engine.submit(&rig.model, ask).unwrap().pieces).await.unwrap();
    began.elapsed()
}

/// The chance that one of `ones` is longer than one of `others`.
fn longer(ones: &[Duration], others: &[Duration]) -> f64 {
    let pairs = ones.iter().flat_map(|one| others.iter().map(move |other| one.cmp(other)));
    let count: f64 = pairs.map(|order| [0., 0.5, 1.][(order as i8 + 1) as usize]).sum();
    count / (ones.len() * others.len()) as f64
}

/// T16: of prompts that one tenant has just sent, another tells nothing by its stopwatch.
async fn timing(pairs: u32) -> (f64, f64) {
    let rig = slow(|_| ());
    let (mut fresh, mut foreign, mut own) = (Vec::new(), Vec::new(), Vec::new());
    for at in 0..pairs {
        let secret = prompt(2 * at, 300);
        first_token(&rig, 1, secret.clone()).await;
        fresh.push(first_token(&rig, 2, prompt(2 * at + 1, 300)).await);
        foreign.push(first_token(&rig, 2, secret.clone()).await);
        own.push(first_token(&rig, 1, secret).await);
    }
    (longer(&fresh, &foreign), longer(&fresh, &own))
}

#[tokio::test]
async fn a_tenant_learns_nothing_of_another_s_prompts_by_timing() {
    let (foreign, own) = timing(30).await;
    println!("the chance that a fresh prompt takes longer: than another tenant's {foreign:.2}, than its own {own:.2}");
    assert!((0.3..0.7).contains(&foreign), "{foreign}");
    assert!(own > 0.9, "{own}");
}

/// The same with enough pairs to tell 0.55 from chance; by hand, on a quiet machine:
/// `cargo test --release --test engine -- --ignored timing --nocapture`.
#[tokio::test]
#[ignore = "takes long, and a quiet machine"]
async fn timing_with_two_hundred_pairs() {
    let (foreign, own) = timing(200).await;
    println!("AUC across tenants {foreign:.3}, within one {own:.3}");
    assert!((0.45..=0.55).contains(&foreign) && own > 0.9);
}
