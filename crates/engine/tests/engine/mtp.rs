//! Layers for multi-token prediction: they compute what the reference computes, and drafts with them change only the number of steps.

use std::time::Duration;

use outpost_engine::{Drafts, Settings};
use outpost_models::backend::{Backend as _, Cpu, DType, Isa, Pool, Recurrent};
use outpost_models::causal_lm::{BatchRow, CausalLm, LogitsAt};
use outpost_models::decoder::Decoder;
use outpost_models::gguf::GgufFile;
use outpost_models::kv::{KvType, blocks_for};
use outpost_models::safetensors::ModelFolder;
use outpost_models::sequence_state::SequenceState;
use outpost_models::state_arenas::StateArenas;
use outpost_models::state_layout::StateUpdate;
use outpost_models::weights::{DecoderCheckpoint, DraftingCheckpoint, Footprint};
use serde_json::json;

use crate::decoder_cases::{Case, cases, read_logits, root};
use crate::harness::{Rig, candle, candle_tolerance, cpu, greedy, memory, mixed_requests, prompt, rig_of_file};
use crate::tiny_adapter::{Sizes, TinyAdapter};
use crate::tiny_model::{self, TensorRow, TinyModel};

fn checkpoints(case: &Case) -> Vec<Box<dyn DecoderCheckpoint>> {
    let path = root().join(&case.name);
    let gguf = GgufFile::open(&path.join("model.gguf")).unwrap();
    vec![Box::new(ModelFolder::open(&path).unwrap()), Box::new(gguf)]
}

fn load<B: Recurrent>(checkpoint: &dyn DecoderCheckpoint, backend: &B) -> Decoder<B> {
    Decoder::load(&DraftingCheckpoint { checkpoint, mtp: true }, backend).unwrap()
}

fn difference(one: &[f32], other: &[f32]) -> f32 {
    assert_eq!(one.len(), other.len());
    one.iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0., f32::max)
}

/// Computes the prompt in chunks, and returns the hidden states of all positions.
fn hidden_states<B: Recurrent>(
    model: &Decoder<B>,
    arenas: &mut StateArenas,
    blocks: &Vec<u32>,
    prompt: &[u32],
    chunk: usize,
) -> Vec<Vec<f32>> {
    let mut state = StateUpdate { read: None, write: 0 };
    let mut states: Vec<Vec<f32>> = Vec::new();
    for tokens in prompt.chunks(chunk) {
        let row = BatchRow {
            tokens,
            embedded: &[],
            start: states.len(),
            tables: std::slice::from_ref(blocks),
            state: Some(state),
            logits: LogitsAt::All,
            long: false,
            adapter: None,
            hidden: states.last().map(Vec::as_slice),
        };
        let mut logits = model.forward(&[row], arenas).unwrap();
        states.extend(logits.take_hidden()[0].chunks(model.width()).map(<[f32]>::to_vec));
        state = StateUpdate { read: Some(state.write), write: 1 - state.write };
    }
    states
}

/// The greatest difference to the reference at any position, of the first and the second draft token.
fn draft_difference<B: Recurrent>(model: &Decoder<B>, case: &Case, chunk: usize) -> f32 {
    let expected = read_logits(&root().join(&case.name).join(case.mtp.as_ref().unwrap()), model.vocabulary());
    let mut arenas = model.new_arenas(KvType::F32);
    let blocks: Vec<u32> = (0..blocks_for(case.prompt.len() + 1) as u32).collect();
    blocks.iter().for_each(|block| arenas.ensure_positions(*block).unwrap());
    (0..2).for_each(|block| arenas.ensure_state(block).unwrap());
    let states = hidden_states(model, &mut arenas, &blocks, &case.prompt, chunk);
    let mut largest = 0f32;
    for (position, token) in case.prompt.iter().enumerate() {
        let (mut token, mut hidden) = (*token, position.checked_sub(1).map(|before| states[before].clone()));
        for (step, expected) in expected[2 * position..][..2].iter().enumerate() {
            let row = BatchRow {
                tokens: &[token],
                embedded: &[],
                start: position + step,
                tables: std::slice::from_ref(&blocks),
                state: None,
                logits: LogitsAt::Last,
                long: false,
                adapter: None,
                hidden: hidden.as_deref(),
            };
            let mut logits = model.draft(&[row], &mut arenas).unwrap();
            hidden = logits.take_hidden().pop();
            largest = largest.max(difference(logits.rows()[0][0], expected));
            token = (0..).zip(expected).max_by(|(_, a), (_, b)| a.total_cmp(b)).unwrap().0;
        }
    }
    largest
}

