//! Compares the training of LoRA adapters with PyTorch and peft. `tests/fixtures/make_training_reference.py` wrote the
//! expected values.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::{Device, Tensor};
use outpost_models::ModelError;
use outpost_models::backend::{Backend, Candle, Cpu, Isa, Pool, Recurrent, RequestOptions};
use outpost_models::causal_lm::{BatchRow, CausalLm, LogitsAt};
use outpost_models::decoder::Decoder;
use outpost_models::kv::{KvType, blocks_for};
use outpost_models::peft::{LoadedAdapter, PeftAdapter};
use outpost_models::safetensors::ModelFolder;
use outpost_models::state_layout::StateUpdate;
use outpost_models::training::{
    AdamW, LearningRate, LoraModule, LoraParameters, LoraTrainer, TargetScore, TrainingText,
};
use outpost_testing::fixtures::fixture;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::decoder_families::Format;
use crate::harness::{candle, candle_tolerance};
use crate::rng::TestRng;

#[derive(Deserialize)]
struct Cases {
    rank: usize,
    alpha: f32,
    beta: f32,
    warmup_steps: u32,
    learning_rate: f32,
    weight_decay: f32,
    max_gradient_norm: f32,
    batches: Vec<Vec<Text>>,
    pairs: Vec<[Text; 2]>,
    families: BTreeMap<String, Family>,
}

/// Token IDs, and how many of the first belong to the prompt.
type Text = (Vec<u32>, usize);

#[derive(Deserialize)]
struct Family {
    losses: Vec<f32>,
    norms: Vec<f32>,
    preference_loss: f32,
}

fn fixtures(name: &str) -> PathBuf {
    fixture(name)
}

fn cases() -> Cases {
    serde_json::from_slice(&std::fs::read(fixtures("training/cases.json")).unwrap()).unwrap()
}

fn text((tokens, prompt): &Text) -> TrainingText {
    TrainingText { tokens: tokens.clone(), targets: (*prompt..tokens.len()).collect() }
}

fn texts(batch: &[Text]) -> Vec<TrainingText> {
    batch.iter().map(text).collect()
}

/// The name of a module in peft, such as `layers.0.self_attn.q_proj`.
fn peft_name(family: &str, tensor: &str) -> String {
    let (layer, projection) = tensor.strip_prefix("blk.").unwrap().split_once('.').unwrap();
    let name = match projection {
        "attn_qkv" if family.starts_with("qwen35") => "linear_attn.in_proj_qkv",
        "ssm_in" => "mamba.in_proj",
        "ssm_out" if family == "granitehybrid" => "mamba.out_proj",
        "ffn_gate_up" if family == "granitehybrid" => "shared_mlp.input_linear",
        "ffn_down" if family == "granitehybrid" => "shared_mlp.output_linear",
        "ffn_gate_shexp" => "mlp.shared_expert.gate_proj",
        "ffn_up_shexp" => "mlp.shared_expert.up_proj",
        "ffn_down_shexp" => "mlp.shared_expert.down_proj",
        "attn_output" if family.starts_with("lfm2") => "self_attn.out_proj",
        "ffn_gate" if family.starts_with("lfm2") => "feed_forward.w1",
        "ffn_up" if family.starts_with("lfm2") => "feed_forward.w3",
        "ffn_down" if family.starts_with("lfm2") => "feed_forward.w2",
        "attn_q" => "self_attn.q_proj",
        "attn_k" => "self_attn.k_proj",
        "attn_v" => "self_attn.v_proj",
        "attn_qkv" => "self_attn.qkv_proj",
        "attn_output" => "self_attn.o_proj",
        "ffn_gate" => "mlp.gate_proj",
        "ffn_up" => "mlp.up_proj",
        "ffn_gate_up" => "mlp.gate_up_proj",
        "ffn_down" => "mlp.down_proj",
        "shortconv.in_proj" => "conv.in_proj",
        "shortconv.out_proj" => "conv.out_proj",
        "attn_gate" => "linear_attn.in_proj_z",
        "ssm_alpha" => "linear_attn.in_proj_a",
        "ssm_beta" => "linear_attn.in_proj_b",
        "ssm_out" => "linear_attn.out_proj",
        "inp_gate" => "per_layer_input_gate",
        "proj" => "per_layer_projection",
        other => panic!("{other}"),
    };
    format!("base_model.model.model.layers.{layer}.{name}")
}

