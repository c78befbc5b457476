//! Compares a tiny random model with transformers, on each backend.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use outpost_testing::fixtures::fixture;

use super::cache::WhisperCache;
use super::config::WhisperConfig;
use super::decoder::DecodeInput;
use super::ggml::GgmlFile;
use super::log_mel::{LogMel, LogMelSpectrogram};
use super::model::WhisperModel;
use super::weights::WhisperWeights;
use crate::backend::{Backend, Candle, Cpu, DType, PagedAttention, Pause, RequestOptions, TimeConvolutions};
use crate::devices::under_test;
use crate::error::ModelError;
use crate::kv::KvType;
use crate::nn::Context;
use crate::safetensors::ModelFolder;
use crate::weights::Weights;

const WINDOWS: [usize; 2] = [0, 1];

fn no_pause() -> crate::error::Result<()> {
    Ok(())
}

fn fixtures() -> PathBuf {
    fixture("whisper")
}

/// What transformers computed.
struct Expected(HashMap<String, Tensor>);

impl Expected {
    fn read() -> Self {
        Self(candle_core::safetensors::load(fixtures().join("expected.safetensors"), &Device::Cpu).unwrap())
    }

    fn numbers(&self, name: &str) -> Vec<f32> {
        self.0[name].flatten_all().unwrap().to_vec1().unwrap()
    }

    fn tokens(&self, name: &str) -> Vec<u32> {
        self.numbers(name).into_iter().map(|token| token as u32).collect()
    }

    /// A spectrogram, `[frames, mels]`.
    fn mel(&self, name: &str) -> Vec<f32> {
        self.0[name].t().unwrap().flatten_all().unwrap().to_vec1().unwrap()
    }
}

fn max_error(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let errors = found.iter().zip(expected).map(|(found, expected)| (found - expected).abs());
    errors.fold(0., |max, error| if error > max || error.is_nan() { error } else { max })
}

fn assert_close(found: &[f32], expected: &[f32], tolerance: f32, what: &str) {
    let error = max_error(found, expected);
    println!("{what}: {error:.2e}");
    assert!(error <= tolerance, "{what}: an error of {error}");
}

/// A handle for a request that is never cancelled.
fn request<B: Backend>(backend: &B) -> B {
    backend.for_request(RequestOptions { pause: Arc::new(|| Ok(())), bf16_attention: false })
}

fn cpu() -> Cpu {
    request(&Cpu::new(2))
}

fn candle() -> Candle {
    request(&Candle::new(under_test(), Cpu::new(1)))
}

fn folder() -> (ModelFolder, WhisperConfig) {
    let folder = ModelFolder::open(&fixtures().join("folder")).unwrap();
    let config = WhisperConfig::from_config_json(&folder.config).unwrap();
    (folder, config)
}

fn spectrograms(expected: &Expected, config: &WhisperConfig) -> Vec<LogMelSpectrogram> {
    let log_mel = LogMel::new(config, None);
    WINDOWS.map(|window| log_mel.compute(&expected.numbers(&format!("samples.{window}")), &no_pause).unwrap()).to_vec()
}

/// A model with two encoded windows, in the slots 2 and 1 of three.
struct Session<B: PagedAttention + TimeConvolutions> {
    backend: B,
    model: WhisperModel<B>,
    cache: WhisperCache<B>,
}

const SLOTS: [usize; 2] = [2, 1];

impl<B: PagedAttention + TimeConvolutions> Session<B> {
    fn new(backend: B, weights: &dyn Weights, config: WhisperConfig, kv_type: KvType) -> Self {
        let model = WhisperModel::load(weights, config, None, &backend).unwrap();
        let mut cache = model.new_cache(&backend, 3, kv_type).unwrap();
        let mels = spectrograms(&Expected::read(), &config);
        model.encode(&Context::new(&backend), &mut cache, &SLOTS, &mels.iter().collect::<Vec<_>>()).unwrap();
        Self { backend, model, cache }
    }

