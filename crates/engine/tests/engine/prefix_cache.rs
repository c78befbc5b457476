//! The prefix cache: shared prefixes are computed once, and never shared between tenants.

use outpost_engine::{GenerationRequest, MediaSpan, Prompt};
use outpost_models::gguf::GgufFile;
use outpost_models::weights::Weights;

use crate::harness::{Rig, greedy, memory, pieces, rig, slow, tiny, with_kv_blocks};
use crate::tiny_model::TinyModel;

/// Runs the request. Returns the number of cached tokens and the text.
async fn run(rig: &Rig, request: GenerationRequest) -> (u32, String) {
    let (cached, output) = rig.run_cached(request).await;
    (cached, output.text)
}

fn prompt(first: u32, count: u32) -> Vec<u32> {
    (0..count).map(|at| (first + at * 7) % 250).collect()
}

#[tokio::test]
async fn a_shared_prompt_prefix_is_reused() {
    let rig = tiny();
    let new_request = |prompt: Vec<u32>| greedy(prompt, 12);
    let (cold, text) = run(&rig, new_request(prompt(1, 100))).await;
    let (warm, again) = run(&rig, new_request(prompt(1, 100))).await;
    assert_eq!((cold, warm), (0, 96), "whole blocks of 16");
    assert_eq!(text, again, "the output is the same");
    assert_eq!(run(&rig, new_request(prompt(2, 100))).await.0, 0);
    assert_eq!(run(&rig, new_request([prompt(1, 50), prompt(9, 50)].concat())).await.0, 48);
    rig.wait_until_idle().await;
}

#[tokio::test]
async fn generated_tokens_are_cached_too() {
    let rig = tiny();
    let first = GenerationRequest { logprobs: Some(0), ..greedy(prompt(1, 60), 40) };
    let ticket = rig.engine.submit(&rig.model, first).unwrap();
    let all = pieces(ticket.deltas).await.unwrap();
    let output: Vec<u32> = all.iter().flat_map(|piece| &piece.tokens).map(|info| info.token.id).collect();
    // The last generated token is never computed.
    let turn = [prompt(1, 60), output, prompt(3, 20)].concat();
    assert_eq!(run(&rig, greedy(turn, 4)).await.0, 96);
}

#[tokio::test]
async fn cached_blocks_are_not_shared_between_tenants() {
    let rig = tiny();
    run(&rig, greedy(prompt(1, 100), 4)).await;
    let other = GenerationRequest { tenant: 2, ..greedy(prompt(1, 100), 4) };
    assert_eq!(run(&rig, other.clone()).await.0, 0);
    assert_eq!(run(&rig, other).await.0, 96);
}

/// A request whose tokens at some positions are placeholders with the embeddings of the tokens that were there.
fn with_media(rig: &Rig, tokens: &[u32], spans: &[(std::ops::Range<usize>, u128)]) -> GenerationRequest {
    let file = GgufFile::open(&rig.dir.path().join("tiny/tiny.gguf")).unwrap();
    let embedding = |id: &u32| file.rows("token_embd.weight", *id as usize, 1).unwrap().floats().unwrap();
    let mut ids = tokens.to_vec();
    let media = spans.iter().map(|(positions, hash)| {
        ids[positions.clone()].fill(0);
        let embeddings = tokens[positions.clone()].iter().flat_map(embedding).collect();
        MediaSpan { positions: positions.clone(), hash: *hash, embeddings }
    });
    let media = media.collect();
    GenerationRequest { prompt: Prompt::new(ids, media).unwrap(), ..greedy(vec![1], 12) }
}

#[tokio::test]
async fn media_are_computed_from_their_embeddings_and_cached_by_their_content() {
    let rig = rig(&TinyModel::default(), |settings| settings.prefill_chunk = 32);
    let (text, other) = (prompt(1, 100), [prompt(1, 20), prompt(5, 40), prompt(1, 100)[60..].to_vec()].concat());
    let expected = [run(&rig, greedy(text.clone(), 12)).await.1, run(&rig, greedy(other.clone(), 12)).await.1];
    assert_ne!(expected[0], expected[1]);
    let image = |tokens: &[u32], hash| with_media(&rig, tokens, &[(20..60, hash)]);
    assert_eq!(run(&rig, image(&text, 1)).await, (16, expected[0].clone()), "only the tokens before it are cached");
    assert_eq!(run(&rig, image(&text, 1)).await, (96, expected[0].clone()));
    assert_eq!(run(&rig, image(&other, 2)).await, (16, expected[1].clone()), "another image has the same placeholders");
    assert_eq!(run(&rig, image(&text, 1)).await.0, 96);
    let two = |second| with_media(&rig, &text, &[(20..60, 1), (60..90, second)]);
    assert_eq!(run(&rig, two(3)).await, (48, expected[0].clone()), "the first of two is cached");
    assert_eq!(run(&rig, two(4)).await.0, 48);
    rig.wait_until_idle().await;
}

#[tokio::test]
async fn several_choices_prefill_their_prompt_once() {
    let rig = slow(|_| ());
    let new_request = GenerationRequest { choices: 4, ..greedy(prompt(1, 1_000), 3) };
    let alone = rig.run_one(greedy(prompt(1, 1_000), 3)).await;
    assert!(rig.run(new_request).await.iter().all(|output| *output == alone));
    rig.wait_until_idle().await;
}

#[tokio::test]
async fn cached_blocks_are_evicted_for_requests_and_models() {
    let weights = memory(&tiny().engine, "weights");
    // Memory for another model's weights, or for as many blocks.
    let rig = with_kv_blocks(20 + weights / 4_096, |_| ());
    crate::tiny_model::write(rig.dir.path(), "other", &TinyModel::default());
    // Exceeds the memory repeatedly: the oldest blocks are evicted.
    for at in 0..60 {
        assert_eq!(run(&rig, greedy(prompt(at, 100), 4)).await.0, 0);
    }
    assert_eq!(run(&rig, greedy(prompt(59, 100), 4)).await.0, 96);
    rig.clock.advance(std::time::Duration::from_secs(2));
    // The models folder is read again once a second.
    crate::wait::until(|| "the other model is found", || rig.engine.models().load("other").is_ok());
    assert_eq!(run(&rig, greedy(prompt(3, 100), 4)).await.0, 0);
    rig.wait_until_idle().await;
}
