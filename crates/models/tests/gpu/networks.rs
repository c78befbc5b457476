//! Decoders on the device under test, compared with the logits of transformers in `tests/fixtures/families`.

use outpost_models::backend::{Candle, Cpu};
use outpost_models::causal_lm::{BatchRow, CausalLm, LogitsAt};
use outpost_models::decoder::Decoder;
use outpost_models::gguf::GgufFile;
use outpost_models::kv::{BlockId, KvType, blocks_for};
use outpost_models::safetensors::ModelFolder;
use outpost_models::state_layout::StateUpdate;

use crate::decoder_cases::{Case, Cases, cases, expected, root};
use crate::device;

/// The decoders of a case: one for each format.
fn decoders(case: &Case, backend: &Candle) -> Vec<(&'static str, Decoder<Candle>)> {
    let path = root().join(&case.name);
    let folder = || Decoder::load(&ModelFolder::open(&path).unwrap(), backend).unwrap();
    let gguf = || Decoder::load(&GgufFile::open(&path.join("model.gguf")).unwrap(), backend).unwrap();
    let mut decoders = Vec::new();
    if case.folder {
        decoders.push(("safetensors", folder()));
    }
    if case.gguf {
        decoders.push(("gguf", gguf()));
    }
    decoders
}

/// The logits of all positions of these texts, which are computed together.
fn logits(model: &Decoder<Candle>, texts: &[&[u32]]) -> Vec<Vec<f32>> {
    let mut arenas = model.new_arenas(KvType::F32);
    let mut next: BlockId = 0;
    let tables: Vec<Vec<BlockId>> = texts
        .iter()
        .map(|text| {
            let first = next;
            next += blocks_for(text.len()) as BlockId;
            (first..next).collect()
        })
        .collect();
    (0..next).for_each(|block| arenas.ensure_positions(block).unwrap());
    let mut rows = Vec::with_capacity(texts.len());
    for (write, (tokens, blocks)) in (0..).zip(texts.iter().zip(&tables)) {
        arenas.ensure_state(write).unwrap();
        let long = model.is_long(tokens.len());
        rows.push(BatchRow {
            tokens,
            embedded: &[],
            start: 0,
            tables: std::slice::from_ref(blocks),
            state: Some(StateUpdate { read: None, write }),
            logits: LogitsAt::All,
            long,
            adapter: None,
            hidden: None,
        });
    }
    let mut logits = model.forward(&rows, &mut arenas).unwrap();
    logits.rows().iter().map(|row| row.iter().flat_map(|logits| logits.iter().copied()).collect()).collect()
}

/// The greatest difference.
fn difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    differences.fold(0., |most, x| if x > most || x.is_nan() { x } else { most })
}

/// A GPU multiplies in the type of the checkpoint; with 16-bit floats and quantized weights, random weights amplify the
/// difference.
#[test]
#[ignore = "needs a GPU"]
fn gpu_decoders_match_transformers() {
    let backend = Candle::new(device(), Cpu::new(2));
    let Cases { vocabulary, cases } = cases();
    let mut far = Vec::new();
    for case in &cases {
        for (format, model) in decoders(case, &backend) {
            for run in &case.runs {
                let found = logits(&model, &[&case.prompt[..run.positions]]);
                let difference = difference(&found[0], &expected(case, run, vocabulary).concat());
                println!("{:<16} {format:<11} {:>2} positions: {difference:.1e}", case.name, run.positions);
                if difference.is_nan() || difference > 0.6 {
                    far.push((&case.name, format, difference));
                }
            }
        }
    }
    assert!(far.is_empty(), "far from the reference: {far:?}");
}

/// Models are dropped by whoever used them last, such as a thread of the HTTP server.
#[test]
#[ignore = "needs a GPU"]
fn gpu_memory_is_freed_on_any_thread() {
    let backend = Candle::new(device(), Cpu::new(2));
    for case in cases().cases.iter().take(2) {
        for (format, model) in decoders(case, &backend) {
            std::thread::spawn(move || drop(model)).join().unwrap();
            // A failure would be reported here.
            backend.check().unwrap_or_else(|error| panic!("{} {format}: {error}", case.name));
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_sequences_in_a_batch_equal_those_alone() {
    let backend = Candle::new(device(), Cpu::new(2));
    for case in cases().cases.iter().filter(|case| ["llama", "gemma3", "qwen3"].contains(&case.name.as_str())) {
        for (format, model) in decoders(case, &backend) {
            let texts = [&case.prompt[..], &case.prompt[3..5], &case.prompt[7..26], &case.prompt[1..2]];
            let together = logits(&model, &texts);
            for (text, together) in texts.into_iter().zip(&together) {
                let difference = difference(together, &logits(&model, &[text])[0]);
                println!("{:<16} {format:<11} {:>2} tokens: {difference:.1e}", case.name, text.len());
                // Other kernels may be used for more rows; those of 16-bit floats round differently.
                assert!(difference < 0.1, "{} {format}", case.name);
            }
        }
    }
}
