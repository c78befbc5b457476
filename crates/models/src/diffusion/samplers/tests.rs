//! Compares samplers with diffusers' results from `tests/fixtures/make_schedulers_reference.py`, and fuzzes configs.

use proptest::prelude::*;
use proptest::{collection, option, sample};
use serde_json::{Value, json};

use super::*;
use crate::diffusion::SchedulerName;
use crate::diffusion::noise::Generator;
use crate::safetensors::parse_json;

const SEED: u64 = 11;
const COUNT: usize = 64;
const PICKED: [usize; 4] = [0, 21, 42, 63];
/// Relative to the largest value. Coefficients are f64 here and f32 in torch, samples are f32 in both; the rest is
/// torch's rounding over some steps.
const TOLERANCE: f64 = 2e-6;
/// With zero terminal SNR, torch's rounding errors scale with noise that is 4096 times the image.
const NOISY_TOLERANCE: f64 = 5e-5;

fn fixture() -> Value {
    serde_json::from_str(include_str!("../../../../../tests/fixtures/schedulers.json")).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

fn picked(sample: &[f32]) -> Vec<f32> {
    PICKED.iter().map(|at| sample[*at]).collect()
}

/// The largest difference, relative to the largest value or one; infinite for NaN.
fn difference(ours: &[f32], theirs: &Value) -> f64 {
    let theirs = numbers(theirs);
    assert_eq!(ours.len(), theirs.len());
    let scale = theirs.iter().fold(1f64, |most, x| most.max(x.abs()));
    let differences = ours.iter().zip(&theirs).map(|(ours, theirs)| (f64::from(*ours) - theirs).abs() / scale);
    differences.map(|one| if one.is_nan() { f64::INFINITY } else { one }).fold(0., f64::max)
}

fn scheduler_config(row: &Value, configs: &Value) -> SchedulerConfig {
    let config = row["config"].as_str().map_or(&row["config"], |name| &configs[name]);
    let config = SchedulerConfig::read(config).unwrap();
    match row["switch"].as_str() {
        Some(name) => config.with_scheduler(name.parse().unwrap()).unwrap(),
        None => config,
    }
}

fn params(row: &Value) -> SamplingParams {
    SamplingParams {
        steps: row["steps"].as_u64().unwrap() as usize,
        strength: row["strength"].as_f64().map(|strength| strength as f32),
        tokens: row["tokens"].as_u64().map(|tokens| tokens as usize),
        flux_sigmas: row["flux"] == true,
    }
}

fn network(input: f32, time: f32) -> f32 {
    (input * 0.9 + (f64::from(time) / 1000.).sin() as f32 * 0.1).tanh()
}

/// The result that is furthest from the reference, and its difference.
fn furthest(row: &Value, configs: &Value) -> (f64, &'static str) {
    let mut sampler = Sampler::new(&scheduler_config(row, configs), params(row)).unwrap();
    let mut generator = Generator::new(SEED);
    let image = row["strength"].is_number().then(|| generator.normal(COUNT));
    let noise = generator.normal(COUNT);
    let mut found = Vec::new();
    let mut note = |what, ours: &[f32]| {
        if row[what].is_array() {
            found.push((difference(ours, &row[what]), what));
        }
    };
    let mut sample: Vec<f32> = noise.iter().map(|x| x * sampler.init_noise_sigma()).collect();
    if let Some(image) = &image {
        let mut noised = vec![0.; COUNT];
        sampler.add_noise(image, &noise, 1, &mut noised);
        note("noised", &picked(&noised));
        sampler.add_noise(image, &noise, 0, &mut sample);
    }
    let timesteps: Vec<f32> = (0..sampler.len()).map(|step| sampler.timestep(step)).collect();
    note("times", &timesteps);
    note("scales", &[sampler.init_noise_sigma(), sampler.input_scale()]);
    for (step, time) in timesteps.iter().enumerate() {
        let scale = sampler.input_scale();
        let model_output: Vec<f32> = sample.iter().map(|x| network(x * scale, *time)).collect();
        let clean = sampler.clean(&model_output, &sample);
        sampler.step(&model_output, &mut sample, |count| generator.normal(count));
        if step == 0 {
            note("clean", &picked(&clean));
            note("first", &picked(&sample));
        }
    }
    note("last", &picked(&sample));
    found.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).unwrap()
}

#[test]
fn samplers_match_diffusers() {
    let fixture = fixture();
    let rows = fixture["courses"].as_array().unwrap();
    assert!(rows.len() > 300);
    let mut far = Vec::new();
    for row in rows {
        let (most, what) = furthest(row, &fixture["configs"]);
        let noisy = row["config"]["rescale_betas_zero_snr"] == true;
        if most > if noisy { NOISY_TOLERANCE } else { TOLERANCE } {
            far.push(format!("{what} by {most:e}: {} to {}, {} steps", row["config"], row["switch"], row["steps"]));
        }
    }
    assert!(far.is_empty(), "{}\n{} of {}", far.join("\n"), far.len(), rows.len());
}

