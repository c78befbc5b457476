//! LoRA adapters of chat models: compared with peft, in batches of several adapters, and served by the engine.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use outpost_engine::{
    AdapterFiles, AdapterRegistration, AdapterSource, Engine, GenerationRequest, InUse, LoadError, ModelKind, Refused,
    Settings, TextModel,
};
use outpost_models::backend::{Cpu, Isa, Pool, Recurrent};
use outpost_models::causal_lm::{BatchRow, CausalLm, LogitsAt};
use outpost_models::decoder::Decoder;
use outpost_models::gguf::GgufFile;
use outpost_models::kv::{KvType, blocks_for};
use outpost_models::peft::{LoadedAdapter, PeftAdapter};
use outpost_testing::fixtures::fixture;
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::json;

use crate::decoder_cases::read_logits;
use crate::decoder_families::{Format, in_chunks};
use crate::harness::{
    ChoiceOutput, TestClock, candle, candle_tolerance, cpu, greedy, memory, outputs, pieces, request, settings,
};
use crate::tiny_adapter::{ALL, Sizes, TinyAdapter};
use crate::tiny_model::{self, TinyModel};

fn fixtures() -> PathBuf {
    fixture("adapters")
}

#[derive(Deserialize)]
struct Cases {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    /// The name of the adapter and of the family of its base.
    name: String,
    prompt: Vec<u32>,
}

const VOCABULARY: usize = 64;

/// Compares each adapter with peft, over bases in both formats. Returns the cases that differ by more than `tolerance`,
/// relative to the largest logit.
fn differing<B: Recurrent>(backend: &B, name: &str, tolerance: impl Fn(&str, Format) -> f32) -> Vec<String> {
    let Cases { cases } = serde_json::from_slice(&fs::read(fixtures().join("cases.json")).unwrap()).unwrap();
    let mut wrong = Vec::new();
    for (Case { name: case, prompt }, format) in
        cases.iter().flat_map(|case| [Format::Safetensors, Format::Gguf].map(|format| (case, format)))
    {
        let model = format.load(case, backend);
        let file = PeftAdapter::open(&fixtures().join(case)).unwrap();
        if ["qwen35", "qwen35moe"].contains(&case.as_str()) && format == Format::Gguf {
            let error = model.load_adapter(&file).unwrap_err().to_string();
            assert!(error.contains("needs the base model's safetensors files"), "{error}");
            continue;
        }
        let adapter = model.load_adapter(&file).unwrap();
        let expected = read_logits(&fixtures().join(format!("{case}.bin")), VOCABULARY);
        let largest = expected.iter().flatten().fold(0f32, |largest, logit| largest.max(logit.abs()));
        let difference = |adapter, size| in_chunks(&model, adapter, prompt, &expected, size) / largest;
        let [whole, chunked, stepped] = [prompt.len(), 8, 1].map(|size| difference(Some(&adapter), size));
        let base = difference(None, prompt.len());
        println!(
            "{case:<8} {format:?} {name:<11}: whole {whole:.1e}, chunks {chunked:.1e}, tokens {stepped:.1e}, base {base:.1e}"
        );
        assert!(base > 0.05, "{case}: the adapter changes the logits");
        if ![whole, chunked, stepped].iter().all(|difference| *difference <= tolerance(case, format)) {
            wrong.push(format!("{case} {format:?} {name}"));
        }
    }
    wrong
}

