//! Kokoro's `config.json`.

use std::collections::HashMap;

use serde_json::Value;

use crate::config_json::ConfigJson;
use crate::error::{Result, reject_config};

/// The largest width of a layer.
const MAX_WIDTH: usize = 1 << 14;
/// The most layers of a kind, and the largest kernel.
const MAX_COUNT: usize = 64;
/// Kokoro has two. Each halves the channels.
const MAX_UPSAMPLINGS: usize = 8;

/// The configuration of a Kokoro model.
#[derive(Clone, Debug, PartialEq)]
pub struct KokoroConfig {
    /// The tokens of phonemes. Each phoneme is one character.
    phonemes: HashMap<char, u32>,
    /// Rows of the embedding tables.
    pub vocabulary: usize,
    /// The width of text encodings; even.
    pub hidden: usize,
    /// The width of a style: a voice has two, one for the decoder and one for the prosody.
    pub style: usize,
    /// Convolutions of the text encoder, and LSTMs of the duration encoder.
    pub layers: usize,
    /// Taps of the text encoder's convolutions; odd.
    pub kernel: usize,
    /// The most frames of a phoneme at normal speed.
    pub max_duration: usize,
    pub albert: AlbertConfig,
    pub vocoder: VocoderConfig,
}

/// The configuration of the text encoder that predicts prosody: an ALBERT (Lan et al. 2019,
/// <https://arxiv.org/abs/1909.11942>).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AlbertConfig {
    /// The width of embeddings.
    pub embedding: usize,
    pub width: usize,
    pub heads: usize,
    /// The width of the hidden layer of feed-forward networks.
    pub inner: usize,
    /// Passes through the only layer.
    pub passes: usize,
    /// The most tokens of a text, including those at both ends.
    pub context: usize,
    pub epsilon: f32,
}

/// The configuration of the vocoder, an iSTFTNet (Kaneko et al. 2022, <https://arxiv.org/abs/2203.02395>).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VocoderConfig {
    /// Channels before the first upsampling; each upsampling halves them.
    pub channels: usize,
    pub upsampling: Vec<Upsampling>,
    /// Residual blocks after each upsampling.
    pub blocks: Vec<BlockConfig>,
    /// Samples of a short-time Fourier transform; even.
    pub fft_size: usize,
    /// Samples between two transforms.
    pub hop: usize,
}

/// A transposed convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upsampling {
    pub rate: usize,
    pub kernel: usize,
}

/// A residual block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockConfig {
    pub kernel: usize,
    pub dilations: Vec<usize>,
}

impl KokoroConfig {
    /// Reads and checks a `config.json`.
    ///
    /// # Errors
    /// If a value is missing, or out of range.
    pub fn from_json(json: &Value) -> Result<Self> {
        let config = ConfigJson { value: json, path: "" };
        let config = Self {
            phonemes: phonemes(&config)?,
            vocabulary: config.required("n_token", 1 << 16)?,
            hidden: config.required("hidden_dim", MAX_WIDTH)?,
            style: config.required("style_dim", MAX_WIDTH)?,
            layers: config.required("n_layer", MAX_COUNT)?,
            kernel: config.required("text_encoder_kernel_size", MAX_COUNT)?,
            max_duration: config.required("max_dur", 1 << 10)?,
            albert: AlbertConfig::from_json(&section(&config, "plbert", "plbert.")?)?,
            vocoder: VocoderConfig::from_json(&section(&config, "istftnet", "istftnet.")?)?,
        };
        if let Some((phoneme, id)) = config.phonemes.iter().find(|(_, id)| **id as usize >= config.vocabulary) {
            return reject_config(format!("vocab has {id} for {phoneme:?}, but n_token is {}", config.vocabulary));
        }
        if !config.hidden.is_multiple_of(2) || config.kernel.is_multiple_of(2) {
            return reject_config("hidden_dim must be even, and text_encoder_kernel_size odd".to_owned());
        }
        Ok(config)
    }

    /// The token of a phoneme.
    pub fn phoneme(&self, phoneme: char) -> Option<u32> {
        self.phonemes.get(&phoneme).copied()
    }

    /// The tokens of a text: those of its phonemes, between two zeros. Characters without a token are left out, as in the
    /// reference implementation.
    pub fn tokens(&self, phonemes: &str) -> Vec<u32> {
        let tokens = phonemes.chars().filter_map(|phoneme| self.phoneme(phoneme));
        std::iter::once(0).chain(tokens).chain(std::iter::once(0)).collect()
    }

    /// The most phonemes of a text.
    pub fn max_phonemes(&self) -> usize {
        self.albert.context.saturating_sub(2)
    }

    /// Samples of a frame, which is the unit of durations.
    pub fn frame_samples(&self) -> usize {
        2 * self.vocoder.pitch_samples()
    }
}

/// An object that must exist.
fn section<'a>(config: &ConfigJson<'a>, key: &str, path: &'a str) -> Result<ConfigJson<'a>> {
    match config.object(key, path)? {
        Some(section) => Ok(section),
        None => reject_config(format!("{key} is missing")),
    }
}

