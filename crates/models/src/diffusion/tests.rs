//! Compares components of small random pipelines with diffusers and transformers.

mod flows;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use candle_core::Device;
use serde_json::Value;

use super::clip::{Clip, ClipConfig};
use super::diffusers_weights::DiffusersWeights;
use super::unet::{Unet, UnetConditioning, UnetConfig};
use super::vae::{Raster, Vae, VaeConfig};
use crate::backend::{Backend, Candle, Convolutions, Cpu, RequestOptions, Tensor};
use crate::devices::{tolerance_under_test, under_test};
use crate::nn::Context;
use crate::safetensors::{ModelFolder, read_json};
use crate::weights::Loader;

fn fixtures() -> PathBuf {
    fixture("pipelines")
}

/// The reference results of a pipeline.
struct Reference {
    folder: PathBuf,
    facts: Value,
    tensors: HashMap<String, candle_core::Tensor>,
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

    /// `[channels, height, width]` as an image.
    fn raster(&self, name: &str) -> Raster {
        let tensor = &self.tensors[name];
        let (channels, height, width) = tensor.dims3().unwrap();
        let values = tensor.permute((1, 2, 0)).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        Raster { values, size: [height, width], channels }
    }

    /// `[channels, height, width]` as a tensor of one image.
    fn map<B: Backend>(&self, ctx: &Context<'_, B>, name: &str) -> Tensor<B> {
        let Raster { values, size: [height, width], channels } = self.raster(name);
        ctx.tensor(&values, [1, height, width, channels]).unwrap()
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

/// A handle for a request that is never cancelled.
fn request<B: Backend>(backend: &B) -> B {
    backend.for_request(RequestOptions { pause: Arc::new(|| Ok(())), bf16_attention: false })
}

/// Runs checks as tests, on each backend.
macro_rules! on_each_backend {
    ($($check:ident),* $(,)?) => {
        mod cpu {
            $(#[test]
            fn $check() {
                super::$check(&super::Context::new(&super::request(&super::Cpu::new(2))));
            })*
        }

        mod candle {
            $(#[test]
            fn $check() {
                let backend = super::Candle::new(super::under_test(), super::Cpu::new(1));
                super::$check(&super::Context::new(&super::request(&backend)));
            })*
        }
    };
}
use on_each_backend;
use outpost_testing::fixtures::fixture;

on_each_backend!(
    clip_matches_transformers,
    a_unet_matches_diffusers,
    an_autoencoder_matches_diffusers,
    tiles_blend_as_in_diffusers,
);

/// The token IDs of a text encoder's reference input.
fn ids(reference: &Reference, part: &str) -> Vec<u32> {
    serde_json::from_value(reference.fact(&format!("/components/{part}/ids")).clone()).unwrap()
}

fn clip_matches_transformers<B: Backend>(ctx: &Context<'_, B>) {
    let reference = Reference::read("sd1");
    let folder = reference.part("text_encoder");
    let source = DiffusersWeights::new(&folder);
    let loader = Loader::new(&source, &**ctx);
    let clip = Clip::load(&loader, ClipConfig::read(&folder.config, "text_encoder/", false).unwrap()).unwrap();
    loader.finish().unwrap();
    let text = ids(&reference, "text_encoder");
    let encoded = clip.forward(ctx, std::slice::from_ref(&text), None).unwrap();
    assert!(
        far(&ctx.to_vec(&encoded.hidden).unwrap(), &reference.numbers("text_encoder.hidden"))
            < tolerance_under_test(1e-5)
    );
    assert!(far(&encoded.pooled[0], &reference.numbers("text_encoder.pooled")) < tolerance_under_test(1e-5));
    let encoded = clip.forward(ctx, &[text], Some(1)).unwrap();
    assert!(
        far(&ctx.to_vec(&encoded.hidden).unwrap(), &reference.numbers("text_encoder.penultimate"))
            < tolerance_under_test(1e-5)
    );
}

fn a_unet_matches_diffusers<B: Convolutions>(ctx: &Context<'_, B>) {
    let reference = Reference::read("sd1");
    let folder = reference.part("unet");
    let source = DiffusersWeights::new(&folder);
    let loader = Loader::new(&source, &**ctx);
    let unet = Unet::load(&loader, UnetConfig::read(&folder.config).unwrap()).unwrap();
    loader.finish().unwrap();
    let words = &reference.tensors["text_encoder.hidden"];
    let (count, width) = words.dims2().unwrap();
    let text = ctx.tensor(&reference.numbers("text_encoder.hidden"), [1, count, 1, width]).unwrap();
    let time = reference.fact("/components/unet/timestep").as_f64().unwrap() as f32;
    let cond = UnetConditioning { timestep: time, text: &text, guidance: None, micro: None };
    let found = unet.forward(ctx, &reference.map(ctx, "unet.sample"), &cond).unwrap();
    let away = far(&ctx.to_vec(&found).unwrap(), &reference.raster("unet.output").values);
    assert!(away < tolerance_under_test(1e-5), "{away}");
}

/// The autoencoder of `sd1` without latent scaling.
fn autoencoder<B: Convolutions>(ctx: &Context<'_, B>) -> Vae<B> {
    let folder = Reference::read("sd1").part("vae");
    let source = DiffusersWeights::new(&folder);
    let loader = Loader::new(&source, &**ctx);
    let config = VaeConfig { scaling: 1., ..VaeConfig::read(&folder.config).unwrap() };
    let vae = Vae::load(&loader, config).unwrap();
    loader.finish().unwrap();
    vae
}

/// Decodes and encodes, and compares.
fn check_both_ways<B: Convolutions>(ctx: &Context<'_, B>, reference: &Reference, image: Raster, tiled: bool) {
    let vae = autoencoder(ctx);
    let decoded = vae.decode(ctx, reference.raster("vae.latent"), tiled).unwrap();
    let away = far(&decoded.values, &reference.raster("vae.decoded").values);
    assert!(away < tolerance_under_test(1e-5), "{away}");
    let posterior = vae.encode(ctx, image, tiled).unwrap();
    assert!(far(&posterior.mean, &reference.raster("vae.mean").values) < tolerance_under_test(1e-5));
    let logs: Vec<f32> = posterior.std.iter().map(|one| 2. * one.ln()).collect();
    assert!(far(&logs, &reference.raster("vae.logvar").values) < tolerance_under_test(1e-4));
}

fn an_autoencoder_matches_diffusers<B: Convolutions>(ctx: &Context<'_, B>) {
    let reference = Reference::read("sd1");
    check_both_ways(ctx, &reference, reference.raster("vae.picture"), false);
    // An image no larger than a tile is not split.
    check_both_ways(ctx, &reference, reference.raster("vae.picture"), true);
}

fn tiles_blend_as_in_diffusers<B: Convolutions>(ctx: &Context<'_, B>) {
    let reference = Reference::read("sd1-tiles");
    let bytes: Vec<u8> = reference.tensors["vae.picture"].flatten_all().unwrap().to_vec1().unwrap();
    let image: Vec<f32> = bytes.iter().map(|byte| f32::from(*byte) / 127.5 - 1.).collect();
    let image = Raster { values: image, size: [72, 116], channels: 3 };
    check_both_ways(ctx, &reference, image, true);
}
