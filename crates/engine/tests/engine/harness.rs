//! The shared test harness: a test clock, an engine with a tiny model, and helpers that collect output.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use candle_core::Device;
use futures_util::future::join_all;
use outpost_common::device_choice::DeviceChoice;
use outpost_engine::{
    DeltaStream, Devices, Engine, Failure, FinishReason, GenerationRequest, Load, Sampling, Settings, TextDelta,
    TextModel, TextOptions,
};
use outpost_models::backend::{Candle, Cpu};
use outpost_models::devices::open;
use tempfile::TempDir;

pub use outpost_testing::test_clock::TestClock;

use crate::tiny_model::{self, TinyModel};

fn test_device() -> Option<String> {
    std::env::var("OUTPOST_TEST_DEVICE").ok()
}

/// Settings with a gibibyte of memory. The variable `OUTPOST_TEST_DEVICE` names the device of all models, such as `candle`.
pub fn settings(models: &Path) -> Settings {
    let device = test_device().map(|name| name.parse().unwrap());
    let devices = device.map(|device| Devices::select([(None, device)]).unwrap());
    Settings { devices: devices.unwrap_or_default(), ..Settings::new(models, 1 << 30) }
}

/// A thread pool for tests that compute without an engine.
pub fn cpu() -> Cpu {
    Cpu::new(2)
}

/// The device of the variable `OUTPOST_TEST_DEVICE`, otherwise candle's CPU device.
pub fn candle() -> Candle {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    let choice = || test_device().map_or(DeviceChoice::Candle, |name| name.parse().unwrap());
    Candle::new(DEVICE.get_or_init(|| open(choice()).unwrap()).clone(), Cpu::new(1))
}

/// The greatest difference from a reference that candle may have, if its CPU device keeps to `exact`. A GPU multiplies
/// 16-bit weights in 16 bits, and rounds inputs of quantized weights to 8 bits; random weights amplify that to `rounded`.
pub fn candle_tolerance(exact: f32, rounded: f32) -> f32 {
    if candle().device().is_cpu() { exact } else { rounded }
}

pub struct Rig {
    pub engine: Engine,
    pub model: Arc<TextModel>,
    pub clock: Arc<TestClock>,
    pub dir: TempDir,
}

/// An engine with one tiny model, loaded.
pub fn rig(options: &TinyModel, change: impl FnOnce(&mut Settings)) -> Rig {
    rig_of_file(&tiny_model::bytes(options), |settings| {
        // One delta for each token, unless a test changes it.
        settings.speculate = false;
        change(settings);
    })
}

/// An engine with a GGUF file as its model, loaded.
pub fn rig_of_file(file: &[u8], change: impl FnOnce(&mut Settings)) -> Rig {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("tiny");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("tiny.gguf"), file).unwrap();
    let mut settings = settings(dir.path());
    change(&mut settings);
    let clock = Arc::new(TestClock::default());
    let engine = Engine::start(settings, clock.clone()).unwrap();
    let model = engine.models().load("tiny").unwrap();
    Rig { engine, model, clock, dir }
}

pub fn tiny() -> Rig {
    rig(&TinyModel::default(), |_| ())
}

/// A model slow enough to observe it while it computes.
pub fn slow(change: impl FnOnce(&mut Settings)) -> Rig {
    rig(&TinyModel { context: 4096, blocks: 6, width: 256, ..TinyModel::default() }, change)
}

pub fn request(prompt: Vec<u32>, max_tokens: u32) -> GenerationRequest {
    let sampling = Sampling { ignore_eos: true, seed: 5, ..Sampling::default() };
    GenerationRequest {
        prompt: prompt.into(),
        prompt_logprobs: None,
        choices: 1,
        max_tokens,
        sampling,
        grammar: None,
        reasoning: None,
        stop: Vec::new(),
        text: TextOptions::default(),
        logprobs: None,
        tenant: 1,
    }
}

pub fn greedy(prompt: Vec<u32>, max_tokens: u32) -> GenerationRequest {
    let mut request = request(prompt, max_tokens);
    request.sampling.temperature = 0.;
    request
}

/// A prompt without repetitions.
pub fn prompt(first: u32, count: u32) -> Vec<u32> {
    (0..count).map(|at| (first * 53 + at * 7) % 251).collect()
}

/// Greedy and sampled requests, with one and several choices, of lengths around the block size.
pub fn mixed_requests() -> Vec<GenerationRequest> {
    let request = |at: u32| {
        let mut request = GenerationRequest { choices: 1 + at % 3, ..request(prompt(at, 13 + at * 7), 50) };
        (request.sampling.temperature, request.sampling.seed) = (at as f32 % 4. * 0.4, u64::from(at));
        request
    };
    (0..12).map(request).collect()
}

/// The complete output of one choice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChoiceOutput {
    pub text: String,
    /// The name and the arguments of each call.
    pub calls: Vec<(String, String)>,
    pub generated: u32,
    pub end: Option<FinishReason>,
}

