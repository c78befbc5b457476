//! The names of an adapter's tensors, such as `base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight`.

use crate::error::{ModelError, Result};

/// A module of a layer that adapters may target.
#[derive(Debug, PartialEq, Eq)]
pub struct Module {
    /// The prefix of the layer's number in the names of transformers' model.
    layers: &'static str,
    /// Its path in a layer of transformers' model.
    pub path: &'static str,
    /// The stems of its weight after `blk.N.`: the first one that the base has. GGUF files call Phi-3's fused gate and up
    /// projection `ffn_up`, and split those of Granite 4: `ffn_gate+ffn_up`.
    pub stems: &'static [&'static str],
    /// The projections that are fused in it.
    pub projections: usize,
    /// If the base has none of the stems, the stem of the weight that its weight is fused in, and the index of that part.
    /// transformers splits the fused weights of Nomic's checkpoints.
    pub part_of: Option<(&'static str, usize)>,
}

const fn module(
    layers: &'static str,
    path: &'static str,
    stems: &'static [&'static str],
    projections: usize,
) -> Module {
    Module { layers, path, stems, projections, part_of: None }
}

/// A projection of a decoder or of transformers' Nomic, whose weight may be a part of `attn_qkv`.
const fn part(path: &'static str, stem: &'static [&'static str], index: usize) -> Module {
    Module { part_of: Some(("attn_qkv", index)), ..module("layers", path, stem, 1) }
}

/// The modules of Llama and of most other decoders.
pub const LLAMA_MODULES: &[Module] = &[
    part("self_attn.q_proj", &["attn_q"], 0),
    part("self_attn.k_proj", &["attn_k"], 1),
    part("self_attn.v_proj", &["attn_v"], 2),
    module("layers", "self_attn.qkv_proj", &["attn_qkv"], 3),
    module("layers", "self_attn.o_proj", &["attn_output"], 1),
    module("layers", "mlp.gate_proj", &["ffn_gate"], 1),
    module("layers", "mlp.up_proj", &["ffn_up"], 1),
    module("layers", "mlp.gate_up_proj", &["ffn_gate_up", "ffn_up"], 2),
    module("layers", "mlp.down_proj", &["ffn_down"], 1),
];

/// The modules of Gemma 4.
pub const GEMMA4_MODULES: &[Module] = &[
    module("layers", "self_attn.q_proj", &["attn_q"], 1),
    module("layers", "self_attn.k_proj", &["attn_k"], 1),
    module("layers", "self_attn.v_proj", &["attn_v"], 1),
    module("layers", "self_attn.o_proj", &["attn_output"], 1),
    module("layers", "mlp.gate_proj", &["ffn_gate"], 1),
    module("layers", "mlp.up_proj", &["ffn_up"], 1),
    module("layers", "mlp.down_proj", &["ffn_down"], 1),
    module("layers", "per_layer_input_gate", &["inp_gate"], 1),
    module("layers", "per_layer_projection", &["proj"], 1),
];

/// The modules of LFM2.
pub const LFM2_MODULES: &[Module] = &[
    module("layers", "self_attn.q_proj", &["attn_q"], 1),
    module("layers", "self_attn.k_proj", &["attn_k"], 1),
    module("layers", "self_attn.v_proj", &["attn_v"], 1),
    module("layers", "self_attn.out_proj", &["attn_output"], 1),
    module("layers", "conv.in_proj", &["shortconv.in_proj"], 3),
    module("layers", "conv.out_proj", &["shortconv.out_proj"], 1),
    module("layers", "feed_forward.w1", &["ffn_gate"], 1),
    module("layers", "feed_forward.w3", &["ffn_up"], 1),
    module("layers", "feed_forward.w2", &["ffn_down"], 1),
];

/// The modules of Qwen 3.5.
pub const QWEN35_MODULES: &[Module] = &[
    module("layers", "self_attn.q_proj", &["attn_q"], 1),
    module("layers", "self_attn.k_proj", &["attn_k"], 1),
    module("layers", "self_attn.v_proj", &["attn_v"], 1),
    module("layers", "self_attn.o_proj", &["attn_output"], 1),
    module("layers", "linear_attn.in_proj_qkv", &["attn_qkv"], 1),
    module("layers", "linear_attn.in_proj_z", &["attn_gate"], 1),
    module("layers", "linear_attn.in_proj_a", &["ssm_alpha"], 1),
    module("layers", "linear_attn.in_proj_b", &["ssm_beta"], 1),
    module("layers", "linear_attn.out_proj", &["ssm_out"], 1),
    module("layers", "mlp.gate_proj", &["ffn_gate"], 1),
    module("layers", "mlp.up_proj", &["ffn_up"], 1),
    module("layers", "mlp.down_proj", &["ffn_down"], 1),
    module("layers", "mlp.shared_expert.gate_proj", &["ffn_gate_shexp"], 1),
    module("layers", "mlp.shared_expert.up_proj", &["ffn_up_shexp"], 1),
    module("layers", "mlp.shared_expert.down_proj", &["ffn_down_shexp"], 1),
];

/// The modules of Qwen3-Next. With transformers 5, peft takes those of its feed-forward networks for experts.
pub const QWEN3_NEXT_MODULES: &[Module] = &[
    module("layers", "self_attn.q_proj", &["attn_q"], 1),
    module("layers", "self_attn.k_proj", &["attn_k"], 1),
    module("layers", "self_attn.v_proj", &["attn_v"], 1),
    module("layers", "self_attn.o_proj", &["attn_output"], 1),
    module("layers", "linear_attn.out_proj", &["ssm_out"], 1),
];

/// The modules of Granite 4.
pub const GRANITE_HYBRID_MODULES: &[Module] = &[
    module("layers", "self_attn.q_proj", &["attn_q"], 1),
    module("layers", "self_attn.k_proj", &["attn_k"], 1),
    module("layers", "self_attn.v_proj", &["attn_v"], 1),
    module("layers", "self_attn.o_proj", &["attn_output"], 1),
    module("layers", "mamba.in_proj", &["ssm_in"], 3),
    module("layers", "mamba.out_proj", &["ssm_out"], 1),
    module(
        "layers",
        "shared_mlp.input_linear",
        &["ffn_gate_up", "ffn_gate_up_shexp", "ffn_gate+ffn_up", "ffn_gate_shexp+ffn_up_shexp"],
        2,
    ),
    module("layers", "shared_mlp.output_linear", &["ffn_down", "ffn_down_shexp"], 1),
];

/// The modules of Nemotron-H.
pub const NEMOTRON_MODULES: &[Module] = &[
    module("layers", "mixer.q_proj", &["attn_q"], 1),
    module("layers", "mixer.k_proj", &["attn_k"], 1),
    module("layers", "mixer.v_proj", &["attn_v"], 1),
    module("layers", "mixer.o_proj", &["attn_output"], 1),
    module("layers", "mixer.in_proj", &["ssm_in"], 3),
    module("layers", "mixer.out_proj", &["ssm_out"], 1),
    module("layers", "mixer.up_proj", &["ffn_up"], 1),
    module("layers", "mixer.down_proj", &["ffn_down"], 1),
    module("layers", "mixer.shared_experts.up_proj", &["ffn_up_shexp"], 1),
    module("layers", "mixer.shared_experts.down_proj", &["ffn_down_shexp"], 1),
];

/// The modules of latent attention whose projections are not split, and of feed-forward networks.
pub const LATENT_MODULES: &[Module] = &[
    module("layers", "self_attn.q_a_proj", &["attn_q_a"], 1),
    module("layers", "self_attn.o_proj", &["attn_output"], 1),
    module("layers", "mlp.gate_proj", &["ffn_gate"], 1),
    module("layers", "mlp.up_proj", &["ffn_up"], 1),
    module("layers", "mlp.down_proj", &["ffn_down"], 1),
    module("layers", "mlp.shared_experts.gate_proj", &["ffn_gate_shexp"], 1),
    module("layers", "mlp.shared_experts.up_proj", &["ffn_up_shexp"], 1),
    module("layers", "mlp.shared_experts.down_proj", &["ffn_down_shexp"], 1),
];

/// The modules of attention and feed-forward networks, and of experts that compute every token.
pub const SHARED_EXPERT_MODULES: &[Module] = &[
    module("layers", "self_attn.q_proj", &["attn_q"], 1),
    module("layers", "self_attn.k_proj", &["attn_k"], 1),
    module("layers", "self_attn.v_proj", &["attn_v"], 1),
    module("layers", "self_attn.o_proj", &["attn_output"], 1),
    module("layers", "mlp.gate_proj", &["ffn_gate"], 1),
    module("layers", "mlp.up_proj", &["ffn_up"], 1),
    module("layers", "mlp.down_proj", &["ffn_down"], 1),
    module("layers", "mlp.shared_experts.gate_proj", &["ffn_gate_shexp"], 1),
    module("layers", "mlp.shared_experts.up_proj", &["ffn_up_shexp"], 1),
    module("layers", "mlp.shared_experts.down_proj", &["ffn_down_shexp"], 1),
];

/// The modules of Hunyuan with experts.
pub const HUNYUAN_MOE_MODULES: &[Module] = &[
    module("layers", "self_attn.q_proj", &["attn_q"], 1),
    module("layers", "self_attn.k_proj", &["attn_k"], 1),
    module("layers", "self_attn.v_proj", &["attn_v"], 1),
    module("layers", "self_attn.o_proj", &["attn_output"], 1),
    module("layers", "mlp.shared_mlp.gate_proj", &["ffn_gate_shexp"], 1),
    module("layers", "mlp.shared_mlp.up_proj", &["ffn_up_shexp"], 1),
    module("layers", "mlp.shared_mlp.down_proj", &["ffn_down_shexp"], 1),
];

/// The modules of all decoders. Some have several entries.
fn decoder_modules() -> impl Iterator<Item = &'static Module> {
    let of_decoders = [
        LLAMA_MODULES,
        GEMMA4_MODULES,
        LFM2_MODULES,
        QWEN35_MODULES,
        GRANITE_HYBRID_MODULES,
        NEMOTRON_MODULES,
        LATENT_MODULES,
        SHARED_EXPERT_MODULES,
        HUNYUAN_MOE_MODULES,
    ];
    of_decoders.into_iter().flatten()
}

