//! Stop tokens, bad words, allowed tokens, and what becomes of tokens in the text. Speculation and further choices change
//! none of it.

use outpost_engine::{
    Failure, FinishReason, GenerationRequest, MAX_ALLOWED_TOKENS, MAX_BAD_WORDS, MAX_CHOICES, MAX_STOP_TOKENS,
    MAX_TOP_LOGPROBS, OutputSpec, Refused, Sampling, TextFormat, TextOptions, TokenizeLimits,
};

use crate::harness::{ChoiceOutput, Rig, greedy, outputs, pieces, request, rig, slow, tiny};
use crate::tiny_model::TinyModel;

/// The tokens of the control tokens `<|im_start|>` and `<|im_end|>`, of which the second ends a text.
fn control_ids(rig: &Rig) -> (u32, u32) {
    let count = rig.model.vocabulary() as u32;
    (count - 2, count - 1)
}

/// The output and the token IDs of each choice.
async fn run(rig: &Rig, mut request: GenerationRequest) -> Vec<(ChoiceOutput, Vec<u32>)> {
    request.text.has_token_ids = true;
    let choices = request.choices as usize;
    let generation = rig.engine.submit(&rig.model, request).unwrap();
    let deltas = pieces(generation.deltas).await.unwrap();
    let mut ids = vec![Vec::new(); choices];
    for delta in &deltas {
        ids[delta.choice as usize].extend(&delta.token_ids);
    }
    let outputs = outputs(&deltas, choices);
    for (output, ids) in outputs.iter().zip(&ids) {
        assert_eq!(output.generated as usize, ids.len());
    }
    outputs.into_iter().zip(ids).collect()
}

/// Requests with one and several choices that repeat themselves, so that n-grams are proposed.
fn repetitive() -> Vec<GenerationRequest> {
    let prompt = || (0..90).map(|at| at % 9).collect();
    let sampled = |temperature, choices| {
        let mut request = GenerationRequest { choices, ..request(prompt(), 120) };
        request.sampling.temperature = temperature;
        request
    };
    vec![sampled(0., 1), sampled(0.7, 1), sampled(1.2, 3)]
}

fn text_of(rig: &Rig, ids: &[u32]) -> String {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| rig.model.token_bytes(*id)).copied().collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[tokio::test]
async fn a_stop_token_ends_the_text_with_and_without_speculation() {
    let (plain, speculative) = (slow(|_| ()), slow(|settings| settings.speculate = true));
    let (start, end) = control_ids(&plain);
    for mut request in repetitive() {
        request.sampling.logit_bias = vec![(start, -100.), (end, -100.), (start - 1, -100.)];
        let free = run(&plain, request.clone()).await;
        let stop = free[0].1[free[0].1.len() / 2];
        request.sampling.stop_tokens = [stop].into();
        for keeps_stop in [false, true] {
            request.text.keeps_stop = keeps_stop;
            let stopped = run(&plain, request.clone()).await;
            for ((output, ids), (_, free)) in stopped.iter().zip(&free) {
                let last = free.iter().position(|id| *id == stop);
                let expected = last.map_or(&free[..], |last| &free[..=last]);
                assert_eq!(ids, expected, "the stop token is the last one");
                let shown = if last.is_some() && !keeps_stop { &ids[..ids.len() - 1] } else { ids };
                assert_eq!(output.text, text_of(&plain, shown));
                let reason = if last.is_some() { FinishReason::Stop } else { FinishReason::Length };
                assert_eq!(output.end, Some(reason));
            }
            assert_eq!(stopped[0].0.end, Some(FinishReason::Stop));
            assert_eq!(run(&speculative, request.clone()).await, stopped);
        }
    }
    assert!(speculative.counter("accepted_tokens") > 0, "{}", speculative.engine.metrics());
}

#[tokio::test]
async fn a_stop_token_waits_for_min_tokens_and_ends_the_text_despite_ignore_eos() {
    let rig = tiny();
    let (start, end) = control_ids(&rig);
    for stop in [start, end] {
        let mut request = greedy(vec![7, 8], 20);
        request.sampling.logit_bias = vec![(stop, 1_000.)];
        request.sampling.stop_tokens = [stop].into();
        request.sampling.min_tokens = 3;
        let (output, ids) = run(&rig, request).await.remove(0);
        assert_eq!((output.end, ids.len(), ids[3]), (Some(FinishReason::Stop), 4, stop));
    }
}