    fn decode(&mut self, inputs: &[DecodeInput<'_>]) -> Result<Vec<f32>, ModelError> {
        self.model.decode(&Context::new(&self.backend), &mut self.cache, inputs)
    }

    /// Logits of all tokens of both windows: the first four at once, then one by one, as long as a window has tokens.
    fn logits(&mut self, tokens: &[Vec<u32>; 2]) -> [Vec<f32>; 2] {
        let mut logits = [Vec::new(), Vec::new()];
        let steps = std::iter::once(0..4).chain((4..tokens[0].len()).map(|position| position..position + 1));
        for range in steps {
            let rows: Vec<usize> = (0..range.len()).collect();
            let live: Vec<usize> = WINDOWS.into_iter().filter(|window| range.end <= tokens[*window].len()).collect();
            let input = |window: &usize| DecodeInput {
                slot: SLOTS[*window],
                position: range.start,
                tokens: &tokens[*window][range.clone()],
                logits: &rows,
            };
            let found = self.decode(&live.iter().map(input).collect::<Vec<_>>()).unwrap();
            for (window, part) in live.iter().zip(found.chunks(found.len() / live.len())) {
                logits[*window].extend(part);
            }
        }
        logits
    }
}

fn check_against_transformers<B: PagedAttention + TimeConvolutions>(backend: B) {
    let expected = Expected::read();
    let (folder, config) = folder();
    let mut session = Session::new(backend, &WhisperWeights::from_folder(&folder), config, KvType::F32);
    let mels = spectrograms(&expected, &config);
    let ctx = &Context::new(&session.backend);
    let states = session.model.hidden_states(ctx, &mels.iter().collect::<Vec<_>>()).unwrap();
    for (window, states) in WINDOWS.into_iter().zip(states.chunks(states.len() / 2)) {
        assert_close(states, &expected.numbers(&format!("encoder.{window}")), 1e-4, "encoder");
    }
    let tokens = WINDOWS.map(|window| expected.tokens(&format!("tokens.{window}")));
    for (window, found) in session.logits(&tokens).iter().enumerate() {
        assert_close(found, &expected.numbers(&format!("logits.{window}")), 1e-4, "logits");
    }
    let other = expected.tokens("other");
    let rows: Vec<usize> = (0..other.len() - 2).collect();
    let rewound = DecodeInput { slot: SLOTS[0], position: 2, tokens: &other[2..], logits: &rows };
    let found = session.decode(&[rewound]).unwrap();
    assert_close(&found, &expected.numbers("other_logits"), 1e-4, "logits after a rewind");

    let heads = [(1, 1), (0, 0), (1, 0)];
    for window in WINDOWS {
        let ctx = &Context::new(&session.backend);
        let found = session.model.alignment(ctx, &mut session.cache, SLOTS[window], &tokens[window], &heads).unwrap();
        let all = &expected.0[&format!("attention.{window}")];
        let head = |(layer, head): (usize, usize)| {
            all.get(layer).unwrap().get(head).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap()
        };
        assert_close(&found, &heads.map(head).concat(), 1e-4, "alignment");
        assert_eq!(session.cache.tokens(SLOTS[window]), 1, "the tokens must be decoded again");
    }
}

#[test]
fn whisper_matches_transformers_on_the_cpu() {
    check_against_transformers(cpu());
}

#[test]
fn whisper_matches_transformers_on_candle() {
    check_against_transformers(candle());
}

fn check_f16_cache<B: PagedAttention + TimeConvolutions>(backend: B) {
    let expected = Expected::read();
    let (folder, config) = folder();
    let mut session = Session::new(backend, &WhisperWeights::from_folder(&folder), config, KvType::F16);
    let tokens = WINDOWS.map(|window| expected.tokens(&format!("tokens.{window}")));
    for (window, found) in session.logits(&tokens).iter().enumerate() {
        assert_close(found, &expected.numbers(&format!("logits.{window}")), 5e-3, "logits");
    }
}

#[test]
fn an_f16_cache_rounds_little() {
    check_f16_cache(cpu());
    check_f16_cache(candle());
}

#[test]
fn ggml_files_have_the_same_network() {
    let expected = Expected::read();
    let tokens = WINDOWS.map(|window| expected.tokens(&format!("tokens.{window}")));
    let file = GgmlFile::open(&fixtures().join("ggml-f32.bin")).unwrap();
    let (_, config) = folder();
    assert_eq!(*file.config(), config);
    assert_eq!(file.filters().bands(), 80);
    assert_eq!((file.vocabulary().len(), file.vocabulary()[3].as_slice()), (100, &[3, 252][..]));
    let mut session = Session::new(cpu(), &WhisperWeights::from_ggml(&file), *file.config(), KvType::F32);
    for (window, found) in session.logits(&tokens).iter().enumerate() {
        assert_close(found, &expected.numbers(&format!("logits.{window}")), 1e-4, "logits");
    }
    let samples = expected.numbers("samples.0");
    let own = LogMel::new(&config, Some(file.filters())).compute(&samples, &no_pause).unwrap();
    assert_close(own.values(), &expected.mel("mel.0"), 1e-4, "a spectrogram with the file's filters");
}

/// Quantised weights round activations, too, so that results are only near.
fn check_quantised<B: PagedAttention + TimeConvolutions>(
    backend: B,
    weights: &dyn Weights,
    config: WhisperConfig,
    kind: &str,
) {
    let expected = Expected::read();
    let tokens = WINDOWS.map(|window| expected.tokens(&format!("tokens.{window}")));
    let mut session = Session::new(backend, weights, config, KvType::F16);
    for (window, found) in session.logits(&tokens).iter().enumerate() {
        assert_close(found, &expected.numbers(&format!("quantised.{kind}.{window}")), 0.1, kind);
    }
}

#[test]
fn quantised_files_are_near_their_dequantised_weights() {
    for kind in ["q5_0", "q8_0"] {
        let file = GgmlFile::open(&fixtures().join(format!("ggml-{kind}.bin"))).unwrap();
        let weights = WhisperWeights::from_ggml(&file);
        check_quantised(cpu(), &weights, *file.config(), kind);
        check_quantised(candle(), &weights, *file.config(), kind);
    }
}

#[test]
fn weights_are_rounded_as_they_are_read() {
    let expected = Expected::read();
    let tokens = WINDOWS.map(|window| expected.tokens(&format!("tokens.{window}")));
    let (folder, config) = folder();
    let weights = WhisperWeights::from_folder(&folder);
    let backend = cpu();
    for (precision, kind) in [(DType::Q8_0, "quantised.q8_0"), (DType::BF16, "logits")] {
        let model = WhisperModel::load(&weights, config, Some(precision), &backend).unwrap();
        let cache = model.new_cache(&backend, 3, KvType::F16).unwrap();
        let mut session = Session { backend: backend.clone(), model, cache };
        let mels = spectrograms(&expected, &config);
        let ctx = &Context::new(&session.backend);
        session.model.encode(ctx, &mut session.cache, &SLOTS, &mels.iter().collect::<Vec<_>>()).unwrap();
        for (window, found) in session.logits(&tokens).iter().enumerate() {
            assert_close(found, &expected.numbers(&format!("{kind}.{window}")), 0.1, kind);
        }
    }
    let full = WhisperModel::footprint(&weights, &config, None, &backend).weights;
    let rounded = WhisperModel::footprint(&weights, &config, Some(DType::Q8_0), &backend).weights;
    assert!(rounded < full, "{rounded} of {full}");
}

#[test]
fn spectrograms_match_transformers() {
    let expected = Expected::read();
    let (_, config) = folder();
    for (window, found) in spectrograms(&expected, &config).iter().enumerate() {
        assert_close(found.values(), &expected.mel(&format!("mel.{window}")), 1e-4, "spectrogram");
    }
    let config = WhisperConfig { mels: 128, audio_positions: 1500, ..config };
    let found = LogMel::new(&config, None).compute(&expected.numbers("samples.0"), &no_pause).unwrap();
    assert_eq!((found.mels(), found.frames()), (128, 3000));
    let first = expected.mel("long_mel");
    assert_close(&found.values()[..first.len()], &first, 1e-4, "spectrogram of 30 seconds");
}

#[test]
fn windows_that_are_not_audio_are_refused() {
    let (_, config) = folder();
    let log_mel = LogMel::new(&config, None);
    assert_eq!(log_mel.max_samples(), 16_000);
    assert!(log_mel.compute(&[0.; 16_001], &no_pause).is_err());
    for sample in [f32::NAN, f32::INFINITY, 1e30] {
        assert!(log_mel.compute(&[0., sample], &no_pause).is_err());
    }
    let silence = log_mel.compute(&[], &no_pause).unwrap();
    assert!(silence.values().iter().all(|value| *value == -1.5));
}

#[test]
fn steps_that_do_not_fit_the_cache_are_refused() {
    let (folder, config) = folder();
    let mut session = Session::new(cpu(), &WhisperWeights::from_folder(&folder), config, KvType::F16);
    let input = |slot, position, tokens| DecodeInput { slot, position, tokens, logits: &[0] };
    for (slot, position, tokens) in
        [(0, 0, &[1][..]), (3, 0, &[1]), (1, 1, &[1]), (1, 0, &[]), (1, 0, &[120]), (1, 0, &[1; 25])]
    {
        assert!(session.decode(&[input(slot, position, tokens)]).is_err(), "slot {slot}, {position}, {tokens:?}");
    }
    assert!(session.decode(&[input(1, 0, &[1]), input(1, 0, &[1])]).is_err(), "a slot twice");
    assert!(session.decode(&[]).unwrap().is_empty());
    let ctx = &Context::new(&session.backend);
    let mels = spectrograms(&Expected::read(), &config);
    for slots in [&[0, 0][..], &[0], &[0, 3]] {
        assert!(session.model.encode(ctx, &mut session.cache, slots, &[&mels[0], &mels[1]]).is_err());
    }
    let larger = LogMel::new(&WhisperConfig { audio_positions: 60, ..config }, None).compute(&[], &no_pause).unwrap();
    assert!(session.model.encode(ctx, &mut session.cache, &[0], &[&larger]).is_err());
    let wider = LogMel::new(&WhisperConfig { mels: 128, ..config }, None).compute(&[], &no_pause).unwrap();
    assert!(session.model.encode(ctx, &mut session.cache, &[0], &[&wider]).is_err());
}

#[test]
fn a_cancelled_computation_leaves_no_window() {
    let (folder, config) = folder();
    let weights = WhisperWeights::from_folder(&folder);
    let mut session = Session::new(cpu(), &weights, config, KvType::F16);
    let pause: Pause = Arc::new(|| Err(ModelError::Interrupted));
    let cancelled = Cpu::new(1).for_request(RequestOptions { pause, bf16_attention: false });
    let mels = spectrograms(&Expected::read(), &config);
    let result = session.model.encode(&Context::new(&cancelled), &mut session.cache, &[1], &[&mels[0]]);
    assert_eq!(result, Err(ModelError::Interrupted));
    assert!(session.decode(&[DecodeInput { slot: 1, position: 0, tokens: &[1], logits: &[0] }]).is_err());
}

#[test]
fn a_cache_has_the_memory_that_it_announces() {
    let (_, config) = folder();
    // 24 and 50 positions take 2 and 4 blocks of 16; two layers of keys and values of 32 elements.
    assert_eq!(WhisperModel::<Cpu>::cache_bytes(&config, 3, KvType::F16), 3 * 6 * 16 * 2 * 2 * 32 * 2);
}
