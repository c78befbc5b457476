//! Compares the decoder with candle's implementation, and with itself in other chunkings.

use std::io::Cursor;
use std::path::Path;

use candle_core::quantized::gguf_file;
use candle_core::{Device, Tensor};
use candle_transformers::models::quantized_llama::ModelWeights;
use outpost_models::backend::Recurrent;
use outpost_models::causal_lm::{BatchRow, CausalLm, LogitsAt};
use outpost_models::decoder::Decoder;
use outpost_models::gguf::GgufFile;
use outpost_models::kv::KvType;
use outpost_models::sequence_state::SequenceState;

use crate::harness::candle_tolerance;
use crate::tiny_model::{self, TinyModel};

const PROMPT: [u32; 11] = [5, 17, 200, 3, 3, 90, 41, 250, 8, 120, 77];

fn variants() -> Vec<TinyModel> {
    vec![
        TinyModel::default(),
        TinyModel { quantized: true, tied: true, ..TinyModel::default() },
        TinyModel { width: 256, blocks: 3, quantized: true, seed: 4, ..TinyModel::default() },
    ]
}

fn cache<B: Recurrent>(model: &Decoder<B>) -> SequenceState {
    SequenceState::new(model.new_arenas(KvType::F32))
}

fn load<B: Recurrent>(backend: &B, options: &TinyModel) -> Decoder<B> {
    let dir = tempfile::tempdir().unwrap();
    let path = tiny_model::write(dir.path(), "m", options);
    Decoder::load(&GgufFile::open(&path).unwrap(), backend).unwrap()
}

/// Runs checks as tests, on each backend. The kernels of the CPU give the same bits for any split into steps. candle only
/// gives similar sums, and quantised products may then round differently.
macro_rules! on_each_backend {
    ($($check:ident),* $(,)?) => {
        mod on_cpu {
            $(#[test]
            fn $check() {
                super::$check(&crate::harness::cpu(), true);
            })*
        }

        mod on_candle {
            $(#[test]
            fn $check() {
                super::$check(&crate::harness::candle(), false);
            })*
        }
    };
}

on_each_backend!(
    logits_match_the_reference,
    chunked_prefill_matches_a_single_prefill,
    rows_of_a_batch_are_independent,
    several_rows_can_share_a_kv_block,
    a_quantized_kv_cache_changes_logits_little,
    a_failed_step_leaves_the_kv_cache_unchanged,
);

pub fn oracle(path: &Path) -> ModelWeights {
    let mut bytes = Cursor::new(std::fs::read(path).unwrap());
    let content = gguf_file::Content::read(&mut bytes).unwrap();
    ModelWeights::from_gguf(content, &mut bytes, &Device::Cpu).unwrap()
}

pub fn oracle_logits(oracle: &mut ModelWeights, tokens: &[u32], position: usize) -> Vec<f32> {
    let input = Tensor::new(tokens, &Device::Cpu).unwrap().unsqueeze(0).unwrap();
    oracle.forward(&input, position).unwrap().squeeze(0).unwrap().to_vec1().unwrap()
}

fn assert_close(one: &[f32], other: &[f32], within: f32) {
    assert_eq!(one.len(), other.len());
    let size = other.iter().fold(0f32, |a, b| a.max(b.abs()));
    let far = one.iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0., f32::max);
    assert!(far <= within, "logits differ by {far} of {size}");
}

fn logits_match_the_reference<B: Recurrent>(backend: &B, _: bool) {
    for options in variants() {
        let dir = tempfile::tempdir().unwrap();
        let path = tiny_model::write(dir.path(), "m", &options);
        let (ours, mut oracle) = (Decoder::load(&GgufFile::open(&path).unwrap(), backend).unwrap(), oracle(&path));
        let mut kv = cache(&ours);
        // Both round the input of quantized products to 8 bits, but differently.
        let within = if options.quantized { 0.3 } else { 1e-3 };
        assert_close(&ours.extend(&PROMPT, &mut kv).unwrap(), &oracle_logits(&mut oracle, &PROMPT, 0), within);
        for (step, token) in [9u32, 33, 128].into_iter().enumerate() {
            let expected = oracle_logits(&mut oracle, &[token], PROMPT.len() + step);
            assert_close(&ours.extend(&[token], &mut kv).unwrap(), &expected, within);
        }
    }
}

fn chunked_prefill_matches_a_single_prefill<B: Recurrent>(backend: &B, same_bits: bool) {
    for options in variants().into_iter().chain([TinyModel { architecture: "qwen2", ..TinyModel::default() }]) {
        let model = load(backend, &options);
        // Longer than the cache's initial capacity, so that it grows.
        let prompt: Vec<u32> = (0..300).map(|index| (index * 7) % 256).collect();
        let whole = model.extend(&prompt, &mut cache(&model)).unwrap();
        for size in [1, 7, 32, 299] {
            let mut kv = cache(&model);
            let mut last = Vec::new();
            for chunk in prompt.chunks(size) {
                last = model.extend(chunk, &mut kv).unwrap();
            }
            match same_bits {
                true => assert_eq!(last, whole, "to the last bit"),
                false => assert_close(&last, &whole, if options.quantized { candle_tolerance(0.1, 0.3) } else { 1e-4 }),
            }
        }
    }
}

