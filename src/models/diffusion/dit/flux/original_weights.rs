//! FLUX's tensors under their original names, which GGUF files use, too.
//!
//! Some original matrices hold several of diffusers' matrices, and the last norm stores its shift before its scale. The
//! network requests those by stems that diffusers' files do not have.

use outpost_kernels::DType;

use crate::models::error::ModelError;
use crate::models::weights::{Role, Rows, Weights};

/// The last norm's modulation, with the shift first.
pub(super) const SHIFT_FIRST: &str = "norm_out.shift_first";

/// Prefix of tensor names in some files.
const PREFIX: &str = "model.diffusion_model.";

const OUTSIDE: &[(&str, &str)] = &[
    ("x_embedder", "img_in"),
    ("context_embedder", "txt_in"),
    ("time_text_embed.timestep_embedder.linear_1", "time_in.in_layer"),
    ("time_text_embed.timestep_embedder.linear_2", "time_in.out_layer"),
    ("time_text_embed.guidance_embedder.linear_1", "guidance_in.in_layer"),
    ("time_text_embed.guidance_embedder.linear_2", "guidance_in.out_layer"),
    ("time_text_embed.text_embedder.linear_1", "vector_in.in_layer"),
    ("time_text_embed.text_embedder.linear_2", "vector_in.out_layer"),
    (SHIFT_FIRST, "final_layer.adaLN_modulation.1"),
    ("proj_out", "final_layer.linear"),
];

/// After `transformer_blocks.N.` and `double_blocks.N.`
const DOUBLE: &[(&str, &str)] = &[
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

/// After `single_transformer_blocks.N.` and `single_blocks.N.`
const SINGLE: &[(&str, &str)] = &[
    ("norm.linear", "modulation.lin"),
    ("linear1", "linear1"),
    ("attn.norm_q", "norm.query_norm"),
    ("attn.norm_k", "norm.key_norm"),
    ("proj_out", "linear2"),
];

/// A checkpoint with the original names.
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
    table.iter().find(|(ours, _)| *ours == stem).map(|(_, theirs)| *theirs)
}

fn original(stem: &str) -> Option<String> {
    let block = |before: &str, to: &str, table: &[(&str, &'static str)]| {
        let (index, rest) = stem.strip_prefix(before)?.split_once('.')?;
        Some(format!("{to}{index}.{}", find(table, rest)?))
    };
    let outside = || find(OUTSIDE, stem).map(str::to_owned);
    let double = || block("transformer_blocks.", "double_blocks.", DOUBLE);
    outside().or_else(double).or_else(|| block("single_transformer_blocks.", "single_blocks.", SINGLE))
}

impl Weights for OriginalWeights<'_> {
    fn name(&self, stem: &str, role: Role) -> Option<String> {
        let name = original(stem)?;
        let ending = match role {
            Role::Bias => "bias",
            Role::Weight if name.ends_with("_norm") => "scale",
            Role::Weight => "weight",
        };
        Some(format!("{}{name}.{ending}", self.prefix))
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
