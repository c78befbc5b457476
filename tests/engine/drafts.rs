//! A smaller model that guesses ahead changes nothing but the number of steps.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use outpost::engine::{Drafts, Engine, GenerationRequest, Settings};

use crate::support::{Answer, Rig, TestAmbient, answers, greedy, memory, pieces, request};
use crate::tiny_model::{self, TinyModel};

/// What drafts: a part of `LARGE` that says the same as the whole.
const SMALL: TinyModel = TinyModel { context: 2048, ..tiny_model::PLAIN };
const LARGE: TinyModel = TinyModel { idle: 6, ..SMALL };

/// Drafts that are hardly ever right.
const STRANGER: TinyModel = TinyModel { seed: 9, ..SMALL };

/// The label of what a model drafted.
const BY: &str = "by=\"draft\"";

fn rig(draft: Option<&TinyModel>, change: impl FnOnce(&mut Settings)) -> Rig {
    let dir = tempfile::tempdir().unwrap();
    tiny_model::write(dir.path(), "large", &LARGE);
    if let Some(draft) = draft {
        tiny_model::write(dir.path(), "small", draft);
    }
    let mut settings = Settings { speculate: draft.is_some(), ..Settings::new(dir.path(), 1 << 30) };
    change(&mut settings);
    let clock = Arc::new(TestAmbient::default());
    let engine = Engine::start(settings, clock.clone()).unwrap();
    let model = engine.models().load("large").unwrap();
    Rig { engine, model, clock, dir }
}

/// Nothing in it stands twice.
fn prompt(first: u32, count: u32) -> Vec<u32> {
    (0..count).map(|at| (first * 53 + at * 7) % 251).collect()
}

/// Greedy and drawn ones, alone and several at once, of lengths around those of blocks.
fn asks() -> Vec<GenerationRequest> {
    let ask = |at: u32| {
        let mut ask =
            GenerationRequest { choices: 1 + at % 3, logprobs: Some(0), ..request(prompt(at, 13 + at * 5), 60) };
        (ask.sampling.temperature, ask.sampling.seed) = (at as f32 % 4. * 0.4, u64::from(at));
        ask
    };
    (0..12).map(ask).collect()
}

async fn all(rig: &Rig, asks: &[GenerationRequest]) -> Vec<Vec<Answer>> {
    let one = |ask: &GenerationRequest| {
        let (choices, ticket) = (ask.choices as usize, rig.engine.submit(&rig.model, ask.clone()).unwrap());
        async move {
            let all = pieces(ticket.pieces).await.unwrap();
            let explained: usize = all.iter().map(|piece| piece.tokens.len()).sum();
            let answers = answers(&all, choices);
            assert_eq!(explained as u32, answers.iter().map(|answer| answer.generated).sum::<u32>());
            answers
        }
    };
    join_all(asks.iter().map(one).collect::<Vec<_>>()).await
}

fn is_loaded(rig: &Rig, id: &str) -> bool {
    rig.engine.models().find(id).unwrap().loaded
}

#[tokio::test]
async fn a_draft_that_is_always_right_is_always_accepted() {
    let (plain, drafting) = (rig(None, |_| ()), rig(Some(&SMALL), |_| ()));
    for at in 0..4 {
        let mut ask = greedy(prompt(at, 40 + at), 100);
        ask.sampling.ignore_eos = false;
        assert_eq!(drafting.one(ask.clone()).await, plain.one(ask).await);
    }
    let [drafted, accepted] = ["drafted_tokens", "accepted_tokens"].map(|name| drafting.counted_by(name, BY));
    assert!(drafted > 60, "{}", drafting.engine.metrics());
    assert!(drafted - accepted <= 4, "{accepted} of {drafted}: at most the end of each answer");
    drafting.settle().await;
}

#[tokio::test]
async fn answers_are_the_same_whatever_drafts() {
    let (plain, asks) = (rig(None, |_| ()), asks());
    let expected = all(&plain, &asks).await;
    for draft in [&SMALL, &STRANGER] {
        let drafting = rig(Some(draft), |_| ());
        for _ in 0..2 {
            assert_eq!(all(&drafting, &asks).await, expected, "the second time from cached prompts");
        }
        for (ask, expected) in asks.iter().zip(&expected) {
            assert_eq!(drafting.run(ask.clone()).await, *expected, "alone");
        }
        assert!(drafting.counted_by("drafted_tokens", BY) > 0, "{}", drafting.engine.metrics());
        drafting.settle().await;
    }
}

#[tokio::test]
async fn a_draft_that_is_never_right_is_soon_left_alone() {
    let drafting = rig(Some(&STRANGER), |_| ());
    for at in 0..10 {
        drafting.one(greedy(prompt(at, 20), 200)).await;
    }
    let drafted = drafting.counted_by("drafted_tokens", BY);
    assert!((1..200).contains(&drafted), "{drafted}");
}

