//! Text generation: finish reasons, stop strings, seeds, choices, log-probabilities, the context limit.

use outpost_engine::{FinishReason, GenerationRequest, MAX_CHOICES, MAX_STOPS, MAX_TOP_LOGPROBS, Refused};

use crate::harness::{ChoiceOutput, greedy, outputs, pieces, request, rig, slow, tiny};
use crate::tiny_model::TinyModel;

#[tokio::test]
async fn generation_stops_at_max_tokens() {
    let rig = tiny();
    let output = rig.run_one(request(rig.model.encode("hello").unwrap(), 20)).await;
    assert_eq!((output.generated, output.end), (20, Some(FinishReason::Length)));
    rig.wait_until_idle().await;
}

#[tokio::test]
async fn the_eos_token_ends_generation() {
    let rig = tiny();
    let end = rig.model.vocabulary() as u32 - 1;
    let mut request = request(rig.model.encode("hello").unwrap(), 20);
    request.sampling.ignore_eos = false;
    request.sampling.logit_bias = vec![(end, 1_000.)];
    request.sampling.min_tokens = 3;
    request.logprobs = Some(0);
    let ticket = rig.engine.submit(&rig.model, request).unwrap();
    let pieces = pieces(ticket.deltas).await.unwrap();
    let output = &outputs(&pieces, 1)[0];
    assert_eq!((output.generated, output.end), (4, Some(FinishReason::Stop)));
    assert!(!output.text.contains("<|"), "{}", output.text);
    assert_eq!(pieces.iter().map(|piece| piece.tokens.len()).sum::<usize>(), 3, "the EOS token has no log-probability");
}

#[tokio::test]
async fn seeds_reproduce_and_choices_differ() {
    let rig = tiny();
    let new_request = |seed, choices| {
        let mut request = request(rig.model.encode("hello the").unwrap(), 24);
        request.sampling.seed = seed;
        GenerationRequest { choices, ..request }
    };
    let three = rig.run(new_request(1, 3)).await;
    assert_eq!(three, rig.run(new_request(1, 3)).await);
    assert_eq!(
        three[0],
        rig.run_one(new_request(1, 1)).await,
        "the first choice does not depend on how many there are"
    );
    assert_ne!(three[0].text, three[1].text);
    assert_ne!(three[1].text, three[2].text);
    assert_ne!(three[0], rig.run_one(new_request(2, 1)).await);
    rig.wait_until_idle().await;
}

#[tokio::test]
async fn output_does_not_depend_on_other_requests_in_the_batch() {
    let rig = tiny();
    let new_request = |text: &str| greedy(rig.model.encode(text).unwrap(), 40);
    let texts = ["hello", "and on the", "0123456789", "in a red hall"];
    let mut alone = Vec::new();
    for text in texts {
        alone.push(rig.run_one(new_request(text)).await);
    }
    let tickets: Vec<_> = texts.iter().map(|text| rig.engine.submit(&rig.model, new_request(text)).unwrap()).collect();
    for (ticket, expected) in tickets.into_iter().zip(alone) {
        assert_eq!(outputs(&pieces(ticket.deltas).await.unwrap(), 1), [expected]);
    }
}

#[tokio::test]
async fn a_stop_string_ends_generation_and_is_not_returned() {
    let rig = tiny();
    let whole = rig.run_one(request(rig.model.encode("hello").unwrap(), 60)).await.text;
    let letters: Vec<(usize, char)> = whole.char_indices().collect();
    for &(start, _) in letters.iter().skip(4).step_by(9).take(5) {
        let stop: String = whole[start..].chars().take(3).collect();
        let first = whole.find(&stop).unwrap();
        let output = rig
            .run_one(GenerationRequest {
                stop: vec!["never there".to_owned(), stop],
                ..request(rig.model.encode("hello").unwrap(), 60)
            })
            .await;
        assert_eq!((output.text.as_str(), output.end), (&whole[..first], Some(FinishReason::StopString(1))));
        assert!(output.generated < 60);
    }
}

#[tokio::test]
async fn deltas_are_the_full_text_in_whole_characters() {
    let rig = tiny();
    let mut request = request(rig.model.encode("hello").unwrap(), 200);
    request.sampling.temperature = 3.;
    request.logprobs = Some(0);
    let ticket = rig.engine.submit(&rig.model, request).unwrap();
    let pieces = pieces(ticket.deltas).await.unwrap();
    let special = rig.model.vocabulary() as u32 - 3;
    let tokens = pieces.iter().flat_map(|piece| &piece.tokens).filter(|info| info.token.id < special);
    let bytes: Vec<u8> = tokens.flat_map(|info| info.token.bytes.clone()).collect();
    assert_eq!(outputs(&pieces, 1)[0].text, String::from_utf8_lossy(&bytes));
}

