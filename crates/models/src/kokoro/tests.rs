//! Compares a small random model with the reference implementation; see `tests/fixtures/make_kokoro_reference.py`.

use std::sync::Arc;

use candle_core::Device;
use outpost_testing::fixtures::fixture;
use serde_json::json;

use super::*;
use crate::backend::{Candle, Cpu, RequestOptions};
use crate::devices::under_test;

fn folder() -> ModelFolder {
    ModelFolder::open(&fixture("kokoro")).unwrap()
}

fn model<B: TimeConvolutions>(backend: &B, precision: Option<DType>) -> KokoroModel<B> {
    let folder = folder();
    let config = KokoroConfig::from_json(&folder.config).unwrap();
    KokoroModel::load(&folder, config, backend, precision).unwrap()
}

/// What the reference implementation computes.
struct Expected(std::collections::HashMap<String, candle_core::Tensor>);

impl Expected {
    fn read() -> Self {
        Self(candle_core::safetensors::load(fixture("kokoro/expected.safetensors"), &Device::Cpu).unwrap())
    }

    fn numbers(&self, name: &str) -> Vec<f32> {
        self.0[name].flatten_all().unwrap().to_vec1().unwrap()
    }

    fn integers<T: TryFrom<i64, Error: std::fmt::Debug>>(&self, name: &str) -> Vec<T> {
        self.numbers(name).iter().map(|number| T::try_from(*number as i64).unwrap()).collect()
    }
}

/// The normal values of the fixture.
fn noise(samples: usize) -> Vec<f32> {
    (0..samples).map(|index| (index * 7919 % 10007) as f32 / 10007. * 2. - 1.).collect()
}

/// The largest difference, relative to the largest value.
fn far(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let most = expected.iter().fold(0f32, |most, x| most.max(x.abs()));
    found.iter().zip(expected).map(|(x, y)| (x - y).abs()).fold(0., f32::max) / most
}

/// A handle for a request that is never cancelled.
fn request<B: TimeConvolutions>(backend: &B) -> B {
    backend.for_request(RequestOptions { pause: Arc::new(|| Ok(())), bf16_attention: false })
}

/// The encodings of each frame's token.
fn frames<B: TimeConvolutions>(ctx: &Context<'_, B>, durations: &[usize], encoded: &Tensor<B>) -> Tensor<B> {
    let rows: Vec<usize> = (0..).zip(durations).flat_map(|(row, count)| vec![row; *count]).collect();
    ctx.gather_rows(encoded, &rows).unwrap()
}

fn correlation(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let product = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(x, y)| f64::from(x * y)).sum::<f64>();
    product(found, expected) / (product(found, found) * product(expected, expected)).sqrt()
}

/// The decoder is compared with the pitch of the reference, because sines accumulate the rounding errors of the pitch.
fn check_speech<B: TimeConvolutions>(backend: &B) {
    let (expected, model, backend) = (Expected::read(), model(backend, None), request(backend));
    let ctx = Context::new(&backend);
    let (tokens, style) = (expected.integers::<u32>("tokens"), expected.numbers("style"));
    for case in 0..2 {
        let named = |name: &str| expected.numbers(&format!("{name}.{case}"));
        let speed = named("speeds")[0];
        let text = model.encode(&ctx, &tokens, &style, speed).unwrap();
        assert_eq!(text.durations, expected.integers::<usize>(&format!("durations.{case}")));
        let noise = noise(text.frames() * model.config.frame_samples());
        let curve = |name: &str| ctx.tensor(&named(name), [1, 2 * text.frames(), 1, 1]).unwrap();
        let encoded = frames(&ctx, &text.durations, &text.encoded);
        let input = Frames { encoded, pitch: curve("pitch"), energy: curve("energy") };
        let samples = model.decoder.forward(&ctx, input, model.styles(&style).unwrap()[0], &noise).unwrap();
        let away = far(&samples, &named("samples"));
        assert!(away < 1e-4, "speed {speed}: {away}");
        let speech = model.decode_with_noise(&ctx, text, &style, &noise).unwrap();
        let correlation = correlation(&speech.samples, &named("samples"));
        assert!(correlation > 0.9999, "speed {speed}: {correlation}");
    }
}

fn check_curves<B: TimeConvolutions>(backend: &B) {
    let (expected, model, backend) = (Expected::read(), model(backend, None), request(backend));
    let ctx = Context::new(&backend);
    let style = expected.numbers("style");
    let text = model.encode(&ctx, &expected.integers::<u32>("tokens"), &style, 1.).unwrap();
    let [_, style] = model.styles(&style).unwrap();
    let encoded = frames(&ctx, &text.durations, &text.prosody);
    let curves = model.prosody.curves(&ctx, &encoded, style).unwrap();
    for (curve, name) in curves.iter().zip(["pitch.0", "energy.0"]) {
        let away = far(&ctx.to_vec(curve).unwrap(), &expected.numbers(name));
        assert!(away < 1e-5, "{name}: {away}");
    }
}

#[test]
fn speech_matches_the_reference_on_the_cpu() {
    check_speech(&Cpu::new(2));
}

#[test]
fn speech_matches_the_reference_on_candle() {
    check_speech(&Candle::new(under_test(), Cpu::new(1)));
}

#[test]
fn pitch_and_energy_match_the_reference() {
    check_curves(&Cpu::new(2));
    check_curves(&Candle::new(under_test(), Cpu::new(1)));
}