/// The memory metric in bytes for one use: `weights`, `scratch`.
pub fn memory(engine: &Engine, what: &str) -> u64 {
    let device = test_device().unwrap_or_else(|| "cpu".to_owned());
    let (text, name) = (engine.metrics(), format!("outpost_memory_bytes{{device=\"{device}\",use=\"{what}\"}} "));
    text.lines().find_map(|line| line.strip_prefix(&name)).unwrap().parse().unwrap()
}

/// The tiny model with memory for `blocks` KV blocks, of 4,096 bytes each: 16 positions, 2 layers, keys and values,
/// 32 numbers of 2 bytes. 20 blocks are enough memory to load the model.
pub fn with_kv_blocks(blocks: u64, change: impl Fn(&mut Settings)) -> Rig {
    let free = rig(&TinyModel::default(), &change).engine;
    let resident = memory(&free, "weights") + memory(&free, "scratch");
    rig(&TinyModel::default(), |settings| {
        change(settings);
        settings.memory_bytes = resident + 4_096 * blocks;
    })
}

pub async fn pieces(mut pieces: DeltaStream) -> Result<Vec<TextDelta>, Failure> {
    let mut all = Vec::new();
    while let Some(piece) = pieces.recv().await {
        all.push(piece?);
    }
    Ok(all)
}

pub fn outputs(pieces: &[TextDelta], choices: usize) -> Vec<ChoiceOutput> {
    let mut outputs = vec![ChoiceOutput::default(); choices];
    for piece in pieces {
        let output = &mut outputs[piece.choice as usize];
        assert_eq!(output.end, None, "no delta follows the last one of a choice");
        assert!(piece.generated > output.generated);
        output.text += &piece.text;
        for call in &piece.calls {
            if let Some(name) = &call.name {
                assert_eq!((call.index as usize, call.arguments.as_str()), (output.calls.len(), ""));
                output.calls.push((name.clone(), String::new()));
            }
            output.calls[call.index as usize].1 += &call.arguments;
        }
        output.generated = piece.generated;
        output.end = piece.end;
    }
    outputs
}

impl Rig {
    pub async fn run(&self, request: GenerationRequest) -> Vec<ChoiceOutput> {
        let choices = request.choices as usize;
        let ticket = self.engine.submit(&self.model, request).unwrap();
        outputs(&pieces(ticket.deltas).await.unwrap(), choices)
    }

    pub async fn run_one(&self, request: GenerationRequest) -> ChoiceOutput {
        self.run(request).await.remove(0)
    }

    /// Runs a request with one choice. Returns the number of cached tokens and the output.
    pub async fn run_cached(&self, request: GenerationRequest) -> (u32, ChoiceOutput) {
        let ticket = self.engine.submit(&self.model, request).unwrap();
        let all = pieces(ticket.deltas).await.unwrap();
        let cached = all[0].cached;
        assert!(all.iter().all(|piece| piece.cached == cached), "every delta has the same count");
        (cached, outputs(&all, 1).remove(0))
    }

    /// Runs one request after the other.
    pub async fn alone(&self, requests: &[GenerationRequest]) -> Vec<Vec<ChoiceOutput>> {
        let mut all = Vec::new();
        for request in requests {
            all.push(self.run(request.clone()).await);
        }
        all
    }

    /// Runs the requests at the same time.
    pub async fn together(&self, requests: &[GenerationRequest]) -> Vec<Vec<ChoiceOutput>> {
        let one = |request: &GenerationRequest| {
            let (choices, ticket) =
                (request.choices as usize, self.engine.submit(&self.model, request.clone()).unwrap());
            async move { outputs(&pieces(ticket.deltas).await.unwrap(), choices) }
        };
        join_all(requests.iter().map(one).collect::<Vec<_>>()).await
    }

    /// A counter's value, summed over its series.
    pub fn counter(&self, name: &str) -> u64 {
        self.counter_with_label(name, "")
    }

    /// A counter's value, summed over the series with this label.
    pub fn counter_with_label(&self, name: &str, label: &str) -> u64 {
        let (text, name) = (self.engine.metrics(), format!("outpost_{name}_total{{"));
        let lines = text.lines().filter(|line| line.starts_with(&name) && line.contains(label));
        lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
    }

    /// Waits until nothing is running, queued or reserved.
    pub async fn wait_until_idle(&self) {
        for _ in 0..2_000 {
            if self.engine.load() == Load::default() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("the engine did not become idle: {:?}", self.engine.load());
    }
}

/// The starter model, if it was pulled.
pub fn real_model() -> Option<PathBuf> {
    let folder = std::env::var_os("OUTPOST_TEST_MODELS").map_or_else(|| PathBuf::from("models"), PathBuf::from);
    let files = std::fs::read_dir(folder.join("smollm2-135m-instruct")).ok()?;
    files.filter_map(|file| Some(file.ok()?.path())).find(|path| path.extension().is_some_and(|one| one == "gguf"))
}
