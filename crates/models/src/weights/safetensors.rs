//! Hugging Face folders as checkpoints, with tables of their names for a decoder's stems.

use serde_json::Value;

use crate::backend::DType;

use super::stacked_experts::StackedExperts;
use super::tensor_rows::{Storage, StoredTensor};
use super::{DecoderCheckpoint, Role, Rows, Weights};
use crate::decoder_config::{self, DecoderConfig, LayerConfig};
use crate::decoder_family::{DecoderFamily, FAMILIES, RecurrentMixer};
use crate::error::ModelError;
use crate::gguf::StoredType;
use crate::safetensors::{ModelFolder, OLD_TEXT_PREFIX};

/// Names outside of layers, except for the output projection.
const MODEL_NAMES: &[(&str, &str)] = &[("token_embd", "embed_tokens"), ("output_norm", "norm")];

/// Names inside a layer, after `blk.N.` and `layers.N.`.
const LAYER_NAMES: &[(&str, &str)] = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_qkv", "self_attn.qkv_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_gate_up", "mlp.gate_up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
    ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
    ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
];

/// Norms of families without and with norms of outputs.
const INPUT_NORMS: &[(&str, &str)] = &[("ffn_norm", "post_attention_layernorm")];
const OUTPUT_NORMS: &[(&str, &str)] = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

/// Tensors of one expert, and tensors that hold all experts, whose names do not end in `.weight`.
const EXPERT_NAMES: &[(&str, &str)] = &[("ffn_gate", "gate_proj"), ("ffn_up", "up_proj"), ("ffn_down", "down_proj")];
const STACKED_EXPERT_NAMES: &[(&str, &str)] =
    &[("ffn_gate_up_exps", "gate_up_proj"), ("ffn_up_exps", "up_proj"), ("ffn_down_exps", "down_proj")];
/// The beginning of the names of tensors of layers for multi-token prediction, and the names of the tensors that only the first of these
/// layers has.
const MTP_PREFIX: &str = "mtp.";
const MTP_NAMES: &[(&str, &str)] = &[
    ("nextn.eh_proj", "fc"),
    ("nextn.enorm", "pre_fc_norm_embedding"),
    ("nextn.hnorm", "pre_fc_norm_hidden"),
    ("nextn.shared_head_norm", "norm"),
    ("nextn.embed_tokens", "embed_tokens"),
];
/// The beginnings of the names of tensors of a multimodal model that its part for texts does not need.
const TOWER_PREFIXES: &[&str] = &[
    "model.visual.",
    "model.vision_tower.",
    "model.audio_tower.",
    "model.embed_vision.",
    "model.embed_audio.",
    "model.vision_embedder.",
    "model.multi_modal_projector.",
    "vision_tower.",
    "multi_modal_projector.",
];
/// The names of an expert's tensors in LFM2, and before transformers 5 in Mixtral.
const NUMBERED_EXPERT_NAMES: &[(&str, &str)] = &[("ffn_gate", "w1"), ("ffn_up", "w3"), ("ffn_down", "w2")];

fn find(table: &[(&'static str, &'static str)], stem: &str) -> Option<&'static str> {
    table.iter().find(|(own, _)| *own == stem).map(|(_, name)| *name)
}

/// The stems of tensors of layers that are separate only in GGUF files.
const GGUF_STEMS: &[(&str, &str)] = &[("ffn_gate_exps", ""), ("attn_k_b", ""), ("attn_v_b", "")];

/// The names of the tensors of layers in all families: the stems of GGUF, and their names in Hugging Face's files. Some have stems only.
pub fn layer_names() -> impl Iterator<Item = (&'static str, &'static str)> {
    let tables = [LAYER_NAMES, INPUT_NORMS, OUTPUT_NORMS, STACKED_EXPERT_NAMES, GGUF_STEMS];
    let of_families = FAMILIES.iter().flat_map(|family| family.tensor_names.iter().chain(family.bare_names));
    tables.into_iter().flatten().chain(of_families).copied()
}

