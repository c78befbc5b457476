//! Compares every decoder family, in both formats, with transformers: tiny random models, with logits written by
//! `tests/fixtures/make_families_reference.py`.

use outpost_models::backend::{Backend, Cpu, Isa, Pool};
use outpost_models::causal_lm::{BatchRow, CausalLm, LogitsAt};
use outpost_models::decoder::Decoder;
use outpost_models::gguf::GgufFile;
use outpost_models::kv::{KvType, blocks_for};
use outpost_models::peft::LoadedAdapter;
use outpost_models::safetensors::ModelFolder;

use crate::decoder_cases::{Case, Cases, cases, expected, root};
use crate::harness::{candle, candle_tolerance};

/// The tolerance to transformers, which computes in f32; with f32 weights only the order of sums differs. Products of
/// quantized weights round their input to 8 bits, and those of BF16 weights to bf16 if the CPU has an instruction for
/// it; random weights amplify the difference.
fn tolerance(case: &str, rounds_to_bf16: bool) -> f32 {
    if case.ends_with("-quantised") || rounds_to_bf16 { 0.4 } else { 1e-4 }
}

/// The format of a checkpoint.
#[derive(Clone, Copy, Debug)]
pub enum Format {
    Safetensors,
    Gguf,
}

impl Format {
    /// Loads the model of a case.
    pub fn load<B: Backend>(self, name: &str, backend: &B) -> Decoder<B> {
        let path = root().join(name);
        match self {
            Self::Safetensors => Decoder::load(&ModelFolder::open(&path).unwrap(), backend),
            Self::Gguf => Decoder::load(&GgufFile::open(&path.join("model.gguf")).unwrap(), backend),
        }
        .unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    fn has(self, case: &Case) -> bool {
        match self {
            Self::Safetensors => case.folder,
            Self::Gguf => case.gguf,
        }
    }
}

fn difference(one: &[f32], other: &[f32]) -> f32 {
    assert_eq!(one.len(), other.len());
    one.iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0., f32::max)
}

/// The largest difference at any position when the prompt is prefilled in chunks of this size.
pub fn in_chunks<B: Backend>(
    model: &Decoder<B>,
    adapter: Option<&LoadedAdapter>,
    prompt: &[u32],
    expected: &[Vec<f32>],
    size: usize,
) -> f32 {
    let mut arena = model.new_kv_arena(KvType::F32);
    let blocks: Vec<u32> = (0..blocks_for(prompt.len()) as u32).collect();
    blocks.iter().for_each(|block| arena.ensure(*block).unwrap());
    let (mut start, mut largest, long) = (0, 0f32, model.is_long(prompt.len()));
    for tokens in prompt.chunks(size) {
        let row = BatchRow { tokens, start, blocks: &blocks, logits: LogitsAt::All, long, adapter };
        let mut logits = model.forward(&[row], arena.as_mut()).unwrap();
        for (logits, expected) in logits.rows()[0].iter().zip(&expected[start..]) {
            largest = largest.max(difference(logits, expected));
        }
        start += tokens.len();
    }
    largest
}

fn check<B: Backend>(format: Format, backend: &B, name: &str, rounds_to_bf16: bool) {
    let Cases { vocabulary, cases } = cases();
    let mut wrong = Vec::new();
    for case in cases.iter().filter(|case| format.has(case)) {
        let model = format.load(&case.name, backend);
        for run in &case.runs {
            let (prompt, expected) = (&case.prompt[..run.positions], expected(case, run, vocabulary));
            let [whole, chunked, stepped] =
                [prompt.len(), 8, 1].map(|size| in_chunks(&model, None, prompt, &expected, size));
            println!(
                "{:<16} {format:?} {:>2} {name:<11}: whole {whole:.2e}, chunks {chunked:.2e}, tokens {stepped:.2e}",
                case.name, run.positions,
            );
            let tolerance = match name {
                "candle" => candle_tolerance(tolerance(&case.name, false), 0.6),
                _ => tolerance(&case.name, rounds_to_bf16),
            };
            if ![whole, chunked, stepped].iter().all(|difference| *difference <= tolerance) {
                wrong.push(format!("{} {format:?} {name}", case.name));
            }
        }
    }
    assert!(wrong.is_empty(), "far from the reference: {wrong:?}");
}

fn check_cpu(format: Format) {
    for isa in Isa::available() {
        check(format, &Cpu::with_pool(Pool::with_isa(2, isa)), isa.name(), isa == Isa::Avx512Bf16);
    }
}

#[test]
fn safetensors_families_match_transformers() {
    check_cpu(Format::Safetensors);
}

#[test]
fn gguf_families_match_transformers() {
    check_cpu(Format::Gguf);
}

#[test]
fn safetensors_families_match_transformers_on_candle() {
    check(Format::Safetensors, &candle(), "candle", false);
}

#[test]
fn gguf_families_match_transformers_on_candle() {
    check(Format::Gguf, &candle(), "candle", false);
}
