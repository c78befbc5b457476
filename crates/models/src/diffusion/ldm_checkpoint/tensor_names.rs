//! Converts the layer names of diffusers to those of the original code.

use crate::diffusion::unet::UnetConfig;

type Table = &'static [(&'static str, &'static str)];

const UNET: Table = &[
    ("time_embedding.linear_1", "time_embed.0"),
    ("time_embedding.linear_2", "time_embed.2"),
    ("add_embedding.linear_1", "label_emb.0.0"),
    ("add_embedding.linear_2", "label_emb.0.2"),
    ("conv_in", "input_blocks.0.0"),
    ("conv_norm_out", "out.0"),
    ("conv_out", "out.2"),
];

const UNET_RESNET: Table = &[
    ("norm1", "in_layers.0"),
    ("conv1", "in_layers.2"),
    ("time_emb_proj", "emb_layers.1"),
    ("norm2", "out_layers.0"),
    ("conv2", "out_layers.3"),
    ("conv_shortcut", "skip_connection"),
];

const VAE_RESNET: Table = &[
    ("norm1", "norm1"),
    ("conv1", "conv1"),
    ("norm2", "norm2"),
    ("conv2", "conv2"),
    ("conv_shortcut", "nin_shortcut"),
];

const VAE_ATTENTION: Table =
    &[("group_norm", "norm"), ("to_q", "q"), ("to_k", "k"), ("to_v", "v"), ("to_out.0", "proj_out")];

const OPEN_CLIP: Table = &[("embeddings.token_embedding", "token_embedding"), ("final_layer_norm", "ln_final")];

const OPEN_CLIP_LAYER: Table = &[
    ("layer_norm1", "ln_1"),
    ("layer_norm2", "ln_2"),
    ("self_attn.out_proj", "attn.out_proj"),
    ("mlp.fc1", "mlp.c_fc"),
    ("mlp.fc2", "mlp.c_proj"),
];

fn find(table: Table, stem: &str) -> Option<&'static str> {
    table.iter().find(|(diffusers, _)| *diffusers == stem).map(|(_, original)| *original)
}

/// Splits `1.conv1` into index and rest.
fn split_index(text: &str) -> Option<(usize, &str)> {
    let (index, rest) = text.split_once('.')?;
    Some((index.parse().ok()?, rest))
}

/// Splits `resnets.1.conv1` into kind, index and rest.
fn split_layer(text: &str) -> Option<(&str, usize, &str)> {
    let (kind, rest) = text.split_once('.')?;
    let (index, rest) = split_index(rest)?;
    Some((kind, index, rest))
}

/// The original name of a UNet layer.
pub fn unet_name(stem: &str, config: &UnetConfig) -> Option<String> {
    if let Some(name) = find(UNET, stem) {
        return Some(name.to_owned());
    }
    let (path, rest) = stem.split_once("_block")?;
    if path == "mid" {
        return match split_layer(rest.strip_prefix('.')?)? {
            ("attentions", 0, rest) => Some(format!("middle_block.1.{rest}")),
            ("resnets", index, rest) => Some(format!("middle_block.{}.{}", 2 * index, find(UNET_RESNET, rest)?)),
            _ => None,
        };
    }
    let (block, rest) = split_index(rest.strip_prefix("s.")?)?;
    let (kind, index, rest) = split_layer(rest)?;
    let resnets = |block: usize| config.levels.get(block).map(|level| level.resnets);
    let last_level = config.levels.len().checked_sub(1)?;
    // `resampler`: the original name of a downsampler or an upsampler.
    let layer_name = |resampler: &str| match kind {
        "resnets" => Some(format!("0.{}", find(UNET_RESNET, rest)?)),
        "attentions" => Some(format!("1.{rest}")),
        _ => Some(resampler.to_owned()),
    };
    match path {
        // `input_blocks` lists the resnets of each down block and then its downsampler.
        "down" => {
            let previous: usize = (0..block).filter_map(resnets).map(|resnets| resnets + 1).sum();
            let row = 1 + previous + if kind == "downsamplers" { resnets(block)? } else { index };
            Some(format!("input_blocks.{row}.{}", layer_name("0.op")?))
        }
        // `output_blocks` holds the upsampler in the row of the last resnet of an up block, after its transformer.
        "up" => {
            let resnets = |block: usize| last_level.checked_sub(block).and_then(resnets);
            let previous: usize = (0..block).filter_map(resnets).map(|resnets| resnets + 1).sum();
            let row = previous + if kind == "upsamplers" { resnets(block)? } else { index };
            let upsampler = if config.up_attention.get(block).is_some_and(|attention| *attention) { 2 } else { 1 };
            Some(format!("output_blocks.{row}.{}", layer_name(&format!("{upsampler}.conv"))?))
        }
        _ => None,
    }
}

/// The original name of an autoencoder layer. `levels`: the number of resolution levels.
pub fn vae_name(stem: &str, levels: usize) -> Option<String> {
    let Some((coder, rest)) = stem.split_once('.') else { return Some(stem.to_owned()) };
    let layer = match rest {
        "conv_in" | "conv_out" => rest.to_owned(),
        "conv_norm_out" => "norm_out".to_owned(),
        _ => match rest.strip_prefix("mid_block.") {
            Some(rest) => match split_layer(rest)? {
                ("attentions", 0, rest) => format!("mid.attn_1.{}", find(VAE_ATTENTION, rest)?),
                ("resnets", index, rest) => format!("mid.block_{}.{}", index + 1, find(VAE_RESNET, rest)?),
                _ => return None,
            },
            None => {
                let (path, rest) = rest.split_once("_blocks.")?;
                let (block, rest) = split_index(rest)?;
                // The original code numbers up blocks from the last to the first.
                let block = if path == "up" { levels.checked_sub(block + 1)? } else { block };
                match split_layer(rest)? {
                    ("resnets", index, rest) => format!("{path}.{block}.block.{index}.{}", find(VAE_RESNET, rest)?),
                    ("downsamplers", 0, "conv") => format!("{path}.{block}.downsample.conv"),
                    ("upsamplers", 0, "conv") => format!("{path}.{block}.upsample.conv"),
                    _ => return None,
                }
            }
        },
    };
    Some(format!("{coder}.{layer}"))
}

/// The original name of an OpenCLIP tensor. `suffix`: `weight` or `bias`. Brackets at the end mark the query, key or
/// value projection of a fused tensor (`[0]` to `[2]`), or a transposed tensor (`[T]`).
pub fn open_clip_name(stem: &str, suffix: &str) -> Option<String> {
    match stem {
        "embeddings.position_embedding" => return Some("positional_embedding".to_owned()),
        "text_projection" if suffix == "weight" => return Some("text_projection[T]".to_owned()),
        "text_projection" => return None,
        _ => {}
    }
    if let Some(name) = find(OPEN_CLIP, stem) {
        return Some(format!("{name}.{suffix}"));
    }
    let (layer, rest) = split_index(stem.strip_prefix("encoder.layers.")?)?;
    let qkv = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"].iter().position(|name| *name == rest);
    Some(match qkv {
        Some(index) => format!("transformer.resblocks.{layer}.attn.in_proj_{suffix}[{index}]"),
        None => format!("transformer.resblocks.{layer}.{}.{suffix}", find(OPEN_CLIP_LAYER, rest)?),
    })
}