struct Reference {
    family: String,
    tensors: HashMap<String, Tensor>,
}

impl Reference {
    fn load(family: &str) -> Self {
        let path = fixtures("training").join(format!("{family}.safetensors"));
        Self { family: family.to_owned(), tensors: candle_core::safetensors::load(path, &Device::Cpu).unwrap() }
    }

    fn values(&self, prefix: &str, tensor: &str, matrix: &str) -> Option<Vec<f32>> {
        let tensor = self.tensors.get(&format!("{prefix}{}.lora_{matrix}.weight", peft_name(&self.family, tensor)))?;
        Some(tensor.flatten_all().unwrap().to_vec1().unwrap())
    }

    /// The values of all matrices in the order of `parameters`.
    fn flat(&self, prefix: &str, parameters: &LoraParameters) -> Vec<f32> {
        let mut flat = vec![f32::NAN; parameters.values.len()];
        for LoraModule { tensor, down, up, .. } in &parameters.modules {
            for (matrix, range) in [("A", down), ("B", up)] {
                let values = self.values(prefix, tensor, matrix).unwrap_or_else(|| panic!("{tensor}"));
                flat[range.clone()].copy_from_slice(&values);
            }
        }
        flat
    }

    /// The parameters of the initial adapter.
    fn parameters(&self, decoder: &Decoder<Candle>, cases: &Cases) -> LoraParameters {
        let is_target = |projection: &str| {
            let in_layer = |layer: usize| self.values("", &format!("blk.{layer}.{projection}"), "A");
            (0..decoder.config().layers.len()).any(|layer| in_layer(layer).is_some())
        };
        let mut parameters = LoraParameters::new(decoder, cases.rank, cases.alpha, is_target, 0).unwrap();
        let adapted = self.tensors.keys().filter(|name| name.starts_with("base_model")).count();
        assert_eq!(2 * parameters.modules.len(), adapted);
        parameters.values = self.flat("", &parameters);
        parameters
    }
}

fn loss(scores: &[Vec<TargetScore>]) -> f32 {
    let all = || scores.iter().flatten().map(|score| score.log_probability);
    -all().sum::<f32>() / all().count() as f32
}

fn targets(texts: &[TrainingText]) -> f32 {
    texts.iter().map(|text| text.targets.len()).sum::<usize>() as f32
}

/// The greatest difference, relative to the greatest expected number.
fn difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let size = expected.iter().fold(0f32, |size, value| size.max(value.abs()));
    found
        .iter()
        .zip(expected)
        .map(|(a, b)| (a - b).abs() / size)
        .fold(0., |most, x| if x > most || x.is_nan() { x } else { most })
}