/// The modules of encoders: BERT and RoBERTa, ModernBERT, and Nomic in its own code. In transformers, Nomic has the names of
/// a decoder.
const ENCODER_MODULES: &[Module] = &[
    module("encoder.layer", "attention.self.query", &["attn_q"], 1),
    module("encoder.layer", "attention.self.key", &["attn_k"], 1),
    module("encoder.layer", "attention.self.value", &["attn_v"], 1),
    module("encoder.layer", "attention.output.dense", &["attn_output"], 1),
    module("encoder.layer", "intermediate.dense", &["ffn_up"], 1),
    module("encoder.layer", "output.dense", &["ffn_down"], 1),
    module("layers", "attn.Wqkv", &["attn_qkv"], 3),
    module("layers", "attn.Wo", &["attn_output"], 1),
    module("layers", "mlp.Wi", &["ffn_gate_up"], 2),
    module("layers", "mlp.Wo", &["ffn_down"], 1),
    module("encoder.layers", "attn.Wqkv", &["attn_qkv"], 3),
    module("encoder.layers", "attn.out_proj", &["attn_output"], 1),
    module("encoder.layers", "mlp.fc11", &["ffn_up"], 1),
    module("encoder.layers", "mlp.fc12", &["ffn_gate"], 1),
    module("encoder.layers", "mlp.fc2", &["ffn_down"], 1),
];