#[test]
fn rounded_weights_change_speech_little() {
    let (expected, cpu) = (Expected::read(), Cpu::new(2));
    let model = model(&cpu, Some(DType::BF16));
    let ctx = Context::new(&cpu);
    let style = expected.numbers("style");
    let text = model.encode(&ctx, &expected.integers::<u32>("tokens"), &style, 1.).unwrap();
    assert_eq!(text.durations, expected.integers::<usize>("durations.0"), "durations are computed in full precision");
    let samples = noise(text.frames() * model.config.frame_samples());
    let speech = model.decode_with_noise(&ctx, text, &style, &samples).unwrap();
    let correlation = correlation(&speech.samples, &expected.numbers("samples.0"));
    assert!(correlation > 0.99, "{correlation}");
}

#[test]
fn a_seed_gives_the_same_speech() {
    let (expected, cpu) = (Expected::read(), Cpu::new(2));
    let (model, ctx) = (model(&cpu, None), Context::new(&cpu));
    let (tokens, style) = (expected.integers::<u32>("tokens"), expected.numbers("style"));
    let speak = |seed| model.synthesize(&ctx, &tokens, &style, 1., seed).unwrap();
    assert_eq!(speak(1), speak(1));
    assert_ne!(speak(1).samples, speak(2).samples);
    let frames: usize = speak(1).durations.iter().sum();
    assert_eq!(speak(1).samples.len(), frames * model.config().frame_samples());
}

#[test]
fn bad_input_is_refused() {
    let cpu = Cpu::new(1);
    let (model, ctx) = (model(&cpu, None), Context::new(&cpu));
    let style = [0.; 20];
    let error =
        |tokens: &[u32], style: &[f32], speed| model.encode(&ctx, tokens, style, speed).unwrap_err().to_string();
    assert!(error(&[], &style, 1.).contains("1 to 24 are allowed"));
    assert!(error(&[0; 25], &style, 1.).contains("25 tokens"));
    assert!(error(&[0, 12, 0], &style, 1.).contains("no token 12"));
    assert!(error(&[0, 1, 0], &style[1..], 1.).contains("19 values"));
    for speed in [0., -1., 5., f32::NAN] {
        assert!(error(&[0, 1, 0], &style, speed).contains("the speed is"));
    }
}

#[test]
fn a_cancelled_request_stops() {
    let cpu = Cpu::new(1);
    let model = model(&cpu, None);
    let options = RequestOptions { pause: Arc::new(|| Err(ModelError::Interrupted)), bf16_attention: false };
    let handle = cpu.for_request(options);
    let stopped = model.synthesize(&Context::new(&handle), &[0, 1, 0], &[0.1; 20], 1., 1);
    assert_eq!(stopped.unwrap_err(), ModelError::Interrupted);
}

#[test]
fn the_memory_estimate_is_an_upper_bound() {
    let (expected, cpu) = (Expected::read(), Cpu::new(2));
    let (model, handle) = (model(&cpu, None), request(&cpu));
    let (tokens, style) = (expected.integers::<u32>("tokens"), expected.numbers("style"));
    let speech = model.synthesize(&Context::new(&handle), &tokens, &style, 0.25, 1).unwrap();
    let estimate = model.synthesis_bytes(&handle, tokens.len(), speech.durations.iter().sum());
    assert!(handle.peak_bytes() as u64 <= estimate, "{} of {estimate}", handle.peak_bytes());
    let footprint = KokoroModel::footprint(&folder(), &cpu, None);
    assert!(footprint.weights > 100_000 && footprint.weights < 4 << 20, "{footprint:?}");
}

#[test]
fn phonemes_become_tokens() {
    let config = KokoroConfig::from_json(&folder().config).unwrap();
    assert_eq!(config.tokens("ˈaʃ?b"), [0, 11, 1, 5, 2, 0], "there is no token of the question mark");
    assert_eq!((config.phoneme('ʃ'), config.phoneme('?')), (Some(5), None));
    assert_eq!((config.max_phonemes(), config.frame_samples()), (22, 24));
}

#[test]
fn impossible_configs_are_refused() {
    let valid = folder().config;
    let changes = [
        ("/hidden_dim", json!(17)),
        ("/text_encoder_kernel_size", json!(4)),
        ("/plbert", json!(null)),
        ("/plbert/num_attention_heads", json!(3)),
        ("/istftnet/upsample_rates", json!([2])),
        ("/istftnet/upsample_rates", json!([2, 2])),
        ("/istftnet/upsample_rates", json!([2, 0])),
        ("/istftnet/upsample_initial_channel", json!(2)),
        ("/istftnet/resblock_kernel_sizes", json!([3, 4])),
        ("/istftnet/resblock_dilation_sizes", json!([[1], []])),
        ("/istftnet/gen_istft_hop_size", json!(5)),
        ("/istftnet/gen_istft_n_fft", json!(9)),
        ("/vocab/a", json!(12)),
        ("/vocab", json!({"ab": 1})),
        ("/n_token", json!("12")),
    ];
    for (path, value) in changes {
        let mut config = valid.clone();
        *config.pointer_mut(path).unwrap() = value.clone();
        assert!(KokoroConfig::from_json(&config).is_err(), "{path}: {value}");
    }
    let mut many = valid.clone();
    for key in ["upsample_rates", "upsample_kernel_sizes"] {
        many["istftnet"][key] = json!(vec![1; 64]);
    }
    assert!(KokoroConfig::from_json(&many).is_err(), "the channels are halved 64 times");
    assert!(KokoroConfig::from_json(&valid).is_ok());
}