#[test]
fn noise_matches_torch() {
    for row in fixture()["noise"].as_array().unwrap() {
        let mut generator = Generator::new(row["seed"].as_u64().unwrap());
        for (count, expected) in row["counts"].as_array().unwrap().iter().zip(row["numbers"].as_array().unwrap()) {
            let run = generator.normal(count.as_u64().unwrap() as usize);
            let ends = if run.len() <= 8 { run.clone() } else { [&run[..4], &run[run.len() - 4..]].concat() };
            let most = difference(&ends, expected);
            assert!(most < 1e-6, "{most:e} of {row}");
        }
    }
}

fn latent(class: &str, more: &Value) -> Value {
    let mut config = json!({
        "_class_name": class, "beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012,
        "steps_offset": 1, "skip_prk_steps": true, "clip_sample": false,
    });
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    config
}

fn refusal(config: &Value) -> String {
    SchedulerConfig::read(config).unwrap_err().to_string()
}

#[test]
fn every_sampler_stays_finite_for_any_number_of_steps() {
    let flow = json!({"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0});
    for (name, _) in SchedulerName::ALL {
        for spacing in ["linspace", "leading", "trailing"] {
            let base = if name == SchedulerName::FlowEuler {
                SchedulerConfig::read(&flow)
            } else {
                SchedulerConfig::read(&latent("DDIMScheduler", &json!({"timestep_spacing": spacing})))
            };
            let config = base.unwrap().with_scheduler(name).unwrap();
            for steps in [1, 2, 3, 14, 15, 16, 61, 103, 333, 500, 501, 997, 998, 999, 1000] {
                let Ok(mut sampler) = Sampler::new(&config, SamplingParams { steps, ..SamplingParams::default() })
                else {
                    // Leading spacing exceeds the training steps if there are none to skip; LCM supports 50.
                    assert!(spacing == "leading" && steps > 499 || name == SchedulerName::Lcm, "{name} {steps}");
                    continue;
                };
                let mut sample = [0.5 * sampler.init_noise_sigma(), -sampler.init_noise_sigma()];
                for step in 0..sampler.len() {
                    assert!((0. ..=1000.).contains(&sampler.timestep(step)), "{name} {spacing} {steps}");
                    let model_output = sample.map(|x| network(x * sampler.input_scale(), sampler.timestep(step)));
                    sampler.step(&model_output, &mut sample, |count| vec![0.1; count]);
                }
                assert!(sample.iter().all(|x| x.is_finite()), "{name} {spacing} {steps}: {sample:?}");
            }
        }
    }
}

#[test]
fn unsupported_settings_are_named() {
    let cases = [
        ("HeunDiscreteScheduler", json!({}), "`HeunDiscreteScheduler` is not supported; supported: DDIMScheduler"),
        ("EulerDiscreteScheduler", json!({"use_beta_sigmas": true}), "`use_beta_sigmas` is not supported"),
        ("EulerDiscreteScheduler", json!({"interpolation_type": "log_linear"}), "`interpolation_type`"),
        ("EulerAncestralDiscreteScheduler", json!({"prediction_type": "sample"}), "`prediction_type` is \"sample\""),
        ("DDPMScheduler", json!({"variance_type": "learned_range"}), "`variance_type`"),
        ("DDIMScheduler", json!({"beta_schedule": "sigmoid"}), "supported: linear, scaled_linear, squaredcos_cap_v2"),
        ("DPMSolverMultistepScheduler", json!({"algorithm_type": "dpmsolver"}), "`algorithm_type`"),
        ("DPMSolverMultistepScheduler", json!({"use_flow_sigmas": true}), "`use_flow_sigmas`"),
        ("DPMSolverMultistepScheduler", json!({"prediction_type": "flow_prediction"}), "`prediction_type`"),
        ("UniPCMultistepScheduler", json!({"predict_x0": false}), "`predict_x0`"),
        ("FlowMatchEulerDiscreteScheduler", json!({"invert_sigmas": true}), "`invert_sigmas`"),
    ];
    for (class, more, words) in cases {
        let error = refusal(&latent(class, &more));
        assert!(error.starts_with("scheduler_config.json: ") && error.contains(words), "{error}");
    }
}

#[test]
fn settings_out_of_bounds_are_refused() {
    let cases = [
        ("num_train_timesteps", json!(0)),
        ("num_train_timesteps", json!(1e300)),
        ("num_train_timesteps", json!(100_001)),
        ("beta_end", json!(1.5)),
        ("beta_end", json!("0.01")),
        ("beta_start", json!(-0.1)),
        ("trained_betas", json!([0.1, 0.2])),
        ("trained_betas", json!(vec![0.5; 1000])),
        ("trained_betas", json!(vec![0.0; 1000])),
        ("steps_offset", json!(-1)),
        ("thresholding", json!(1)),
        ("solver_order", json!(4)),
        ("lambda_min_clipped", json!("-inf")),
        ("sigma_min", json!(0)),
    ];
    for (name, value) in cases {
        let error = refusal(&latent("DPMSolverMultistepScheduler", &json!({name: value})));
        assert!(error.contains(name) || error.contains("betas"), "{error}");
    }
    let threshold = json!({"thresholding": true, "sample_max_value": 0});
    assert!(refusal(&latent("DDIMScheduler", &threshold)).contains("sample_max_value"));
    for (name, value) in [("shift", json!(0)), ("shift_terminal", json!(1)), ("stochastic_sampling", json!("yes"))] {
        assert!(refusal(&latent("FlowMatchEulerDiscreteScheduler", &json!({name: value}))).contains(name));
    }
    let same = json!({"use_dynamic_shifting": true, "base_image_seq_len": 8, "max_image_seq_len": 8});
    assert!(refusal(&latent("FlowMatchEulerDiscreteScheduler", &same)).contains("are the same"));
    assert!(SchedulerConfig::read(&json!([])).is_err() && SchedulerConfig::read(&json!({})).is_err());
}

#[test]
fn python_infinities_are_parsed() {
    let text = r#"{"_class_name": "DPMSolverMultistepScheduler", "lambda_min_clipped": -Infinity,
        "note": "a \"quoted\" NaN \\", "prediction_type": "v_prediction"}"#;
    let parse = |text: &str| {
        SchedulerConfig::read(&parse_json(text.as_bytes()).map_err(|error| error.to_string())?)
            .map_err(|error| error.to_string())
    };
    assert_eq!(parse(text).unwrap().name(), SchedulerName::DpmPp2M);
    for text in ["", "{", "\"", "\"\\", "{\"_class_name\": \"Infinity\"}"] {
        assert!(parse(text).is_err());
    }
}

#[test]
fn a_model_only_accepts_samplers_of_its_kind() {
    let flow = SchedulerConfig::read(&json!({"_class_name": "FlowMatchEulerDiscreteScheduler"})).unwrap();
    let other = SchedulerConfig::read(&latent("DDIMScheduler", &json!({}))).unwrap();
    assert!(flow.is_flow() && !other.is_flow());
    let error = flow.with_scheduler(SchedulerName::Ddim).unwrap_err();
    assert_eq!(error, "the scheduler 'ddim' cannot run a flow-matching model; use 'flow_euler'");
    let error = other.with_scheduler(SchedulerName::FlowEuler).unwrap_err();
    assert_eq!(error, "the scheduler 'flow_euler' runs flow-matching models only");
    for (name, _) in SchedulerName::ALL.into_iter().filter(|(name, _)| *name != SchedulerName::FlowEuler) {
        assert_eq!(other.with_scheduler(name).unwrap().name(), name);
    }
    let predicts_samples =
        SchedulerConfig::read(&latent("DDIMScheduler", &json!({"prediction_type": "sample"}))).unwrap();
    let error = predicts_samples.with_scheduler(SchedulerName::Pndm).unwrap_err();
    assert!(error.starts_with("the scheduler 'pndm' does not fit this model: `prediction_type`"), "{error}");
}

#[test]
fn karras_sigmas_have_their_own_scheduler_name() {
    let config = latent("DPMSolverMultistepScheduler", &json!({"use_karras_sigmas": true}));
    let karras = SchedulerConfig::read(&config).unwrap();
    assert_eq!(karras.name(), SchedulerName::DpmPp2MKarras);
    assert_eq!(karras.with_scheduler(SchedulerName::DpmPp2M).unwrap().name(), SchedulerName::DpmPp2M);
    assert_eq!(karras.with_scheduler(SchedulerName::DpmPp2MKarras).unwrap().name(), SchedulerName::DpmPp2MKarras);
}

#[test]
fn impossible_parameters_are_refused() {
    let config = |class, more: Value| SchedulerConfig::read(&latent(class, &more)).unwrap();
    let refused = |config: &SchedulerConfig, params: SamplingParams| Sampler::new(config, params).err().unwrap();
    let (ddim, lcm) = (config("DDIMScheduler", json!({})), config("LCMScheduler", json!({})));
    let steps = |steps| SamplingParams { steps, ..SamplingParams::default() };
    assert_eq!(refused(&ddim, steps(0)), "0 steps are out of range: 1 to 1000 are allowed");
    assert_eq!(refused(&ddim, steps(1001)), "1001 steps are out of range: 1 to 1000 are allowed");
    assert_eq!(refused(&lcm, steps(51)), "51 steps are too many: the model was distilled to 50");
    let few = config("EulerDiscreteScheduler", json!({"num_train_timesteps": 20}));
    assert_eq!(refused(&few, steps(21)), "21 steps are too many: the model was trained with 20");
    let late = |strength| SamplingParams { steps: 4, strength: Some(strength), ..SamplingParams::default() };
    assert_eq!(refused(&ddim, late(0.2)), "a strength of 0.2 runs none of 4 steps");
    assert!([0., -1., 1.1, f32::NAN].into_iter().all(|strength| Sampler::new(&ddim, late(strength)).is_err()));
    let prk = config("PNDMScheduler", json!({"skip_prk_steps": false}));
    assert_eq!(refused(&prk, steps(3)), "the settings of the scheduler 'pndm' require at least 4 steps");
    assert!(refused(&prk, late(0.5)).contains("do not allow an initial image"));
    let nothing = config("DDIMScheduler", json!({"rescale_betas_zero_snr": true, "timestep_spacing": "trailing"}));
    assert_eq!(refused(&nothing, steps(4)), "the model's settings do not allow 4 steps");
    let sized = config("FlowMatchEulerDiscreteScheduler", json!({"use_dynamic_shifting": true}));
    assert_eq!(refused(&sized, steps(4)), "the settings require the image size in tokens");
}

#[test]
fn the_unmasked_part_is_clean_after_the_last_step() {
    let config = SchedulerConfig::read(&latent("PNDMScheduler", &json!({}))).unwrap();
    let mut sampler =
        Sampler::new(&config, SamplingParams { steps: 10, strength: Some(0.7), ..SamplingParams::default() }).unwrap();
    assert_eq!(sampler.len(), 8);
    let (clean, noise, mut out) = ([1f32, -2.], [0.5f32, 0.25], [0f32; 2]);
    sampler.add_noise(&clean, &noise, sampler.len(), &mut out);
    assert_eq!(out, clean);
    for _ in 0..sampler.len() {
        sampler.step(&noise, &mut out, |count| vec![0.; count]);
    }
    let done = out;
    sampler.step(&noise, &mut out, |count| vec![0.; count]);
    assert_eq!((out, sampler.clean(&noise, &out).len()), (done, 0));
}

/// A value for some field, or null.
fn any_value() -> impl Strategy<Value = Value> {
    let words = [
        "linear",
        "scaled_linear",
        "squaredcos_cap_v2",
        "epsilon",
        "v_prediction",
        "sample",
        "linspace",
        "leading",
        "trailing",
        "zero",
        "sigma_min",
        "sde-dpmsolver++",
        "heun",
        "bh1",
        "fixed_large",
        "continuous",
        "?",
    ];
    let numbers = [-1e308, -5.1, -1., 0., 1e-9, 0.3, 0.999, 1., 1.15, 7., 1e4, 1e308];
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0..1200u64).prop_map(Value::from),
        sample::select(numbers.to_vec()).prop_map(Value::from),
        sample::select(words.to_vec()).prop_map(Value::from),
        collection::vec(0. ..1f64, 0..4).prop_map(Value::from),
    ]
}

