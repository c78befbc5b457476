//! Names in the original code for layers that diffusers names differently.

use crate::models::diffusion::unet::UnetConfig;

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
    table.iter().find(|(ours, _)| *ours == stem).map(|(_, theirs)| *theirs)
}

/// A number and the rest after it.
fn number(text: &str) -> Option<(usize, &str)> {
    let (number, rest) = text.split_once('.')?;
    Some((number.parse().ok()?, rest))
}

/// Splits `resnets.1.conv1` into kind, index and rest.
fn member(text: &str) -> Option<(&str, usize, &str)> {
    let (kind, rest) = text.split_once('.')?;
    let (at, rest) = number(rest)?;
    Some((kind, at, rest))
}

/// The original name of a UNet layer.
pub fn unet(stem: &str, config: &UnetConfig) -> Option<String> {
    if let Some(name) = find(UNET, stem) {
        return Some(name.to_owned());
    }
    let (way, rest) = stem.split_once("_block")?;
    if way == "mid" {
        return match member(rest.strip_prefix('.')?)? {
            ("attentions", 0, rest) => Some(format!("middle_block.1.{rest}")),
            ("resnets", at, rest) => Some(format!("middle_block.{}.{}", 2 * at, find(UNET_RESNET, rest)?)),
            _ => None,
        };
    }
    let (block, rest) = number(rest.strip_prefix("s.")?)?;
    let (kind, at, rest) = member(rest)?;
    let resnets = |block: usize| config.levels.get(block).map(|level| level.resnets);
    let last = config.levels.len().checked_sub(1)?;
    let place = |sampled: &str| match kind {
        "resnets" => Some(format!("0.{}", find(UNET_RESNET, rest)?)),
        "attentions" => Some(format!("1.{rest}")),
        _ => Some(sampled.to_owned()),
    };
    match way {
        // The last row of each down block is the downsampler.
        "down" => {
            let before: usize = (0..block).filter_map(resnets).map(|resnets| resnets + 1).sum();
            let row = 1 + before + if kind == "downsamplers" { resnets(block)? } else { at };
            Some(format!("input_blocks.{row}.{}", place("0.op")?))
        }
        // The upsampler is in the row of a block's last resnet, after its transformer.
        "up" => {
            let of = |block: usize| last.checked_sub(block).and_then(resnets);
            let before: usize = (0..block).filter_map(of).map(|resnets| resnets + 1).sum();
            let row = before + if kind == "upsamplers" { of(block)? } else { at };
            let behind = if config.up_attends.get(block).is_some_and(|attends| *attends) { 2 } else { 1 };
            Some(format!("output_blocks.{row}.{}", place(&format!("{behind}.conv"))?))
        }
        _ => None,
    }
}

/// The original name of an autoencoder layer; `sizes`: number of image sizes.
pub fn vae(stem: &str, sizes: usize) -> Option<String> {
    let Some((side, rest)) = stem.split_once('.') else { return Some(stem.to_owned()) };
    let inner = match rest {
        "conv_in" | "conv_out" => rest.to_owned(),
        "conv_norm_out" => "norm_out".to_owned(),
        _ => match rest.strip_prefix("mid_block.") {
            Some(rest) => match member(rest)? {
                ("attentions", 0, rest) => format!("mid.attn_1.{}", find(VAE_ATTENTION, rest)?),
                ("resnets", at, rest) => format!("mid.block_{}.{}", at + 1, find(VAE_RESNET, rest)?),
                _ => return None,
            },
            None => {
                let (way, rest) = rest.split_once("_blocks.")?;
                let (block, rest) = number(rest)?;
                // Up blocks are numbered from the end.
                let block = if way == "up" { sizes.checked_sub(block + 1)? } else { block };
                match member(rest)? {
                    ("resnets", at, rest) => format!("{way}.{block}.block.{at}.{}", find(VAE_RESNET, rest)?),
                    ("downsamplers", 0, "conv") => format!("{way}.{block}.downsample.conv"),
                    ("upsamplers", 0, "conv") => format!("{way}.{block}.upsample.conv"),
                    _ => return None,
                }
            }
        },
    };
    Some(format!("{side}.{inner}"))
}

/// The original name of an OpenCLIP layer; `ending`: `weight` or `bias`. A suffix in brackets marks a third of a
/// tensor, or a transposed one.
pub fn open_clip(stem: &str, ending: &str) -> Option<String> {
    match stem {
        "embeddings.position_embedding" => return Some("positional_embedding".to_owned()),
        "text_projection" if ending == "weight" => return Some("text_projection[T]".to_owned()),
        "text_projection" => return None,
        _ => {}
    }
    if let Some(name) = find(OPEN_CLIP, stem) {
        return Some(format!("{name}.{ending}"));
    }
    let (layer, part) = number(stem.strip_prefix("encoder.layers.")?)?;
    let third = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"].iter().position(|one| *one == part);
    Some(match third {
        Some(third) => format!("transformer.resblocks.{layer}.attn.in_proj_{ending}[{third}]"),
        None => format!("transformer.resblocks.{layer}.{}.{ending}", find(OPEN_CLIP_LAYER, part)?),
    })
}
