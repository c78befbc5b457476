//! Tensor names in LoRA files: those of diffusers and peft (`unet.….lora_A.weight`) and those of kohya's scripts
//! (`lora_unet_…`), with diffusers' or the original layer names.

/// The component that a tensor targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LoraTarget {
    Network,
    /// A text encoder, by index.
    Text(usize),
}

/// The role of a tensor in its layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoraRole {
    Down,
    Up,
    /// The product is multiplied by alpha over rank.
    Alpha,
}

const TENSOR_SUFFIXES: &[(&str, LoraRole)] = &[
    (".lora_A.weight", LoraRole::Down),
    (".lora_B.weight", LoraRole::Up),
    (".lora_A.default.weight", LoraRole::Down),
    (".lora_B.default.weight", LoraRole::Up),
    (".lora_down.weight", LoraRole::Down),
    (".lora_up.weight", LoraRole::Up),
    (".lora.down.weight", LoraRole::Down),
    (".lora.up.weight", LoraRole::Up),
    (".lora_linear_layer.down.weight", LoraRole::Down),
    (".lora_linear_layer.up.weight", LoraRole::Up),
    ("_lora.down.weight", LoraRole::Down),
    ("_lora.up.weight", LoraRole::Up),
    (".alpha", LoraRole::Alpha),
];

const TARGET_PREFIXES: &[(&str, LoraTarget)] = &[
    ("lora_unet_", LoraTarget::Network),
    ("lora_transformer_", LoraTarget::Network),
    ("lora_te1_", LoraTarget::Text(0)),
    ("lora_te2_", LoraTarget::Text(1)),
    ("lora_te3_", LoraTarget::Text(2)),
    ("lora_te_", LoraTarget::Text(0)),
    ("unet.", LoraTarget::Network),
    ("transformer.", LoraTarget::Network),
    ("diffusion_model.", LoraTarget::Network),
    ("text_encoder_2.", LoraTarget::Text(1)),
    ("text_encoder_3.", LoraTarget::Text(2)),
    ("text_encoder.", LoraTarget::Text(0)),
];

/// Other kinds of adapters, recognised by parts of tensor names.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("hada_", "a LoHa"),
    ("lokr_", "a LoKr"),
    ("lora_mid", "a LoCon with a tensor in the middle"),
    ("dora_scale", "a DoRA"),
    ("lora_magnitude_vector", "a DoRA"),
    (".oft_", "an OFT"),
    (".glora_", "a GLoRA"),
    (".diff_b", "a whole difference of weights"),
];

const DIFFERENCE: &str = ".diff";

/// Parses a tensor's name: target, layer (with underscores for dots) and role. Errors say why it cannot be used.
pub fn read(name: &str) -> Result<(LoraTarget, String, LoraRole), String> {
    let difference = name.ends_with(DIFFERENCE).then_some("a whole difference of weights");
    let other = UNSUPPORTED.iter().find(|(part, _)| name.contains(part)).map(|(_, kind)| *kind);
    if let Some(kind) = other.or(difference) {
        return Err(format!("it is {kind}: {name}; only LoRA with two matrices for each layer is supported"));
    }
    let unknown = || format!("it has the tensor {name}, which is not part of a LoRA for this kind of model");
    let (role, layer) =
        TENSOR_SUFFIXES.iter().find_map(|(end, role)| Some((*role, name.strip_suffix(end)?))).ok_or_else(unknown)?;
    let layer = layer.strip_prefix("base_model.model.").unwrap_or(layer);
    let found = TARGET_PREFIXES.iter().find_map(|(start, target)| Some((*target, layer.strip_prefix(start)?)));
    let (target, layer) = found.ok_or_else(unknown)?;
    Ok((target, plain(target, &flat(layer)), role))
}

/// Replaces dots by underscores.
pub fn flat(name: &str) -> String {
    name.replace('.', "_")
}

/// A layer's name without parts that only older files have.
fn plain(target: LoraTarget, layer: &str) -> String {
    if let LoraTarget::Text(_) = target {
        return layer.strip_prefix("text_model_").unwrap_or(layer).to_owned();
    }
    let layer = layer.replace("_processor_", "_");
    // The first of two layers; the second has no weights.
    if layer.ends_with("_to_out") { layer + "_0" } else { layer }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_different_tools_mean_the_same() {
        let target = |name: &str| read(name).unwrap();
        let query = "down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q".to_owned();
        for name in [
            "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q.lora_A.weight",
            "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q.lora.down.weight",
            "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.processor.to_q_lora.down.weight",
            "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q.lora_down.weight",
        ] {
            assert_eq!(target(name), (LoraTarget::Network, query.clone(), LoraRole::Down), "{name}");
        }
        let text = "encoder_layers_0_mlp_fc1".to_owned();
        let names = [
            ("text_encoder.text_model.encoder.layers.0.mlp.fc1.lora_B.weight", 0),
            ("lora_te_text_model_encoder_layers_0_mlp_fc1.lora_up.weight", 0),
            ("lora_te1_text_model_encoder_layers_0_mlp_fc1.lora_up.weight", 0),
            ("lora_te2_text_model_encoder_layers_0_mlp_fc1.lora_up.weight", 1),
            ("text_encoder_2.text_model.encoder.layers.0.mlp.fc1.lora_linear_layer.up.weight", 1),
        ];
        for (name, at) in names {
            assert_eq!(target(name), (LoraTarget::Text(at), text.clone(), LoraRole::Up), "{name}");
        }
    }

    #[test]
    fn other_kinds_are_refused_by_name() {
        let refused = |name: &str| read(name).unwrap_err();
        assert!(refused("lora_unet_conv_in.hada_w1_a").contains("a LoHa"));
        assert!(refused("lora_unet_conv_in.lokr_w1").contains("a LoKr"));
        assert!(refused("lora_unet_conv_in.lora_mid.weight").contains("LoCon"));
        assert!(refused("conv_in.weight").contains("not part of a LoRA"));
    }
}
