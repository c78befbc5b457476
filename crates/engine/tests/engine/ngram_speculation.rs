//! N-gram speculation changes only the number of steps, not the output.

use outpost_engine::GenerationRequest;

use crate::harness::{outputs, pieces, request, slow};

/// A repetitive prompt; the output of a tiny model is repetitive, too.
fn prompt() -> Vec<u32> {
    (0..90).map(|at| at % 9).collect()
}

#[tokio::test]
async fn speculation_does_not_change_output() {
    let (plain, speculative) = (slow(|_| ()), slow(|settings| settings.speculate = true));
    for (temperature, seed, choices) in [(0., 1, 1), (0.7, 2, 1), (1.2, 3, 3)] {
        let mut request =
            GenerationRequest { choices, logprobs: Some(0), stop: vec!["zq".to_owned()], ..request(prompt(), 300) };
        (request.sampling.temperature, request.sampling.seed) = (temperature, seed);
        let expected = plain.run(request.clone()).await;
        let ticket = speculative.engine.submit(&speculative.model, request).unwrap();
        let all = pieces(ticket.deltas).await.unwrap();
        assert_eq!(outputs(&all, choices as usize), expected);
        let tokens: usize = all.iter().map(|piece| piece.tokens.len()).sum();
        assert_eq!(tokens as u32, expected.iter().map(|output| output.generated).sum::<u32>());
    }
    assert!(speculative.counter("accepted_tokens") > 20, "{}", speculative.engine.metrics());
    assert!(speculative.counter("accepted_tokens") <= speculative.counter("drafted_tokens"));
    assert_eq!(plain.counter("drafted_tokens"), 0);
    speculative.wait_until_idle().await;
}
