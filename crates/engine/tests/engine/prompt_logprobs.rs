//! Log-probabilities of a prompt's tokens: those that generation reports for the same tokens, however the prompt is computed.

use std::sync::Arc;

use outpost_engine::{FinishReason, GenerationRequest, PromptToken, TextDelta, TokenLogprob};

use crate::harness::{Rig, greedy, pieces, request, rig, slow, tiny, with_kv_blocks};
use crate::tiny_model::TinyModel;

/// A request for the log-probabilities of a prompt, of which nothing is generated.
fn scored(prompt: Vec<u32>) -> GenerationRequest {
    GenerationRequest { prompt_logprobs: Some(3), ..greedy(prompt, 0) }
}

fn prompt(first: u32, count: u32) -> Vec<u32> {
    (0..count).map(|at| (first + at * at * 7) % 250).collect()
}

async fn run(rig: &Rig, request: GenerationRequest) -> Vec<TextDelta> {
    pieces(rig.engine.submit(&rig.model, request).unwrap().deltas).await.unwrap()
}

async fn score(rig: &Rig, prompt: Vec<u32>) -> Arc<[PromptToken]> {
    run(rig, scored(prompt)).await.remove(0).prompt.unwrap()
}

fn preemptions(rig: &Rig) -> u64 {
    let text = rig.engine.metrics();
    let value = text.lines().find_map(|line| line.strip_prefix("outpost_preemptions_total "));
    value.unwrap().parse().unwrap()
}

fn assert_close(one: &[PromptToken], other: &[PromptToken]) {
    assert_eq!(one.len(), other.len());
    let logprob = |token: &PromptToken| token.logprob.as_ref().map(|found| found.logprob);
    for (one, other) in one.iter().zip(other) {
        assert_eq!((one.id, &one.bytes), (other.id, &other.bytes));
        match (logprob(one), logprob(other)) {
            (Some(one), Some(other)) => assert!((one - other).abs() < 1e-4, "{one} {other}"),
            (one, other) => assert_eq!(one, other),
        }
    }
}

#[tokio::test]
async fn a_prompts_tokens_have_the_log_probabilities_that_generation_reports() {
    let rig = tiny();
    let tokens = prompt(3, 40);
    let found = score(&rig, tokens.clone()).await;
    assert_eq!(found.iter().map(|token| token.id).collect::<Vec<_>>(), tokens);
    assert_eq!(found[0].logprob, None);
    for at in 1..tokens.len() {
        // A bias makes generation choose the token; the log-probabilities are those before the bias.
        let mut next = GenerationRequest { logprobs: Some(20), ..greedy(tokens[..at].to_vec(), 1) };
        next.sampling.logit_bias = vec![(tokens[at], 100.)];
        let generated = run(&rig, next).await.remove(0).tokens.remove(0);
        let own = found[at].logprob.as_ref().unwrap();
        assert_eq!(generated.token.id, tokens[at]);
        assert_eq!(found[at].bytes, generated.token.bytes);
        assert!((own.logprob - generated.token.logprob).abs() < 1e-4, "{own:?} {:?}", generated.token);
        let close = |(one, other): (&TokenLogprob, &TokenLogprob)| {
            one.id == other.id && (one.logprob - other.logprob).abs() < 1e-4
        };
        assert!(own.top.len() == 3 && own.top.iter().zip(&generated.top).all(close));
        let rank = generated.top.iter().position(|other| other.id == tokens[at]).map(|at| at + 1);
        assert!(rank.is_none_or(|rank| own.rank as usize == rank), "{} {rank:?}", own.rank);
    }
    rig.wait_until_idle().await;
}

#[tokio::test]
async fn a_prompt_computed_in_several_steps_has_the_same_log_probabilities() {
    let tokens = prompt(5, 400);
    let whole = score(&rig(&TinyModel::default(), |settings| settings.max_running = 500), tokens.clone()).await;
    for (chunk, running) in [(256, 2), (7, 32)] {
        let in_steps = rig(&TinyModel::default(), |settings| {
            (settings.prefill_chunk, settings.max_running) = (chunk, running);
        });
        assert_close(&whole, &score(&in_steps, tokens.clone()).await);
    }
}

#[tokio::test]
async fn a_cached_prompt_is_computed_again_for_its_log_probabilities() {
    let rig = tiny();
    let tokens = prompt(7, 100);
    let cold = score(&rig, tokens.clone()).await;
    let warm = run(&rig, scored(tokens.clone())).await.remove(0);
    assert_eq!(warm.cached, 0);
    assert_close(&cold, &warm.prompt.unwrap());
    // It fills the cache for others.
    assert_eq!(run(&rig, greedy(tokens, 4)).await[0].cached, 96);
}