impl ModelFolder {
    /// The beginning of the names of a layer's tensors. Layers for multi-token prediction follow the others.
    fn layer_prefix(&self, family: &DecoderFamily, layer: &str) -> String {
        let count = self.config.get("num_hidden_layers").and_then(Value::as_u64).filter(|_| family.mtp);
        match count.and_then(|count| layer.parse::<u64>().ok()?.checked_sub(count)) {
            Some(layer) => format!("{MTP_PREFIX}layers.{layer}"),
            None => format!("{}layers.{layer}", self.prefix()),
        }
    }

    /// The tensor of this name, if the family has experts in the order of gpt-oss, and it is one of them.
    fn transposed_experts<'a, 'n>(&'a self, name: &'n str) -> Option<StackedExperts<'a, 'n>> {
        let rules = decoder_config::find_family(&self.config)?.experts?;
        rules.transposed.then(|| self.stacked_experts(name))?
    }

    /// The index of the first layer that only drafts. Such layers follow the others under the same names.
    fn first_draft_layer(&self) -> Option<u64> {
        let number = |key: &str| self.config.get(key).and_then(Value::as_u64);
        number("num_nextn_predict_layers").filter(|count| *count > 0)?;
        number("num_hidden_layers")
    }

    fn layer_tensor_name(&self, family: &DecoderFamily, layer: &str, stem: &str, ending: &str) -> Option<String> {
        if let Some(name) = find(MTP_NAMES, stem) {
            return family.mtp.then(|| format!("{MTP_PREFIX}{name}.{ending}"));
        }
        let layer = self.layer_prefix(family, layer);
        if let Some(name) = find(family.bare_names, stem) {
            // Tensors that hold all experts have no biases, if their names are the family's own.
            return (ending == "weight" || !stem.ends_with("_exps")).then(|| format!("{layer}.{name}"));
        }
        if let Some(name) = find(family.tensor_names, stem) {
            return Some(format!("{layer}.{name}.{ending}"));
        }
        let is_mixtral = self.tensor(&format!("{layer}.block_sparse_moe.gate.weight")).is_some();
        if is_mixtral && stem == "ffn_gate_inp" {
            return Some(format!("{layer}.block_sparse_moe.gate.{ending}"));
        }
        let (experts, names) = match family.recurrent {
            _ if is_mixtral => ("block_sparse_moe.experts", NUMBERED_EXPERT_NAMES),
            Some(RecurrentMixer::ShortConv) => ("feed_forward.experts", NUMBERED_EXPERT_NAMES),
            Some(RecurrentMixer::Mamba2) => ("mixer.experts", EXPERT_NAMES),
            _ => ("mlp.experts", EXPERT_NAMES),
        };
        if let Some((suffix, expert)) = stem.split_once('.') {
            return Some(format!("{layer}.{experts}.{expert}.{}.{ending}", find(names, suffix)?));
        }
        if let Some(name) = find(STACKED_EXPERT_NAMES, stem) {
            let ending = if ending == "weight" { "" } else { "_bias" };
            return Some(format!("{layer}.{experts}.{name}{ending}"));
        }
        let norms = if family.norms.is_after() { OUTPUT_NORMS } else { INPUT_NORMS };
        let name = find(norms, stem).or_else(|| find(LAYER_NAMES, stem))?;
        Some(format!("{layer}.{name}.{ending}"))
    }
}

impl DecoderCheckpoint for ModelFolder {
    fn decoder_config(&self) -> Result<DecoderConfig, ModelError> {
        DecoderConfig::from_folder(self)
    }

    fn mtp_layer(&self, config: &DecoderConfig) -> Option<LayerConfig> {
        let family = decoder_config::find_family(&self.config)?;
        let has = |stem: &str| self.name(stem, Role::Weight).is_some_and(|name| self.tensor(&name).is_some());
        config.mtp_layer(family, has)
    }

    /// Leaves out further layers, which are not used.
    fn mtp_names(&self) -> Vec<String> {
        let is_needed = |name: &&str| {
            let own = name.strip_prefix(MTP_PREFIX);
            own.is_some_and(|own| !own.starts_with("layers.") || own.starts_with("layers.0."))
        };
        self.names_without_fp8_scales().filter(is_needed).map(str::to_owned).collect()
    }
}

