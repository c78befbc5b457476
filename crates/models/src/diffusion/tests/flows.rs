//! Compares the components of flow-matching pipelines (Stable Diffusion 3 and FLUX) with diffusers and transformers.

use super::*;
use crate::diffusion::dit::{DitConditioning, Flux, FluxConfig, Mmdit, MmditConfig, OriginalWeights};
use crate::diffusion::t5::{T5, T5Config};
use crate::gguf::GgufFile;
use crate::weights::Weights;

on_each_backend!(
    t5_matches_transformers,
    clip_of_flow_models_matches_transformers,
    an_mmdit_matches_diffusers,
    a_batch_of_two_images_matches_single_images,
    flux_matches_diffusers,
    flux_from_a_gguf_file_matches_diffusers,
    autoencoders_with_many_channels_match_diffusers,
);

impl Reference {
    /// `[count, width]` as the embeddings of one text.
    fn words<B: Convolutions>(&self, ctx: &Context<'_, B>, name: &str) -> Tensor<B> {
        let (count, width) = self.tensors[name].dims2().unwrap();
        ctx.tensor(&self.numbers(name), [1, count, 1, width]).unwrap()
    }

    /// The transformer's timestep, guidance scale and pooled embeddings.
    fn conditioning(&self) -> (f32, Option<f32>, Vec<Vec<f32>>) {
        let number = |name: &str| self.fact("/components/transformer")[name].as_f64().map(|number| number as f32);
        (number("timestep").unwrap(), number("guidance"), vec![self.numbers("transformer.pooled")])
    }
}

fn t5_matches_transformers<B: Convolutions>(ctx: &Context<'_, B>) {
    for (name, part) in [("sd3", "text_encoder_3"), ("flux", "text_encoder_2")] {
        let reference = Reference::read(name);
        let folder = reference.part(part);
        let source = DiffusersWeights::new(&folder);
        let loader = Loader::new(&source, &**ctx);
        let t5 = T5::load(&loader, T5Config::read(&folder.config, &format!("{part}/")).unwrap()).unwrap();
        loader.finish().unwrap();
        let words = t5.forward(ctx, &[ids(&reference, part)]).unwrap();
        let error = far(&ctx.to_vec(&words).unwrap(), &reference.numbers(&format!("{part}.hidden")));
        println!("{name}: {error:e}");
        assert!(error < tolerance_under_test(1e-5), "{name}: {error}");
    }
}

fn clip_of_flow_models_matches_transformers<B: Convolutions>(ctx: &Context<'_, B>) {
    let cases = [("sd3", "text_encoder", true), ("sd3", "text_encoder_2", true), ("flux", "text_encoder", false)];
    for (name, part, projects) in cases {
        let reference = Reference::read(name);
        let folder = reference.part(part);
        let source = DiffusersWeights::new(&folder);
        let loader = Loader::new(&source, &**ctx);
        let config = ClipConfig::read(&folder.config, part, projects).unwrap();
        let clip = Clip::load(&loader, config).unwrap();
        loader.finish().unwrap();
        let encoded = clip.forward(ctx, &[ids(&reference, part)], Some(1)).unwrap();
        let expected = reference.numbers(&format!("{part}.penultimate"));
        assert!(far(&ctx.to_vec(&encoded.hidden).unwrap(), &expected) < tolerance_under_test(1e-5), "{name} {part}");
        let error = far(&encoded.pooled[0], &reference.numbers(&format!("{part}.pooled")));
        assert!(error < tolerance_under_test(1e-5), "{name} {part}: {error}");
    }
}

fn an_mmdit_matches_diffusers<B: Convolutions>(ctx: &Context<'_, B>) {
    for name in ["sd3", "sd35"] {
        let reference = Reference::read(name);
        let folder = reference.part("transformer");
        let source = DiffusersWeights::new(&folder);
        let loader = Loader::new(&source, &**ctx);
        let mmdit = Mmdit::load(&loader, MmditConfig::read(&folder.config).unwrap()).unwrap();
        loader.finish().unwrap();
        let (time, guidance, pooled) = reference.conditioning();
        let text = reference.words(ctx, "transformer.context");
        let cond = DitConditioning { timestep: time, text: &text, pooled: &pooled, guidance };
        let found = mmdit.forward(ctx, &reference.map(ctx, "transformer.sample"), &cond).unwrap();
        let error = far(&ctx.to_vec(&found).unwrap(), &reference.raster("transformer.output").values);
        println!("{name}: {error:e}");
        assert!(error < tolerance_under_test(1e-5), "{name}: {error}");
    }
}

fn a_batch_of_two_images_matches_single_images<B: Convolutions>(ctx: &Context<'_, B>) {
    let reference = Reference::read("sd35");
    let folder = reference.part("transformer");
    let source = DiffusersWeights::new(&folder);
    let mmdit = Mmdit::load(&Loader::new(&source, &**ctx), MmditConfig::read(&folder.config).unwrap()).unwrap();
    let (time, guidance, pooled) = reference.conditioning();
    let text = reference.words(ctx, "transformer.context");
    let sample = reference.map(ctx, "transformer.sample");
    let twice = |map: &Tensor<B>| ctx.repeat(map, 2).unwrap();
    let other: Vec<f32> = pooled[0].iter().map(|x| 1. - x).collect();
    let one = |pooled: Vec<f32>| {
        let cond = DitConditioning { timestep: time, text: &text, pooled: &[pooled], guidance };
        ctx.to_vec(&mmdit.forward(ctx, &sample, &cond).unwrap()).unwrap()
    };
    let expected = [one(other.clone()), one(pooled[0].clone())].concat();
    let cond = DitConditioning { timestep: time, text: &twice(&text), pooled: &[other, pooled[0].clone()], guidance };
    assert!(
        far(&ctx.to_vec(&mmdit.forward(ctx, &twice(&sample), &cond).unwrap()).unwrap(), &expected)
            < tolerance_under_test(1e-6)
    );
}

