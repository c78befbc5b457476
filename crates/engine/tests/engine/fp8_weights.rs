//! Decoders with weights in FP8: their exact values, adapters, training, and errors. `decoder_families` compares them as they are served.

use std::fs;
use std::sync::Arc;

use outpost_engine::{Engine, Settings};
use outpost_models::ModelError;
use outpost_models::backend::{Cpu, DType, Isa, Pool, Recurrent};
use outpost_models::causal_lm::{BatchRow, CausalLm, LogitsAt};
use outpost_models::decoder::Decoder;
use outpost_models::decoder_config::DecoderConfig;
use outpost_models::kv::KvType;
use outpost_models::peft::{LoadedAdapter, PeftAdapter};
use outpost_models::safetensors::ModelFolder;
use outpost_models::training::{AdamW, LoraParameters, LoraTrainer, TrainingText};
use outpost_models::weights::{DecoderCheckpoint, Footprint, Role, Rows, Weights};
use outpost_testing::huggingface_folder::model;

use crate::decoder_cases::{Case, Cases, cases, expected, root};
use crate::decoder_families::in_chunks;
use crate::harness::{TestClock, candle, cpu};
use crate::tiny_adapter::{ALL, Sizes, TinyAdapter};

/// A folder whose weights in FP8 are read as f32, so that they are not rounded.
struct AsStored(ModelFolder);

impl AsStored {
    fn open(name: &str) -> Self {
        Self(ModelFolder::open(&root().join(name)).unwrap())
    }

    fn is_fp8(&self, name: &str) -> bool {
        self.0.tensor(name).is_some_and(|(info, _)| info.fp8().is_some())
    }
}

impl Weights for AsStored {
    fn name(&self, stem: &str, role: Role) -> Option<String> {
        self.0.name(stem, role)
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.0.shape(name)
    }

    fn dtype(&self, name: &str) -> Option<DType> {
        if self.is_fp8(name) { Some(DType::F32) } else { self.0.dtype(name) }
    }

    fn rows(&self, name: &str, first: usize, count: usize) -> Result<Rows<'_>, ModelError> {
        let rows = self.0.rows(name, first, count)?;
        if !self.is_fp8(name) {
            return Ok(rows);
        }
        let bytes = rows.stored_floats()?.into_iter().flat_map(f32::to_le_bytes).collect();
        Rows::from_bytes(DType::F32, count, rows.columns, bytes)
    }

    fn names(&self) -> Vec<String> {
        Weights::names(&self.0)
    }
}

impl DecoderCheckpoint for AsStored {
    fn decoder_config(&self) -> Result<DecoderConfig, ModelError> {
        self.0.decoder_config()
    }
}

fn fp8_cases() -> (usize, Vec<Case>) {
    let Cases { vocabulary, cases } = cases();
    let of_fp8: Vec<Case> = cases.into_iter().filter(|case| case.name.contains("-fp8")).collect();
    assert_eq!(of_fp8.len(), 8);
    (vocabulary, of_fp8)
}

/// Only the order of sums differs from transformers.
#[test]
fn weights_in_fp8_are_exact_before_they_are_rounded() {
    let (vocabulary, cases) = fp8_cases();
    let cpu = Cpu::with_pool(Pool::with_isa(2, Isa::Portable));
    for case in &cases {
        let model = Decoder::load(&AsStored::open(&case.name), &cpu).unwrap();
        let expected = expected(case, &case.runs[0], vocabulary);
        let difference = in_chunks(&model, None, &case.prompt, &expected, 8);
        assert!(difference <= 1e-4, "{}: {difference}", case.name);
    }
}

/// The logits of all positions.
fn logits<B: Recurrent>(model: &Decoder<B>, adapter: Option<&LoadedAdapter>, tokens: &[u32]) -> Vec<f32> {
    let mut arenas = model.new_arenas(KvType::F32);
    (0..3).for_each(|block| arenas.ensure_positions(block).unwrap());
    let tables = [vec![0, 1, 2]];
    let row = BatchRow {
        tokens,
        embedded: &[],
        start: 0,
        tables: &tables,
        state: None,
        logits: LogitsAt::All,
        long: false,
        adapter,
        hidden: None,
    };
    model.forward(&[row], &mut arenas).unwrap().rows()[0].concat()
}

fn difference(one: &[f32], other: &[f32]) -> f32 {
    assert_eq!(one.len(), other.len());
    one.iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0., f32::max)
}

