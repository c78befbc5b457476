//! What was computed once is not computed again, and nobody else learns of it.

use outpost::engine::GenerationRequest;

use crate::support::{Rig, answers, greedy, memory, pieces, short_of_memory, slow, tiny};
use crate::tiny_model::TinyModel;

/// Runs the request; gives the cached tokens that its pieces tell, and the text.
async fn run(rig: &Rig, request: GenerationRequest) -> (u32, String) {
    let ticket = rig.engine.submit(&rig.model, request).unwrap();
    let all = pieces(ticket.pieces).await.unwrap();
    let cached = all[0].cached;
    assert!(all.iter().all(|piece| piece.cached == cached), "every piece tells the same");
    (cached, answers(&all, 1).remove(0).text)
}

fn prompt(first: u32, count: u32) -> Vec<u32> {
    (0..count).map(|at| (first + at * 7) % 250).collect()
}

#[tokio::test]
async fn a_prompt_that_begins_like_an_earlier_one_takes_it_over() {
    let rig = tiny();
    let ask = |prompt: Vec<u32>| greedy(prompt, 12);
    let (cold, text) = run(&rig, ask(prompt(1, 100))).await;
    let (warm, again) = run(&rig, ask(prompt(1, 100))).await;
    assert_eq!((cold, warm), (0, 96), "whole blocks of 16");
    assert_eq!(text, again, "the answer is the same");
    assert_eq!(run(&rig, ask(prompt(2, 100))).await.0, 0);
    assert_eq!(run(&rig, ask([prompt(1, 50), prompt(9, 50)].concat())).await.0, 48);
    rig.settle().await;
}

#[tokio::test]
async fn answers_are_remembered_too() {
    let rig = tiny();
    let first = GenerationRequest { logprobs: Some(0), ..greedy(prompt(1, 60), 40) };
    let ticket = rig.engine.submit(&rig.model, first).unwrap();
    let all = pieces(ticket.pieces).await.unwrap();
    let answer: Vec<u32> = all.iter().flat_map(|piece| &piece.tokens).map(|info| info.token.id).collect();
    // The last token of an answer is never computed.
    let turn = [prompt(1, 60), answer, prompt(3, 20)].concat();
    assert_eq!(run(&rig, greedy(turn, 4)).await.0, 96);
}

#[tokio::test]
async fn another_tenant_takes_over_nothing() {
    let rig = tiny();
    run(&rig, greedy(prompt(1, 100), 4)).await;
    let other = GenerationRequest { tenant: 2, ..greedy(prompt(1, 100), 4) };
    assert_eq!(run(&rig, other.clone()).await.0, 0);
    assert_eq!(run(&rig, other).await.0, 96);
}

#[tokio::test]
async fn several_answers_compute_their_prompt_once() {
    let rig = slow(|_| ());
    let ask = GenerationRequest { choices: 4, ..greedy(prompt(1, 1_000), 3) };
    let alone = rig.one(greedy(prompt(1, 1_000), 3)).await;
    assert!(rig.run(ask).await.iter().all(|answer| *answer == alone));
    rig.settle().await;
}

#[tokio::test]
async fn what_is_cached_gives_way_to_what_runs_and_to_models() {
    let weights = memory(&tiny().engine, "weights");
    // Room for another model's weights, or for as many blocks more.
    let rig = short_of_memory(20 + weights / 4_096, |_| ());
    crate::tiny_model::write(rig.dir.path(), "other", &TinyModel::default());
    // More than the room, again and again: the oldest go.
    for at in 0..60 {
        assert_eq!(run(&rig, greedy(prompt(at, 100), 4)).await.0, 0);
    }
    assert_eq!(run(&rig, greedy(prompt(59, 100), 4)).await.0, 96);
    tokio::time::sleep(std::time::Duration::from_millis(1_100)).await;
    rig.clock.advance(std::time::Duration::from_secs(2));
    rig.engine.models().load("other").unwrap();
    assert_eq!(run(&rig, greedy(prompt(3, 100), 4)).await.0, 0);
    rig.settle().await;
}