fn check<B: Recurrent>(backend: &B, name: &str, tolerance: f32) {
    let mut count = 0;
    for case in cases().cases.iter().filter(|case| case.mtp.is_some()) {
        for checkpoint in checkpoints(case) {
            let model = load(&*checkpoint, backend);
            let differences = [case.prompt.len(), 8, 1].map(|chunk| draft_difference(&model, case, chunk));
            println!("{} on {name}: {differences:?}", case.name);
            assert!(differences.iter().all(|difference| *difference <= tolerance), "{} on {name}", case.name);
            count += 1;
        }
    }
    assert_eq!(count, 6);
}

#[test]
fn drafts_match_the_reference() {
    for isa in Isa::available() {
        let rounds_to_bf16 = isa == Isa::Avx512Bf16;
        check(&Cpu::with_pool(Pool::with_isa(2, isa)), isa.name(), if rounds_to_bf16 { 0.8 } else { 1e-4 });
    }
}

#[test]
fn drafts_match_the_reference_on_candle() {
    check(&candle(), "candle", candle_tolerance(1e-4, 0.6));
}

/// Other families do not use such layers.
#[test]
fn layers_that_only_draft_change_nothing_that_the_network_computes() {
    let dir = tempfile::tempdir().unwrap();
    for architecture in ["llama", "qwen2", "lfm2", "granitehybrid", "qwen35"] {
        let logits = |mtp: bool| {
            let options = TinyModel { architecture, mtp, ..tiny_model::DEFAULT };
            let file = GgufFile::open(&tiny_model::write(dir.path(), "tiny", &options)).unwrap();
            [false, true].map(|loads| {
                let checkpoint = DraftingCheckpoint { checkpoint: &file, mtp: loads };
                let model = Decoder::load(&checkpoint, &cpu()).unwrap();
                assert_eq!(model.config().layers.len(), options.blocks, "{architecture}");
                assert_eq!(model.mtp_cost().is_some(), loads && mtp && architecture == "qwen35", "{architecture}");
                model.extend(&prompt(3, 40), &mut SequenceState::new(model.new_arenas(KvType::F32))).unwrap()
            })
        };
        let [plain, drafting] = [false, true].map(logits);
        assert!(plain == drafting && plain[0] == plain[1], "{architecture}");
    }
}

#[test]
fn the_layer_has_keys_and_values_and_weights_only_if_it_is_loaded() {
    for case in cases().cases.iter().filter(|case| case.mtp.is_some()) {
        for checkpoint in checkpoints(case) {
            let (plain, drafting) = (&*checkpoint, DraftingCheckpoint { checkpoint: &*checkpoint, mtp: true });
            let [without, with] = [Decoder::load(plain, &cpu()), Decoder::load(&drafting, &cpu())].map(Result::unwrap);
            let [own, all] = [&without, &with].map(|model| model.state_groups(KvType::F16));
            assert_eq!(own.len(), all.len());
            assert_eq!(2 * own[0].block_bytes, all[0].block_bytes, "one of the other layers has attention");
            assert_eq!(own[1..], all[1..]);
            assert_eq!((without.mtp_cost(), with.mtp_cost().is_some()), (None, true));
            assert!(without.draft(&[], &mut without.new_arenas(KvType::F16)).is_err());
            let [own, all] = [plain, &drafting].map(|weights| Footprint::new(weights, &cpu()).weights);
            let width = with.width();
            let projection = cpu().linear_bytes(DType::BF16, width, 2 * width) as u64;
            assert!(all > own + projection, "{}: {own} and {all} bytes", case.name);
        }
    }
}

/// Delta networks and attention in turns, and a layer with random weights for multi-token prediction.
const MODEL: TinyModel =
    TinyModel { architecture: "qwen35", context: 2048, blocks: 4, mtp: true, ..tiny_model::DEFAULT };

