//! Request scheduling: queue limits, memory limits, preemption and fairness between tenants.

use std::time::Duration;

use outpost_engine::{GenerationRequest, Refused, TooLarge};

use crate::harness::{Rig, greedy, memory, outputs, pieces, request, rig, slow, with_kv_blocks};
use crate::tiny_model::TinyModel;

#[tokio::test]
async fn a_full_queue_refuses_at_once() {
    let rig =
        slow(|settings| (settings.max_running, settings.max_queued_requests, settings.tenant_divisor) = (2, 3, 1));
    let new_request = || rig.engine.submit(&rig.model, request(vec![7; 40], 2_000));
    // Two slots and three queued: the sixth is refused, however fast requests start.
    let taken: Vec<_> = (0..5).map(|_| new_request().unwrap()).collect();
    for _ in 0..50 {
        match new_request() {
            Err(Refused::QueueFull { retry_after }) => assert!(retry_after >= Duration::from_secs(1)),
            other => panic!("{other:?}"),
        }
    }
    drop(taken);
    new_request().unwrap(); // Cancelled requests free their slots at once.
}

#[tokio::test]
async fn waiting_tokens_are_bounded_too() {
    let rig =
        slow(|settings| (settings.max_running, settings.max_queued_tokens, settings.tenant_divisor) = (1, 1_000, 1));
    let new_request = |count| rig.engine.submit(&rig.model, request(vec![7; count], 1_000));
    let mut running = new_request(10).unwrap();
    running.deltas.recv().await.unwrap().unwrap();
    let _waiting = new_request(900).unwrap();
    assert_eq!(rig.engine.load().queued_tokens, 900);
    assert!(matches!(new_request(101), Err(Refused::QueueFull { .. })));
    let _small = new_request(100).unwrap();
}

#[tokio::test]
async fn memory_is_reserved_before_work_begins() {
    let rig = with_kv_blocks(20, |_| ());
    let refused = rig.engine.submit(&rig.model, request(vec![7; 300], 100));
    let Err(Refused::TooLarge(TooLarge { needed_bytes, budget_bytes, .. })) = refused else { panic!("{refused:?}") };
    assert_eq!((needed_bytes, budget_bytes), (25 * 4_096, 20 * 4_096));
    assert_eq!(rig.engine.positions(&rig.model), 20 * 16);
}

#[tokio::test]
async fn larger_batches_leave_less_memory_for_the_kv_cache() {
    let scratch = |rig: &Rig| memory(&rig.engine, "scratch");
    let few = rig(&TinyModel::default(), |settings| settings.max_running = 64);
    let many = rig(&TinyModel::default(), |settings| settings.max_running = 126);
    // 62 more sequences, each with its activations in a block and its logits twice.
    assert!(scratch(&many) - scratch(&few) > 62 * 4 * (2 * 290 + 4 * 64));
    let (weights, total) = (memory(&many.engine, "weights"), memory(&many.engine, "total"));
    let held = u64::from(many.engine.positions(&many.model)) / 16 * 4_096;
    assert!(held <= total - weights - scratch(&many));
}

#[tokio::test]
async fn requests_are_preempted_when_memory_is_short() {
    let rig = with_kv_blocks(20, |_| ());
    // 16 blocks each at the end: one fits, three do not.
    let new_request = |at: u32| greedy(vec![7 + at, 8, 9], 240);
    let mut alone = Vec::new();
    for at in 0..3 {
        alone.push(rig.run_one(new_request(at)).await);
    }
    let tickets: Vec<_> = (0..3).map(|at| rig.engine.submit(&rig.model, new_request(at)).unwrap()).collect();
    for (ticket, expected) in tickets.into_iter().zip(alone) {
        assert!(rig.engine.load().kv_bytes <= 4_096 * 20);
        assert_eq!(outputs(&pieces(ticket.deltas).await.unwrap(), 1), [expected]);
    }
    rig.wait_until_idle().await;
}

#[tokio::test]
async fn a_long_prompt_does_not_stall_a_running_request() {
    let rig = slow(|settings| settings.prefill_chunk = 32);
    let mut short = rig.engine.submit(&rig.model, request(vec![7; 4], 40)).unwrap();
    short.deltas.recv().await.unwrap().unwrap();
    let long = rig.engine.submit(&rig.model, request(vec![7; 3_900], 2)).unwrap();
    // 39 more tokens need 39 steps; the prompt needs 122.
    assert_eq!(pieces(short.deltas).await.unwrap().len(), 39);
    assert!(rig.engine.load().running >= 1, "the long prompt is still in prefill");
    drop(long);
    rig.wait_until_idle().await;
}

#[tokio::test]
async fn a_tenant_with_one_request_overtakes_a_tenant_with_many() {
    let rig = slow(|settings| settings.max_running = 2);
    let new_request =
        |tenant| rig.engine.submit(&rig.model, GenerationRequest { tenant, ..request(vec![7; 4], 60) }).unwrap();
    let many: Vec<_> = (0..8).map(|_| new_request(1)).collect();
    let one = new_request(2);
    pieces(one.deltas).await.unwrap();
    assert!(rig.engine.load().queued >= 4, "{:?}", rig.engine.load());
    drop(many);
}

#[tokio::test]
async fn more_choices_than_slots_run_alone() {
    let rig = rig(&TinyModel::default(), |settings| settings.max_running = 2);
    let outputs = rig.run(GenerationRequest { choices: 9, ..request(vec![7; 4], 5) }).await;
    assert!(outputs.iter().all(|output| output.generated == 5));
    rig.wait_until_idle().await;
}