#[tokio::test]
async fn short_memory_takes_the_draft_first() {
    let (plain, asks) = (rig(None, |_| ()), asks());
    let expected = all(&plain, &asks).await;
    // Both models, and keys and values of some of the answers.
    let free = rig(Some(&SMALL), |_| ()).engine;
    let both = memory(&free, "weights") + memory(&free, "scratch");
    let drafting = rig(Some(&SMALL), |settings| settings.memory_bytes = both + 400_000);
    assert!(is_loaded(&drafting, "small"));
    assert_eq!(all(&drafting, &asks).await, expected);
    assert!(!is_loaded(&drafting, "small"), "{}", drafting.engine.metrics());
    drafting.settle().await;
    // It comes back when memory was enough for a while.
    drafting.engine.models().load("large").unwrap();
    assert!(!is_loaded(&drafting, "small"));
    drafting.clock.advance(Duration::from_secs(601));
    drafting.engine.models().load("large").unwrap();
    assert!(is_loaded(&drafting, "small"));
    assert_eq!(all(&drafting, &asks[..2]).await, expected[..2]);
    drafting.settle().await;
}

#[tokio::test]
async fn answers_that_leave_take_their_guesses_along() {
    let drafting = rig(Some(&SMALL), |settings| settings.max_running = 3);
    let expected = drafting.one(greedy(prompt(0, 40), 60)).await;
    for at in 0..60 {
        let ask = GenerationRequest { choices: 1 + at % 3, ..request(prompt(at, 13 + at * 3), 300) };
        let mut ticket = drafting.engine.submit(&drafting.model, ask).unwrap();
        for _ in 0..at % 9 {
            ticket.pieces.recv().await.unwrap().unwrap();
        }
    }
    drafting.settle().await;
    assert_eq!(drafting.one(greedy(prompt(0, 40), 60)).await, expected);
    assert_eq!(drafting.engine.models().unload("small"), Ok(()), "what drafts serves nobody");
    assert_eq!(drafting.one(greedy(prompt(0, 40), 60)).await, expected);
    assert!(!is_loaded(&drafting, "small"));
}

#[test]
fn the_smallest_of_the_same_tokens_drafts() {
    let dir = tempfile::tempdir().unwrap();
    tiny_model::write(dir.path(), "large", &TinyModel { width: 256, ..LARGE });
    tiny_model::write(dir.path(), "a-middle", &TinyModel { width: 128, ..LARGE });
    tiny_model::write(dir.path(), "b-small", &SMALL);
    let strange: &[(&str, i32)] = &[("<x>", 1)];
    tiny_model::write(dir.path(), "other-tokens", &TinyModel { blocks: 1, markers: strange, ..SMALL });
    tiny_model::write(dir.path(), "other-family", &TinyModel { blocks: 1, architecture: "qwen2", ..SMALL });
    tiny_model::write(dir.path(), "too-large", &TinyModel { width: 256, blocks: 4, idle: 0, ..LARGE });
    let drafts = |change: &dyn Fn(&mut Settings), target: &str| {
        let mut settings = Settings::new(dir.path(), 1 << 30);
        change(&mut settings);
        let engine = Engine::start(settings, Arc::new(TestAmbient::default())).unwrap();
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
    assert_eq!(drafts(&|_| (), "other-tokens"), [""; 0], "nobody is smaller");
    assert_eq!(drafts(&|settings| settings.drafts.auto = false, "large"), [""; 0]);
    assert_eq!(drafts(&|settings| settings.speculate = false, "large"), [""; 0]);
    assert_eq!(drafts(&named("too-large"), "large"), ["too-large"], "who names one knows");
    assert_eq!(drafts(&named("other-family"), "large"), ["other-family"]);
    assert_eq!(drafts(&named("other-tokens"), "large"), [""; 0]);
    assert_eq!(drafts(&named("missing"), "large"), [""; 0]);
    assert_eq!(drafts(&named("b-small"), "a-middle"), [""; 0], "only what was named");
    let drafts_by_nobody = Drafts { auto: false, ..Drafts::default() };
    let alone = Settings { drafts: drafts_by_nobody, ..Settings::new(dir.path(), 1 << 30) };
    let alone = Engine::start(alone, Arc::new(TestAmbient::default())).unwrap();
    drop(alone.models().load("large").unwrap());
    // Enough to read it, and less than what would draft.
    let short = memory(&alone, "weights") + memory(&alone, "scratch") + (2 << 20);
    let named_in_short = |settings: &mut Settings| {
        named("a-middle")(settings);
        settings.memory_bytes = short;
    };
    assert_eq!(drafts(&named("a-middle"), "large"), ["a-middle"]);
    assert_eq!(drafts(&named_in_short, "large"), [""; 0], "no memory");
}