/// The metric label of tokens that the layer drafts.
const LABEL: &str = "by=\"mtp\"";

/// An engine without speculation.
fn plain(file: &[u8]) -> Rig {
    rig_of_file(file, |settings| settings.speculate = false)
}

fn drafts(rig: &Rig) -> [u64; 2] {
    ["drafted_tokens", "accepted_tokens"].map(|name| rig.counter_with_label(name, LABEL))
}

#[tokio::test]
async fn output_depends_neither_on_drafts_nor_on_other_requests_and_the_prefix_cache() {
    // A tied random model mostly repeats itself, so some drafts are right.
    for tied in [false, true] {
        let file = tiny_model::bytes(&TinyModel { tied, ..MODEL });
        let (requests, plain) = (mixed_requests(), plain(&file));
        let expected = plain.alone(&requests).await;
        assert_eq!(drafts(&plain), [0, 0]);
        let drafting = rig_of_file(&file, |settings| settings.prefill_chunk = 24);
        for round in 0..2 {
            assert_eq!(drafting.together(&requests).await, expected, "tied {tied}, round {round}");
        }
        for (request, expected) in requests.iter().zip(&expected) {
            assert_eq!(drafting.run(request.clone()).await, *expected, "tied {tied}, alone");
        }
        let [drafted, accepted] = drafts(&drafting);
        assert!(drafted > accepted, "tied {tied}: {accepted} of {drafted}; some drafts are rejected");
        drafting.wait_until_idle().await;
    }
}

#[tokio::test]
async fn preempted_requests_draft_on() {
    let file = tiny_model::bytes(&MODEL);
    let (plain, free) = (plain(&file), rig_of_file(&file, |_| ()));
    let requests: Vec<_> = (0..4).map(|at| greedy(prompt(at, 20), 200)).collect();
    let expected = plain.together(&requests).await;
    let resident = memory(&free.engine, "weights") + memory(&free.engine, "scratch");
    // Three layers have keys and values: 6,144 bytes a block, and 14 blocks at the end. The state of the two others takes five such blocks.
    let tight = rig_of_file(&file, |settings: &mut Settings| settings.memory_bytes = resident + 45 * 6_144);
    assert_eq!(tight.together(&requests).await, expected);
    assert!(!tight.engine.metrics().contains("outpost_preemptions_total 0\n"), "none was preempted");
    assert!(drafts(&tight)[0] > 0);
    tight.wait_until_idle().await;
}

