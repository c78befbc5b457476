//! Callers who leave: dropping the pieces frees everything, wherever the request is.

use std::time::Duration;

use outpost::engine::{Failure, GenerationRequest, Refused};

use crate::support::{Rig, pieces, request, slow};

#[tokio::test]
async fn leaving_in_the_queue_in_prefill_and_in_decode_frees_the_place() {
    let rig = slow(|settings| settings.max_running = 1);
    let mut running = rig.engine.submit(&rig.model, request(vec![7; 8], 3_000)).unwrap();
    running.pieces.recv().await.unwrap().unwrap();
    let waiting = rig.engine.submit(&rig.model, request(vec![7; 2_000], 100)).unwrap();
    assert_eq!((rig.engine.load().running, rig.engine.load().queued), (1, 1));
    drop(waiting);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(rig.engine.load().queued, 0);
    drop(running);
    rig.settle().await;
    let prefilling = rig.engine.submit(&rig.model, request(vec![7; 3_000], 100)).unwrap();
    tokio::time::sleep(Duration::from_millis(30)).await;
    assert_eq!(rig.engine.load().running, 1);
    assert!(rig.engine.load().kv_bytes > 0);
    drop(prefilling);
    rig.settle().await;
}

#[tokio::test]
async fn after_two_hundred_departures_everything_is_back() {
    let rig = slow(|settings| (settings.max_running, settings.max_queued_requests) = (4, 16));
    let mut taken = 0;
    for turn in 0..200u32 {
        let ask = GenerationRequest { choices: 1 + turn % 3, ..request(vec![7; 1 + (turn as usize * 37) % 400], 500) };
        let Ok(mut ticket) = rig.engine.submit(&rig.model, ask) else {
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
                    ticket.pieces.recv().await.unwrap().unwrap();
                }
            }
        }
    }
    assert!(taken > 100);
    rig.settle().await;
}

#[tokio::test]
async fn draining_lets_what_runs_finish() {
    let rig = slow(|settings| settings.max_running = 1);
    let mut running = rig.engine.submit(&rig.model, request(vec![7; 8], 100)).unwrap();
    running.pieces.recv().await.unwrap().unwrap();
    let waiting = rig.engine.submit(&rig.model, request(vec![7; 8], 100)).unwrap();
    rig.engine.drain();
    assert_eq!(pieces(waiting.pieces).await, Err(Failure::ShuttingDown));
    assert_eq!(rig.engine.submit(&rig.model, request(vec![7], 1)).unwrap_err(), Refused::ShuttingDown);
    assert_eq!(pieces(running.pieces).await.unwrap().last().unwrap().generated, 100);
    rig.settle().await;
}

#[tokio::test]
async fn aborting_tells_every_receiver_even_a_slow_one() {
    let rig = slow(|settings| settings.max_running = 2);
    let tickets: Vec<_> = (0..4).map(|_| rig.engine.submit(&rig.model, request(vec![7; 8], 1_000)).unwrap()).collect();
    while rig.engine.load().running < 2 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await; // Nobody reads: channels fill.
    rig.engine.abort();
    for ticket in tickets {
        assert_eq!(pieces(ticket.pieces).await, Err(Failure::ShuttingDown));
    }
    rig.settle().await;
}

#[tokio::test]
async fn the_last_handle_ends_the_engine() {
    let rig = slow(|_| ());
    let ticket = rig.engine.submit(&rig.model, request(vec![7; 8], 3_000)).unwrap();
    drop(rig);
    assert_eq!(pieces(ticket.pieces).await, Err(Failure::ShuttingDown));
}

#[tokio::test]
async fn a_reader_that_takes_nothing_loses_its_place_after_a_while() {
    let rig = slow(|settings| settings.max_running = 1);
    let mut unread = rig.engine.submit(&rig.model, request(vec![5; 8], 2_000)).unwrap();
    // Until the channel is full the answer grows; then only time passes.
    let stuck = async |rig: &Rig| {
        tokio::time::sleep(Duration::from_millis(700)).await;
        rig.engine.load().running
    };
    while stuck(&rig).await != 1 {}
    rig.clock.advance(Duration::from_secs(59));
    assert_eq!(stuck(&rig).await, 1, "a slow reader has its time");
    for _ in 0..20 {
        rig.clock.advance(Duration::from_secs(61));
        if stuck(&rig).await == 0 {
            break;
        }
    }
    assert_eq!((rig.engine.load().running, rig.engine.load().kv_bytes), (0, 0));
    let mut last = None;
    while let Some(piece) = unread.pieces.recv().await {
        last = Some(piece);
    }
    assert_eq!(last, Some(Err(Failure::ClientStalled)));
}
