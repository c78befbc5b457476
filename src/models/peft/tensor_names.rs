//! The names of an adapter's tensors, such as `base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight`.

use crate::models::error::{ModelError, Result};

/// A module of a decoder layer that adapters may target.
#[derive(Debug, PartialEq, Eq)]
pub struct Module {
    /// Its path in a layer of transformers' model.
    pub path: &'static str,
    /// The stems of its weight after `blk.N.`: the first one that the base has. GGUF files call Phi-3's fused gate and up
    /// projection `ffn_up`.
    pub stems: &'static [&'static str],
    /// The projections that are fused in it.
    pub projections: usize,
}

const MODULES: &[Module] = &[
    Module { path: "self_attn.q_proj", stems: &["attn_q"], projections: 1 },
    Module { path: "self_attn.k_proj", stems: &["attn_k"], projections: 1 },
    Module { path: "self_attn.v_proj", stems: &["attn_v"], projections: 1 },
    Module { path: "self_attn.qkv_proj", stems: &["attn_qkv"], projections: 3 },
    Module { path: "self_attn.o_proj", stems: &["attn_output"], projections: 1 },
    Module { path: "mlp.gate_proj", stems: &["ffn_gate"], projections: 1 },
    Module { path: "mlp.up_proj", stems: &["ffn_up"], projections: 1 },
    Module { path: "mlp.gate_up_proj", stems: &["ffn_gate_up", "ffn_up"], projections: 2 },
    Module { path: "mlp.down_proj", stems: &["ffn_down"], projections: 1 },
];

/// Whether adapters may target the weights with this end of their stem, such as `attn_q`.
pub fn is_adaptable(projection: &str) -> bool {
    MODULES.iter().any(|module| module.stems.contains(&projection))
}

/// The module of the weight whose stem ends in `projection`, which has this many fused projections.
pub fn find_module(projection: &str, projections: usize) -> Option<&'static Module> {
    MODULES.iter().find(|module| module.stems.contains(&projection) && module.projections == projections)
}

/// The ends of the stems of the weights that a module's name means, such as `q_proj`; `None` for other names.
pub fn projections_of(name: &str) -> Option<&'static [&'static str]> {
    let is_named = |module: &&Module| module.path.rsplit('.').next() == Some(name);
    MODULES.iter().find(is_named).map(|module| module.stems)
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

const PREFIX: &str = "base_model.model.model.layers.";

/// Tensors that are not supported, recognised by parts of their names, and what they belong to.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("lora_magnitude_vector", "DoRA"),
    ("lora_embedding_", "LoRA of the embedding"),
    ("embed_tokens", "training of the embedding"),
    ("lm_head", "training of the output projection"),
    (".experts.", "LoRA of experts"),
    (".mlp.gate.", "LoRA of a router"),
    ("block_sparse_moe.", "LoRA of experts or their router"),
    ("modules_to_save", "modules_to_save"),
    (".bias", "training of biases"),
];

/// The layer, the module and the role of a tensor.
///
/// # Errors
/// If the tensor does not belong to an adapter that is supported.
pub fn parse(name: &str) -> Result<(usize, &'static Module, Role)> {
    let found = ROLES.iter().find_map(|(ending, role)| Some((name.strip_suffix(ending)?, *role)));
    let found = found.and_then(|(path, role)| {
        let (layer, module) = path.strip_prefix(PREFIX)?.split_once('.')?;
        let module = MODULES.iter().find(|known| known.path == module)?;
        // No sign, and no leading zeros: two names must not mean the same layer.
        let number: usize = layer.parse().ok()?;
        (number.to_string() == layer).then_some((number, module, role))
    });
    found.ok_or_else(|| {
        let feature = UNSUPPORTED.iter().find(|(part, _)| name.contains(part)).map(|(_, feature)| *feature);
        ModelError::Checkpoint(match feature {
            Some(feature) => {
                format!("its tensor {name} belongs to {feature}, which is not supported: {}", super::config::REMEDY)
            }
            None => format!("its tensor {name} is not part of a LoRA for a decoder; {}", supported()),
        })
    })
}

/// The name of a tensor, as [`parse`] reads it.
pub fn format(layer: usize, module: &Module, role: Role) -> String {
    let matrix = match role {
        Role::Down => "lora_A",
        Role::Up => "lora_B",
    };
    format!("{PREFIX}{layer}.{}.{matrix}.weight", module.path)
}

/// The modules that adapters may target, for error messages.
fn supported() -> String {
    let paths = MODULES.iter().map(|module| module.path).collect::<Vec<_>>().join(", ");
    format!("adapters may target {paths}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_modules_are_parsed() {
        let (layer, module, role) = parse("base_model.model.model.layers.12.mlp.down_proj.lora_B.weight").unwrap();
        assert_eq!((layer, module.stems, role), (12, &["ffn_down"][..], Role::Up));
        let (layer, module, role) =
            parse("base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight").unwrap();
        assert_eq!((layer, module.stems, role), (0, &["attn_q"][..], Role::Down));
    }

    #[test]
    fn written_names_are_parsed() {
        for module in MODULES {
            for role in [Role::Down, Role::Up] {
                assert_eq!(parse(&format(21, module, role)).unwrap(), (21, module, role));
            }
            assert!(module.stems.iter().all(|stem| find_module(stem, module.projections) == Some(module)));
        }
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
            ("model.layers.0.self_attn.q_proj.base_layer.bias", "biases"),
            ("model.layers.0.self_attn.q_proj.weight", "not part of a LoRA"),
            ("model.layers.00.self_attn.q_proj.lora_A.weight", "not part of a LoRA"),
            ("model.layers.+1.self_attn.q_proj.lora_A.weight", "not part of a LoRA"),
            ("model.layers.99999999999999999999.self_attn.q_proj.lora_A.weight", "not part of a LoRA"),
            ("transformer.h.0.attn.c_attn.lora_A.weight", "not part of a LoRA"),
        ] {
            assert!(error(name).contains(expected) && error(name).contains(name), "{}", error(name));
        }
    }
}
