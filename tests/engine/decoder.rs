//! The decoder against candle's own, and against itself in other slices.

use std::io::Cursor;
use std::path::Path;

use candle_core::quantized::gguf_file;
use candle_core::{Device, Tensor};
use candle_transformers::models::quantized_llama::ModelWeights;
use outpost::models::gguf::GgufFile;
use outpost::models::kv::KvCache;
use outpost::models::llama::{Llama, Row};

use crate::tiny_model::{self, TinyModel};

const PROMPT: [u32; 11] = [5, 17, 200, 3, 3, 90, 41, 250, 8, 120, 77];

fn variants() -> Vec<TinyModel> {
    vec![
        TinyModel::default(),
        TinyModel { quantized: true, tied: true, ..TinyModel::default() },
        TinyModel { width: 256, blocks: 3, quantized: true, seed: 4, ..TinyModel::default() },
    ]
}

fn load(options: &TinyModel) -> Llama {
    let dir = tempfile::tempdir().unwrap();
    let path = tiny_model::write(dir.path(), "m", options);
    Llama::load(&GgufFile::open(&path).unwrap()).unwrap()
}

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

/// Computes the prompt in slices so small that quantised weights stay quantised, as the oracle's do.
fn in_slices(model: &Llama, prompt: &[u32], kv: &mut KvCache) -> Vec<f32> {
    prompt.chunks(7).map(|slice| model.forward(slice, kv).unwrap()).last().unwrap()
}

#[test]
fn logits_equal_those_of_the_reference() {
    for options in variants() {
        let dir = tempfile::tempdir().unwrap();
        let path = tiny_model::write(dir.path(), "m", &options);
        let (ours, mut oracle) = (Llama::load(&GgufFile::open(&path).unwrap()).unwrap(), oracle(&path));
        let mut kv = ours.cache(32).unwrap();
        assert_close(&in_slices(&ours, &PROMPT, &mut kv), &oracle_logits(&mut oracle, &PROMPT, 0), 1e-3);
        for (step, token) in [9u32, 33, 128].into_iter().enumerate() {
            let expected = oracle_logits(&mut oracle, &[token], PROMPT.len() + step);
            assert_close(&ours.forward(&[token], &mut kv).unwrap(), &expected, 1e-3);
        }
    }
}

#[test]
fn a_prompt_in_chunks_is_the_prompt_as_a_whole() {
    for options in variants().into_iter().chain([TinyModel { architecture: "qwen2", ..TinyModel::default() }]) {
        let model = load(&options);
        // Longer than the cache's first room, so that it grows on the way.
        let prompt: Vec<u32> = (0..300).map(|index| (index * 7) % 256).collect();
        let whole = model.forward(&prompt, &mut model.cache(300).unwrap()).unwrap();
        for size in [1, 7, 32, 299] {
            let mut kv = model.cache(300).unwrap();
            let mut last = Vec::new();
            for chunk in prompt.chunks(size) {
                last = model.forward(chunk, &mut kv).unwrap();
            }
            // Quantised products round their input too, and rounding is not smooth.
            assert_close(&last, &whole, if options.quantized { 0.5 } else { 1e-3 });
        }
    }
}

#[test]
fn rows_of_a_batch_do_not_see_each_other() {
    let model = load(&TinyModel::default());
    let (mut a, mut b, mut c) = (model.cache(32).unwrap(), model.cache(32).unwrap(), model.cache(32).unwrap());
    model.forward(&PROMPT[..4], &mut a).unwrap();
    let mut alone = a.fork().unwrap();
    let mut rows = [
        Row { tokens: &[7], kv: &mut a, wants_logits: true },
        Row { tokens: &PROMPT, kv: &mut b, wants_logits: true },
        Row { tokens: &[1, 2, 3], kv: &mut c, wants_logits: false },
    ];
    let logits = model.forward_rows(&mut rows).unwrap();
    assert_close(logits[0].as_ref().unwrap(), &model.forward(&[7], &mut alone).unwrap(), 1e-4);
    assert_close(logits[1].as_ref().unwrap(), &model.forward(&PROMPT, &mut model.cache(32).unwrap()).unwrap(), 1e-4);
    assert!(logits[2].is_none());
    assert_eq!((a.len(), b.len(), c.len()), (5, 11, 3));
}

#[test]
fn a_fork_goes_on_by_itself() {
    let model = load(&TinyModel::default());
    let mut one = model.cache(64).unwrap();
    model.forward(&PROMPT, &mut one).unwrap();
    let mut other = one.fork().unwrap();
    model.forward(&[1, 2, 3], &mut other).unwrap();
    let expected = model.forward(&[PROMPT.as_slice(), &[9]].concat(), &mut model.cache(64).unwrap()).unwrap();
    assert_close(&model.forward(&[9], &mut one).unwrap(), &expected, 1e-4);
    assert_eq!((one.len(), other.len()), (12, 14));
}

#[test]
fn a_failed_step_leaves_the_cache_as_it_was() {
    let model = load(&TinyModel::default());
    let mut kv = model.cache(12).unwrap();
    model.forward(&PROMPT, &mut kv).unwrap();
    assert!(model.forward(&[1, 2], &mut kv).is_err(), "no room");
    assert!(model.forward(&[100_000], &mut kv).is_err(), "no such token");
    assert_eq!(kv.len(), PROMPT.len());
    let expected = model.forward(&[PROMPT.as_slice(), &[4]].concat(), &mut model.cache(12).unwrap()).unwrap();
    assert_close(&model.forward(&[4], &mut kv).unwrap(), &expected, 1e-4);
}