fn phonemes(config: &ConfigJson<'_>) -> Result<HashMap<char, u32>> {
    let vocabulary = section(config, "vocab", "vocab.")?;
    let entries = vocabulary.value.as_object().into_iter().flatten();
    let entries = entries.map(|(text, id)| {
        let mut characters = text.chars();
        let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
        match (characters.next(), characters.next(), id) {
            (Some(phoneme), None, Some(id)) => Ok((phoneme, id)),
            _ => reject_config(format!("vocab has {text:?}; its keys must be single characters with numbers")),
        }
    });
    entries.collect()
}

impl AlbertConfig {
    fn from_json(config: &ConfigJson<'_>) -> Result<Self> {
        let albert = Self {
            embedding: config.integer_or("embedding_size", 128, MAX_WIDTH)?,
            width: config.required("hidden_size", MAX_WIDTH)?,
            heads: config.required("num_attention_heads", 256)?,
            inner: config.required("intermediate_size", MAX_WIDTH)?,
            passes: config.required("num_hidden_layers", MAX_COUNT)?,
            context: config.required("max_position_embeddings", 1 << 14)?,
            epsilon: config.float("layer_norm_eps")?.unwrap_or(1e-12),
        };
        if !albert.width.is_multiple_of(albert.heads) {
            return reject_config(format!("plbert has {} heads for a width of {}", albert.heads, albert.width));
        }
        Ok(albert)
    }
}

impl VocoderConfig {
    fn from_json(config: &ConfigJson<'_>) -> Result<Self> {
        let numbers = |value: &Value| -> Option<Vec<usize>> { value.as_array()?.iter().map(small).collect() };
        let list = |key: &str| -> Result<Vec<usize>> { Ok(config.list(key, small)?.unwrap_or_default()) };
        let (rates, kernels) = (list("upsample_rates")?, list("upsample_kernel_sizes")?);
        let block_kernels = list("resblock_kernel_sizes")?;
        let dilations = config.list("resblock_dilation_sizes", numbers)?.unwrap_or_default();
        if rates.len() != kernels.len() || block_kernels.len() != dilations.len() || rates.is_empty() {
            return reject_config("the lists of istftnet have different lengths, or are empty".to_owned());
        }
        let upsampling = rates.into_iter().zip(kernels).map(|(rate, kernel)| Upsampling { rate, kernel }).collect();
        let blocks = block_kernels.into_iter().zip(dilations);
        let vocoder = Self {
            channels: config.required("upsample_initial_channel", MAX_WIDTH)?,
            upsampling,
            blocks: blocks.map(|(kernel, dilations)| BlockConfig { kernel, dilations }).collect(),
            fft_size: config.required("gen_istft_n_fft", 1 << 12)?,
            hop: config.required("gen_istft_hop_size", 1 << 12)?,
        };
        vocoder.check()?;
        Ok(vocoder)
    }

    /// The network requires that lengths match after each layer.
    fn check(&self) -> Result<()> {
        let is_upsampling =
            |Upsampling { rate, kernel }: &Upsampling| kernel >= rate && (kernel - rate).is_multiple_of(2);
        if !self.upsampling.iter().all(is_upsampling) {
            return reject_config("istftnet.upsample_kernel_sizes must be rates plus an even number".to_owned());
        }
        let is_block = |block: &BlockConfig| block.kernel % 2 == 1 && !block.dilations.is_empty();
        if self.blocks.is_empty() || !self.blocks.iter().all(is_block) {
            return reject_config("istftnet.resblock_kernel_sizes must be odd, with dilations".to_owned());
        }
        if self.upsampling.len() > MAX_UPSAMPLINGS {
            return reject_config(format!("istftnet.upsample_rates has more than {MAX_UPSAMPLINGS} numbers"));
        }
        let rate = self.upsampling.iter().try_fold(1usize, |rate, step| rate.checked_mul(step.rate));
        if rate.is_none_or(|rate| rate > 1 << 12) || self.channels >> self.upsampling.len() == 0 {
            return reject_config("istftnet.upsample_rates are too large, or more than the channels allow".to_owned());
        }
        match self.fft_size.is_multiple_of(2) && self.hop <= self.fft_size / 2 {
            true => Ok(()),
            false => reject_config("istftnet.gen_istft_n_fft must be even, and twice the hop or more".to_owned()),
        }
    }

    /// Samples for each value of the pitch.
    pub fn pitch_samples(&self) -> usize {
        self.hop * self.upsampling.iter().map(|step| step.rate).product::<usize>()
    }

    /// Frequencies of a transform.
    pub fn bins(&self) -> usize {
        self.fft_size / 2 + 1
    }

    /// Channels after an upsampling.
    pub fn channels_after(&self, index: usize) -> usize {
        self.channels >> (index + 1)
    }

    /// The product of the rates after an upsampling.
    pub fn rate_after(&self, index: usize) -> usize {
        self.upsampling.iter().skip(index + 1).map(|step| step.rate).product()
    }
}

/// A number from 1 to 4096.
fn small(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|number| usize::try_from(number).ok()).filter(|number| (1..=1 << 12).contains(number))
}