#[test]
fn losses_and_gradients_match_peft() {
    let cases = cases();
    let (batches, pairs): (Vec<_>, Vec<Text>) =
        (cases.batches.iter().map(|batch| texts(batch)).collect(), cases.pairs.iter().flatten().cloned().collect());
    let mut far = Vec::new();
    for (name, family) in &cases.families {
        let backend = candle();
        let folder = ModelFolder::open(&fixtures("families").join(name)).unwrap();
        let decoder = Decoder::load(&folder, &backend).unwrap();
        let reference = Reference::load(name);
        let parameters = reference.parameters(&decoder, &cases);
        let count = parameters.values.len();
        let mut worst = [0f32; 5];
        for keep_graphs in [true, false] {
            let start = || {
                let optimizer = AdamW::new(count);
                let mut trainer = LoraTrainer::new(&decoder, backend.clone(), parameters.clone(), optimizer).unwrap();
                trainer.keep_graphs = keep_graphs;
                trainer
            };
            let mut trainer = start();
            trainer.supervised(&batches[0], targets(&batches[0]).recip()).unwrap();
            let supervised = difference(trainer.gradient(), &reference.flat("supervised.", &parameters));
            let mut trainer = start();
            let pairs = texts(&pairs);
            let without = trainer.reference_log_probabilities(&pairs).unwrap();
            let scores = trainer.preference(&pairs, &without, cases.beta, 0.5).unwrap();
            let preference_loss = scores.iter().map(|score| score.loss).sum::<f32>() / 2.;
            let preference = difference(trainer.gradient(), &reference.flat("preference.", &parameters));
            let mut trainer = start();
            let steps = family.losses.len() as u32;
            let rate = LearningRate { peak: cases.learning_rate, warmup: cases.warmup_steps, steps };
            let (mut losses, mut norms) = (Vec::new(), Vec::new());
            for step in 0..steps {
                let batch = &batches[step as usize % 2];
                losses.push(loss(&trainer.supervised(batch, targets(batch).recip()).unwrap()));
                norms.push(trainer.step(rate.at(step), cases.weight_decay, cases.max_gradient_norm).unwrap());
            }
            let found = [
                supervised,
                preference,
                difference(&[preference_loss], &[family.preference_loss]),
                difference(&losses, &family.losses),
                difference(&norms, &family.norms),
            ];
            worst.iter_mut().zip(found).for_each(|(worst, found)| *worst = worst.max(found));
        }
        let [supervised, preference, preference_loss, losses, norms] = worst;
        println!(
            "{name:<14} gradient {supervised:.1e}, of preferences {preference:.1e}; preference loss {preference_loss:.1e}, \
             losses of ten steps {losses:.1e}, norms {norms:.1e}"
        );
        // Ten steps amplify rounding.
        let [bound, norm_bound] = [1e-4, 1e-3].map(|exact| candle_tolerance(exact, 0.3));
        if !(supervised.max(preference).max(preference_loss).max(losses) <= bound && norms <= norm_bound) {
            far.push(name.clone());
        }
    }
    assert!(far.is_empty(), "far from the reference: {far:?}");
}

/// Targets are scored like the logits of inference say, and a pass over several texts like one over each.
#[test]
fn scores_do_not_depend_on_other_texts() {
    let cases = cases();
    let backend = candle();
    let folder = ModelFolder::open(&fixtures("families/gemma3")).unwrap();
    let decoder = Decoder::load(&folder, &backend).unwrap();
    let parameters = Reference::load("gemma3").parameters(&decoder, &cases);
    let optimizer = AdamW::new(parameters.values.len());
    let trainer = LoraTrainer::new(&decoder, backend, parameters, optimizer).unwrap();
    let batch = texts(&cases.batches[0]);
    let together = trainer.evaluate(&batch).unwrap();
    for (text, together) in batch.iter().zip(&together) {
        let alone = trainer.evaluate(std::slice::from_ref(text)).unwrap();
        let logs = |scores: &[TargetScore]| -> Vec<f32> { scores.iter().map(|score| score.log_probability).collect() };
        assert!(difference(&logs(together), &logs(&alone[0])) < 1e-5);
    }
}

/// A range of all tokens, as targets would be.
fn all(range: Range<usize>) -> Vec<usize> {
    range.collect()
}