/// The module of a decoder's weight, by the end of its stem and the number of projections that are fused in it.
pub fn find_module(modules: &'static [Module], projection: &str, projections: usize) -> Option<&'static Module> {
    modules.iter().find(|module| module.stems.contains(&projection) && module.projections == projections)
}

/// The ends of the stems of a decoder's weights that a module's name means, such as `q_proj`. It may mean several modules.
pub fn projections_of(modules: &'static [Module], name: &str) -> Vec<&'static str> {
    let is_named = |module: &&Module| module.path.rsplit('.').next() == Some(name);
    modules.iter().filter(is_named).flat_map(|module| module.stems).copied().collect()
}

/// The role of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Down,
    Up,
}

const ROLES: &[(&str, Role)] = &[
    (".lora_A.weight", Role::Down),
    (".lora_B.weight", Role::Up),
    (".lora_A.default.weight", Role::Down),
    (".lora_B.default.weight", Role::Up),
];

/// The prefix of module paths.
const PREFIX: &str = "base_model.model.";

/// The attributes of a model that hold its network. A model without a head is the network itself.
const NETWORKS: &[&str] = &["model.language_model.", "model.", "backbone.", "bert.", "roberta."];

/// Tensors that are not supported, recognised by parts of their names, and what they belong to.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("lora_magnitude_vector", "DoRA"),
    ("lora_embedding_", "LoRA of the embedding"),
    ("embed_tokens", "training of the embedding"),
    ("lm_head", "training of the output projection"),
    (".experts.", "LoRA of experts"),
    (".mlp.gate.", "LoRA of a router"),
    (".router.", "LoRA of a router"),
    ("per_layer_model_projection", "LoRA of the projection to per-layer embeddings"),
    (".feed_forward.gate.", "LoRA of a router"),
    (".mixer.gate.", "LoRA of a router"),
    (".shared_expert_gate.", "LoRA of the gate of a shared expert"),
    (".in_proj_qkvz.", "LoRA of the fused projections of Qwen3-Next"),
    (".q_b_proj.", "LoRA of the projections of latent vectors"),
    (".kv_a_proj_with_mqa.", "LoRA of the projections of latent vectors"),
    (".kv_b_proj.", "LoRA of the projections of latent vectors"),
    (".in_proj_ba.", "LoRA of the fused projections of Qwen3-Next"),
    ("block_sparse_moe.", "LoRA of experts or their router"),
    ("modules_to_save", "modules_to_save"),
    ("model.classifier.", "training of a classification head"),
    ("model.score.", "training of a classification head"),
    (".pooler.", "LoRA of the pooler"),
    (".embeddings.", "training of embeddings"),
    (".bias", "training of biases"),
];

