//! The names of tensors in checkpoints, and the stems by which the code names them.

use crate::weights::Role;

/// How a checkpoint names its tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Naming {
    /// As transformers, with `model.` before each name or without it.
    HuggingFace { prefix: &'static str },
    /// As openai-whisper; `ggml-*.bin` files have these names.
    OpenAi,
}

type Table = &'static [(&'static str, &'static str)];

const HUGGING_FACE_MODEL: Table = &[
    ("encoder.conv1", "encoder.conv1"),
    ("encoder.conv2", "encoder.conv2"),
    ("encoder.positions", "encoder.embed_positions"),
    ("encoder.norm", "encoder.layer_norm"),
    ("decoder.token_embd", "decoder.embed_tokens"),
    ("decoder.positions", "decoder.embed_positions"),
    ("decoder.norm", "decoder.layer_norm"),
];

const HUGGING_FACE_LAYER: Table = &[
    ("attn_norm", "self_attn_layer_norm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.out_proj"),
    ("cross_attn_norm", "encoder_attn_layer_norm"),
    ("cross_attn_q", "encoder_attn.q_proj"),
    ("cross_attn_k", "encoder_attn.k_proj"),
    ("cross_attn_v", "encoder_attn.v_proj"),
    ("cross_attn_output", "encoder_attn.out_proj"),
    ("ffn_norm", "final_layer_norm"),
    ("ffn_up", "fc1"),
    ("ffn_down", "fc2"),
];

const OPENAI_MODEL: Table = &[
    ("encoder.conv1", "encoder.conv1"),
    ("encoder.conv2", "encoder.conv2"),
    ("encoder.norm", "encoder.ln_post"),
    ("decoder.token_embd", "decoder.token_embedding"),
    ("decoder.norm", "decoder.ln"),
];

/// OpenAI's names of parameters that do not end in `.weight`.
const OPENAI_PARAMETERS: Table =
    &[("encoder.positions", "encoder.positional_embedding"), ("decoder.positions", "decoder.positional_embedding")];

const OPENAI_LAYER: Table = &[
    ("attn_norm", "attn_ln"),
    ("attn_q", "attn.query"),
    ("attn_k", "attn.key"),
    ("attn_v", "attn.value"),
    ("attn_output", "attn.out"),
    ("cross_attn_norm", "cross_attn_ln"),
    ("cross_attn_q", "cross_attn.query"),
    ("cross_attn_k", "cross_attn.key"),
    ("cross_attn_v", "cross_attn.value"),
    ("cross_attn_output", "cross_attn.out"),
    ("ffn_norm", "mlp_ln"),
    ("ffn_up", "mlp.0"),
    ("ffn_down", "mlp.2"),
];

fn find(table: Table, stem: &str) -> Option<&'static str> {
    table.iter().find(|(own, _)| *own == stem).map(|(_, name)| *name)
}

impl Naming {
    /// The name of a tensor. `stem` is a name of the tables, or `encoder.blk.N.` or `decoder.blk.N.` and one.
    pub fn name(self, stem: &str, role: Role) -> Option<String> {
        let ending = if role == Role::Weight { "weight" } else { "bias" };
        let (model, layer, layers, prefix) = match self {
            Self::HuggingFace { prefix } => (HUGGING_FACE_MODEL, HUGGING_FACE_LAYER, "layers", prefix),
            Self::OpenAi => (OPENAI_MODEL, OPENAI_LAYER, "blocks", ""),
        };
        if let Some((network, rest)) = stem.split_once(".blk.") {
            let (index, stem) = rest.split_once('.')?;
            return Some(format!("{prefix}{network}.{layers}.{index}.{}.{ending}", find(layer, stem)?));
        }
        match (self, find(OPENAI_PARAMETERS, stem)) {
            (Self::OpenAi, Some(name)) => (role == Role::Weight).then(|| name.to_owned()),
            _ => Some(format!("{prefix}{}.{ending}", find(model, stem)?)),
        }
    }

    /// Whether a tensor repeats another one, or only training needs it.
    pub fn is_unused(name: &str) -> bool {
        name == "proj_out.weight"
    }
}