/// The maximum error of the flow of FLUX, relative to the largest reference value.
fn flux_error<B: Convolutions>(ctx: &Context<'_, B>, reference: &Reference, weights: &dyn Weights) -> f32 {
    let loader = Loader::new(weights, &**ctx);
    let config = read_json(&reference.folder.join("transformer/config.json")).unwrap();
    let flux = Flux::load(&loader, FluxConfig::read(&config).unwrap()).unwrap();
    loader.finish().unwrap();
    let (time, guidance, pooled) = reference.conditioning();
    let text = reference.words(ctx, "transformer.context");
    let cond = DitConditioning { timestep: time, text: &text, pooled: &pooled, guidance };
    let grid: Vec<usize> = serde_json::from_value(reference.fact("/components/transformer/patches").clone()).unwrap();
    let sample = reference.words(ctx, "transformer.sample");
    let found = flux.forward_patches(ctx, &sample, [grid[0], grid[1]], &cond).unwrap();
    far(&ctx.to_vec(&found).unwrap(), &reference.numbers("transformer.output"))
}

fn flux_matches_diffusers<B: Convolutions>(ctx: &Context<'_, B>) {
    for name in ["flux", "flux-schnell"] {
        let reference = Reference::read(name);
        let error = flux_error(ctx, &reference, &DiffusersWeights::new(&reference.part("transformer")));
        println!("{name}: {error:e}");
        assert!(error < tolerance_under_test(1e-5), "{name}: {error}");
    }
}

fn flux_from_a_gguf_file_matches_diffusers<B: Convolutions>(ctx: &Context<'_, B>) {
    let file = GgufFile::open(&fixtures().join("flux.gguf")).unwrap();
    let error = flux_error(ctx, &Reference::read("flux"), &OriginalWeights::new(&file));
    println!("gguf: {error:e}");
    // The error of 8-bit weights.
    assert!(error < tolerance_under_test(3e-2), "{error}");
}

fn autoencoders_with_many_channels_match_diffusers<B: Convolutions>(ctx: &Context<'_, B>) {
    for name in ["sd3", "flux"] {
        let reference = Reference::read(name);
        let folder = reference.part("vae");
        let source = DiffusersWeights::new(&folder);
        let loader = Loader::new(&source, &**ctx);
        let config = VaeConfig { scaling: 1., shift: 0., ..VaeConfig::read(&folder.config).unwrap() };
        let vae = Vae::load(&loader, config).unwrap();
        loader.finish().unwrap();
        let decoded = vae.decode(ctx, reference.raster("vae.latent"), false).unwrap();
        let error = far(&decoded.values, &reference.raster("vae.decoded").values);
        assert!(error < tolerance_under_test(1e-5), "{name}: {error}");
        let posterior = vae.encode(ctx, reference.raster("vae.picture"), false).unwrap();
        assert!(far(&posterior.mean, &reference.raster("vae.mean").values) < tolerance_under_test(1e-5), "{name}");
    }
}

#[test]
fn unsupported_config_fields_are_named() {
    use serde_json::json;
    let t5 = |config: Value| T5Config::read(&config, "text_encoder_3/").unwrap_err().to_string();
    let mmdit = |config: Value| MmditConfig::read(&config).unwrap_err().to_string();
    let flux = |config: Value| FluxConfig::read(&config).unwrap_err().to_string();
    let cases = [
        (t5(json!({"model_type": "umt5"})), "text_encoder_3/model_type"),
        (t5(json!({"feed_forward_proj": "gated-elu"})), "relu, gated-gelu, gated-silu"),
        (t5(json!({"relative_attention_num_buckets": 3})), "relative_attention_num_buckets"),
        (t5(json!({"relative_attention_max_distance": 8})), "relative_attention_max_distance"),
        (t5(json!({"d_kv": 0})), "d_kv"),
        (mmdit(json!({"qk_norm": "layer_norm"})), "transformer/qk_norm"),
        (mmdit(json!({"num_layers": 2, "dual_attention_layers": [2]})), "transformer/dual_attention_layers"),
        (mmdit(json!({"caption_projection_dim": 24})), "transformer/caption_projection_dim"),
        (mmdit(json!({"patch_size": 1e9})), "transformer/patch_size"),
        (flux(json!({"patch_size": 2})), "transformer/patch_size"),
        (flux(json!({"axes_dims_rope": [16, 56, 57]})), "transformer/axes_dims_rope"),
        (flux(json!({"axes_dims_rope": [16, 56]})), "transformer/axes_dims_rope"),
        (flux(json!({"guidance_embeds": "yes"})), "transformer/guidance_embeds"),
    ];
    for (message, named) in cases {
        assert!(message.contains(named), "{message} does not name {named}");
    }
    assert_eq!(FluxConfig::read(&json!({"guidance_embeds": true})).unwrap(), FluxConfig::flux1(true));
}