#[tokio::test]
async fn log_probabilities_are_a_distribution() {
    let rig = tiny();
    let mut request = greedy(rig.model.encode("hello").unwrap(), 5);
    request.logprobs = Some(20);
    // A logit bias changes the sampled token, not the reported log-probabilities.
    request.sampling.logit_bias = vec![(65, 1_000.)];
    let ticket = rig.engine.submit(&rig.model, request).unwrap();
    for piece in pieces(ticket.deltas).await.unwrap() {
        let [info] = piece.tokens.as_slice() else { panic!("one token for each delta") };
        assert_eq!((info.token.id, info.top.len()), (65, 20));
        assert!(info.token.logprob < 0. && info.top.is_sorted_by(|a, b| a.logprob >= b.logprob));
        let mass: f32 = info.top.iter().map(|one| one.logprob.exp()).sum();
        assert!(mass > 0.05 && mass <= 1.0001, "{mass}");
    }
}

#[tokio::test]
async fn the_context_limit_is_exact() {
    let rig = rig(&TinyModel { context: 64, ..TinyModel::default() }, |_| ());
    let prompt = |count: usize| vec![7; count];
    for (count, tokens, fits) in
        [(63, 1, true), (44, 20, true), (44, 19, true), (64, 1, false), (44, 21, false), (1, u32::MAX, false)]
    {
        let taken = rig.engine.submit(&rig.model, request(prompt(count), tokens));
        match taken {
            Ok(ticket) => {
                let output = &outputs(&pieces(ticket.deltas).await.unwrap(), 1)[0];
                assert!(fits && output.generated == tokens);
            }
            Err(refused) => assert!(!fits && matches!(refused, Refused::Invalid(_)), "{refused}"),
        }
    }
    assert!(matches!(rig.engine.submit(&rig.model, request(prompt(640), 1)), Err(Refused::Invalid(_))));
}

#[tokio::test]
async fn invalid_requests_are_refused() {
    let rig = tiny();
    let good = || request(vec![7], 4);
    let mut bad = vec![request(vec![], 4), request(vec![9_999], 4)];
    bad.push(GenerationRequest { choices: 0, ..good() });
    bad.push(GenerationRequest { choices: MAX_CHOICES + 1, ..good() });
    bad.push(GenerationRequest { stop: vec![String::new()], ..good() });
    bad.push(GenerationRequest { stop: vec!["a".to_owned(); MAX_STOPS + 1], ..good() });
    bad.push(GenerationRequest { logprobs: Some(MAX_TOP_LOGPROBS + 1), ..good() });
    bad.push(GenerationRequest { prompt_logprobs: Some(MAX_TOP_LOGPROBS + 1), ..good() });
    for (temperature, top_p) in [(f32::NAN, 1.), (-1., 1.), (1., -0.1), (1., 1.5)] {
        let mut request = good();
        (request.sampling.temperature, request.sampling.top_p) = (temperature, top_p);
        bad.push(request);
    }
    for request in bad {
        assert!(matches!(rig.engine.submit(&rig.model, request), Err(Refused::Invalid(_))));
    }
}

#[tokio::test]
async fn a_request_whose_tokens_are_all_banned_fails_alone() {
    let rig = tiny();
    let mut request = request(vec![7], 4);
    request.sampling.logit_bias = (0..rig.model.vocabulary() as u32).map(|id| (id, -100.)).collect();
    let ticket = rig.engine.submit(&rig.model, request).unwrap();
    assert!(matches!(pieces(ticket.deltas).await, Err(outpost_engine::Failure::NoToken)));
    assert_eq!(rig.run_one(greedy(vec![7], 4)).await.generated, 4);
    rig.wait_until_idle().await;
}

#[tokio::test]
async fn a_slow_client_pauses_only_its_own_response() {
    let rig = slow(|_| ());
    let mut unread = rig.engine.submit(&rig.model, request(vec![7; 5], 300)).unwrap();
    let output = rig.run_one(request(vec![7; 5], 200)).await;
    assert_eq!(output.generated, 200);
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    assert_eq!(rig.engine.load().running, 1, "the unread response waits for its client");
    let mut all = Vec::new();
    while let Some(piece) = unread.deltas.recv().await {
        all.push(piece.unwrap());
    }
    let ChoiceOutput { generated, .. } = outputs(&all, 1)[0];
    assert_eq!(generated, 300);
    rig.wait_until_idle().await;
}
