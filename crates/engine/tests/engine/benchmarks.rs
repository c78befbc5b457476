//! Benchmarks on the starter model, run by hand: `cargo test --release --test engine -- --ignored speed --nocapture`.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use candle_core::Device;
use outpost_engine::AdapterFiles;
use outpost_models::backend::{Candle, Cpu};
use outpost_models::causal_lm::{BatchRow, CausalLm, LogitsAt};
use outpost_models::decoder::Decoder;
use outpost_models::decoder_config::{DenseConfig, FeedForwardConfig};
use outpost_models::gguf::GgufFile;
use outpost_models::kv::KvType;
use outpost_models::peft::PeftAdapter;
use outpost_models::sequence_state::SequenceState;
use outpost_models::state_layout::StateUpdate;
use outpost_models::training::{AdamW, LoraParameters, LoraTrainer, TrainingText};
use outpost_models::weights::DraftingCheckpoint;
use outpost_testing::fixtures::{copy_folder, fixture};

use crate::harness::{cpu, real_model};
use crate::tiny_adapter::{ALL, Sizes, TinyAdapter};
use crate::tiny_model::{self, TinyModel};

#[expect(clippy::disallowed_methods, reason = "a measurement needs the real clock")]
fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let began = Instant::now();
    (work(), began.elapsed())
}

fn load(path: &Path) -> Decoder<Cpu> {
    Decoder::load(&GgufFile::open(path).unwrap(), &cpu()).unwrap()
}

fn cache(model: &Decoder<Cpu>) -> SequenceState {
    SequenceState::new(model.new_arenas(KvType::F16))
}

fn reference(path: &Path, prompt: &[u32]) {
    let mut model = crate::decoder::oracle(path);
    crate::decoder::oracle_logits(&mut model, prompt, 0);
}

#[test]
#[ignore = "a measurement, not a test"]
fn speed() {
    let Some(path) = real_model() else { return };
    let (model, elapsed) = timed(|| load(&path));
    println!("load: {elapsed:?}");
    let prompt: Vec<u32> = (0..512).map(|index| 1_000 + 37 * index).collect();
    let (_, elapsed) = timed(|| reference(&path, &prompt[..128]));
    println!("candle's implementation, prefill 128 at once: {:.1} tokens/s", 128. / elapsed.as_secs_f64());
    for chunk in [32, 128] {
        let mut kv = cache(&model);
        let ((), elapsed) =
            timed(|| prompt[..128].chunks(chunk).for_each(|chunk| drop(model.extend(chunk, &mut kv).unwrap())));
        println!("prefill 128 in chunks of {chunk}: {:.1} tokens/s", 128. / elapsed.as_secs_f64());
    }
    for depth in [16, 500] {
        let mut kv = cache(&model);
        prompt
            .iter()
            .cycle()
            .copied()
            .take(depth)
            .collect::<Vec<_>>()
            .chunks(128)
            .for_each(|chunk| drop(model.extend(chunk, &mut kv).unwrap()));
        let ((), elapsed) = timed(|| (0..32).for_each(|token| drop(model.extend(&[token + 100], &mut kv).unwrap())));
        println!("decode at depth {depth}: {:.1} tokens/s", 32. / elapsed.as_secs_f64());
    }
    for streams in [2u32, 4, 8, 16, 32] {
        let mut arenas = model.new_arenas(KvType::F16);
        (0..2 * streams).for_each(|block| arenas.ensure_positions(block).unwrap());
        let ((), elapsed) = timed(|| {
            for start in 0..16 {
                let tables: Vec<_> = (0..streams).map(|stream| vec![2 * stream, 2 * stream + 1]).collect();
                let row = |table| BatchRow {
                    tokens: &[99],
                    embedded: &[],
                    start,
                    tables: std::slice::from_ref(table),
                    state: None,
                    logits: LogitsAt::Last,
                    long: false,
                    adapter: None,
                    hidden: None,
                };
                let rows: Vec<_> = tables.iter().map(row).collect();
                model.reuse(model.forward(&rows, &mut arenas).unwrap());
            }
        });
        println!("decode of {streams} sequences: {:.1} tokens/s", f64::from(16 * streams) / elapsed.as_secs_f64());
    }
}