#[test]
fn adapters_apply_to_weights_in_fp8() {
    let dir = tempfile::tempdir().unwrap();
    let sizes = Sizes { layers: 2, width: 32, attention: [32, 16], inner: 64 };
    let file = PeftAdapter::open(&TinyAdapter::new(sizes, ALL, 4, 3).write(dir.path(), "adapter")).unwrap();
    let (_, cases) = fp8_cases();
    let prompt = &cases[0].prompt;
    let exact = Decoder::load(&AsStored::open("llama-fp8"), &cpu()).unwrap();
    let exact =
        [None, Some(exact.load_adapter(&file).unwrap())].map(|adapter| logits(&exact, adapter.as_ref(), prompt));
    assert!(difference(&exact[0], &exact[1]) > 0.5, "the adapter changes the logits");
    let folder = ModelFolder::open(&root().join("llama-fp8")).unwrap();
    let on_cpu = Decoder::load(&folder, &cpu()).unwrap();
    let on_cpu = logits(&on_cpu, Some(&on_cpu.load_adapter(&file).unwrap()), prompt);
    let on_candle = Decoder::load(&folder, &candle()).unwrap();
    let on_candle = logits(&on_candle, Some(&on_candle.load_adapter(&file).unwrap()), prompt);
    for found in [on_cpu, on_candle] {
        let difference = difference(&found, &exact[1]);
        assert!(difference < 0.4, "{difference}");
    }
}

#[test]
fn adapters_are_trained_over_weights_in_fp8() {
    let (_, cases) = fp8_cases();
    for name in ["llama-fp8", "llama-fp8-ragged"] {
        let backend = candle();
        let folder = ModelFolder::open(&root().join(name)).unwrap();
        let decoder = Decoder::load(&folder, &backend).unwrap();
        let parameters = LoraParameters::new(&decoder, 4, 8., |_| true, 7).unwrap();
        let optimizer = AdamW::new(parameters.values.len());
        let mut trainer = LoraTrainer::new(&decoder, backend, parameters, optimizer).unwrap();
        let case = cases.iter().find(|case| case.name == name).unwrap();
        let text = TrainingText { tokens: case.prompt.clone(), targets: (1..case.prompt.len()).collect() };
        let loss = |trainer: &LoraTrainer<'_>| -> f32 {
            let scores = trainer.evaluate(std::slice::from_ref(&text)).unwrap();
            -scores[0].iter().map(|score| score.log_probability).sum::<f32>()
        };
        let before = loss(&trainer);
        for _ in 0..5 {
            trainer.supervised(std::slice::from_ref(&text), 0.02).unwrap();
            trainer.step(0.01, 0., 1.).unwrap();
        }
        let after = loss(&trainer);
        assert!(after < before, "{name}: {before}, then {after}");
    }
}

#[test]
fn weights_in_fp8_take_less_than_half_the_memory_of_floats() {
    let bytes = |name: &str| {
        let folder = ModelFolder::open(&root().join(name)).unwrap();
        (Footprint::new(&folder, &cpu()).weights, Footprint::new(&AsStored(folder), &cpu()).weights)
    };
    for case in fp8_cases().1 {
        let (loaded, floats) = bytes(&case.name);
        assert!(loaded < floats / 2, "{}: {loaded} bytes, {floats} as 32-bit floats", case.name);
    }
}

/// A folder is served, and the error for weights without scales names the tensor.
#[test]
fn a_folder_in_fp8_is_listed_and_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let folder = model(dir.path(), "m", "llama-fp8");
    let start = || Engine::start(Settings::new(dir.path(), 1 << 30), Arc::new(TestClock::default())).unwrap();
    let engine = start();
    let info = engine.models().find("m").unwrap();
    assert_eq!((info.problem, info.quantization.as_deref()), (None, Some("F8_E4M3")));
    engine.models().load("m").unwrap();
    drop(engine);

    // Names of the same length keep the offsets of the header.
    let path = folder.join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header = std::str::from_utf8(&bytes[8..8 + length]).unwrap();
    let renamed = header.replace("layers.1.mlp.up_proj.weight_scale_inv", "layers.1.mlp.up_proj.weight_other_inv");
    fs::write(&path, [&bytes[..8], renamed.as_bytes(), &bytes[8 + length..]].concat()).unwrap();
    let error = start().models().load("m").unwrap_err().to_string();
    assert!(error.contains("layers.1.mlp.up_proj.weight has the type F8_E4M3 and no scale"), "{error}");
}
