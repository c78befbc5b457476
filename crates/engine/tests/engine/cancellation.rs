//! Cancellation: dropping the output stream frees everything, whatever state the request is in.

use std::time::Duration;

use outpost_engine::{Failure, GenerationRequest, Refused};

use crate::harness::{Rig, pieces, request, slow};
use crate::wait::until;

#[tokio::test]
async fn cancelling_while_queued_prefilling_or_decoding_frees_the_slot() {
    let rig = slow(|settings| settings.max_running = 1);
    let mut running = rig.engine.submit(&rig.model, request(vec![7; 8], 3_000)).unwrap();
    running.deltas.recv().await.unwrap().unwrap();
    let waiting = rig.engine.submit(&rig.model, request(vec![7; 2_000], 100)).unwrap();
    assert_eq!((rig.engine.load().running, rig.engine.load().queued), (1, 1));
    drop(waiting);
    until(|| "the request leaves the queue", || rig.engine.load().queued == 0);
    drop(running);
    rig.wait_until_idle().await;
    let prefilling = rig.engine.submit(&rig.model, request(vec![7; 3_000], 100)).unwrap();
    until(|| "prefill begins", || rig.engine.load().running == 1 && rig.engine.load().kv_bytes > 0);
    drop(prefilling);
    rig.wait_until_idle().await;
}

#[tokio::test]
async fn two_hundred_cancellations_leak_nothing() {
    let rig = slow(|settings| (settings.max_running, settings.max_queued_requests) = (4, 16));
    let mut taken = 0;
    for turn in 0..200u32 {
        let request =
            GenerationRequest { choices: 1 + turn % 3, ..request(vec![7; 1 + (turn as usize * 37) % 400], 500) };
        let Ok(mut ticket) = rig.engine.submit(&rig.model, request) else {
            tokio::time::sleep(Duration::from_millis(2)).await;
            continue;
        };
        taken += 1;
        match turn % 4 {
            0 => drop(ticket),
            1 => {
                tokio::time::sleep(Duration::from_millis(3)).await;
                drop(ticket);
            }
            _ => {
                for _ in 0..turn % 7 {
                    ticket.deltas.recv().await.unwrap().unwrap();
                }
            }
        }
    }
    assert!(taken > 100);
    rig.wait_until_idle().await;
}

#[tokio::test]
async fn draining_lets_running_requests_finish() {
    let rig = slow(|settings| settings.max_running = 1);
    let mut running = rig.engine.submit(&rig.model, request(vec![7; 8], 100)).unwrap();
    running.deltas.recv().await.unwrap().unwrap();
    let waiting = rig.engine.submit(&rig.model, request(vec![7; 8], 100)).unwrap();
    rig.engine.drain();
    assert_eq!(pieces(waiting.deltas).await, Err(Failure::ShuttingDown));
    assert_eq!(rig.engine.submit(&rig.model, request(vec![7], 1)).unwrap_err(), Refused::ShuttingDown);
    assert_eq!(pieces(running.deltas).await.unwrap().last().unwrap().generated, 100);
    rig.wait_until_idle().await;
}

#[tokio::test]
async fn aborting_reaches_every_client_even_a_slow_one() {
    let rig = slow(|settings| settings.max_running = 2);
    let tickets: Vec<_> = (0..4).map(|_| rig.engine.submit(&rig.model, request(vec![7; 8], 1_000)).unwrap()).collect();
    until(|| "two run", || rig.engine.load().running == 2);
    tokio::time::sleep(Duration::from_millis(300)).await; // Channels fill while nothing is read.
    rig.engine.abort();
    for ticket in tickets {
        assert_eq!(pieces(ticket.deltas).await, Err(Failure::ShuttingDown));
    }
    rig.wait_until_idle().await;
}

#[tokio::test]
async fn dropping_the_last_handle_stops_the_engine() {
    let rig = slow(|_| ());
    let ticket = rig.engine.submit(&rig.model, request(vec![7; 8], 3_000)).unwrap();
    drop(rig);
    assert_eq!(pieces(ticket.deltas).await, Err(Failure::ShuttingDown));
}

#[tokio::test]
async fn a_client_that_does_not_read_is_dropped_after_the_timeout() {
    let rig = slow(|settings| settings.max_running = 1);
    let mut unread = rig.engine.submit(&rig.model, request(vec![5; 8], 2_000)).unwrap();
    // The sequence grows until the channel is full; then it pauses.
    let stuck = async |rig: &Rig| {
        tokio::time::sleep(Duration::from_millis(700)).await;
        rig.engine.load().running
    };
    while stuck(&rig).await != 1 {}
    rig.clock.advance(Duration::from_secs(59));
    assert_eq!(stuck(&rig).await, 1, "a slow client has until the timeout");
    for _ in 0..20 {
        rig.clock.advance(Duration::from_secs(61));
        if stuck(&rig).await == 0 {
            break;
        }
    }
    assert_eq!((rig.engine.load().running, rig.engine.load().kv_bytes), (0, 0));
    let mut last = None;
    while let Some(piece) = unread.deltas.recv().await {
        last = Some(piece);
    }
    assert_eq!(last, Some(Err(Failure::ClientStalled)));
}