#[test]
fn adapters_match_peft() {
    let wrong = Isa::available().into_iter().flat_map(|isa| {
        // The base's BF16 weights are multiplied by inputs rounded to bf16 if the CPU has an instruction for it.
        let rounds = |case: &str, format| match format {
            Format::Safetensors => case != "llama" && isa == Isa::Avx512Bf16,
            Format::Gguf => ["nemotronh", "hunyuan"].contains(&case) && isa == Isa::Avx512Bf16,
        };
        let tolerance = |case: &str, format| if rounds(case, format) { 0.05 } else { 1e-4 };
        differing(&Cpu::with_pool(Pool::with_isa(2, isa)), isa.name(), tolerance)
    });
    assert_eq!(wrong.collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn adapters_match_peft_on_candle() {
    assert_eq!(differing(&candle(), "candle", |_, _| candle_tolerance(1e-4, 0.1)), [""; 0]);
}

/// A tiny model and nine adapters: of all modules or of some, with ranks from 1 to 40.
fn tiny<B: Recurrent>(backend: &B, options: &TinyModel) -> (Decoder<B>, Vec<LoadedAdapter>) {
    let dir = tempfile::tempdir().unwrap();
    let path = tiny_model::write(dir.path(), "m", options);
    let model = Decoder::load(&GgufFile::open(&path).unwrap(), backend).unwrap();
    let parts = [ALL, &ALL[..1], &ALL[4..], &["self_attn.q_proj", "self_attn.v_proj"]];
    let adapters = (0..9).map(|index| {
        let rank = [4, 1, 8, 16, 40][index % 5];
        let AdapterFiles { config, weights } =
            TinyAdapter::new(Sizes::of(options), parts[index % 4], rank, 100 + index as u64).files();
        model.load_adapter(&PeftAdapter::from_bytes(&config, weights).unwrap()).unwrap()
    });
    let adapters = adapters.collect();
    (model, adapters)
}

/// A row of a batch: the adapter, and the tokens of the earlier steps and of this one.
type TestRow<'a> = (Option<&'a LoadedAdapter>, Vec<u32>, Vec<u32>, LogitsAt);

/// The logits of the rows, computed together.
fn compute<B: Recurrent>(model: &Decoder<B>, rows: &[TestRow<'_>]) -> Vec<Vec<Vec<f32>>> {
    let mut arenas = model.new_arenas(KvType::F32);
    let tables: Vec<Vec<u32>> = (0..rows.len() as u32).map(|row| (4 * row..4 * row + 4).collect()).collect();
    tables.iter().flatten().for_each(|block| arenas.ensure_positions(*block).unwrap());
    let (mut earlier, mut now) = (Vec::new(), Vec::new());
    for ((adapter, before, tokens, logits), table) in rows.iter().zip(tables.chunks(1)) {
        assert!(blocks_for(before.len() + tokens.len()) <= table[0].len());
        let first = BatchRow {
            tokens: before,
            embedded: &[],
            start: 0,
            tables: table,
            state: None,
            logits: LogitsAt::None,
            long: false,
            adapter: *adapter,
            hidden: None,
        };
        earlier.extend(Some(first).filter(|row| !row.tokens.is_empty()));
        now.push(BatchRow { tokens, embedded: &[], start: before.len(), logits: *logits, ..first });
    }
    if !earlier.is_empty() {
        model.forward(&earlier, &mut arenas).unwrap();
    }
    let mut logits = model.forward(&now, &mut arenas).unwrap();
    logits.rows().iter().map(|row| row.iter().map(|logits| logits.to_vec()).collect()).collect()
}

fn rows_are_independent<B: Recurrent>(backend: &B, same_bits: bool) {
    for options in [TinyModel::default(), TinyModel { quantized: true, width: 128, ..TinyModel::default() }] {
        let (model, adapters) = tiny(backend, &options);
        let text = |seed: u32, count: u32| (0..count).map(|at| (seed * 53 + at * 7) % 250).collect::<Vec<u32>>();
        // Decoding rows, prompts of several lengths, drafts, and two pairs of rows with the same adapter.
        let mut rows: Vec<TestRow<'_>> = (0..adapters.len() as u32)
            .map(|at| (Some(&adapters[at as usize]), text(at, 3 + at), text(at + 20, 1), LogitsAt::Last))
            .collect();
        rows.push((None, text(50, 9), text(51, 1), LogitsAt::Last));
        rows.push((Some(&adapters[0]), Vec::new(), text(52, 40), LogitsAt::Last));
        rows.push((Some(&adapters[3]), text(53, 5), text(54, 6), LogitsAt::All));
        rows.push((None, Vec::new(), text(55, 17), LogitsAt::All));
        rows.push((Some(&adapters[2]), Vec::new(), text(56, 20), LogitsAt::None));
        let together = compute(&model, &rows);
        let reversed: Vec<_> = rows.iter().cloned().rev().collect();
        let mut reversed = compute(&model, &reversed);
        reversed.reverse();
        for (at, row) in rows.iter().enumerate() {
            let alone = compute(&model, std::slice::from_ref(row)).remove(0);
            for found in [&together[at], &reversed[at]] {
                if same_bits {
                    assert_eq!(*found, alone, "row {at}, to the last bit");
                }
                let pairs = found.iter().flatten().zip(alone.iter().flatten());
                let difference = pairs.map(|(a, b)| (a - b).abs()).fold(0., f32::max);
                assert!(difference < if options.quantized { 0.3 } else { 1e-3 }, "row {at}: {difference}");
            }
        }
        // Each adapter computes something else.
        let first = |adapter| compute(&model, &[(adapter, text(1, 8), text(2, 1), LogitsAt::Last)]).remove(0);
        let mut all: Vec<_> = adapters.iter().map(|adapter| first(Some(adapter))).chain([first(None)]).collect();
        all.dedup();
        assert_eq!(all.len(), 10);
    }
}

#[test]
fn adapters_and_their_base_compute_in_one_batch_what_each_computes_alone() {
    rows_are_independent(&cpu(), true);
}

#[test]
fn adapters_and_their_base_compute_in_one_batch_on_candle() {
    rows_are_independent(&candle(), false);
}

#[test]
fn an_adapter_of_another_network_is_refused() {
    let ((_, adapters), (model, _)) = (tiny(&cpu(), &TinyModel::default()), tiny(&cpu(), &TinyModel::default()));
    let mut arenas = model.new_arenas(KvType::F32);
    arenas.ensure_positions(0).unwrap();
    let adapter = adapters.first();
    let row = BatchRow {
        tokens: &[1],
        embedded: &[],
        start: 0,
        tables: &[vec![0]],
        state: None,
        logits: LogitsAt::Last,
        long: false,
        adapter,
        hidden: None,
    };
    assert!(model.forward(&[row], &mut arenas).unwrap_err().to_string().contains("another network"));
}

/// Why an adapter of the tiny model cannot be loaded after this change.
fn problem(change: impl FnOnce(&mut TinyAdapter)) -> String {
    let mut adapter = TinyAdapter::of_tiny(1);
    change(&mut adapter);
    let AdapterFiles { config, weights } = adapter.files();
    load(&config, &weights).unwrap_err()
}

fn load(config: &[u8], weights: &[u8]) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    let path = tiny_model::write(dir.path(), "m", &TinyModel::default());
    let model = Decoder::load(&GgufFile::open(&path).unwrap(), &Cpu::new(1)).unwrap();
    let adapter = PeftAdapter::from_bytes(config, weights.into()).map_err(|error| error.to_string())?;
    model.load_adapter(&adapter).map(drop).map_err(|error| error.to_string())
}

#[test]
fn an_adapter_that_does_not_fit_is_refused_with_the_tensor_name() {
    const Q: &str = "base_model.model.model.layers.0.self_attn.q_proj";
    let rename = |from: &str, to: &str| {
        problem(|adapter| {
            let tensor = adapter.tensors.iter_mut().find(|(name, ..)| name.contains(from)).unwrap();
            tensor.0 = to.to_owned();
        })
    };
    let resize = |ending: &str, shape: [usize; 2]| {
        problem(|adapter| {
            let tensor = adapter.tensors.iter_mut().find(|(name, ..)| *name == format!("{Q}.{ending}.weight")).unwrap();
            (tensor.1, tensor.2) = (shape.to_vec(), vec![0.5; shape[0] * shape[1]]);
        })
    };
    let spoil = |value: f32| problem(|adapter| adapter.tensors[3].2[5] = value);
    let cases = [
        (rename("q_proj.lora_A", "base_model.model.lm_head.lora_A.weight"), "lm_head.lora_A.weight belongs to"),
        (rename("q_proj.lora_A", &format!("{Q}.lora_A.other.weight")), "lora_A.other.weight is not part of a LoRA"),
        (rename("q_proj.lora_A", "base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight"), "no counterpart"),
        (rename("q_proj.lora_A", &format!("{Q}.lora_B.default.weight")), "are for the same module"),
        (rename("q_proj.lora_A", &format!("{Q}.lora_magnitude_vector.weight")), "belongs to DoRA"),
        (resize("lora_A", [4, 63]), "q_proj.lora_A.weight has the shape [4, 63]"),
        (resize("lora_A", [5, 64]), "does not fit the rank 4 of r or rank_pattern"),
        (resize("lora_B", [65, 4]), "q_proj.lora_B.weight has the shape [65, 4]"),
        (resize("lora_B", [64, 3]), "does not fit the rank 4"),
        (resize("lora_A", [0, 64]), "q_proj.lora_A.weight has the shape [0, 64]"),
        (spoil(f32::NAN), "values that are not finite"),
        (spoil(f32::NEG_INFINITY), "values that are not finite"),
        (problem(|adapter| adapter.tensors.clear()), "has no tensors"),
        (problem(|adapter| adapter.config["r"] = json!(8)), "does not fit the rank 8"),
        (problem(|adapter| adapter.config["use_dora"] = json!(true)), "use_dora"),
        (problem(|adapter| adapter.config["lora_alpha"] = json!(1e39)), "lora_alpha"),
        (problem(|adapter| adapter.config = json!(3)), "not an object"),
    ];
    for (problem, expected) in cases {
        assert!(problem.contains(expected), "{problem}; expected: {expected}");
    }
    let other_layers = problem(|adapter| {
        adapter.tensors.iter_mut().for_each(|tensor| tensor.0 = tensor.0.replace("layers.1.", "layers.2."));
    });
    assert!(other_layers.contains("is for a module that the base model does not have"), "{other_layers}");
    let fused = problem(|adapter| {
        adapter.tensors.iter_mut().for_each(|tensor| tensor.0 = tensor.0.replace("q_proj", "qkv_proj"));
    });
    assert!(fused.contains("is for a module that the base model does not have"), "{fused}");
}

#[test]
fn other_types_and_impossible_headers_are_refused() {
    let config = TinyAdapter::of_tiny(1).config.to_string().into_bytes();
    let file = |header: &str, bytes: usize| {
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; bytes]].concat()
    };
    const Q: &str = "base_model.model.model.layers.0.self_attn.q_proj";
    let entry = |dtype: &str, shape: &str, end: u64| {
        let tensor = |name: &str, shape: &str| {
            format!(r#""{Q}.{name}.weight":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,{end}]}}"#)
        };
        file(&format!("{{{},{}}}", tensor("lora_A", shape), tensor("lora_B", shape)), 4096)
    };
    let huge = u64::MAX / 2;
    for (weights, expected) in [
        (entry("I8", "[4,64]", 256), "has the type I8"),
        (entry("F32", "[4,64]", 256), "do not match its shape"),
        (entry("F32", "[4,64]", huge), "truncated"),
        (entry("F32", &format!("[{huge},{huge}]"), 256), "impossible shape"),
        (entry("F32", "[64]", 256), "does not fit the rank"),
        (entry("F32", "[4,2,8]", 256), "does not fit the rank"),
        (huge.to_le_bytes().to_vec(), "the header has"),
        (file("[]", 0), "damaged"),
        (vec![1], "truncated"),
        (Vec::new(), "truncated"),
    ] {
        let error = load(&config, &weights).unwrap_err();
        assert!(error.contains(expected), "{error}; expected: {expected}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_files_never_panic(flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8), header in any::<bool>()) {
        let AdapterFiles { mut config, weights } = TinyAdapter::of_tiny(1).files();
        let mut weights = weights.to_vec();
        let length = if header { 2_000 } else { weights.len() };
        for (index, byte) in &flips {
            weights[index.index(length)] = *byte;
            let at = index.index(config.len());
            config[at] = *byte;
        }
        let good = TinyAdapter::of_tiny(1).config.to_string();
        let _ = load(good.as_bytes(), &weights);
        let _ = load(&config, &weights);
        let _ = load(good.as_bytes(), &weights[..length / 2]);
    }
}

/// An engine over a folder with the model `tiny` and adapters `a0`, `a1`, … of it.
struct Rig {
    engine: Engine,
    clock: Arc<TestClock>,
    dir: tempfile::TempDir,
}

fn rig(adapters: usize, change: impl FnOnce(&mut Settings)) -> Rig {
    let dir = tempfile::tempdir().unwrap();
    tiny_model::write(dir.path(), "tiny", &TinyModel::default());
    for index in 0..adapters {
        TinyAdapter::of_tiny(index as u64).write(dir.path(), &format!("a{index}"));
    }
    let mut settings = Settings { speculate: false, ..settings(dir.path()) };
    change(&mut settings);
    let clock = Arc::new(TestClock::default());
    Rig { engine: Engine::start(settings, clock.clone()).unwrap(), clock, dir }
}

impl Rig {
    fn load(&self, id: &str) -> Arc<TextModel> {
        self.engine.models().load(id).unwrap()
    }

    fn is_loaded(&self, id: &str) -> bool {
        self.engine.models().find(id).unwrap().loaded
    }

    fn problem(&self, id: &str) -> String {
        self.engine.models().find(id).unwrap().problem.unwrap_or_default()
    }

    async fn run(&self, id: &str, request: GenerationRequest) -> (u32, ChoiceOutput) {
        run(&self.engine, &self.load(id), request).await
    }
}

/// The number of cached prompt tokens, and the output.
async fn run(engine: &Engine, model: &Arc<TextModel>, request: GenerationRequest) -> (u32, ChoiceOutput) {
    let all = pieces(engine.submit(model, request).unwrap().deltas).await.unwrap();
    (all[0].cached, outputs(&all, 1).remove(0))
}

fn prompt(first: u32, count: u32) -> Vec<u32> {
    (0..count).map(|at| (first * 53 + at * 7) % 250).collect()
}

#[test]
fn an_adapter_is_listed_as_a_model_with_its_base() {
    let rig = rig(1, |_| ());
    let root = rig.dir.path();
    // Some tools add the configuration and the tokenizer of the base.
    fs::write(root.join("a0/config.json"), "{}").unwrap();
    fs::write(root.join("a0/tokenizer.json"), "{}").unwrap();
    let mut orphan = TinyAdapter::of_tiny(2);
    orphan.config["base_model_name_or_path"] = json!("Qwen/Qwen-Nowhere");
    orphan.write(root, "orphan");
    orphan.config.as_object_mut().unwrap().remove("base_model_name_or_path");
    orphan.write(root, "nameless");
    let mut dora = TinyAdapter::of_tiny(2);
    dora.config["use_dora"] = json!(true);
    dora.write(root, "dora");
    let mut nested = TinyAdapter::of_tiny(2);
    nested.config["base_model_name_or_path"] = json!("a0");
    nested.write(root, "nested");
    let pickled = TinyAdapter::of_tiny(2).write(root, "pickled");
    fs::rename(pickled.join("adapter_model.safetensors"), pickled.join("adapter_model.bin")).unwrap();
    let list = rig.engine.models().list();
    let infos: BTreeMap<&str, _> = list.iter().map(|info| (info.id.as_str(), info)).collect();
    assert_eq!(
        infos.keys().copied().collect::<Vec<_>>(),
        ["a0", "dora", "nameless", "nested", "orphan", "pickled", "tiny"]
    );
    let (adapter, base) = (infos["a0"], infos["tiny"]);
    assert_eq!(
        (adapter.base.as_deref(), adapter.problem.as_deref(), adapter.kind),
        (Some("tiny"), None, ModelKind::Text)
    );
    assert_eq!((&adapter.architecture, adapter.context_window), (&base.architecture, base.context_window));
    assert_eq!((adapter.format, adapter.quantization.as_deref()), ("safetensors", Some("F32")));
    assert!(adapter.parameters > 0 && adapter.bytes > 4 * adapter.parameters && base.base.is_none());
    for (id, expected) in [
        ("orphan", "its base model Qwen/Qwen-Nowhere is not in the models folder: add it, or set"),
        ("nameless", "base_model_name_or_path is missing"),
        ("dora", "use_dora is set"),
        ("nested", "its base model a0 is not in the models folder"),
        ("pickled", "safe_serialization=True"),
    ] {
        assert!(rig.problem(id).contains(expected), "{}", rig.problem(id));
        assert!(matches!(rig.engine.models().load(id), Err(LoadError::Unusable { .. })));
    }
}

#[tokio::test]
async fn adapters_and_their_base_generate_together() {
    let rig = rig(8, |_| ());
    let ids: Vec<String> = (0..8).map(|index| format!("a{index}")).chain(["tiny".to_owned()]).collect();
    let request = |at: usize| greedy(prompt(at as u32, 30 + 3 * at as u32), 40);
    let mut alone = Vec::new();
    for (at, id) in ids.iter().enumerate() {
        alone.push(rig.run(id, GenerationRequest { tenant: 7, ..request(at) }).await.1);
    }
    let models: Vec<_> = ids.iter().map(|id| rig.load(id)).collect();
    let together = models.iter().enumerate().map(|(at, model)| run(&rig.engine, model, request(at)));
    let together: Vec<_> = join_all(together).await.into_iter().map(|(_, output)| output).collect();
    assert_eq!(together, alone);
    let same: Vec<_> = join_all(models.iter().map(|model| run(&rig.engine, model, request(0)))).await;
    let mut texts: Vec<_> = same.into_iter().map(|(_, output)| output.text).collect();
    texts.sort();
    texts.dedup();
    assert_eq!(texts.len(), 9, "each adapter generates another text");
    let metrics = rig.engine.metrics();
    let generated = |id: &str| metrics.contains(&format!("outpost_generated_tokens_total{{model=\"{id}\"}} 120"));
    assert!(ids.iter().all(|id| generated(id)), "{metrics}");
}

#[tokio::test]
async fn the_prefix_cache_keeps_adapters_apart() {
    let rig = rig(2, |_| ());
    let cached = async |id: &str| rig.run(id, greedy(prompt(1, 100), 4)).await.0;
    assert_eq!((cached("tiny").await, cached("tiny").await), (0, 96));
    assert_eq!((cached("a0").await, cached("a0").await), (0, 96));
    assert_eq!((cached("a1").await, cached("a1").await), (0, 96));
    assert_eq!((cached("tiny").await, cached("a0").await), (96, 96));
    // The new load of an adapter may have other weights.
    rig.engine.models().unload("a0").unwrap();
    assert_eq!((cached("a0").await, cached("tiny").await), (0, 96));
}

#[tokio::test]
async fn adapters_take_memory_and_can_be_unloaded_without_their_base() {
    let rig = rig(2, |_| ());
    rig.load("tiny");
    let base = memory(&rig.engine, "weights");
    let adapter = rig.load("a0");
    let one = memory(&rig.engine, "weights");
    assert!(one > base && rig.is_loaded("a0"));
    assert_eq!(rig.engine.models().unload("a0"), Err(InUse));
    assert_eq!(rig.engine.models().unload("tiny"), Err(InUse), "an adapter in use keeps its base");
    drop(adapter);
    rig.load("a1");
    rig.engine.models().unload("a0").unwrap();
    assert!(rig.is_loaded("a1") && rig.is_loaded("tiny") && !rig.is_loaded("a0"));
    assert_eq!(memory(&rig.engine, "weights"), one);
    rig.engine.models().unload("tiny").unwrap();
    assert!(!rig.is_loaded("a1") && !rig.is_loaded("tiny"), "idle adapters are unloaded with their base");
    assert_eq!(memory(&rig.engine, "weights"), 0);
    let first = rig.run("a0", greedy(prompt(1, 20), 10)).await;
    assert!(rig.is_loaded("tiny"), "loading an adapter loads its base");
    assert_eq!(rig.run("a0", greedy(prompt(1, 20), 10)).await.1, first.1);
}

#[test]
fn idle_adapters_are_evicted_first() {
    let free = rig(1, |_| ());
    free.load("tiny");
    let (base, scratch) = (memory(&free.engine, "weights"), memory(&free.engine, "scratch"));
    free.load("a0");
    let adapter = memory(&free.engine, "weights") - base;
    let scratch = scratch.max(memory(&free.engine, "scratch"));
    // Memory for the base, two of its adapters, and what loading them takes.
    let rig = rig(3, |settings| settings.memory_bytes = base + scratch + 5 * adapter / 2);
    let kept = rig.load("a0");
    rig.load("a1");
    rig.load("a2");
    assert!(rig.is_loaded("tiny") && rig.is_loaded("a0") && rig.is_loaded("a2"));
    rig.load("a1");
    assert!(rig.is_loaded("tiny") && rig.is_loaded("a0") && rig.is_loaded("a1"));
    drop(kept);
    // A model that needs all memory displaces the adapters and their base.
    tiny_model::write(rig.dir.path(), "other", &TinyModel { seed: 2, ..TinyModel::default() });
    rig.clock.advance(Duration::from_secs(2));
    rig.load("other");
    assert!(!rig.is_loaded("tiny") && !rig.is_loaded("a0") && !rig.is_loaded("a1"));
}

#[tokio::test]
async fn changed_files_of_an_adapter_or_its_base_are_noticed() {
    let rig = rig(1, |_| ());
    let root = rig.dir.path();
    let first = rig.load("a0");
    assert!(Arc::ptr_eq(&first, &rig.load("a0")), "it is loaded once");
    let mut changed = TinyAdapter::of_tiny(5);
    changed.config["note"] = json!("of another length");
    changed.write(root, "a0");
    let second = rig.load("a0");
    assert!(!Arc::ptr_eq(&first, &second));
    let text = async |model: &Arc<TextModel>| run(&rig.engine, model, greedy(prompt(1, 20), 20)).await.1.text;
    assert_ne!(text(&first).await, text(&second).await, "running requests finish on the old weights");
    // Another base: the adapter is loaded again over it.
    let replacement = tiny_model::bytes(&TinyModel { seed: 9, ..TinyModel::default() });
    fs::write(root.join("tiny/tiny.gguf"), [replacement, vec![0]].concat()).unwrap();
    let third = rig.load("a0");
    assert!(!Arc::ptr_eq(&second, &third));
    assert_ne!(text(&second).await, text(&third).await);
    // Without its base, it cannot be used.
    fs::rename(root.join("tiny"), root.join(".tiny")).unwrap();
    assert!(matches!(rig.engine.models().load("a0"), Err(LoadError::Unusable { .. })));
    assert!(rig.engine.models().loaded_model("a0").is_none());
    fs::rename(root.join(".tiny"), root.join("tiny")).unwrap();
    rig.clock.advance(Duration::from_secs(2));
    assert_eq!(text(&rig.load("a0")).await, text(&third).await);
    // A base whose sizes differ.
    let wide = tiny_model::bytes(&TinyModel { width: 128, ..TinyModel::default() });
    fs::write(root.join("tiny/tiny.gguf"), wide).unwrap();
    let error = rig.engine.models().load("a0").unwrap_err().to_string();
    assert!(error.contains("does not fit the base model's"), "{error}");
    assert!(rig.problem("a0").contains("does not fit the base model's"));
}

#[tokio::test]
async fn speculation_does_not_change_the_output_of_adapters() {
    let plain = rig(2, |_| ());
    let drafting = rig(2, |settings| settings.speculate = true);
    let large = TinyModel { zero_blocks: 6, ..TinyModel::default() };
    for rig in [&plain, &drafting] {
        // The model `tiny` becomes the draft model of a larger one, which the adapters get as their base.
        tiny_model::write(rig.dir.path(), "large", &large);
        for index in 0..2 {
            let mut adapter = TinyAdapter::new(Sizes::of(&large), ALL, 4, index);
            adapter.config["base_model_name_or_path"] = json!("large");
            adapter.write(rig.dir.path(), &format!("a{index}"));
        }
        rig.clock.advance(Duration::from_secs(2));
    }
    for at in 0..4 {
        let request = |at: u32| GenerationRequest { choices: 1, ..request(prompt(at, 30), 60) };
        for id in ["a0", "large", "a1"] {
            assert_eq!(drafting.run(id, request(at)).await.1, plain.run(id, request(at)).await.1, "{id}");
        }
    }
    assert!(drafting.is_loaded("tiny"), "the adapters share the draft model of their base");
    assert!(
        drafting.engine.metrics().contains("outpost_drafted_tokens_total{model=\"a0\""),
        "{}",
        drafting.engine.metrics()
    );
    // An adapter is never a draft model.
    let only = rig(1, |settings| settings.speculate = true);
    only.run("tiny", request(prompt(1, 30), 30)).await;
    assert!(!only.is_loaded("a0"));
}

/// A source that counts how often it is read.
#[derive(Debug)]
struct Counted(AdapterFiles, std::sync::atomic::AtomicUsize);

impl AdapterSource for Counted {
    fn read(&self) -> Result<AdapterFiles, String> {
        self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(self.0.clone())
    }
}

#[tokio::test]
async fn a_registered_adapter_serves_the_project_that_owns_it() {
    let rig = rig(1, |_| ());
    let models = rig.engine.models();
    let files = TinyAdapter::of_tiny(0).files();
    let source = Arc::new(Counted(files, 0.into()));
    let registration = |id: &str, base: &str, source: Arc<dyn AdapterSource>| AdapterRegistration {
        id: id.to_owned(),
        base: base.to_owned(),
        owner: 1,
        source,
    };
    models.register_adapter(registration("ft:one", "tiny", source.clone())).unwrap();
    assert_eq!(models.load("ft:one").unwrap_err(), LoadError::NotFound);
    assert_eq!(models.load_for("ft:one", 2).unwrap_err(), LoadError::NotFound);
    assert!(models.find("ft:one").is_none() && models.list().iter().all(|info| info.id != "ft:one"));
    let model = models.load_for("ft:one", 1).unwrap();
    assert!(Arc::ptr_eq(&model, &models.load_for("ft:one", 1).unwrap()));
    let output = run(&rig.engine, &model, greedy(prompt(1, 20), 20)).await.1;
    assert_eq!(output, rig.run("a0", greedy(prompt(1, 20), 20)).await.1, "as the same adapter in the folder");
    let other = GenerationRequest { tenant: 2, ..greedy(prompt(1, 20), 20) };
    assert!(matches!(rig.engine.submit(&model, other), Err(Refused::Invalid(_))));
    // A scan of the folder does not affect it; after it was unloaded, its source is read again.
    rig.clock.advance(Duration::from_secs(2));
    models.list();
    assert!(Arc::ptr_eq(&model, &models.load_for("ft:one", 1).unwrap()));
    drop(model);
    let reads = || source.1.load(std::sync::atomic::Ordering::Relaxed);
    let before = reads();
    models.unload("ft:one").unwrap();
    models.load_for("ft:one", 1).unwrap();
    assert_eq!(reads(), before + 1);
    // Replaced, and removed.
    models.register_adapter(registration("ft:one", "tiny", Arc::new(TinyAdapter::of_tiny(3).files()))).unwrap();
    let replaced = models.load_for("ft:one", 1).unwrap();
    assert_ne!(run(&rig.engine, &replaced, greedy(prompt(1, 20), 20)).await.1.text, output.text);
    models.remove_adapter("ft:one");
    assert_eq!(models.load_for("ft:one", 1).unwrap_err(), LoadError::NotFound);
    // Registrations that cannot work.
    let error = models.register_adapter(registration("a0", "tiny", source.clone())).unwrap_err();
    assert!(error.to_string().contains("same ID"), "{error}");
    let damaged = AdapterFiles { config: b"{".to_vec(), weights: Arc::from([]) };
    let error = models.register_adapter(registration("ft:two", "tiny", Arc::new(damaged))).unwrap_err();
    assert!(error.to_string().contains("damaged"), "{error}");
    models.register_adapter(registration("ft:three", "missing", source)).unwrap();
    let error = models.load_for("ft:three", 1).unwrap_err();
    assert!(error.to_string().contains("its base model missing is not in the models folder"), "{error}");
}