#[test]
fn impossible_texts_are_refused() {
    let cases = cases();
    let backend = candle();
    let folder = ModelFolder::open(&fixtures("families/llama")).unwrap();
    let decoder = Decoder::load(&folder, &backend).unwrap();
    let parameters = Reference::load("llama").parameters(&decoder, &cases);
    let optimizer = AdamW::new(parameters.values.len());
    let mut trainer = LoraTrainer::new(&decoder, backend, parameters.clone(), optimizer).unwrap();
    for (tokens, targets) in
        [(vec![], vec![]), (vec![1, 2], all(0..2)), (vec![1, 2], all(2..3)), (vec![64, 1], all(1..2))]
    {
        let text = TrainingText { tokens, targets };
        assert!(trainer.supervised(std::slice::from_ref(&text), 1.).is_err(), "{text:?}");
    }
    let unpaired = texts(&cases.batches[0][..1]);
    assert!(trainer.preference(&unpaired, &[0.], 0.1, 1.).is_err());
    assert!(trainer.gradient().iter().all(|value| *value == 0.));
    let other = AdamW::new(parameters.values.len() + 1);
    assert!(LoraTrainer::new(&decoder, candle(), parameters, other).is_err());
    assert!(LoraParameters::new(&decoder, 2, 1., |_| false, 0).is_err());
}

/// The decoder of a family, the initial adapter, and a batch.
fn family(name: &str, backend: &Candle) -> (Decoder<Candle>, LoraParameters, Vec<TrainingText>) {
    let cases = cases();
    let folder = ModelFolder::open(&fixtures("families").join(name)).unwrap();
    let decoder = Decoder::load(&folder, backend).unwrap();
    let parameters = Reference::load(name).parameters(&decoder, &cases);
    (decoder, parameters, texts(&cases.batches[0]))
}

#[test]
fn dropout_depends_only_on_the_seed_and_the_position() {
    for name in ["llama", "phi3-window", "qwen3moe"] {
        let backend = candle();
        let (decoder, parameters, batch) = family(name, &backend);
        let start = |parameters: &LoraParameters, optimizer: &AdamW| {
            LoraTrainer::new(&decoder, backend.clone(), parameters.clone(), optimizer.clone()).unwrap()
        };
        let new = AdamW::new(parameters.values.len());
        // The gradients of two passes, and the state after a step.
        let run = |mut trainer: LoraTrainer<'_>, keep_graphs: bool, rate: Option<f32>, seed: u64| {
            trainer.keep_graphs = keep_graphs;
            if let Some(rate) = rate {
                trainer.set_dropout(rate, seed).unwrap();
            }
            trainer.supervised(&batch, 0.1).unwrap();
            let first = trainer.gradient().to_vec();
            trainer.supervised(&batch, 0.1).unwrap();
            let both = trainer.gradient().to_vec();
            trainer.step(0.01, 0., 1.).unwrap();
            (first, both, trainer.parameters, trainer.optimizer)
        };
        let without = run(start(&parameters, &new), true, None, 1);
        let zero = run(start(&parameters, &new), true, Some(0.), 1);
        assert_eq!((&without.0, &without.1), (&zero.0, &zero.1), "{name}: a rate of zero changes nothing");
        let kept = run(start(&parameters, &new), true, Some(0.3), 1);
        let recomputed = run(start(&parameters, &new), false, Some(0.3), 1);
        assert!(difference(&recomputed.1, &kept.1) < 1e-6, "{name}: both graphs have the same masks");
        assert!(difference(&kept.0, &without.0) > 1e-3);
        let second: Vec<f32> = kept.1.iter().zip(&kept.0).map(|(both, first)| both - first).collect();
        assert!(difference(&second, &kept.0) > 1e-3, "{name}: passes have different masks");
        assert!(difference(&run(start(&parameters, &new), true, Some(0.3), 2).0, &kept.0) > 1e-3);
        // The next step after a resumption equals that of an uninterrupted training.
        let next = run(start(&kept.2, &kept.3), true, Some(0.3), 1);
        let mut going_on = start(&parameters, &new);
        going_on.set_dropout(0.3, 1).unwrap();
        let before = going_on.evaluate(&batch).unwrap();
        assert_eq!(before, start(&parameters, &new).evaluate(&batch).unwrap(), "{name}: evaluation has no dropout");
        (0..2).for_each(|_| drop(going_on.supervised(&batch, 0.1).unwrap()));
        going_on.step(0.01, 0., 1.).unwrap();
        going_on.supervised(&batch, 0.1).unwrap();
        assert_eq!(going_on.gradient(), next.0, "{name}");
        assert!([-0.1, 1., f32::NAN].into_iter().all(|rate| going_on.set_dropout(rate, 1).is_err()));
    }
}

