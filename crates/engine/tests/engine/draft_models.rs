//! A draft model changes only the number of steps, not the output.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use outpost_engine::{Drafts, Engine, GenerationRequest, Settings};

use crate::harness::{ChoiceOutput, Rig, TestClock, greedy, memory, outputs, pieces, prompt, request, settings};
use crate::tiny_model::{self, TinyModel};

/// The draft model: a part of `LARGE` with the same output.
const SMALL: TinyModel = TinyModel { context: 2048, ..tiny_model::DEFAULT };
const LARGE: TinyModel = TinyModel { zero_blocks: 6, ..SMALL };

/// A draft model whose tokens are rarely accepted.
const UNRELATED: TinyModel = TinyModel { seed: 9, ..SMALL };

/// The metric label of tokens from a draft model.
const DRAFT_LABEL: &str = "by=\"draft\"";

fn rig(draft: Option<&TinyModel>, change: impl FnOnce(&mut Settings)) -> Rig {
    let dir = tempfile::tempdir().unwrap();
    tiny_model::write(dir.path(), "large", &LARGE);
    if let Some(draft) = draft {
        tiny_model::write(dir.path(), "small", draft);
    }
    let mut settings = Settings { speculate: draft.is_some(), ..settings(dir.path()) };
    change(&mut settings);
    let clock = Arc::new(TestClock::default());
    let engine = Engine::start(settings, clock.clone()).unwrap();
    let model = engine.models().load("large").unwrap();
    Rig { engine, model, clock, dir }
}

/// Greedy and sampled requests, with one and several choices, of lengths around the block size.
fn requests() -> Vec<GenerationRequest> {
    let request = |at: u32| {
        let mut request =
            GenerationRequest { choices: 1 + at % 3, logprobs: Some(0), ..request(prompt(at, 13 + at * 5), 60) };
        (request.sampling.temperature, request.sampling.seed) = (at as f32 % 4. * 0.4, u64::from(at));
        request
    };
    (0..12).map(request).collect()
}

async fn all(rig: &Rig, requests: &[GenerationRequest]) -> Vec<Vec<ChoiceOutput>> {
    let one = |request: &GenerationRequest| {
        let (choices, ticket) = (request.choices as usize, rig.engine.submit(&rig.model, request.clone()).unwrap());
        async move {
            let all = pieces(ticket.deltas).await.unwrap();
            let explained: usize = all.iter().map(|piece| piece.tokens.len()).sum();
            let outputs = outputs(&all, choices);
            assert_eq!(explained as u32, outputs.iter().map(|output| output.generated).sum::<u32>());
            outputs
        }
    };
    join_all(requests.iter().map(one).collect::<Vec<_>>()).await
}

fn is_loaded(rig: &Rig, id: &str) -> bool {
    rig.engine.models().find(id).unwrap().loaded
}

#[tokio::test]
async fn a_draft_model_that_is_always_right_is_always_accepted() {
    let (plain, drafting) = (rig(None, |_| ()), rig(Some(&SMALL), |_| ()));
    for at in 0..4 {
        let mut request = greedy(prompt(at, 40 + at), 100);
        request.sampling.ignore_eos = false;
        assert_eq!(drafting.run_one(request.clone()).await, plain.run_one(request).await);
    }
    let [drafted, accepted] =
        ["drafted_tokens", "accepted_tokens"].map(|name| drafting.counter_with_label(name, DRAFT_LABEL));
    assert!(drafted > 60, "{}", drafting.engine.metrics());
    assert!(
        drafted - accepted <= 4,
        "{accepted} of {drafted}: rejected drafts occur at most at the end of each sequence"
    );
    drafting.wait_until_idle().await;
}

#[tokio::test]
async fn output_does_not_depend_on_the_draft_model() {
    let (plain, requests) = (rig(None, |_| ()), requests());
    let expected = all(&plain, &requests).await;
    for draft in [&SMALL, &UNRELATED] {
        let drafting = rig(Some(draft), |_| ());
        for _ in 0..2 {
            assert_eq!(all(&drafting, &requests).await, expected, "with cached prompts");
        }
        for (request, expected) in requests.iter().zip(&expected) {
            assert_eq!(drafting.run(request.clone()).await, *expected, "alone");
        }
        assert!(drafting.counter_with_label("drafted_tokens", DRAFT_LABEL) > 0, "{}", drafting.engine.metrics());
        drafting.wait_until_idle().await;
    }
}

#[tokio::test]
async fn a_draft_model_that_is_never_right_is_soon_disabled() {
    let drafting = rig(Some(&UNRELATED), |_| ());
    for at in 0..10 {
        drafting.run_one(greedy(prompt(at, 20), 200)).await;
    }
    let drafted = drafting.counter_with_label("drafted_tokens", DRAFT_LABEL);
    assert!((1..200).contains(&drafted), "{drafted}");
}

