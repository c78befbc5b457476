//! Tokens that are guessed ahead change nothing but the number of steps.

use outpost::engine::GenerationRequest;

use crate::support::{answers, pieces, request, slow};

/// A text that repeats itself, as a tiny model's answers do.
fn prompt() -> Vec<u32> {
    (0..90).map(|at| at % 9).collect()
}

#[tokio::test]
async fn guesses_do_not_change_answers() {
    let (plain, guessing) = (slow(|_| ()), slow(|settings| settings.speculate = true));
    for (temperature, seed, choices) in [(0., 1, 1), (0.7, 2, 1), (1.2, 3, 3)] {
        let mut ask =
            GenerationRequest { choices, logprobs: Some(0), stop: vec!["zq".to_owned()], ..request(prompt(), 300) };
        (ask.sampling.temperature, ask.sampling.seed) = (temperature, seed);
        let expected = plain.run(ask.clone()).await;
        let ticket = guessing.engine.submit(&guessing.model, ask).unwrap();
        let all = pieces(ticket.pieces).await.unwrap();
        assert_eq!(answers(&all, choices as usize), expected);
        let tokens: usize = all.iter().map(|piece| piece.tokens.len()).sum();
        assert_eq!(tokens as u32, expected.iter().map(|answer| answer.generated).sum::<u32>());
    }
    assert!(guessing.counted("accepted_tokens") > 20, "{}", guessing.engine.metrics());
    assert!(guessing.counted("accepted_tokens") <= guessing.counted("drafted_tokens"));
    assert_eq!(plain.counted("drafted_tokens"), 0);
    guessing.settle().await;
}