/// The parsed name of a tensor.
#[derive(Debug, PartialEq, Eq)]
pub struct ParsedName<'a> {
    pub layer: usize,
    pub module: &'static Module,
    pub role: Role,
    /// The path of the module in the whole model: `model.layers.0.self_attn.q_proj`.
    pub path: &'a str,
}

/// Whether a tensor is for the pooler of a model without a head. Embeddings are not computed with it.
pub fn is_unused(name: &str) -> bool {
    name.strip_prefix(PREFIX).is_some_and(|path| path.starts_with("pooler."))
}

/// The layer, the module and the role of a tensor.
///
/// # Errors
/// If the tensor does not belong to an adapter that is supported.
pub fn parse(name: &str) -> Result<ParsedName<'_>> {
    let found = ROLES.iter().find_map(|(ending, role)| Some((name.strip_suffix(ending)?, *role)));
    let found = found.and_then(|(path, role)| {
        let path = path.strip_prefix(PREFIX)?;
        let in_network = NETWORKS.iter().find_map(|network| path.strip_prefix(network)).unwrap_or(path);
        let parsed = |module: &'static Module| {
            let (layer, rest) = in_network.strip_prefix(module.layers)?.strip_prefix('.')?.split_once('.')?;
            // No sign, and no leading zeros: two names must not mean the same layer.
            let number: usize = layer.parse().ok()?;
            (rest == module.path && number.to_string() == layer).then_some(ParsedName {
                layer: number,
                module,
                role,
                path,
            })
        };
        decoder_modules().chain(ENCODER_MODULES).find_map(parsed)
    });
    found.ok_or_else(|| {
        let feature = UNSUPPORTED.iter().find(|(part, _)| name.contains(part)).map(|(_, feature)| *feature);
        ModelError::Checkpoint(match feature {
            Some(feature) => {
                format!("its tensor {name} belongs to {feature}, which is not supported: {}", super::config::REMEDY)
            }
            None => format!("its tensor {name} is not part of a LoRA that is supported; {}", supported()),
        })
    })
}

/// The name of a tensor of a decoder, as [`parse`] reads it.
pub fn format(layer: usize, module: &Module, role: Role) -> String {
    let matrix = match role {
        Role::Down => "lora_A",
        Role::Up => "lora_B",
    };
    let Module { layers, path, .. } = module;
    format!("{PREFIX}model.{layers}.{layer}.{path}.{matrix}.weight")
}