#[tokio::test]
async fn a_bad_word_is_not_generated_with_and_without_speculation() {
    let (plain, speculative) = (slow(|_| ()), slow(|settings| settings.speculate = true));
    for mut request in repetitive() {
        let free = run(&plain, request.clone()).await;
        let [.., two, three, four] = free[0].1[..40] else { unreachable!() };
        for word in [vec![four], vec![three, four], vec![two, three, four]] {
            assert!(free[0].1.windows(word.len()).any(|part| part == word));
            // A word that is not generated changes nothing.
            request.sampling.bad_words = [word.clone(), vec![four, 0, four, 1, four]].into();
            let banned = run(&plain, request.clone()).await;
            for ((_, ids), (_, free)) in banned.iter().zip(&free) {
                assert_eq!(ids.len(), 120);
                assert!(!ids.windows(word.len()).any(|part| part == word), "{word:?} in {ids:?}");
                let before = &word[..word.len() - 1];
                let same = (0..free.len()).find(|at| free[..*at].ends_with(before)).unwrap_or(free.len());
                assert_eq!(ids[..same], free[..same], "nothing changes before the word may end");
            }
            assert_eq!(run(&speculative, request.clone()).await, banned);
        }
    }
    assert!(speculative.counter("accepted_tokens") > 0, "{}", speculative.engine.metrics());
}

#[tokio::test]
async fn bad_words_have_a_form_with_a_space_and_one_without() {
    let rig = tiny();
    let words = ["hello", "  zq", "\n", ""].map(str::to_owned);
    let forms = rig.model.encode_words(&words, &TokenizeLimits::default()).unwrap();
    let texts: Vec<String> = forms.iter().map(|form| text_of(&rig, form)).collect();
    assert_eq!(texts, ["hello", " hello", "zq", " zq", "\n"]);
}

#[tokio::test]
async fn bad_words_compose_with_a_grammar() {
    let rig = rig(&TinyModel { context: 2048, ..TinyModel::default() }, |settings| settings.speculate = true);
    let texts = ["zqx", "zqw", "zqj"];
    let spec = OutputSpec { text: TextFormat::Choice(texts.map(str::to_owned).to_vec()), ..OutputSpec::default() };
    let grammar = rig.model.compile_grammar(&spec).unwrap();
    let constrained = |bad: &[&str]| {
        let words: Vec<String> = bad.iter().map(|word| (*word).to_owned()).collect();
        let bad_words = rig.model.encode_words(&words, &TokenizeLimits::default()).unwrap().into();
        let sampling = Sampling { bad_words, ..Sampling::default() };
        GenerationRequest { grammar: Some(grammar.clone()), sampling, choices: 4, ..request(vec![7, 8], 100) }
    };
    // The tiny model has a token for each of these letters.
    for (bad, expected) in [(["zqx", "zqw"], "zqj"), (["qj", "x"], "zqw")] {
        for output in rig.run(constrained(&bad)).await {
            assert_eq!((output.text.as_str(), output.end), (expected, Some(FinishReason::Stop)), "{bad:?}");
        }
    }
    let generation = rig.engine.submit(&rig.model, constrained(&["x", "w", "j"])).unwrap();
    assert!(matches!(pieces(generation.deltas).await, Err(Failure::NoToken)));
    rig.wait_until_idle().await;
}

#[tokio::test]
async fn only_allowed_tokens_are_generated() {
    let rig = tiny();
    let mut request = GenerationRequest { choices: 2, ..request(vec![7, 8], 40) };
    request.sampling.allowed_tokens = [65, 70, 75].into();
    request.sampling.logit_bias = vec![(70, -100.)];
    for (_, ids) in run(&rig, request).await {
        assert!(ids.len() == 40 && ids.contains(&65) && ids.contains(&75), "{ids:?}");
        assert!(ids.iter().all(|id| [65, 75].contains(id)), "{ids:?}");
    }
}

