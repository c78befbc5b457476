//! Infers the `config.json` of each component from tensor names and shapes, and from the published values of each
//! version.

use serde_json::{Value, json};

use super::{UNET_PREFIX, VAE_PREFIX};
use crate::error::{ModelError, Result};
use crate::safetensors::ModelFolder;

/// Versions of Stable Diffusion that are published as LDM checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LdmVersion {
    Sd1,
    Sd2,
    Sdxl,
}

/// The tensor prefix of a text encoder, and whether it is OpenCLIP or transformers' CLIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextEncoderLayout {
    pub prefix: &'static str,
    pub open_clip: bool,
}

const SD1_TEXT_ENCODER: TextEncoderLayout =
    TextEncoderLayout { prefix: "cond_stage_model.transformer.", open_clip: false };
const SD2_TEXT_ENCODER: TextEncoderLayout = TextEncoderLayout { prefix: "cond_stage_model.model.", open_clip: true };
const SDXL_TEXT_ENCODERS: [TextEncoderLayout; 2] = [
    TextEncoderLayout { prefix: "conditioner.embedders.0.transformer.", open_clip: false },
    TextEncoderLayout { prefix: "conditioner.embedders.1.model.", open_clip: true },
];
const SDXL_REFINER_PREFIX: &str = "conditioner.embedders.0.model.";

/// Width of an attention head, in versions without a fixed number of heads.
const HEAD_DIM: usize = 64;
const MAX_COUNT: usize = 1 << 12;

/// Infers a config from the tensor shapes of a component.
#[derive(Clone, Copy)]
pub struct ShapeInference<'a> {
    file: &'a ModelFolder,
    prefix: &'a str,
}

/// The down blocks of a UNet, from the highest resolution to the lowest.
#[derive(Default)]
struct Levels {
    channels: Vec<usize>,
    resnets: Vec<usize>,
    attention: Vec<bool>,
    /// Layers of each transformer.
    transformer_layers: Vec<usize>,
    /// Width of a prompt embedding.
    context_width: Option<usize>,
}

impl LdmVersion {
    /// Determines the version from the tensor names.
    pub fn detect(file: &ModelFolder) -> Result<Self> {
        let has = |prefix: &str| file.names().any(|name| name.starts_with(prefix));
        if !has(UNET_PREFIX) || !has(VAE_PREFIX) {
            return Err(ModelError::Checkpoint(format!(
                "the file is not a Stable Diffusion checkpoint: it has no tensors {UNET_PREFIX}… and {VAE_PREFIX}…"
            )));
        }
        match () {
            () if SDXL_TEXT_ENCODERS.iter().all(|text| has(text.prefix)) => Ok(Self::Sdxl),
            () if has(SDXL_REFINER_PREFIX) => {
                Err(ModelError::checkpoint("the refiner of Stable Diffusion XL is not supported"))
            }
            () if has(SD2_TEXT_ENCODER.prefix) => Ok(Self::Sd2),
            () if has(SD1_TEXT_ENCODER.prefix) => Ok(Self::Sd1),
            () => Err(ModelError::checkpoint(
                "the file has no text encoder (cond_stage_model.… or conditioner.embedders.…): it is not a complete checkpoint",
            )),
        }
    }

    pub fn text_encoders(self) -> &'static [TextEncoderLayout] {
        match self {
            Self::Sd1 => std::slice::from_ref(&SD1_TEXT_ENCODER),
            Self::Sd2 => std::slice::from_ref(&SD2_TEXT_ENCODER),
            Self::Sdxl => &SDXL_TEXT_ENCODERS,
        }
    }

    /// Height and width of the images in training.
    fn image_side(self, predicts_v: bool) -> usize {
        match self {
            Self::Sdxl => 1024,
            Self::Sd2 if predicts_v => 768,
            Self::Sd1 | Self::Sd2 => 512,
        }
    }
}

