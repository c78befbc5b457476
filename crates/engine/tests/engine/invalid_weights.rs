//! Well-formed model files with unusable weights: tensors of unexpected types, or with NaN and infinity. The error names
//! the model; nothing panics, and no output is returned.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use outpost_engine::{Engine, Failure, ImageEvent, LoadError, ModelKind, Settings};
use outpost_testing::fixtures::{copy_folder, fixture};

use crate::harness::{TestClock, greedy, pieces};
use crate::image_generation::Rig;
use crate::tiny_model::{self, TinyModel};

/// GGUF types: the number, and the bytes of a block of so many weights.
const TYPES: [(u32, usize, usize); 22] = [
    (0, 1, 4),
    (1, 1, 2),
    (2, 32, 18),
    (3, 32, 20),
    (4, 1, 1),
    (6, 32, 22),
    (7, 32, 24),
    (8, 32, 34),
    (9, 32, 36),
    (10, 256, 84),
    (11, 256, 110),
    (12, 256, 144),
    (13, 256, 176),
    (14, 256, 210),
    (15, 256, 292),
    (16, 256, 66),
    (24, 1, 1),
    (25, 1, 2),
    (26, 1, 4),
    (27, 1, 8),
    (28, 1, 8),
    (30, 1, 2),
];

fn small() -> TinyModel {
    TinyModel { width: 256, blocks: 1, ..TinyModel::default() }
}

fn start(folder: &Path) -> Engine {
    let settings = Settings { speculate: false, ..Settings::new(folder, 1 << 30) };
    Engine::start(settings, Arc::new(TestClock::default())).unwrap()
}

