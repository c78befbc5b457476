//! Compares single-file checkpoints, from the reference script and built here, with folders that have the same weights.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use outpost_testing::fixtures::fixture;

use super::*;
use crate::backend::{Backend, Cpu};
use crate::diffusion::SchedulerName;
use crate::diffusion::clip::{Clip, ClipConfig};
use crate::diffusion::components::{Components, Family};
use crate::diffusion::diffusers_weights::DiffusersWeights;
use crate::diffusion::samplers::SchedulerConfig;
use crate::diffusion::vae::VaeConfig;
use crate::nn::Context;
use crate::safetensors::read_json;
use crate::weights::Loader;

fn fixtures() -> PathBuf {
    fixture("pipelines")
}

#[test]
fn configs_are_inferred_from_shapes() {
    for (name, version) in [("sd1", LdmVersion::Sd1), ("sdxl", LdmVersion::Sdxl)] {
        let file = ModelFolder::open_file(&fixtures().join(format!("{name}.safetensors"))).unwrap();
        assert_eq!(LdmVersion::detect(&file).unwrap(), version);
        let config = |part: &str| read_json(&fixtures().join(name).join(part).join("config.json")).unwrap();
        let mut own = UnetConfig::read(&config("unet")).unwrap();
        let mut inferred =
            UnetConfig::read(&ShapeInference::new(&file, UNET_PREFIX).unet(version, false).unwrap()).unwrap();
        // What shapes do not determine takes the published families' values.
        assert_eq!(
            (inferred.groups, inferred.sample_size),
            (32, Some(if version == LdmVersion::Sdxl { [128; 2] } else { [64; 2] }))
        );
        for config in [&mut own, &mut inferred] {
            (config.groups, config.sample_size) = (0, None);
            for level in &mut config.levels {
                level.heads = 0;
                // One transformer layer each is the default.
                level.transformer_layers.resize(level.resnets + 1, 1);
            }
            config.micro_conditioning.iter_mut().for_each(|micro| micro.sinusoid_dim = 0);
        }
        assert_eq!(inferred, own, "{name}");
        let own = VaeConfig::read(&config("vae")).unwrap();
        let inferred = VaeConfig::read(&ShapeInference::new(&file, VAE_PREFIX).vae(version, false).unwrap()).unwrap();
        assert_eq!(
            (inferred.channels, inferred.layers, inferred.latent_channels),
            (own.channels, own.layers, own.latent_channels)
        );
        for (at, text) in version.text_encoders().iter().enumerate() {
            let prefix = if text.open_clip { text.prefix.to_owned() } else { format!("{}text_model.", text.prefix) };
            let part = if at == 0 { "text_encoder" } else { "text_encoder_2" };
            let own = ClipConfig::read(&config(part), "", text.open_clip).unwrap();
            let inferred = ClipConfig::read(
                &ShapeInference::new(&file, &prefix).text_encoder(version, text.open_clip).unwrap(),
                "",
                text.open_clip,
            )
            .unwrap();
            assert_eq!(
                (inferred.layers, inferred.width, inferred.inner),
                (own.layers, own.width, own.inner),
                "{name} {part}"
            );
            assert_eq!((inferred.vocabulary, inferred.projection), (own.vocabulary, own.projection));
        }
    }
}

const OPEN: &str = "cond_stage_model.model.";

/// The text encoder of a folder with OpenCLIP's names, one layer more, and the unused tensors of published files.
fn write_open(folder: &Path, to: &Path, layers: usize) {
    let own = candle_core::safetensors::load(folder.join("model.safetensors"), &Device::Cpu).unwrap();
    let (mut made, mut fused): (HashMap<String, Tensor>, HashMap<String, Vec<Tensor>>) = Default::default();
    let mut all: Vec<_> = own.into_iter().collect();
    all.sort_by(|(one, _), (other, _)| one.cmp(other));
    // Queries, then keys, then values.
    all.sort_by_key(|(name, _)| ["q_proj", "k_proj", "v_proj"].iter().position(|one| name.contains(one)));
    for (name, tensor) in all {
        let Some((stem, ending)) = name.trim_start_matches("text_model.").rsplit_once('.') else { continue };
        let Some(inferred) = tensor_names::open_clip_name(stem, ending) else { continue };
        match parse_view(&inferred) {
            (base, View::Qkv(_)) => fused.entry(base.to_owned()).or_default().push(tensor),
            _ => drop(made.insert(inferred, tensor)),
        }
    }
    made.extend(fused.into_iter().map(|(name, components)| (name, Tensor::cat(&components, 0).unwrap())));
    let last = format!("resblocks.{}.", layers - 1);
    let more: Vec<_> = made.iter().filter(|(name, _)| name.contains(&last)).collect();
    let more: Vec<_> = more
        .into_iter()
        .map(|(name, tensor)| (name.replace(&last, &format!("resblocks.{layers}.")), tensor.clone()))
        .collect();
    made.extend(more);
    made.insert("text_projection".to_owned(), Tensor::zeros((32, 32), DType::F16, &Device::Cpu).unwrap());
    made.insert("logit_scale".to_owned(), Tensor::zeros((), DType::F16, &Device::Cpu).unwrap());
    let made: HashMap<String, Tensor> =
        made.into_iter().map(|(name, tensor)| (format!("{OPEN}{name}"), tensor)).collect();
    candle_core::safetensors::save(&made, to).unwrap();
}