fn rows_of_a_batch_are_independent<B: Recurrent>(backend: &B, _: bool) {
    let model = load(backend, &TinyModel::default());
    let mut arenas = model.new_arenas(KvType::F32);
    (0..3).for_each(|block| arenas.ensure_positions(block).unwrap());
    let tables = [[vec![2]], [vec![0]], [vec![1]]];
    let row = |tokens, start, tables, logits| BatchRow {
        tokens,
        embedded: &[],
        start,
        tables,
        state: None,
        logits,
        long: false,
        adapter: None,
        hidden: None,
    };
    model.forward(&[row(&PROMPT[..4], 0, &tables[0], LogitsAt::None)], &mut arenas).unwrap();
    let rows = [
        row(&[7], 4, &tables[0], LogitsAt::Last),
        row(&PROMPT, 0, &tables[1], LogitsAt::All),
        row(&[1, 2, 3], 0, &tables[2], LogitsAt::None),
    ];
    let mut logits = model.forward(&rows, &mut arenas).unwrap();
    let logits = logits.rows();
    let alone = |tokens: &[u32]| model.extend(tokens, &mut cache(&model)).unwrap();
    assert_close(logits[0][0], &alone(&[&PROMPT[..4], &[7]].concat()), 1e-4);
    assert_eq!(logits.iter().map(Vec::len).collect::<Vec<_>>(), [1, PROMPT.len(), 0]);
    for (count, logits) in (1..).zip(&logits[1]) {
        assert_close(logits, &alone(&PROMPT[..count]), 1e-4);
    }
}

fn several_rows_can_share_a_kv_block<B: Recurrent>(backend: &B, _: bool) {
    let model = load(backend, &TinyModel::default());
    let mut arenas = model.new_arenas(KvType::F32);
    (0..3).for_each(|block| arenas.ensure_positions(block).unwrap());
    let shared: Vec<u32> = (0..16).collect();
    let (first, tables) = ([vec![0]], [[vec![0, 1]], [vec![0, 2]]]);
    let row = |tokens, start, tables| BatchRow {
        tokens,
        embedded: &[],
        start,
        tables,
        state: None,
        logits: LogitsAt::Last,
        long: false,
        adapter: None,
        hidden: None,
    };
    model.forward(&[row(&shared, 0, &first)], &mut arenas).unwrap();
    let rows = [row(&[9, 8], 16, &tables[0]), row(&[7], 16, &tables[1])];
    let mut logits = model.forward(&rows, &mut arenas).unwrap();
    for (logits, end) in logits.rows().iter().zip([&[9, 8][..], &[7]]) {
        let expected = model.extend(&[&shared[..], end].concat(), &mut cache(&model)).unwrap();
        assert_close(logits[0], &expected, 1e-4);
    }
}

fn a_quantized_kv_cache_changes_logits_little<B: Recurrent>(backend: &B, _: bool) {
    let model = load(backend, &TinyModel::default());
    let prompt: Vec<u32> = (0..100).map(|index| (index * 7) % 256).collect();
    let exact = model.extend(&[&prompt[..], &[9]].concat(), &mut cache(&model)).unwrap();
    for (kind, within) in [(KvType::F16, 0.02), (KvType::Q8, 0.2)] {
        let mut kv = SequenceState::new(model.new_arenas(kind));
        prompt.chunks(9).for_each(|chunk| drop(model.extend(chunk, &mut kv).unwrap()));
        assert_close(&model.extend(&[9], &mut kv).unwrap(), &exact, within);
    }
}

fn a_failed_step_leaves_the_kv_cache_unchanged<B: Recurrent>(backend: &B, _: bool) {
    let model = load(backend, &TinyModel::default());
    let mut kv = cache(&model);
    model.extend(&PROMPT, &mut kv).unwrap();
    assert!(model.extend(&[], &mut kv).is_err(), "no tokens");
    assert!(model.extend(&[100_000], &mut kv).is_err(), "no such token");
    let short = BatchRow {
        tokens: &PROMPT,
        embedded: &[],
        start: 10,
        tables: &[vec![0]],
        state: None,
        logits: LogitsAt::Last,
        long: false,
        adapter: None,
        hidden: None,
    };
    assert!(model.forward(&[short], &mut model.new_arenas(KvType::F16)).is_err(), "no blocks");
    assert_eq!(kv.len(), PROMPT.len());
    let expected = model.extend(&[PROMPT.as_slice(), &[4]].concat(), &mut cache(&model)).unwrap();
    assert_close(&model.extend(&[4], &mut kv).unwrap(), &expected, 1e-4);
}
