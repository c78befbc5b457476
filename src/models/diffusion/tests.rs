//! Compares components of small random pipelines with diffusers and transformers.

mod flows;

use std::collections::HashMap;
use std::path::PathBuf;

use candle_core::{Device, Tensor};
use outpost_kernels::Pool;
use serde_json::Value;

use super::clip::{Clip, ClipConfig};
use super::diffusers_weights::DiffusersWeights;
use super::feature_map::FeatureMap;
use super::op_context::OpContext;
use super::unet::{Unet, UnetConditioning, UnetConfig};
use super::vae::{Vae, VaeConfig};
use crate::models::safetensors::{ModelFolder, read_json};
use crate::models::weights::Loader;

fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/pipelines")
}

/// The reference results of a pipeline.
struct Reference {
    folder: PathBuf,
    facts: Value,
    tensors: HashMap<String, Tensor>,
}

impl Reference {
    fn read(name: &str) -> Self {
        let tensors = fixtures().join(format!("{name}.reference.safetensors"));
        Self {
            folder: fixtures().join(name),
            facts: read_json(&fixtures().join(format!("{name}.reference.json"))).unwrap(),
            tensors: candle_core::safetensors::load(tensors, &Device::Cpu).unwrap(),
        }
    }

    fn part(&self, name: &str) -> ModelFolder {
        ModelFolder::open(&self.folder.join(name)).unwrap()
    }

    fn numbers(&self, name: &str) -> Vec<f32> {
        self.tensors[name].flatten_all().unwrap().to_vec1().unwrap()
    }

    /// `[channels, height, width]` as a feature map.
    fn map(&self, ctx: &OpContext<'_>, name: &str) -> FeatureMap {
        let tensor = &self.tensors[name];
        let (channels, height, width) = tensor.dims3().unwrap();
        let turned = tensor.permute((1, 2, 0)).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        ctx.feature_map(&turned, 1, [height, width], channels).unwrap()
    }

    fn fact(&self, path: &str) -> &Value {
        self.facts.pointer(path).unwrap_or_else(|| panic!("no {path}"))
    }
}

/// The largest difference, relative to the largest value.
fn far(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let most = expected.iter().fold(0f32, |most, x| most.max(x.abs()));
    found.iter().zip(expected).map(|(x, y)| (x - y).abs()).fold(0., f32::max) / most
}

fn with_context(work: impl Fn(&OpContext<'_>)) {
    let pool = Pool::new(2);
    work(&OpContext::new(&pool, &|| Ok(())));
}

/// The token IDs of a text encoder's reference input.
fn ids(reference: &Reference, part: &str) -> Vec<u32> {
    serde_json::from_value(reference.fact(&format!("/components/{part}/ids")).clone()).unwrap()
}

#[test]
fn clip_matches_transformers() {
    with_context(|ctx| {
        let reference = Reference::read("sd1");
        let folder = reference.part("text_encoder");
        let source = DiffusersWeights::new(&folder);
        let loader = Loader::new(&source, 2);
        let clip = Clip::load(&loader, ClipConfig::read(&folder.config, "text_encoder/", false).unwrap()).unwrap();
        loader.finish().unwrap();
        let text = ids(&reference, "text_encoder");
        let encoded = clip.forward(ctx, std::slice::from_ref(&text), None).unwrap();
        assert!(far(encoded.hidden.data(), &reference.numbers("text_encoder.hidden")) < 1e-5);
        assert!(far(&encoded.pooled[0], &reference.numbers("text_encoder.pooled")) < 1e-5);
        let encoded = clip.forward(ctx, &[text], Some(1)).unwrap();
        assert!(far(encoded.hidden.data(), &reference.numbers("text_encoder.penultimate")) < 1e-5);
    });
}

#[test]
fn a_unet_matches_diffusers() {
    with_context(|ctx| {
        let reference = Reference::read("sd1");
        let folder = reference.part("unet");
        let source = DiffusersWeights::new(&folder);
        let loader = Loader::new(&source, 2);
        let unet = Unet::load(&loader, UnetConfig::read(&folder.config).unwrap()).unwrap();
        loader.finish().unwrap();
        let words = &reference.tensors["text_encoder.hidden"];
        let (count, width) = words.dims2().unwrap();
        let text = ctx.feature_map(&reference.numbers("text_encoder.hidden"), 1, [count, 1], width).unwrap();
        let time = reference.fact("/components/unet/timestep").as_f64().unwrap() as f32;
        let cond = UnetConditioning { timestep: time, text: &text, guidance: None, micro: None };
        let found = unet.forward(ctx, &reference.map(ctx, "unet.sample"), &cond).unwrap();
        let away = far(found.data(), reference.map(ctx, "unet.output").data());
        assert!(away < 1e-5, "{away}");
    });
}

/// The autoencoder of `sd1` without latent scaling.
fn autoencoder() -> Vae {
    let folder = Reference::read("sd1").part("vae");
    let source = DiffusersWeights::new(&folder);
    let loader = Loader::new(&source, 2);
    let config = VaeConfig { scaling: 1., ..VaeConfig::read(&folder.config).unwrap() };
    let vae = Vae::load(&loader, config).unwrap();
    loader.finish().unwrap();
    vae
}

/// Decodes and encodes, and compares.
fn check_both_ways(ctx: &OpContext<'_>, reference: &Reference, image: FeatureMap, tiled: bool) {
    let vae = autoencoder();
    let decoded = vae.decode(ctx, reference.map(ctx, "vae.latent"), tiled).unwrap();
    let away = far(decoded.data(), reference.map(ctx, "vae.decoded").data());
    assert!(away < 1e-5, "{away}");
    let posterior = vae.encode(ctx, image, tiled).unwrap();
    assert!(far(&posterior.mean, reference.map(ctx, "vae.mean").data()) < 1e-5);
    let logs: Vec<f32> = posterior.std.iter().map(|one| 2. * one.ln()).collect();
    assert!(far(&logs, reference.map(ctx, "vae.logvar").data()) < 1e-4);
}

#[test]
fn an_autoencoder_matches_diffusers() {
    with_context(|ctx| {
        let reference = Reference::read("sd1");
        check_both_ways(ctx, &reference, reference.map(ctx, "vae.picture"), false);
        // An image no larger than a tile is not split.
        check_both_ways(ctx, &reference, reference.map(ctx, "vae.picture"), true);
    });
}

#[test]
fn tiles_blend_as_in_diffusers() {
    with_context(|ctx| {
        let reference = Reference::read("sd1-tiles");
        let bytes: Vec<u8> = reference.tensors["vae.picture"].flatten_all().unwrap().to_vec1().unwrap();
        let image: Vec<f32> = bytes.iter().map(|byte| f32::from(*byte) / 127.5 - 1.).collect();
        let image = ctx.feature_map(&image, 1, [72, 116], 3).unwrap();
        check_both_ways(ctx, &reference, image, true);
    });
}