/// The error of a chat with the file; `None` if it generates.
async fn chat(file: &[u8]) -> Option<String> {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("odd.gguf"), file).unwrap();
    let engine = start(dir.path());
    let model = match engine.models().load("odd") {
        Ok(model) => model,
        Err(LoadError::Unusable { id, reason }) => {
            assert_eq!(id, "odd");
            return Some(reason);
        }
        Err(other) => panic!("{other:?}"),
    };
    let ticket = engine.submit(&model, greedy(vec![7, 8, 9], 2)).unwrap();
    match pieces(ticket.deltas).await {
        Ok(_) => None,
        Err(Failure::ModelUnusable { id, reason }) => {
            assert_eq!(id, "odd");
            Some(reason)
        }
        Err(other) => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn any_tensor_type_with_any_bytes_gives_output_or_an_error() {
    let count = {
        let mut count = 0;
        tiny_model::bytes_with_tensors(&small(), |tensors| count = tensors.len());
        count
    };
    let (mut answered, mut refused) = (0, 0);
    for index in 0..count {
        for (number, block, bytes) in TYPES {
            // Pseudo-random bytes: many are NaN in some type.
            let mut state = 0x9e37_79b9_u32.wrapping_mul(1 + index as u32) ^ number;
            let mut byte = || {
                state ^= state << 13;
                state ^= state >> 17;
                state ^= state << 5;
                state as u8
            };
            let file = tiny_model::bytes_with_tensors(&small(), |tensors| {
                let (_, shape, kind, data) = &mut tensors[index];
                let size = shape.iter().product::<usize>() / block * bytes;
                (*kind, *data) = (number, (0..size).map(|_| byte()).collect());
            });
            match chat(&file).await {
                None => answered += 1,
                Some(reason) => {
                    assert!(!reason.contains("panicked"), "tensor {index} of type {number}: {reason}");
                    refused += 1;
                }
            }
        }
    }
    assert_eq!(answered + refused, count * TYPES.len());
    assert!(refused > count && answered > 0, "{answered} answered, {refused} refused");
}

#[tokio::test]
async fn nan_and_infinity_are_found_in_any_tensor() {
    let names: Vec<String> = {
        let mut names = Vec::new();
        tiny_model::bytes_with_tensors(&small(), |tensors| {
            names = tensors.iter().map(|tensor| tensor.0.clone()).collect()
        });
        names
    };
    for (index, name) in names.iter().enumerate() {
        for number in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let file = tiny_model::bytes_with_tensors(&small(), |tensors| {
                let data = &mut tensors[index].3;
                let whole = data.len() / 4;
                *data = std::iter::repeat_n(number.to_le_bytes(), whole).flatten().collect();
            });
            let reason = chat(&file).await.unwrap_or_else(|| panic!("{name} of {number} generates output"));
            assert!(reason.contains("not finite"), "{name} of {number}: {reason}");
            // Vectors are checked when they are loaded, so the error names them.
            assert!(!name.contains("norm") || reason.contains(name.as_str()), "{reason}");
        }
    }
    // One NaN in the output head makes one logit of each token NaN.
    let file = tiny_model::bytes_with_tensors(&small(), |tensors| {
        let head = tensors.iter_mut().find(|tensor| tensor.0 == "output.weight").unwrap();
        head.3[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    });
    assert!(chat(&file).await.unwrap().contains("not finite"));
}

/// Fills tensors of a safetensors file with NaN, those whose names contain `substring`.
fn fill_with_nan(path: &Path, substring: &str) {
    let mut bytes = fs::read(path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let tensors = header.as_object().unwrap().iter().filter(|(name, _)| name.contains(substring));
    let tensors: Vec<&serde_json::Value> = tensors.map(|(_, tensor)| tensor).collect();
    assert!(!tensors.is_empty(), "{substring}");
    for tensor in tensors {
        let offset = |index: usize| 8 + length + tensor["data_offsets"][index].as_u64().unwrap() as usize;
        bytes[offset(0)..offset(1)].fill(0xff); // NaN in every float type
    }
    fs::write(path, bytes).unwrap();
}

#[test]
fn no_vector_or_score_is_computed_from_nan() {
    let (embeds, ranks) = (ModelKind::Embedding, ModelKind::Reranker);
    // Vectors are checked while they are loaded, matrices are not.
    let cases = [
        ("bert-mean", embeds, "attention.output.LayerNorm.weight"),
        ("bert-mean", embeds, "layer.0.output.dense.weight"),
        ("qwen3", embeds, "layers.0.input_layernorm.weight"),
        ("qwen3", embeds, "layers.0.mlp.down_proj.weight"),
        ("rank-bert", ranks, "classifier.bias"),
        ("rank-bert", ranks, "classifier.weight"),
    ];
    for (name, kind, tensor) in cases {
        let dir = tempfile::tempdir().unwrap();
        let folder = fixture("encoders").join(name);
        copy_folder(&folder, &dir.path().join(name));
        fill_with_nan(&dir.path().join(name).join("model.safetensors"), tensor);
        let engine = start(dir.path());
        let reason = match engine.models().load_encoder(name, kind) {
            Err(LoadError::Unusable { reason, .. }) => reason,
            Err(other) => panic!("{other:?}"),
            Ok(model) => {
                let text = model.add_special_tokens(&[5, 6, 7]);
                match engine.embed(&model, 1, vec![text]).unwrap().blocking_recv().unwrap() {
                    Err(Failure::ModelUnusable { id, reason }) => {
                        assert_eq!(id, name);
                        reason
                    }
                    other => panic!("{name} {tensor}: {other:?}"),
                }
            }
        };
        assert!(reason.contains("not finite"), "{name} {tensor}: {reason}");
    }
}

#[tokio::test]
async fn no_image_is_computed_from_nan() {
    for (component, tensor) in [("unet", "conv_in.weight"), ("vae", "decoder.conv_in.weight")] {
        let rig = Rig::with_files("sd1", |folder| {
            let files = fs::read_dir(folder.join(component)).unwrap().map(|entry| entry.unwrap().path());
            let weights = files.into_iter().find(|path| path.extension().is_some_and(|ending| ending == "safetensors"));
            fill_with_nan(&weights.unwrap(), tensor);
        });
        let case = rig.facts["cases"].as_array().unwrap().iter().find(|case| case.get("image").is_none()).unwrap();
        let mut events = rig.engine.generate_images(&rig.model, rig.request(case)).unwrap();
        let failure = loop {
            match events.next().await.expect("the image is generated or fails") {
                Ok(ImageEvent::Done { .. }) => panic!("{component} {tensor}: an image was generated"),
                Ok(_) => {}
                Err(failure) => break failure,
            }
        };
        let Failure::ModelUnusable { id, reason } = failure else { panic!("{failure:?}") };
        assert!(id == "diffusion" && reason.contains("not finite"), "{id}: {reason}");
    }
}