#[tokio::test]
async fn the_draft_model_is_unloaded_first_when_memory_is_short() {
    let (plain, requests) = (rig(None, |_| ()), requests());
    let expected = all(&plain, &requests).await;
    // Memory for both models and the KV cache of some of the requests.
    let free = rig(Some(&SMALL), |_| ()).engine;
    let both = memory(&free, "weights") + memory(&free, "scratch");
    let drafting = rig(Some(&SMALL), |settings| settings.memory_bytes = both + 400_000);
    assert!(is_loaded(&drafting, "small"));
    assert_eq!(all(&drafting, &requests).await, expected);
    assert!(!is_loaded(&drafting, "small"), "{}", drafting.engine.metrics());
    drafting.wait_until_idle().await;
    // It is loaded again after a while with enough memory.
    drafting.engine.models().load("large").unwrap();
    assert!(!is_loaded(&drafting, "small"));
    drafting.clock.advance(Duration::from_secs(601));
    drafting.engine.models().load("large").unwrap();
    assert!(is_loaded(&drafting, "small"));
    assert_eq!(all(&drafting, &requests[..2]).await, expected[..2]);
    drafting.wait_until_idle().await;
}

#[tokio::test]
async fn cancelled_requests_drop_their_drafts() {
    let drafting = rig(Some(&SMALL), |settings| settings.max_running = 3);
    let expected = drafting.run_one(greedy(prompt(0, 40), 60)).await;
    for at in 0..60 {
        let request = GenerationRequest { choices: 1 + at % 3, ..request(prompt(at, 13 + at * 3), 300) };
        let mut ticket = drafting.engine.submit(&drafting.model, request).unwrap();
        for _ in 0..at % 9 {
            ticket.deltas.recv().await.unwrap().unwrap();
        }
    }
    drafting.wait_until_idle().await;
    assert_eq!(drafting.run_one(greedy(prompt(0, 40), 60)).await, expected);
    assert_eq!(drafting.engine.models().unload("small"), Ok(()), "the draft model is not in use");
    assert_eq!(drafting.run_one(greedy(prompt(0, 40), 60)).await, expected);
    assert!(!is_loaded(&drafting, "small"));
}

#[test]
fn the_smallest_model_with_the_same_vocabulary_is_the_draft_model() {
    let dir = tempfile::tempdir().unwrap();
    tiny_model::write(dir.path(), "large", &TinyModel { width: 256, ..LARGE });
    tiny_model::write(dir.path(), "a-middle", &TinyModel { width: 128, ..LARGE });
    tiny_model::write(dir.path(), "b-small", &SMALL);
    let strange: &[(&str, i32)] = &[("<x>", 1)];
    tiny_model::write(dir.path(), "other-tokens", &TinyModel { blocks: 1, markers: strange, ..SMALL });
    tiny_model::write(dir.path(), "other-family", &TinyModel { blocks: 1, architecture: "qwen2", ..SMALL });
    tiny_model::write(dir.path(), "too-large", &TinyModel { width: 256, blocks: 4, zero_blocks: 0, ..LARGE });
    let drafts = |change: &dyn Fn(&mut Settings), target: &str| {
        let mut settings = settings(dir.path());
        change(&mut settings);
        let engine = Engine::start(settings, Arc::new(TestClock::default())).unwrap();
        drop(engine.models().load(target).unwrap());
        let loaded = engine.models().list().into_iter().filter(|info| info.loaded && info.id != target);
        loaded.map(|info| info.id).collect::<Vec<_>>()
    };
    let named = |draft: &'static str| {
        move |settings: &mut Settings| {
            let pairs = [("large".to_owned(), draft.to_owned())].into();
            settings.drafts = Drafts { auto: false, pairs };
        }
    };
    assert_eq!(drafts(&|_| (), "large"), ["b-small"]);
    assert_eq!(drafts(&|_| (), "other-tokens"), [""; 0], "no model is smaller");
    assert_eq!(drafts(&|settings| settings.drafts.auto = false, "large"), [""; 0]);
    assert_eq!(drafts(&|settings| settings.speculate = false, "large"), [""; 0]);
    assert_eq!(
        drafts(&named("too-large"), "large"),
        ["too-large"],
        "a configured draft model is used even if it is larger"
    );
    assert_eq!(drafts(&named("other-family"), "large"), ["other-family"]);
    assert_eq!(drafts(&named("other-tokens"), "large"), [""; 0]);
    assert_eq!(drafts(&named("missing"), "large"), [""; 0]);
    assert_eq!(drafts(&named("b-small"), "a-middle"), [""; 0], "only a configured draft model is used");
    let no_drafts = Drafts { auto: false, ..Drafts::default() };
    let alone = Settings { drafts: no_drafts, ..settings(dir.path()) };
    let alone = Engine::start(alone, Arc::new(TestClock::default())).unwrap();
    drop(alone.models().load("large").unwrap());
    // Enough memory to load it, but not its draft model.
    let short = memory(&alone, "weights") + memory(&alone, "scratch") + (2 << 20);
    let named_in_short = |settings: &mut Settings| {
        named("a-middle")(settings);
        settings.memory_bytes = short;
    };
    assert_eq!(drafts(&named("a-middle"), "large"), ["a-middle"]);
    assert_eq!(drafts(&named_in_short, "large"), [""; 0], "no memory");
}