/// The modules that adapters may target, for error messages.
fn supported() -> String {
    let mut decoder: Vec<&str> = Vec::new();
    for Module { path, .. } in decoder_modules() {
        if !decoder.contains(path) {
            decoder.push(path);
        }
    }
    let encoder: Vec<&str> = ENCODER_MODULES.iter().map(|module| module.path).collect();
    let [decoder, encoder] = [decoder, encoder].map(|paths| paths.join(", "));
    format!("adapters of chat models may target {decoder}, and those of encoders {encoder}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_modules_are_parsed() {
        for (path, layer, stem) in [
            ("model.layers.12.mlp.down_proj", 12, "ffn_down"),
            ("layers.0.self_attn.q_proj", 0, "attn_q"),
            ("encoder.layer.3.attention.self.query", 3, "attn_q"),
            ("bert.encoder.layer.3.attention.output.dense", 3, "attn_output"),
            ("roberta.encoder.layer.0.output.dense", 0, "ffn_down"),
            ("model.layers.7.attn.Wqkv", 7, "attn_qkv"),
            ("layers.7.mlp.Wi", 7, "ffn_gate_up"),
            ("encoder.layers.1.mlp.fc12", 1, "ffn_gate"),
        ] {
            for ending in ["lora_B.weight", "lora_B.default.weight"] {
                let name = format!("base_model.model.{path}.{ending}");
                let parsed = parse(&name).unwrap();
                let ParsedName { module, role, .. } = parsed;
                assert_eq!((parsed.layer, module.stems, role, parsed.path), (layer, &[stem][..], Role::Up, path));
            }
        }
    }

    #[test]
    fn written_names_are_parsed() {
        for modules in [LLAMA_MODULES, GEMMA4_MODULES, LFM2_MODULES, QWEN35_MODULES] {
            for module in modules {
                for role in [Role::Down, Role::Up] {
                    let name = format(21, module, role);
                    let path = format!("model.layers.21.{}", module.path);
                    let parsed = parse(&name).unwrap();
                    assert_eq!((parsed.layer, parsed.role, parsed.path), (21, role, path.as_str()));
                    assert_eq!((parsed.module.path, parsed.module.stems), (module.path, module.stems));
                }
                assert!(module.stems.iter().all(|stem| find_module(modules, stem, module.projections) == Some(module)));
            }
        }
    }

    #[test]
    fn a_name_may_mean_several_modules() {
        assert_eq!(projections_of(LLAMA_MODULES, "q_proj"), ["attn_q"]);
        assert_eq!(projections_of(LFM2_MODULES, "out_proj"), ["attn_output", "shortconv.out_proj"]);
        assert!(projections_of(LFM2_MODULES, "o_proj").is_empty());
    }

    #[test]
    fn only_the_pooler_of_a_model_without_a_head_is_unused() {
        assert!(is_unused("base_model.model.pooler.dense.lora_A.weight"));
        assert!(!is_unused("base_model.model.bert.pooler.dense.lora_A.weight"));
        assert!(!is_unused("base_model.model.encoder.layer.0.output.dense.lora_A.weight"));
    }

    #[test]
    fn other_tensors_are_refused() {
        let error = |name: &str| parse(&format!("base_model.model.{name}")).unwrap_err().to_string();
        for (name, expected) in [
            ("model.layers.0.self_attn.q_proj.lora_magnitude_vector", "DoRA"),
            ("model.embed_tokens.lora_embedding_A", "LoRA of the embedding"),
            ("lm_head.lora_A.weight", "the output projection"),
            ("model.layers.0.mlp.experts.3.up_proj.lora_A.weight", "LoRA of experts"),
            ("model.layers.0.mlp.gate.lora_A.weight", "a router"),
            ("model.layers.0.mlp.router.lora_A.weight", "a router"),
            ("model.layers.0.mlp.experts.base_layer.lora_B.weight", "LoRA of experts"),
            ("model.layers.0.self_attn.q_proj.base_layer.bias", "biases"),
            ("model.layers.0.self_attn.q_proj.weight", "not part of a LoRA"),
            ("model.layers.00.self_attn.q_proj.lora_A.weight", "not part of a LoRA"),
            ("model.layers.+1.self_attn.q_proj.lora_A.weight", "not part of a LoRA"),
            ("model.layers.99999999999999999999.self_attn.q_proj.lora_A.weight", "not part of a LoRA"),
            ("transformer.h.0.attn.c_attn.lora_A.weight", "not part of a LoRA"),
            ("encoder.layers.0.attention.self.query.lora_A.weight", "not part of a LoRA"),
            ("model.model.layers.0.self_attn.q_proj.lora_A.weight", "not part of a LoRA"),
            ("bert.pooler.dense.lora_A.weight", "LoRA of the pooler"),
            ("classifier.weight", "a classification head"),
            ("bert.embeddings.word_embeddings.weight", "training of embeddings"),
        ] {
            assert!(error(name).contains(expected) && error(name).contains(name), "{}", error(name));
        }
    }
}