/// The values of a matrix in F32.
fn values(tensors: &[TensorRow], name: &str) -> Vec<f32> {
    let (_, _, _, data) = tensors.iter().find(|tensor| tensor.0 == name).unwrap();
    data.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn set(tensors: &mut [TensorRow], name: &str, values: impl IntoIterator<Item = f32>) {
    let (_, shape, _, data) = tensors.iter_mut().find(|tensor| tensor.0 == name).unwrap();
    *data = values.into_iter().flat_map(f32::to_le_bytes).collect();
    assert_eq!(data.len(), 4 * shape.iter().product::<usize>(), "{name}");
}

/// A model without effective layers. Each token is followed by the one with the next ID: the output projection has the embedding of a token
/// as the row of the next one. The layer for multi-token prediction passes on its input, which is half of what it gets: the embedding of a
/// token, or the hidden state before it.
fn successor_model(from_hidden: bool) -> Vec<u8> {
    let options = TinyModel { blocks: 0, zero_blocks: 4, ..MODEL };
    let width = options.width;
    tiny_model::bytes_with_tensors(&options, |tensors| {
        let embeddings = values(tensors, "token_embd.weight");
        let shifted = |by: usize| {
            let mut rows = embeddings.clone();
            rows.rotate_right(by * width);
            rows
        };
        set(tensors, "output.weight", shifted(1));
        for name in ["attn_output", "ffn_down"] {
            let name = format!("blk.4.{name}.weight");
            let count = values(tensors, &name).len();
            set(tensors, &name, vec![0.; count]);
        }
        let column = |row: usize| if from_hidden { width + row } else { row };
        let identity =
            (0..width * 2 * width).map(|at| if at % (2 * width) == column(at / (2 * width)) { 1. } else { 0. });
        set(tensors, "blk.4.nextn.eh_proj.weight", identity);
        // The hidden state is that of the token before, so the next token is two IDs further.
        let head = shifted(if from_hidden { 2 } else { 1 }).into_iter().flat_map(f32::to_le_bytes).collect();
        let shape = vec![embeddings.len() / width, width];
        tensors.push(("blk.4.nextn.shared_head_head.weight".to_owned(), shape, 0, head));
    })
}

#[tokio::test]
async fn a_layer_that_is_always_right_is_always_accepted() {
    let file = successor_model(false);
    let (plain, drafting) = (plain(&file), rig_of_file(&file, |_| ()));
    for at in 0..4 {
        let request = greedy(prompt(at, 40 + at), 100);
        let expected = plain.run_one(request.clone()).await;
        assert_eq!(expected, drafting.run_one(request).await);
    }
    let [drafted, accepted] = drafts(&drafting);
    assert!(drafted > 200, "{}", drafting.engine.metrics());
    assert!(drafted - accepted <= 8, "{accepted} of {drafted}: only the end of a sequence rejects drafts");
}

/// The layer knows a hidden state of the network only for the first of up to eight tokens of a draft. It is right about that one.
#[tokio::test]
async fn drafts_start_from_the_hidden_state_before_the_newest_token() {
    let file = successor_model(true);
    let (plain, drafting) = (plain(&file), rig_of_file(&file, |_| ()));
    let requests: Vec<_> = (0..3).map(|at| greedy(prompt(at, 40 + at), 100)).collect();
    let expected = plain.together(&requests).await;
    for (request, expected) in requests.iter().zip(&expected) {
        assert_eq!(drafting.run(request.clone()).await, *expected, "alone");
    }
    assert_eq!(drafting.together(&requests).await, expected, "with cached prompts");
    let [drafted, accepted] = drafts(&drafting);
    assert!(drafted > accepted && 8 * accepted >= drafted, "{accepted} of {drafted}");
}

#[tokio::test]
async fn the_layer_of_the_base_drafts_for_adapters() {
    let (file, modules) = (tiny_model::bytes(&MODEL), ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]);
    let mut results = Vec::new();
    for mut rig in [plain(&file), rig_of_file(&file, |_| ())] {
        let mut adapter = TinyAdapter::new(Sizes::of(&MODEL), &modules, 4, 3);
        adapter.config["base_model_name_or_path"] = json!("tiny");
        adapter.write(rig.dir.path(), "adapted");
        rig.clock.advance(Duration::from_secs(2));
        let base = rig.run(greedy(prompt(1, 30), 60)).await;
        rig.model = rig.engine.models().load("adapted").unwrap();
        let adapted = rig.run(greedy(prompt(1, 30), 60)).await;
        assert_ne!(base, adapted);
        results.push((base, adapted, drafts(&rig), rig.counter_with_label("drafted_tokens", "model=\"adapted\"")));
    }
    let [plain, drafting] = &results[..] else { panic!("two engines") };
    assert_eq!((&plain.0, &plain.1), (&drafting.0, &drafting.1));
    assert_eq!(plain.2, [0, 0]);
    assert!(drafting.2[0] > 0 && drafting.3 > 0, "{drafting:?}");
}

#[tokio::test]
async fn a_named_draft_model_takes_the_place_of_the_layer() {
    let file = tiny_model::bytes(&MODEL);
    let with = rig_of_file(&file, |_| ());
    let named = rig_of_file(&file, |settings| {
        settings.drafts = Drafts { auto: true, pairs: [("tiny".to_owned(), "missing".to_owned())].into() };
    });
    assert!(memory(&with.engine, "weights") > memory(&named.engine, "weights"));
    assert_eq!(memory(&named.engine, "weights"), memory(&plain(&file).engine, "weights"));
    for rig in [&with, &named] {
        rig.run(greedy(prompt(1, 40), 60)).await;
    }
    assert!(drafts(&with)[0] > 0);
    assert_eq!(drafts(&named), [0, 0]);
}
