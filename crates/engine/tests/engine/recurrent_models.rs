//! Models with recurrent layers: output does not depend on what else runs, on memory, on drafts, or on the prefix cache, which
//! keeps their states, too.

use outpost_engine::{GenerationRequest, Settings};

use crate::harness::{greedy, memory, mixed_requests, outputs, pieces, prompt, rig};
use crate::tiny_model::{self, TinyModel};

/// Recurrent layers and attention in turns: short convolutions, delta networks, and state spaces.
const SHORT_CONV: TinyModel = TinyModel { architecture: "lfm2", context: 2048, blocks: 4, ..tiny_model::DEFAULT };
const DELTA_NET: TinyModel = TinyModel { architecture: "qwen35", ..SHORT_CONV };
const STATE_SPACE: TinyModel = TinyModel { architecture: "granitehybrid", ..SHORT_CONV };
const MODELS: [TinyModel; 3] = [SHORT_CONV, DELTA_NET, STATE_SPACE];

#[tokio::test]
async fn output_depends_neither_on_other_requests_nor_on_chunks_drafts_and_cached_states() {
    let requests = mixed_requests();
    // A tied random model mostly repeats itself, so its drafts are often right.
    for (model, tied) in MODELS.iter().flat_map(|model| [(model, false), (model, true)]) {
        let (speculate, options) = (tied, TinyModel { tied, ..model.clone() });
        let what = format!("{}, speculation {speculate}", options.architecture);
        let expected = rig(&options, |_| ()).alone(&requests).await;
        let rig = rig(&options, |settings| (settings.speculate, settings.prefill_chunk) = (speculate, 24));
        // How much is drafted depends on measured times.
        let drafts = || ["drafted_tokens", "accepted_tokens"].map(|name| rig.counter(name));
        let some_are_rejected = |[drafted, accepted]: [u64; 2]| drafted > accepted && accepted > 0;
        let mut rounds = 0;
        while rounds < 2 || (speculate && !some_are_rejected(drafts()) && rounds < 30) {
            assert_eq!(rig.together(&requests).await, expected, "{what}, round {rounds}");
            rounds += 1;
        }
        assert_eq!(rig.alone(&requests).await, expected, "{what}");
        let [drafted, accepted] = drafts();
        assert!(
            !speculate || some_are_rejected([drafted, accepted]),
            "{what}: {accepted} of {drafted}; some drafts are rejected"
        );
        rig.wait_until_idle().await;
    }
}

#[tokio::test]
async fn preempted_requests_compute_their_states_again() {
    for model in &MODELS {
        let free = rig(model, |_| ());
        let requests: Vec<_> = (0..4).map(|at| greedy(prompt(at, 20), 200)).collect();
        let expected = free.alone(&requests).await;
        let resident = memory(&free.engine, "weights") + memory(&free.engine, "scratch");
        // Two layers have keys and values: 4,096 bytes a block, and 14 blocks at the end. The state of the two others takes a
        // block, in state spaces two, and in delta networks five.
        let blocks = match model.architecture {
            "qwen35" => 50,
            "granitehybrid" => 36,
            _ => 30,
        };
        let tight = rig(model, |settings: &mut Settings| settings.memory_bytes = resident + blocks * 4_096);
        assert_eq!(tight.together(&requests).await, expected, "{}", model.architecture);
        let metrics = tight.engine.metrics();
        assert!(!metrics.contains("outpost_preemptions_total 0\n"), "{}: none was preempted", model.architecture);
        tight.wait_until_idle().await;
    }
}

/// Each turn of a chat computes its new tokens, and at most one block more.
#[tokio::test]
async fn a_turn_continues_from_the_state_that_the_turn_before_left() {
    for model in &MODELS {
        let chat = rig(model, |_| ());
        let mut text = prompt(1, 40);
        for turn in 0..20 {
            let request = GenerationRequest { logprobs: Some(0), ..greedy(text.clone(), 12) };
            let ticket = chat.engine.submit(&chat.model, request).unwrap();
            let all = pieces(ticket.deltas).await.unwrap();
            let computed = text.len() as u32 - all[0].cached;
            let bound = if turn == 0 { 40 } else { 23 + 16 };
            assert!(computed <= bound, "turn {turn} computed {computed} of {} tokens", text.len());
            // Another conversation.
            chat.run(greedy(prompt(100 + turn, 30), 5)).await;
            if turn % 6 == 5 {
                // A project that has not seen the turns before.
                let unseen = GenerationRequest { tenant: u128::from(2 + turn), ..greedy(text.clone(), 12) };
                assert_eq!(outputs(&all, 1), chat.run(unseen).await, "{}, turn {turn}", model.architecture);
            }
            text.extend(all.iter().flat_map(|piece| &piece.tokens).map(|info| info.token.id));
            text.extend(prompt(10 + turn, 23));
        }
    }
}