/// What a layer for multi-token prediction adds to steps, and what a draft token costs.
#[test]
#[ignore = "a measurement, not a test"]
fn speed_of_multi_token_prediction() {
    const RUNS: usize = 15;
    let dir = tempfile::tempdir().unwrap();
    let options = TinyModel { architecture: "qwen35", context: 2048, blocks: 12, width: 1024, ..tiny_model::DEFAULT };
    let path = tiny_model::write(dir.path(), "m", &TinyModel { quantized: true, mtp: true, ..options });
    let checkpoint = &GgufFile::open(&path).unwrap();
    let models = [false, true].map(|mtp| Decoder::load(&DraftingCheckpoint { checkpoint, mtp }, &cpu()).unwrap());
    let hidden = vec![0.5; 1024];
    // Rows, and tokens of each.
    for (rows, count) in [(1, 256), (1, 1), (8, 1)] {
        let tokens: Vec<u32> = (0..count).map(|at| at * 7 % 251).collect();
        let tables: Vec<Vec<u32>> = (0..rows).map(|row| (16 * row..16 * row + 16).collect()).collect();
        let row = |(write, table)| BatchRow {
            tokens: &tokens,
            embedded: &[],
            start: 0,
            tables: std::slice::from_ref(table),
            state: Some(StateUpdate { read: None, write }),
            logits: LogitsAt::Last,
            long: false,
            adapter: None,
            hidden: Some(&hidden),
        };
        let batch: Vec<_> = (0..).zip(&tables).map(row).collect();
        let mut arenas = [&models[0], &models[1]].map(|model| model.new_arenas(KvType::F16));
        for arenas in &mut arenas {
            (0..16 * rows).for_each(|block| arenas.ensure_positions(block).unwrap());
            (0..rows).for_each(|block| arenas.ensure_state(block).unwrap());
        }
        let mut times = [const { Vec::new() }; 3];
        for _ in 0..RUNS {
            for (index, model) in models.iter().enumerate() {
                times[index].push(timed(|| model.reuse(model.forward(&batch, &mut arenas[index]).unwrap())).1);
            }
            if count == 1 {
                times[2].push(timed(|| models[1].reuse(models[1].draft(&batch, &mut arenas[1]).unwrap())).1);
            }
        }
        times.iter_mut().for_each(|times| times.sort());
        let median = |times: &Vec<Duration>| times.get(RUNS / 2).map(|time| time.as_secs_f64() * 1e3);
        println!(
            "{rows} rows of {count} tokens: {:?} ms: without the layer, with it, a draft",
            times.each_ref().map(median)
        );
    }
}

/// The candle backend on the CPU beside candle's own implementation of the same model, with the same threads.
#[test]
#[ignore = "a measurement, not a test"]
fn speed_of_the_candle_backend() {
    let Some(path) = real_model() else { return };
    let backend = Candle::new(Device::Cpu, cpu());
    let model = Decoder::load(&GgufFile::open(&path).unwrap(), &backend).unwrap();
    let mut stock = crate::decoder::oracle(&path);
    let prompt: Vec<u32> = (0..128).map(|index| 1_000 + 37 * index).collect();
    for round in 0..5 {
        let mut kv = SequenceState::new(model.new_arenas(KvType::F16));
        let (_, prefill) = timed(|| model.extend(&prompt, &mut kv).unwrap());
        let ((), decode) = timed(|| (0..32).for_each(|token| drop(model.extend(&[token + 100], &mut kv).unwrap())));
        let (_, stock_prefill) = timed(|| crate::decoder::oracle_logits(&mut stock, &prompt, 0));
        let ((), stock_decode) = timed(|| {
            (0..32).for_each(|token| {
                drop(crate::decoder::oracle_logits(&mut stock, &[token + 100], 128 + token as usize))
            });
        });
        let rate = |tokens: f64, took: Duration| tokens / took.as_secs_f64();
        println!(
            "round {round}: prefill of 128 {:.1} tokens/s, candle-transformers {:.1}; decode {:.1}, candle-transformers {:.1}",
            rate(128., prefill),
            rate(128., stock_prefill),
            rate(32., decode),
            rate(32., stock_decode),
        );
    }
}

/// Steps of training an adapter of rank 8 on all projections: four texts of 128 tokens, of which 96 are targets.
#[test]
#[ignore = "a measurement, not a test"]
fn speed_of_training() {
    let Some(path) = real_model() else { return };
    let backend = Candle::new(Device::Cpu, cpu());
    let model = Decoder::load(&GgufFile::open(&path).unwrap(), &backend).unwrap();
    let parameters = LoraParameters::new(&model, 8, 16., |_| true, 1).unwrap();
    let optimizer = AdamW::new(parameters.values.len());
    let mut trainer = LoraTrainer::new(&model, backend, parameters, optimizer).unwrap();
    let text = |text: u32| {
        let tokens = (0..128).map(|index| 1_000 + (37 * index + 1_001 * text) % 40_000).collect();
        TrainingText { tokens, targets: (32..128).collect() }
    };
    let texts: Vec<_> = (0..4).map(text).collect();
    for keep_graphs in [true, false] {
        trainer.keep_graphs = keep_graphs;
        for round in 0..6 {
            let (scores, elapsed) = timed(|| {
                let scores = trainer.supervised(&texts, 1. / 384.).unwrap();
                trainer.step(1e-4, 0.01, 1.).unwrap();
                scores
            });
            let loss = -scores.iter().flatten().map(|score| score.log_probability).sum::<f32>() / 384.;
            let rate = 512. / elapsed.as_secs_f64();
            println!("graphs kept: {keep_graphs}, round {round}: loss {loss:.4}, {rate:.1} tokens/s");
        }
    }
}