#[test]
fn training_can_be_interrupted_at_any_pause() {
    let (decoder, parameters, batch) = family("llama", &candle());
    let count = parameters.values.len();
    // Runs until the pause function has been called `limit` times; returns how often it was.
    let run = |limit: usize| {
        let pauses = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&pauses);
        let pause = move || match counter.fetch_add(1, Ordering::Relaxed) < limit {
            true => Ok(()),
            false => Err(ModelError::Interrupted),
        };
        let backend = candle().for_request(RequestOptions { pause: Arc::new(pause), bf16_attention: false });
        let result =
            LoraTrainer::new(&decoder, backend, parameters.clone(), AdamW::new(count)).and_then(|mut trainer| {
                trainer.supervised(&batch, 0.1)?;
                trainer.step(0.01, 0., 1.)
            });
        (result, pauses.load(Ordering::Relaxed))
    };
    let (result, pauses) = run(usize::MAX);
    assert!(result.is_ok() && pauses > 50);
    for limit in 0..pauses {
        assert_eq!(run(limit).0, Err(ModelError::Interrupted), "after {limit} of {pauses} pauses");
    }
}

/// An adapter of all modules with random weights, also in the up-projections. bf16 represents them exactly.
fn random_parameters(decoder: &Decoder<Candle>, alpha: f32) -> LoraParameters {
    let mut parameters = LoraParameters::new(decoder, 3, alpha, |_| true, 7).unwrap();
    let mut rng = TestRng(11);
    parameters.values.iter_mut().for_each(|value| *value = rng.below(128) as f32 / 256. - 0.25);
    parameters
}

/// The log probabilities of the tokens after the first, from logits.
fn log_probabilities<B: Recurrent>(model: &Decoder<B>, adapter: &LoadedAdapter, tokens: &[u32]) -> Vec<f32> {
    let mut arenas = model.new_arenas(KvType::F32);
    let blocks: Vec<u32> = (0..blocks_for(tokens.len()) as u32).collect();
    blocks.iter().for_each(|block| arenas.ensure_positions(*block).unwrap());
    arenas.ensure_state(0).unwrap();
    let long = model.is_long(tokens.len());
    let row = BatchRow {
        tokens,
        embedded: &[],
        start: 0,
        tables: std::slice::from_ref(&blocks),
        state: Some(StateUpdate { read: None, write: 0 }),
        logits: LogitsAt::All,
        long,
        adapter: Some(adapter),
        hidden: None,
    };
    let mut logits = model.forward(&[row], &mut arenas).unwrap();
    let log_probability = |(logits, token): (&&mut [f32], &u32)| {
        let sum: f32 = logits.iter().map(|logit| logit.exp()).sum();
        logits[*token as usize] - sum.ln()
    };
    logits.rows()[0].iter().zip(&tokens[1..]).map(log_probability).collect()
}