/// The default scheduler config of a version. `zero_snr`: betas are rescaled to zero terminal SNR.
pub fn default_scheduler_config(version: LdmVersion, predicts_v: bool, zero_snr: bool) -> Value {
    let class = match version {
        LdmVersion::Sdxl => "EulerDiscreteScheduler",
        LdmVersion::Sd1 | LdmVersion::Sd2 if predicts_v => "DDIMScheduler",
        LdmVersion::Sd1 | LdmVersion::Sd2 => "PNDMScheduler",
    };
    json!({
        "_class_name": class, "num_train_timesteps": 1000,
        "beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear",
        "steps_offset": 1, "clip_sample": false, "set_alpha_to_one": false, "skip_prk_steps": true,
        "timestep_spacing": if zero_snr { "trailing" } else { "leading" }, "rescale_betas_zero_snr": zero_snr,
        "prediction_type": if predicts_v { "v_prediction" } else { "epsilon" },
    })
}

impl<'a> ShapeInference<'a> {
    pub fn new(file: &'a ModelFolder, prefix: &'a str) -> Self {
        Self { file, prefix }
    }

    fn shape(&self, name: &str) -> Option<&'a [usize]> {
        Some(self.file.tensor(&format!("{}{name}", self.prefix))?.0.shape.as_slice())
    }

    fn has(&self, name: &str) -> bool {
        self.shape(name).is_some()
    }

    /// The size of a tensor along `axis`.
    ///
    /// # Errors
    /// The tensor does not exist.
    fn dim(&self, name: &str, axis: usize) -> Result<usize> {
        let size = self.shape(name).and_then(|shape| shape.get(axis).copied());
        size.ok_or_else(|| ModelError::Checkpoint(format!("the file has no tensor {}{name}", self.prefix)))
    }

    /// The number of tensors with the names `name(0)`, `name(1)` and so on.
    fn count(&self, name: impl Fn(usize) -> String) -> usize {
        (0..MAX_COUNT).take_while(|index| self.has(&name(*index))).count()
    }

    /// The number of transformer layers in a row of `input_blocks`, at least one.
    fn transformer_layers(&self, row: &str) -> usize {
        self.count(|index| format!("{row}.1.transformer_blocks.{index}.norm1.weight")).max(1)
    }

    /// The down blocks.
    fn levels(&self) -> Levels {
        let (mut levels, mut row) = (Levels::default(), 1);
        loop {
            let first_row = row;
            while let Some(shape) = self.shape(&format!("input_blocks.{row}.0.in_layers.2.weight")) {
                let to_k = self.shape(&format!("input_blocks.{row}.1.transformer_blocks.0.attn2.to_k.weight"));
                levels.context_width = to_k.and_then(|shape| shape.get(1).copied()).or(levels.context_width);
                if row == first_row {
                    levels.channels.push(shape.first().copied().unwrap_or(0));
                    levels.attention.push(self.has(&format!("input_blocks.{row}.1.proj_in.weight")));
                    levels.transformer_layers.push(self.transformer_layers(&format!("input_blocks.{row}")));
                }
                row += 1;
            }
            if row > first_row {
                levels.resnets.push(row - first_row);
            }
            // A downsampler ends a block.
            if row == first_row || !self.has(&format!("input_blocks.{row}.0.op.weight")) {
                return levels;
            }
            row += 1;
        }
    }

    /// Infers `unet/config.json`.
    pub fn unet(&self, version: LdmVersion, predicts_v: bool) -> Result<Value> {
        let Levels { channels, resnets, attention, mut transformer_layers, context_width } = self.levels();
        if let Some(layers) = transformer_layers.last_mut() {
            *layers = self.transformer_layers("middle_block").max(*layers);
        }
        let heads =
            channels.iter().map(|channels| if version == LdmVersion::Sd1 { 8 } else { (channels / HEAD_DIM).max(1) });
        let heads: Vec<usize> = heads.collect();
        let mut config = json!({
            "block_out_channels": channels, "layers_per_block": resnets, "attention_head_dim": heads,
            "transformer_layers_per_block": transformer_layers, "cross_attention_dim": context_width,
            "down_block_types": block_types(&attention, "DownBlock2D"),
            "up_block_types": block_types(&self.up_attention(&resnets), "UpBlock2D"),
            "in_channels": self.dim("input_blocks.0.0.weight", 1)?, "out_channels": self.dim("out.2.weight", 0)?,
            "sample_size": version.image_side(predicts_v) / 8,
        });
        if let (Some(shape), Some(fields)) = (self.shape("label_emb.0.0.weight"), config.as_object_mut()) {
            fields.insert("addition_embed_type".to_owned(), "text_time".into());
            fields.insert("addition_time_embed_dim".to_owned(), 256.into());
            fields.insert("projection_class_embeddings_input_dim".to_owned(), json!(shape.get(1)));
        }
        Ok(config)
    }

    /// Whether each up block has transformers.
    fn up_attention(&self, resnets: &[usize]) -> Vec<bool> {
        let mut row = 0;
        let block = |resnets: &usize| {
            let has_transformers = self.has(&format!("output_blocks.{row}.1.proj_in.weight"));
            row += resnets + 1;
            has_transformers
        };
        resnets.iter().rev().map(block).collect()
    }

    /// Infers `vae/config.json`.
    pub fn vae(&self, version: LdmVersion, predicts_v: bool) -> Result<Value> {
        let first_conv = |level: usize| format!("encoder.down.{level}.block.0.conv1.weight");
        let levels = self.count(first_conv);
        let channels = (0..levels).map(|level| self.dim(&first_conv(level), 0)).collect::<Result<Vec<_>>>()?;
        Ok(json!({
            "block_out_channels": channels,
            "layers_per_block": self.count(|index| format!("encoder.down.0.block.{index}.conv1.weight")).max(1),
            "latent_channels": self.dim("decoder.conv_in.weight", 1)?,
            "mid_block_add_attention": self.has("encoder.mid.attn_1.q.weight"),
            "use_quant_conv": self.has("quant_conv.weight"), "use_post_quant_conv": self.has("post_quant_conv.weight"),
            "scaling_factor": if version == LdmVersion::Sdxl { 0.13025 } else { 0.18215 },
            "sample_size": version.image_side(predicts_v),
        }))
    }

    /// Infers the `config.json` of a text encoder.
    pub fn text_encoder(&self, version: LdmVersion, open_clip: bool) -> Result<Value> {
        let (tokens, positions, layer, mlp) = match open_clip {
            true => ("token_embedding.weight", "positional_embedding", "transformer.resblocks", "mlp.c_fc.weight"),
            false => (
                "embeddings.token_embedding.weight",
                "embeddings.position_embedding.weight",
                "encoder.layers",
                "mlp.fc1.weight",
            ),
        };
        let (vocabulary, width) = (self.dim(tokens, 0)?, self.dim(tokens, 1)?);
        let layers = self.count(|index| format!("{layer}.{index}.{mlp}"));
        Ok(json!({
            "num_hidden_layers": if version == LdmVersion::Sd2 { layers.saturating_sub(1).max(1) } else { layers },
            "hidden_size": width, "num_attention_heads": (width / HEAD_DIM).max(1),
            "intermediate_size": self.dim(&format!("{layer}.0.{mlp}"), 0)?,
            "vocab_size": vocabulary, "max_position_embeddings": self.dim(positions, 0)?,
            "hidden_act": if open_clip { "gelu" } else { "quick_gelu" },
            "eos_token_id": vocabulary.saturating_sub(1),
            "projection_dim": self.shape("text_projection").and_then(|shape| shape.get(1)),
        }))
    }
}

/// diffusers' block types. `attention`: whether each block has transformers.
fn block_types(attention: &[bool], plain: &str) -> Vec<String> {
    attention.iter().map(|attention| if *attention { format!("CrossAttn{plain}") } else { plain.to_owned() }).collect()
}