/// The cost for each request of checking whether its model has changed on disk.
#[test]
#[ignore = "a measurement, not a test"]
fn checking_a_models_files() {
    let dir = tempfile::tempdir().unwrap();
    crate::tiny_model::write(dir.path(), "folder", &crate::tiny_model::TinyModel::default());
    std::fs::copy(dir.path().join("folder/folder.gguf"), dir.path().join("bare.gguf")).unwrap();
    copy_folder(&fixture("encoders/bert-mean"), &dir.path().join("encoder"));
    copy_folder(&fixture("pipelines/sd1"), &dir.path().join("diffusion"));
    let engine = crate::image_generation::engine(dir.path(), outpost_engine::Precision::Full);
    for id in ["bare", "folder", "encoder", "diffusion"] {
        engine.models().find(id).unwrap();
        let ((), elapsed) = timed(|| (0..2_000).for_each(|_| drop(engine.models().find(id).unwrap())));
        println!("{id}: {:?} a look", elapsed / 2_000);
    }
}

/// Decoding with eight adapters beside decoding with their base alone, alternately. `OUTPOST_BENCH_MODEL` names another
/// GGUF file.
#[test]
#[ignore = "a measurement, not a test"]
fn speed_of_adapters() {
    const STREAMS: usize = 8;
    let named = std::env::var_os("OUTPOST_BENCH_MODEL").map(PathBuf::from);
    let Some(path) = named.or_else(real_model) else { return };
    let model = load(&path);
    let config = model.config();
    let attention = config.attention().map(|layer| [layer.query_width(), layer.kv_width()]).next().unwrap();
    let Some(FeedForwardConfig::Dense(DenseConfig { inner, .. })) = config.layers[0].feed_forward else {
        panic!("the model has experts")
    };
    let sizes = Sizes { layers: config.layers.len(), width: config.width, attention, inner };
    let mut arenas = model.new_arenas(KvType::F16);
    (0..8 * STREAMS as u32).for_each(|block| arenas.ensure_positions(block).unwrap());
    let tables: Vec<Vec<u32>> = (0..STREAMS as u32).map(|stream| (8 * stream..8 * stream + 8).collect()).collect();
    for (modules, name) in [(&["self_attn.q_proj", "self_attn.v_proj"][..], "queries and values"), (ALL, "all modules")]
    {
        for rank in [8, 16] {
            let adapters: Vec<_> = (0..STREAMS as u64)
                .map(|seed| {
                    let AdapterFiles { config, weights } = TinyAdapter::new(sizes, modules, rank, seed).files();
                    model.load_adapter(&PeftAdapter::from_bytes(&config, weights).unwrap()).unwrap()
                })
                .collect();
            // A step at each of 32 positions.
            let mut decode = |with_adapters: bool| {
                let ((), elapsed) = timed(|| {
                    for start in 96..128 {
                        let rows = tables.iter().zip(&adapters).map(|(table, adapter)| BatchRow {
                            tokens: &[99],
                            embedded: &[],
                            start,
                            tables: std::slice::from_ref(table),
                            state: None,
                            logits: LogitsAt::Last,
                            long: false,
                            adapter: with_adapters.then_some(adapter),
                            hidden: None,
                        });
                        let rows: Vec<_> = rows.collect();
                        model.reuse(model.forward(&rows, &mut arenas).unwrap());
                    }
                });
                32. * STREAMS as f64 / elapsed.as_secs_f64()
            };
            decode(true);
            let mut speeds: Vec<[f64; 2]> = (0..15).map(|_| [false, true].map(&mut decode)).collect();
            speeds.sort_by(|a, b| (a[1] / a[0]).total_cmp(&(b[1] / b[0])));
            let [base, adapted] = speeds[speeds.len() / 2];
            println!("rank {rank}, {name}: {adapted:.0} tokens/s, base {base:.0}: {:.1} %", 100. * adapted / base);
        }
    }
}
