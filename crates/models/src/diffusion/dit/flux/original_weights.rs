//! FLUX weights with their original tensor names, which GGUF files also use.
//!
//! Some original matrices fuse several matrices of diffusers, and the final norm stores its shift before its scale. The
//! model requests those by stems that do not exist in diffusers' files.

use crate::backend::DType;

use crate::error::ModelError;
use crate::weights::{Role, Rows, Weights};

/// The stem of the final norm's modulation, with the shift first.
pub(super) const FINAL_NORM_SHIFT_FIRST: &str = "norm_out.shift_first";

/// The prefix of tensor names in some files.
const PREFIX: &str = "model.diffusion_model.";

/// Layers outside blocks.
const GLOBAL_LAYERS: &[(&str, &str)] = &[
    ("x_embedder", "img_in"),
    ("context_embedder", "txt_in"),
    ("time_text_embed.timestep_embedder.linear_1", "time_in.in_layer"),
    ("time_text_embed.timestep_embedder.linear_2", "time_in.out_layer"),
    ("time_text_embed.guidance_embedder.linear_1", "guidance_in.in_layer"),
    ("time_text_embed.guidance_embedder.linear_2", "guidance_in.out_layer"),
    ("time_text_embed.text_embedder.linear_1", "vector_in.in_layer"),
    ("time_text_embed.text_embedder.linear_2", "vector_in.out_layer"),
    (FINAL_NORM_SHIFT_FIRST, "final_layer.adaLN_modulation.1"),
    ("proj_out", "final_layer.linear"),
];

/// Layers in `transformer_blocks.N.` (diffusers) and `double_blocks.N.` (original).
const DOUBLE_BLOCK_LAYERS: &[(&str, &str)] = &[
    ("norm1.linear", "img_mod.lin"),
    ("norm1_context.linear", "txt_mod.lin"),
    ("attn.to_qkv", "img_attn.qkv"),
    ("attn.to_added_qkv", "txt_attn.qkv"),
    ("attn.norm_q", "img_attn.norm.query_norm"),
    ("attn.norm_k", "img_attn.norm.key_norm"),
    ("attn.norm_added_q", "txt_attn.norm.query_norm"),
    ("attn.norm_added_k", "txt_attn.norm.key_norm"),
    ("attn.to_out.0", "img_attn.proj"),
    ("attn.to_add_out", "txt_attn.proj"),
    ("ff.net.0.proj", "img_mlp.0"),
    ("ff.net.2", "img_mlp.2"),
    ("ff_context.net.0.proj", "txt_mlp.0"),
    ("ff_context.net.2", "txt_mlp.2"),
];

/// Layers in `single_transformer_blocks.N.` (diffusers) and `single_blocks.N.` (original).
const SINGLE_BLOCK_LAYERS: &[(&str, &str)] = &[
    ("norm.linear", "modulation.lin"),
    ("linear1", "linear1"),
    ("attn.norm_q", "norm.query_norm"),
    ("attn.norm_k", "norm.key_norm"),
    ("proj_out", "linear2"),
];

/// A checkpoint with the original tensor names.
pub struct OriginalWeights<'a> {
    source: &'a dyn Weights,
    prefix: &'static str,
}

impl<'a> OriginalWeights<'a> {
    pub fn new(source: &'a dyn Weights) -> Self {
        let prefixed = source.names().iter().any(|name| name.starts_with(PREFIX));
        Self { source, prefix: if prefixed { PREFIX } else { "" } }
    }
}

fn find(table: &[(&str, &'static str)], stem: &str) -> Option<&'static str> {
    table.iter().find(|(diffusers, _)| *diffusers == stem).map(|(_, original)| *original)
}

/// The original stem of a layer.
fn original_stem(stem: &str) -> Option<String> {
    let block = |prefix: &str, original_prefix: &str, table: &[(&str, &'static str)]| {
        let (index, rest) = stem.strip_prefix(prefix)?.split_once('.')?;
        Some(format!("{original_prefix}{index}.{}", find(table, rest)?))
    };
    let global = || find(GLOBAL_LAYERS, stem).map(str::to_owned);
    let double = || block("transformer_blocks.", "double_blocks.", DOUBLE_BLOCK_LAYERS);
    global().or_else(double).or_else(|| block("single_transformer_blocks.", "single_blocks.", SINGLE_BLOCK_LAYERS))
}

impl Weights for OriginalWeights<'_> {
    fn name(&self, stem: &str, role: Role) -> Option<String> {
        let name = original_stem(stem)?;
        let suffix = match role {
            Role::Bias => "bias",
            Role::Weight if name.ends_with("_norm") => "scale",
            Role::Weight => "weight",
        };
        Some(format!("{}{name}.{suffix}", self.prefix))
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.source.shape(name)
    }

    fn dtype(&self, name: &str) -> Option<DType> {
        self.source.dtype(name)
    }

    fn rows(&self, name: &str, first: usize, count: usize) -> Result<Rows<'_>, ModelError> {
        self.source.rows(name, first, count)
    }

    fn names(&self) -> Vec<String> {
        self.source.names()
    }
}
