//! The error for a decoder of a family that is not supported: the nearest one that is, and the tensors that none has.

use std::collections::BTreeSet;

use outpost_common::spelling;

use crate::error::ModelError;
use crate::weights::layer_names;

/// More tensors are counted.
const MAX_TENSORS: usize = 8;
/// A name that begins with a shorter one need not be like it.
const MIN_PREFIX_BYTES: usize = 4;
/// Tensors of experts, which have no fixed names.
const EXPERTS: &str = "experts.";

/// What a family is called in a file: `architecture` or `model type`, and its name there.
pub(super) struct UnknownFamily<'a> {
    pub kind: &'static str,
    pub name: &'a str,
}

impl UnknownFamily<'_> {
    /// `known`: the names of all families. `tensors`: those of the file's layers, by the names that they have in a layer.
    pub fn error(&self, known: &[&'static str], tensors: BTreeSet<&str>) -> ModelError {
        let Self { kind, name } = *self;
        let mut text = format!("the {kind} {name} is not supported.");
        if let Some(nearest) = nearest(name, known) {
            text += &format!(" The nearest one that is supported is {nearest}.");
        }
        if !tensors.is_empty() {
            let count = tensors.len().saturating_sub(MAX_TENSORS);
            let listed: Vec<&str> = tensors.into_iter().take(MAX_TENSORS).collect();
            let more = if count > 0 { format!(" and {count} more") } else { String::new() };
            text += &format!(" No family that is supported has its tensors {}{more}.", listed.join(", "));
        }
        ModelError::Checkpoint(format!("{text} Supported are {}", known.join(", ")))
    }
}

/// The name that is spelled most like `name`, or with which it begins. Of several, one of the same length, such as the version before, and
/// the last one.
fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let added = |known: &str| name.strip_prefix(known).filter(|_| known.len() >= MIN_PREFIX_BYTES).map(str::len);
    let distance = |known: &str| spelling::distance(name, known).or_else(|| added(known));
    let near = known.iter().filter_map(|known| Some((distance(known)?, *known)));
    let key = |(distance, known): &(usize, &str)| (usize::MAX - distance, known.len() == name.len());
    near.max_by_key(key).map(|(_, known)| known)
}

/// The names of a layer's tensors that no family has in GGUF files, of these names of tensors.
pub(super) fn unknown_stems<'a>(names: impl Iterator<Item = &'a str>) -> BTreeSet<&'a str> {
    let known: BTreeSet<&str> = layer_names().map(|(stem, _)| stem).collect();
    unknown(names, "blk.", |stem| known.contains(stem))
}

/// The same for Hugging Face's files.
pub(super) fn unknown_modules<'a>(names: impl Iterator<Item = &'a str>) -> BTreeSet<&'a str> {
    let known: BTreeSet<&str> = layer_names().map(|(_, module)| module).collect();
    unknown(names, "layers.", |module| known.contains(module) || module.contains(EXPERTS))
}

/// The names after `prefix` and the number of a layer, without the endings of weights and biases.
fn unknown<'a>(
    names: impl Iterator<Item = &'a str>,
    prefix: &str,
    is_known: impl Fn(&str) -> bool,
) -> BTreeSet<&'a str> {
    let in_layer = |name: &'a str| {
        let (_, rest) = name.split_once(prefix)?;
        let (layer, own) = rest.split_once('.')?;
        let own = own.strip_suffix(".weight").or_else(|| own.strip_suffix(".bias")).unwrap_or(own);
        layer.parse::<usize>().ok().map(|_| own)
    };
    names.filter_map(in_layer).filter(|own| !is_known(own) && !own.ends_with("inv_freq")).collect()
}

#[cfg(test)]
mod tests {
    use super::{UnknownFamily, nearest, unknown_modules, unknown_stems};
    use crate::decoder_family::{architecture_names, model_type_names};

    #[test]
    fn the_nearest_family_is_the_version_before() {
        for (name, expected) in [
            ("gemma9", Some("gemma4")),
            ("glm4v", Some("glm4")),
            ("llama4", Some("llama")),
            ("qwen9", Some("qwen3")),
            ("ernie4_5-vl", Some("ernie4_5")),
            ("mamba", None),
            ("rwkv6", None),
        ] {
            assert_eq!(nearest(name, &architecture_names()), expected, "{name}");
        }
    }

    #[test]
    fn tensors_that_no_family_has_are_listed() {
        let names =
            ["token_embd.weight", "blk.0.attn_q.weight", "blk.1.indexer.proj.weight", "blk.1.attn_sinks.weight"];
        assert!(unknown_stems(names.into_iter()).into_iter().eq(["indexer.proj"]));
        let names = [
            "lm_head.weight",
            "model.layers.3.self_attn.q_proj.bias",
            "model.layers.3.mlp.experts.11.up_proj.weight",
            "model.layers.3.self_attn.indexer.wq_b.weight",
            "model.layers.3.self_attn.rotary_emb.inv_freq",
        ];
        let missing = unknown_modules(names.into_iter());
        assert!(missing.iter().eq(&["self_attn.indexer.wq_b"]));
        let error = UnknownFamily { kind: "model type", name: "qwen9" }.error(&model_type_names(), missing).to_string();
        assert!(error.contains("the model type qwen9 is not supported. The nearest one that is supported is qwen3."));
        assert!(
            error.contains("No family that is supported has its tensors self_attn.indexer.wq_b. Supported are llama,")
        );
        let many = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"].into_iter().collect();
        let error = UnknownFamily { kind: "architecture", name: "x" }.error(&["llama"], many).to_string();
        assert!(error.ends_with("its tensors a, b, c, d, e, f, g, h and 2 more. Supported are llama"), "{error}");
    }

    #[test]
    fn all_names_of_families_are_known() {
        assert!(unknown_stems(["blk.0.ffn_gate_exps.weight", "blk.0.exp_probs_b.bias"].into_iter()).is_empty());
        assert!(
            unknown_stems(
                ["blk.0.layer_output_scale.weight", "blk.0.ffn_gate_inp.scale", "blk.0.attn_k_b.weight"].into_iter()
            )
            .is_empty()
        );
        let modules = ["model.layers.0.layer_scalar", "model.layers.3.mlp.gate.e_score_correction_bias"];
        assert!(unknown_modules(modules.into_iter()).is_empty());
    }
}