fn any_config() -> impl Strategy<Value = Value> {
    let names: Vec<String> = fixture()["courses"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|row| row["config"].as_object())
        .flat_map(|config| config.keys().cloned())
        .chain(["shift_terminal", "trained_betas", "time_shift_type"].map(String::from))
        .collect();
    let classes: Vec<&str> = scheduler_config::CLASSES.iter().map(|(class, _)| *class).collect();
    let fields = collection::vec((sample::select(names), any_value()), 0..5);
    (sample::select(classes), fields, any::<bool>()).prop_map(|(class, fields, short)| {
        let mut config = latent(class, &json!({}));
        let named = config.as_object_mut().unwrap();
        named.extend(fields);
        named.insert("_class_name".into(), class.into());
        if short {
            named.insert("num_train_timesteps".into(), 3.into());
        }
        config
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_config_or_parameters_panic(
        config in any_config(),
        switch in sample::select(&SchedulerName::ALL[..]),
        steps in 1..40usize,
        strength in option::of(0f32..1.1),
        tokens in option::of(0..20_000usize),
        flux_sigmas: bool,
    ) {
        let Ok(config) = SchedulerConfig::read(&config) else { return Ok(()) };
        for config in [config.with_scheduler(switch.0), Ok(config)].into_iter().flatten() {
            let Ok(mut sampler) = Sampler::new(&config, SamplingParams { steps, strength, tokens, flux_sigmas }) else { continue };
            let mut sample = [0.5, f32::NAN, 3.];
            for step in 0..sampler.len() {
                prop_assert!(sampler.timestep(step).is_finite());
                sampler.step(&[0.1, 0.2, 0.3], &mut sample, |count| vec![0.1; count]);
            }
        }
    }
}