#[tokio::test]
async fn preempted_prompts_have_the_same_log_probabilities() {
    // 19 blocks each at the end: two fit, four do not.
    let rig = with_kv_blocks(40, |_| ());
    let generating = |at| GenerationRequest { max_tokens: 200, ..scored(prompt(at, 90)) };
    let mut alone = Vec::new();
    for at in 0..4 {
        alone.push(run(&rig, generating(at)).await);
    }
    assert_eq!(preemptions(&rig), 0);
    let tickets: Vec<_> = (0..4).map(|at| rig.engine.submit(&rig.model, generating(at)).unwrap()).collect();
    for (ticket, alone) in tickets.into_iter().zip(&alone) {
        let together = pieces(ticket.deltas).await.unwrap();
        assert_close(together[0].prompt.as_ref().unwrap(), alone[0].prompt.as_ref().unwrap());
        assert!(together[1..].iter().all(|delta| delta.prompt.is_none()));
        let text = |deltas: &[TextDelta]| deltas.iter().map(|delta| delta.text.as_str()).collect::<String>();
        assert_eq!(text(&together), text(alone));
    }
    assert!(preemptions(&rig) > 0);
    rig.wait_until_idle().await;
}

#[tokio::test]
async fn a_prompt_can_give_way_to_others_while_it_is_computed() {
    // Each prompt takes many steps, and all four do not fit.
    let rig = with_kv_blocks(40, |settings| settings.prefill_chunk = 16);
    let tokens = |at| prompt(at, 300);
    let alone = [score(&rig, tokens(0)).await, score(&rig, tokens(1)).await];
    let tickets = [0, 1].map(|at| {
        let long = rig.engine.submit(&rig.model, greedy(prompt(90 + at, 10), 200)).unwrap();
        (rig.engine.submit(&rig.model, scored(tokens(at))).unwrap(), long)
    });
    for ((ticket, long), alone) in tickets.into_iter().zip(&alone) {
        let found = pieces(ticket.deltas).await.unwrap().remove(0).prompt.unwrap();
        assert_close(&found, alone);
        pieces(long.deltas).await.unwrap();
    }
}

#[tokio::test]
async fn sampling_does_not_change_the_log_probabilities_of_the_prompt() {
    let rig = tiny();
    let plain = score(&rig, prompt(9, 50)).await;
    let mut sampled = GenerationRequest { max_tokens: 5, ..scored(prompt(9, 50)) };
    sampled.sampling = request(vec![1], 1).sampling;
    (sampled.sampling.temperature, sampled.sampling.repetition_penalty) = (1.7, 1.5);
    sampled.sampling.logit_bias = vec![(7, 50.)];
    let all = run(&rig, sampled).await;
    assert_close(&plain, all[0].prompt.as_ref().unwrap());
}

#[tokio::test]
async fn nothing_is_generated_of_a_prompt_that_fills_the_context() {
    let rig = tiny();
    let all = run(&rig, GenerationRequest { choices: 3, ..scored(prompt(2, 512)) }).await;
    let mut choices: Vec<u32> = all.iter().map(|delta| delta.choice).collect();
    choices.sort_unstable();
    assert_eq!(choices, [0, 1, 2]);
    for delta in &all {
        assert_eq!((delta.generated, delta.text.as_str(), delta.end), (0, "", Some(FinishReason::Length)));
        assert_eq!(delta.prompt.as_ref().unwrap().len(), 512);
    }
    let plain = run(&rig, greedy(prompt(2, 512), 0)).await;
    assert!(matches!(&plain[..], [delta] if delta.prompt.is_none() && delta.end == Some(FinishReason::Length)));
    assert_eq!(score(&rig, vec![7]).await.len(), 1);
    rig.wait_until_idle().await;
}

#[tokio::test]
async fn a_long_prompt_does_not_delay_the_tokens_of_others() {
    let rig = slow(|_| ());
    let mut other = rig.engine.submit(&rig.model, greedy(prompt(1, 10), 60)).unwrap();
    other.deltas.recv().await.unwrap().unwrap();
    let mut long = rig.engine.submit(&rig.model, scored(prompt(2, 2_000))).unwrap();
    let mut generated = 0;
    while let Some(delta) = other.deltas.recv().await {
        generated = delta.unwrap().generated;
    }
    assert_eq!(generated, 60);
    let delta = long.deltas.recv().await.unwrap().unwrap();
    assert_eq!(delta.prompt.unwrap().len(), 2_000);
}