impl Weights for ModelFolder {
    fn name(&self, stem: &str, role: Role) -> Option<String> {
        let ending = if role == Role::Weight { "weight" } else { "bias" };
        let family = || decoder_config::find_family(&self.config);
        match stem.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
            Some((layer, stem)) => self.layer_tensor_name(family()?, layer, stem, ending),
            None if stem == "output" && self.prefix() == OLD_TEXT_PREFIX => {
                Some(format!("language_model.lm_head.{ending}"))
            }
            None if stem == "output" => Some(format!("lm_head.{ending}")),
            None if stem == "cls.output" => Some(format!("score.{ending}")),
            None => {
                let own = family().and_then(|family| find(family.tensor_names, stem));
                Some(format!("{}{}.{ending}", self.prefix(), own.or_else(|| find(MODEL_NAMES, stem))?))
            }
        }
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        if let Some(experts) = self.transposed_experts(name) {
            return Some(experts.shape());
        }
        match self.tensor(name) {
            Some((info, _)) => Some(info.shape.clone()),
            None => Some(self.mxfp4_tensor(name)?.shape()),
        }
    }

    fn dtype(&self, name: &str) -> Option<DType> {
        match self.tensor(name) {
            Some((info, _)) => info.float().or_else(|| Some(self.fp8_tensor(name)?.dtype())),
            None => self.mxfp4_tensor(name).map(|_| DType::MXFP4),
        }
    }

    fn rows(&self, name: &str, first: usize, count: usize) -> Result<Rows<'_>, ModelError> {
        if let Some(experts) = self.transposed_experts(name) {
            return experts.rows(first, count);
        }
        if let Some(tensor) = self.mxfp4_tensor(name) {
            return tensor.rows(first, count);
        }
        if let Some(tensor) = self.fp8_tensor(name) {
            return tensor.rows(first, count);
        }
        let (info, file) =
            self.tensor(name).ok_or_else(|| ModelError::Checkpoint(format!("the files have no tensor {name}")))?;
        let stored = info.float().map(StoredType::from).ok_or_else(|| {
            ModelError::Checkpoint(format!("tensor {name} has the type {}, which is not supported", info.dtype))
        })?;
        let storage = Storage::File(file);
        StoredTensor { name: &info.name, storage, start: info.start, shape: &info.shape, stored }.rows(first, count)
    }

    fn copied_bytes(&self, name: &str) -> usize {
        self.transposed_experts(name).map_or(0, |experts| experts.copied_bytes())
    }

    /// Leaves out the RoPE frequencies of old exports, which `config.json` describes, vision towers, and layers that only draft.
    /// A matrix whose codes and scales are tensors of their own has one name. Scales of activations are left out, too.
    fn names(&self) -> Vec<String> {
        let family = decoder_config::find_family(&self.config);
        let may_draft = family.is_some_and(|family| family.recurrent.is_some());
        let is_multimodal = self.is_multimodal();
        let is_of_tower = |name: &str| TOWER_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        let (layers, first_draft) = (format!("{}layers.", self.prefix()), self.first_draft_layer());
        // The layers of ERNIE 4.5 that only draft.
        let mtp_prefix = format!("{}mtp_", self.prefix());
        let is_of_draft_layer = |name: &str| {
            let layer = name.strip_prefix(layers.as_str()).and_then(|own| own.split_once('.')?.0.parse::<u64>().ok());
            layer.zip(first_draft).is_some_and(|(layer, first)| layer >= first)
        };
        let is_needed = |name: &&str| {
            !(name.ends_with(".rotary_emb.inv_freq")
                || (may_draft && name.starts_with(MTP_PREFIX))
                || is_of_draft_layer(name)
                || name.starts_with(&mtp_prefix)
                || (is_multimodal && is_of_tower(name)))
        };
        self.names_without_fp8_scales().filter(is_needed).filter_map(|name| self.matrix_name(name)).collect()
    }
}