#[test]
fn sd2_embeddings_skip_the_last_layer() {
    let folder = fixtures().join("sd2v/text_encoder");
    let config = ClipConfig::read(&read_json(&folder.join("config.json")).unwrap(), "", false).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sd2.safetensors");
    write_open(&folder, &path, config.layers);
    let file = Arc::new(ModelFolder::open_file(&path).unwrap());
    let inferred =
        ClipConfig::read(&ShapeInference::new(&file, OPEN).text_encoder(LdmVersion::Sd2, true).unwrap(), "", false)
            .unwrap();
    assert_eq!(
        (inferred.layers, inferred.width, inferred.activation),
        (config.layers, config.width, config.activation)
    );
    let component = LdmComponent::OpenClip { layers: config.layers, has_projection: false };
    let weights = LdmWeights { file, prefix: OPEN.to_owned(), component };
    let folder = ModelFolder::open(&folder).unwrap();
    let cpu = Cpu::new(1);
    let ctx = Context::new(&cpu);
    let words = |source: &dyn Weights| {
        let loader = Loader::new(source, &cpu);
        let clip = Clip::load(&loader, config.clone()).unwrap();
        loader.finish().unwrap();
        cpu.to_vec(&clip.forward(&ctx, &[vec![3, 5, 700, 8]], None).unwrap().hidden).unwrap()
    };
    assert_eq!(words(&weights), words(&DiffusersWeights::new(&folder)));
}

#[test]
fn a_transposed_projection_is_exposed_as_it_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("one.safetensors");
    let transposed = Tensor::arange(0f32, 6., &Device::Cpu).unwrap().reshape((2, 3)).unwrap();
    candle_core::safetensors::save(&HashMap::from([("m.text_projection", transposed)]), &path).unwrap();
    let file = Arc::new(ModelFolder::open_file(&path).unwrap());
    let weights = LdmWeights {
        file,
        prefix: "m.".to_owned(),
        component: LdmComponent::OpenClip { layers: 1, has_projection: true },
    };
    let name = weights.name("text_projection", Role::Weight).unwrap();
    assert_eq!((weights.names(), weights.shape(&name)), (vec![name.clone()], Some(vec![3, 2])));
    assert_eq!(weights.rows(&name, 1, 2).unwrap().floats().unwrap(), [1., 4., 2., 5.]);
    assert!(weights.rows(&name, 2, 2).is_err());
}

#[test]
fn a_single_file_gets_default_configs() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("v1.5.safetensors");
    std::fs::copy(fixtures().join("sd1.safetensors"), &file).unwrap();
    let missing = Components::open_single_file(&file).unwrap_err().to_string();
    assert!(missing.contains("into v1.5/tokenizer in the models folder"), "{missing}");
    let tokenizer = dir.path().join("other/tokenizer");
    std::fs::create_dir_all(&tokenizer).unwrap();
    std::fs::copy(fixtures().join("sd1/tokenizer/vocab.json"), tokenizer.join("vocab.json")).unwrap();
    let components = Components::open_single_file(&file).unwrap();
    assert_eq!((components.class.as_str(), components.family), ("StableDiffusionPipeline", Family::StableDiffusion));
    // Published autoencoders have one more image size than this one.
    assert_eq!((components.scheduler.name(), components.default_size()), (SchedulerName::Pndm, [512 / 2; 2]));
    assert_eq!((components.default_steps, components.default_guidance), (50, 7.5));
    assert_eq!(components.path, dir.path().join("v1.5"));
    std::fs::write(file.with_extension("yaml"), "model:\n  params:\n    parameterization: \"v\"\n").unwrap();
    assert_eq!(
        Components::open_single_file(&file).unwrap().scheduler.name(),
        SchedulerName::Ddim,
        "it predicts velocities"
    );
}

#[test]
fn every_version_has_a_default_scheduler() {
    for version in [LdmVersion::Sd1, LdmVersion::Sd2, LdmVersion::Sdxl] {
        for (predicts_v, zero_snr) in [(false, false), (true, false), (true, true)] {
            let settings = SchedulerConfig::read(&default_scheduler_config(version, predicts_v, zero_snr)).unwrap();
            let expected = match version {
                LdmVersion::Sdxl => SchedulerName::Euler,
                _ if predicts_v => SchedulerName::Ddim,
                _ => SchedulerName::Pndm,
            };
            assert_eq!(settings.name(), expected);
        }
    }
}
