//! Parses tensor names in LoRA files: those of diffusers and peft (`unet.….lora_A.weight`) and those of kohya's scripts
//! (`lora_unet_…`), with diffusers' or the original layer names.

/// The component that a tensor targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LoraTarget {
    Denoiser,
    /// The text encoder at this index.
    TextEncoder(usize),
}

/// The role of a tensor in its layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoraRole {
    Down,
    Up,
    /// A scalar. The product of both matrices is multiplied by alpha over rank.
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
    ("lora_unet_", LoraTarget::Denoiser),
    ("lora_transformer_", LoraTarget::Denoiser),
    ("lora_te1_", LoraTarget::TextEncoder(0)),
    ("lora_te2_", LoraTarget::TextEncoder(1)),
    ("lora_te3_", LoraTarget::TextEncoder(2)),
    ("lora_te_", LoraTarget::TextEncoder(0)),
    ("unet.", LoraTarget::Denoiser),
    ("transformer.", LoraTarget::Denoiser),
    ("diffusion_model.", LoraTarget::Denoiser),
    ("text_encoder_2.", LoraTarget::TextEncoder(1)),
    ("text_encoder_3.", LoraTarget::TextEncoder(2)),
    ("text_encoder.", LoraTarget::TextEncoder(0)),
];

/// Other kinds of adapters, recognised by substrings of tensor names.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("hada_", "a LoHa"),
    ("lokr_", "a LoKr"),
    ("lora_mid", "a LoCon with a mid tensor"),
    ("dora_scale", "a DoRA"),
    ("lora_magnitude_vector", "a DoRA"),
    (".oft_", "an OFT"),
    (".glora_", "a GLoRA"),
    (".diff_b", "a full weight difference"),
];

const WEIGHT_DIFFERENCE_SUFFIX: &str = ".diff";

/// Parses a tensor name: target, layer (with underscores instead of dots) and role.
///
/// # Errors
/// The tensor does not belong to a supported kind of adapter.
pub fn parse(name: &str) -> Result<(LoraTarget, String, LoraRole), String> {
    let weight_difference = name.ends_with(WEIGHT_DIFFERENCE_SUFFIX).then_some("a full weight difference");
    let unsupported = UNSUPPORTED.iter().find(|(substring, _)| name.contains(substring)).map(|(_, kind)| *kind);
    if let Some(kind) = unsupported.or(weight_difference) {
        return Err(format!("it is {kind}: {name}; only LoRA with two matrices for each layer is supported"));
    }
    let unknown = || format!("it has the tensor {name}, which is not part of a LoRA for this kind of model");
    let (role, layer) = TENSOR_SUFFIXES
        .iter()
        .find_map(|(suffix, role)| Some((*role, name.strip_suffix(suffix)?)))
        .ok_or_else(unknown)?;
    let layer = layer.strip_prefix("base_model.model.").unwrap_or(layer);
    let found = TARGET_PREFIXES.iter().find_map(|(prefix, target)| Some((*target, layer.strip_prefix(prefix)?)));
    let (target, layer) = found.ok_or_else(unknown)?;
    Ok((target, normalize(target, &with_underscores(layer)), role))
}

/// Replaces dots by underscores.
pub fn with_underscores(name: &str) -> String {
    name.replace('.', "_")
}

/// Converts the layer names of older files to current ones.
fn normalize(target: LoraTarget, layer: &str) -> String {
    if let LoraTarget::TextEncoder(_) = target {
        return layer.strip_prefix("text_model_").unwrap_or(layer).to_owned();
    }
    let layer = layer.replace("_processor_", "_");
    // `to_out` is a projection followed by dropout; current files name the projection `to_out.0`.
    if layer.ends_with("_to_out") { layer + "_0" } else { layer }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_tools_are_parsed() {
        let parsed = |name: &str| parse(name).unwrap();
        let query = "down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q".to_owned();
        for name in [
            "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q.lora_A.weight",
            "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q.lora.down.weight",
            "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.processor.to_q_lora.down.weight",
            "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q.lora_down.weight",
        ] {
            assert_eq!(parsed(name), (LoraTarget::Denoiser, query.clone(), LoraRole::Down), "{name}");
        }
        let text = "encoder_layers_0_mlp_fc1".to_owned();
        let names = [
            ("text_encoder.text_model.encoder.layers.0.mlp.fc1.lora_B.weight", 0),
            ("lora_te_text_model_encoder_layers_0_mlp_fc1.lora_up.weight", 0),
            ("lora_te1_text_model_encoder_layers_0_mlp_fc1.lora_up.weight", 0),
            ("lora_te2_text_model_encoder_layers_0_mlp_fc1.lora_up.weight", 1),
            ("text_encoder_2.text_model.encoder.layers.0.mlp.fc1.lora_linear_layer.up.weight", 1),
        ];
        for (name, index) in names {
            assert_eq!(parsed(name), (LoraTarget::TextEncoder(index), text.clone(), LoraRole::Up), "{name}");
        }
    }

    #[test]
    fn other_kinds_of_adapters_are_refused() {
        let error = |name: &str| parse(name).unwrap_err();
        assert!(error("lora_unet_conv_in.hada_w1_a").contains("a LoHa"));
        assert!(error("lora_unet_conv_in.lokr_w1").contains("a LoKr"));
        assert!(error("lora_unet_conv_in.lora_mid.weight").contains("LoCon"));
        assert!(error("conv_in.weight").contains("not part of a LoRA"));
    }
}