#[tokio::test]
async fn special_tokens_have_text_on_request() {
    let rig = &tiny();
    let (start, end) = control_ids(rig);
    let generate = |token, max_tokens, keeps_special_tokens, keeps_stop| {
        let mut request = greedy(vec![7, 8], max_tokens);
        request.sampling.ignore_eos = false;
        request.sampling.logit_bias = vec![(token, 1_000.)];
        request.text = TextOptions { keeps_special_tokens, keeps_stop, ..TextOptions::default() };
        async move { run(rig, request).await.remove(0).0.text }
    };
    assert_eq!(generate(start, 2, true, false).await, "<|im_start|><|im_start|>");
    assert_eq!(generate(start, 2, false, false).await, "");
    // As in vLLM, a token that ends the text needs both.
    assert_eq!(generate(end, 2, true, true).await, "<|im_end|>");
    assert_eq!(generate(end, 2, true, false).await, "");
    assert_eq!(generate(end, 2, false, true).await, "");
}

#[tokio::test]
async fn a_kept_stop_string_is_the_end_of_the_text() {
    let (plain, speculative) = (slow(|_| ()), slow(|settings| settings.speculate = true));
    for mut request in repetitive() {
        let whole = plain.run(request.clone()).await[0].text.clone();
        let start = whole.char_indices().nth(20).unwrap().0;
        let stop: String = whole[start..].chars().take(3).collect();
        request.stop = vec!["never there".to_owned(), stop.clone()];
        request.text.keeps_stop = true;
        let outputs = plain.run(request.clone()).await;
        let end = whole.find(&stop).unwrap() + stop.len();
        assert_eq!((outputs[0].text.as_str(), outputs[0].end), (&whole[..end], Some(FinishReason::StopString(1))));
        assert_eq!(speculative.run(request).await, outputs);
    }
}

#[tokio::test]
async fn as_many_choices_as_openai_allows_run_in_few_slots() {
    let rig = rig(&TinyModel::default(), |settings| settings.max_running = 3);
    let outputs = rig.run(GenerationRequest { choices: MAX_CHOICES, ..request(vec![7, 8, 9], 3) }).await;
    assert_eq!((MAX_CHOICES, outputs.len()), (128, 128));
    assert!(outputs.iter().all(|output| output.generated == 3));
    assert_eq!(outputs[..3], rig.run(GenerationRequest { choices: 3, ..request(vec![7, 8, 9], 3) }).await);
    rig.wait_until_idle().await;
    let too_much = GenerationRequest { choices: 17, logprobs: Some(MAX_TOP_LOGPROBS), ..request(vec![7], 3) };
    assert!(matches!(rig.engine.submit(&rig.model, too_much), Err(Refused::Invalid(_))));
}

#[tokio::test]
async fn lists_of_tokens_are_bounded_and_known() {
    let rig = tiny();
    let unknown = rig.model.vocabulary() as u32;
    let with = |change: &dyn Fn(&mut Sampling)| {
        let mut request = request(vec![7], 3);
        change(&mut request.sampling);
        rig.engine.submit(&rig.model, request).map(drop)
    };
    let refused: [&dyn Fn(&mut Sampling); 7] = [
        &|sampling| sampling.stop_tokens = [unknown].into(),
        &|sampling| sampling.stop_tokens = vec![1; MAX_STOP_TOKENS + 1].into(),
        &|sampling| sampling.allowed_tokens = [unknown].into(),
        &|sampling| sampling.allowed_tokens = vec![1; MAX_ALLOWED_TOKENS + 1].into(),
        &|sampling| sampling.bad_words = [vec![1, unknown]].into(),
        &|sampling| sampling.bad_words = [vec![]].into(),
        &|sampling| sampling.bad_words = vec![vec![1]; 2 * MAX_BAD_WORDS + 1].into(),
    ];
    for change in refused {
        assert!(matches!(with(change), Err(Refused::Invalid(_))));
    }
    assert!(with(&|sampling| sampling.bad_words = vec![vec![1]; 2 * MAX_BAD_WORDS].into()).is_ok());
}
