//! The sizes of a Whisper network, and the tensors that it must have, under the names of Hugging Face.
//!
//! The architecture is that of Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision" (2022).

use std::collections::BTreeMap;

use super::tensor::Tensor;

/// Sizes of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WhisperDims {
    pub mels: u64,
    pub vocabulary: u64,
    /// Frames of the encoder's output.
    pub audio_positions: u64,
    pub text_positions: u64,
    /// Width of both halves.
    pub width: u64,
    pub heads: u64,
    pub encoder_layers: u64,
    pub decoder_layers: u64,
}

impl WhisperDims {
    /// Refuses sizes that no Whisper has, so that everything that follows is bounded.
    pub fn check(self) -> Result<Self, String> {
        let within = |value: u64, max: u64| (1..=max).contains(&value);
        let fits = within(self.mels, 256)
            && within(self.vocabulary, 1 << 17)
            && within(self.audio_positions, 1 << 14)
            && within(self.text_positions, 1 << 12)
            && within(self.width, 1 << 13)
            && within(self.heads, 128)
            && self.width.is_multiple_of(self.heads)
            && within(self.encoder_layers, 128)
            && within(self.decoder_layers, 128);
        if fits { Ok(self) } else { Err(format!("has impossible sizes: {self:?}")) }
    }

    /// The names and shapes of all tensors.
    pub fn shapes(&self) -> BTreeMap<String, Vec<u64>> {
        let mut shapes = BTreeMap::new();
        let width = self.width;
        let mut add = |name: String, shape: &[u64]| drop(shapes.insert(format!("model.{name}"), shape.to_vec()));
        add("encoder.conv1.weight".into(), &[width, self.mels, 3]);
        add("encoder.conv1.bias".into(), &[width]);
        add("encoder.conv2.weight".into(), &[width, width, 3]);
        add("encoder.conv2.bias".into(), &[width]);
        add("encoder.embed_positions.weight".into(), &[self.audio_positions, width]);
        add("decoder.embed_tokens.weight".into(), &[self.vocabulary, width]);
        add("decoder.embed_positions.weight".into(), &[self.text_positions, width]);
        for (side, layers) in [("encoder", self.encoder_layers), ("decoder", self.decoder_layers)] {
            for part in ["weight", "bias"] {
                add(format!("{side}.layer_norm.{part}"), &[width]);
            }
            for layer in 0..layers {
                let layer = format!("{side}.layers.{layer}");
                let attentions: &[&str] =
                    if side == "encoder" { &["self_attn"] } else { &["self_attn", "encoder_attn"] };
                for attention in attentions {
                    for projection in ["q_proj", "k_proj", "v_proj", "out_proj"] {
                        add(format!("{layer}.{attention}.{projection}.weight"), &[width, width]);
                        if projection != "k_proj" {
                            add(format!("{layer}.{attention}.{projection}.bias"), &[width]);
                        }
                    }
                    for part in ["weight", "bias"] {
                        add(format!("{layer}.{attention}_layer_norm.{part}"), &[width]);
                    }
                }
                add(format!("{layer}.fc1.weight"), &[4 * width, width]);
                add(format!("{layer}.fc1.bias"), &[4 * width]);
                add(format!("{layer}.fc2.weight"), &[width, 4 * width]);
                add(format!("{layer}.fc2.bias"), &[width]);
                for part in ["weight", "bias"] {
                    add(format!("{layer}.final_layer_norm.{part}"), &[width]);
                }
            }
        }
        shapes
    }

    /// Checks that `tensors` are exactly the tensors of this network.
    pub fn check_tensors(&self, tensors: &BTreeMap<String, Tensor>) -> Result<(), String> {
        let shapes = self.shapes();
        for (name, shape) in &shapes {
            match tensors.get(name) {
                None => return Err(format!("has no tensor for {name}")),
                Some(tensor) if tensor.shape != *shape => {
                    return Err(format!("has the shape {:?} for {name}, instead of {shape:?}", tensor.shape));
                }
                Some(_) => {}
            }
        }
        match tensors.keys().find(|name| !shapes.contains_key(*name)) {
            Some(name) => Err(format!("has the tensor {name}, which no Whisper has")),
            None => Ok(()),
        }
    }
}