/// A written adapter computes the same as the parameters: on the base that it was trained on, and on the same base in the
/// other format, whose rows may be in another order. peft 0.21 computes the same log probabilities with these files, up to
/// 1e-5 (checked by hand on 2026-11-25).
#[test]
fn written_adapters_compute_like_the_trained_parameters() {
    let (cases, cpu) = (cases(), Cpu::with_pool(Pool::with_isa(2, Isa::Portable)));
    let text = text(&(cases.batches[0][2].0.clone(), 1));
    for (name, format, other) in [
        ("llama", Format::Safetensors, Some(Format::Gguf)),
        ("llama", Format::Gguf, Some(Format::Safetensors)),
        ("phi3-window", Format::Safetensors, Some(Format::Gguf)),
        ("phi3-window", Format::Gguf, Some(Format::Safetensors)),
        ("qwen3moe", Format::Gguf, Some(Format::Safetensors)),
        ("smollm3", Format::Gguf, Some(Format::Safetensors)),
        ("gemma2", Format::Safetensors, None),
        ("lfm2", Format::Safetensors, Some(Format::Gguf)),
        ("lfm2", Format::Gguf, Some(Format::Safetensors)),
        ("qwen35", Format::Safetensors, None),
        ("qwen35", Format::Gguf, Some(Format::Safetensors)),
        ("qwen3next", Format::Safetensors, Some(Format::Gguf)),
        ("granitehybrid", Format::Safetensors, Some(Format::Gguf)),
        ("granitehybrid-experts", Format::Gguf, Some(Format::Safetensors)),
        ("olmo2", Format::Safetensors, Some(Format::Gguf)),
        ("ernie45", Format::Gguf, Some(Format::Safetensors)),
        ("glm4", Format::Gguf, Some(Format::Safetensors)),
        ("cohere2", Format::Safetensors, Some(Format::Gguf)),
        ("gpt-oss", Format::Gguf, Some(Format::Safetensors)),
        ("gemma4", Format::Safetensors, Some(Format::Gguf)),
        ("gemma4-per-layer", Format::Gguf, Some(Format::Safetensors)),
    ] {
        let decoder = format.load(name, &candle());
        let parameters = random_parameters(&decoder, 4.5);
        let files = parameters.to_peft("base").unwrap();
        assert_eq!(parameters.to_peft("base").unwrap(), files);
        let adapter = PeftAdapter::from_bytes(&files.config, files.weights.into()).unwrap();
        assert_eq!((adapter.base_model(), adapter.rank()), (Some("base"), 3));
        assert_eq!(adapter.parameters(), parameters.values.len() as u64);
        let optimizer = AdamW::new(parameters.values.len());
        let trainer = LoraTrainer::new(&decoder, candle(), parameters, optimizer).unwrap();
        let scores = trainer.evaluate(std::slice::from_ref(&text)).unwrap();
        let expected: Vec<f32> = scores[0].iter().map(|score| score.log_probability).collect();
        for format in [Some(format), other].into_iter().flatten() {
            let served = format.load(name, &cpu);
            let found = log_probabilities(&served, &served.load_adapter(&adapter).unwrap(), &text.tokens);
            let difference = difference(&found, &expected);
            println!("{name:<11} {format:?}: {difference:.1e}");
            assert!(difference <= candle_tolerance(1e-4, 0.05), "{name} {format:?}: {difference}");
        }
    }
}

#[test]
fn the_written_configuration_names_the_modules_of_peft() {
    let config = |family: &str, targets: &[&str], alpha: f32| -> Value {
        let decoder = Format::Gguf.load(family, &candle());
        let parameters = LoraParameters::new(&decoder, 2, alpha, |name| targets.contains(&name), 0).unwrap();
        let config: Value = serde_json::from_slice(&parameters.to_peft("my/base").unwrap().config).unwrap();
        assert_eq!((&config["r"], &config["base_model_name_or_path"]), (&json!(2), &json!("my/base")));
        json!([config["target_modules"], config["lora_alpha"]])
    };
    assert_eq!(
        config("llama", &["attn_q", "ffn_up", "attn_output"], 16.),
        json!([["o_proj", "q_proj", "up_proj"], 16])
    );
    assert_eq!(
        config("lfm2", &["attn_output", "shortconv.in_proj", "shortconv.out_proj", "ffn_up"], 2.),
        json!([["in_proj", "out_proj", "w3"], 2])
    );
    assert_eq!(config("phi3", &["attn_qkv", "ffn_up"], 0.5), json!([["gate_up_proj", "qkv_proj"], 0.5]));
}
