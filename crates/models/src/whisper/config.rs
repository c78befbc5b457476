//! The sizes of a Whisper model, from a `config.json` (see transformers' `configuration_whisper.py`) or the header of a
//! `ggml-*.bin`.

use serde_json::Value;

use crate::config_json::ConfigJson;
use crate::error::{Result, reject_config};
use crate::quantization_config;

/// The maximum number of hidden states of a window: 30 seconds.
const MAX_AUDIO_POSITIONS: usize = 1500;
const MAX_MELS: usize = 256;
const MAX_LAYERS: usize = 256;
const MAX_HEADS: usize = 256;
const MAX_WIDTH: usize = 1 << 14;
const MAX_VOCABULARY: usize = 1 << 20;

/// The configuration of a Whisper model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WhisperConfig {
    /// Mel bands of a spectrogram: 80, or 128 since large-v3.
    pub mels: usize,
    /// Hidden states of a window of audio: 1500. A spectrogram has twice as many frames.
    pub audio_positions: usize,
    /// Maximum tokens of the decoder: 448.
    pub context: usize,
    /// Width of both networks.
    pub width: usize,
    pub encoder_layers: usize,
    pub encoder_heads: usize,
    /// Width of the encoder's feed-forward networks.
    pub encoder_inner: usize,
    pub decoder_layers: usize,
    pub decoder_heads: usize,
    /// Width of the decoder's feed-forward networks.
    pub decoder_inner: usize,
    /// 51864 if the model knows only English, 51865, or 51866 since large-v3.
    pub vocabulary: usize,
}

impl WhisperConfig {
    /// Frames of a spectrogram. The second convolution halves their number.
    pub fn frames(&self) -> usize {
        2 * self.audio_positions
    }

    /// Whether the vocabulary is that of a multilingual model.
    pub fn is_multilingual(&self) -> bool {
        self.vocabulary > 51_864
    }

    /// Reads a `config.json`.
    ///
    /// # Errors
    /// If it does not describe a supported model.
    pub fn from_config_json(value: &Value) -> Result<Self> {
        let config = ConfigJson { value, path: "" };
        match config.text("model_type")? {
            Some("whisper") => {}
            other => return reject_config(format!("model_type is {other:?}, it must be whisper")),
        }
        quantization_config::reject_quantised(&config)?;
        if !matches!(config.text("activation_function")?, None | Some("gelu")) {
            return reject_config("activation_function must be gelu".to_owned());
        }
        if config.flag("scale_embedding")? == Some(true) {
            return reject_config("scale_embedding must be false".to_owned());
        }
        if config.flag("tie_word_embeddings")? == Some(false) {
            return reject_config("tie_word_embeddings must be true".to_owned());
        }
        let width = config.required("d_model", MAX_WIDTH)?;
        Self {
            mels: config.integer_or("num_mel_bins", 80, MAX_MELS)?,
            audio_positions: config.integer_or("max_source_positions", MAX_AUDIO_POSITIONS, MAX_AUDIO_POSITIONS)?,
            context: config.integer_or("max_target_positions", 448, MAX_AUDIO_POSITIONS)?,
            width,
            encoder_layers: config.required("encoder_layers", MAX_LAYERS)?,
            encoder_heads: config.required("encoder_attention_heads", MAX_HEADS)?,
            encoder_inner: config.integer_or("encoder_ffn_dim", 4 * width, 4 * MAX_WIDTH)?,
            decoder_layers: config.required("decoder_layers", MAX_LAYERS)?,
            decoder_heads: config.required("decoder_attention_heads", MAX_HEADS)?,
            decoder_inner: config.integer_or("decoder_ffn_dim", 4 * width, 4 * MAX_WIDTH)?,
            vocabulary: config.required("vocab_size", MAX_VOCABULARY)?,
        }
        .check()
    }

    /// The sizes in the header of a `ggml-*.bin`, in the file's order.
    pub(super) fn from_ggml(sizes: [usize; 10]) -> Result<Self> {
        let [vocabulary, audio_positions, width, encoder_heads, encoder_layers, context, text_width, rest @ ..] = sizes;
        let [decoder_heads, decoder_layers, mels] = rest;
        if width != text_width {
            return reject_config(format!("the encoder is {width} wide and the decoder {text_width}"));
        }
        let limits = [
            ("the number of mel bands", mels, MAX_MELS),
            ("n_audio_ctx", audio_positions, MAX_AUDIO_POSITIONS),
            ("n_text_ctx", context, MAX_AUDIO_POSITIONS),
            ("n_audio_state", width, MAX_WIDTH),
            ("n_audio_layer", encoder_layers, MAX_LAYERS),
            ("n_audio_head", encoder_heads, MAX_HEADS),
            ("n_text_layer", decoder_layers, MAX_LAYERS),
            ("n_text_head", decoder_heads, MAX_HEADS),
            ("n_vocab", vocabulary, MAX_VOCABULARY),
        ];
        if let Some((name, value, max)) = limits.into_iter().find(|(_, value, max)| *value == 0 || value > max) {
            return reject_config(format!("{name} is {value}, it must be a number from 1 to {max}"));
        }
        let inner = 4 * width;
        Self {
            mels,
            audio_positions,
            context,
            width,
            encoder_layers,
            encoder_heads,
            encoder_inner: inner,
            decoder_layers,
            decoder_heads,
            decoder_inner: inner,
            vocabulary,
        }
        .check()
    }

    fn check(self) -> Result<Self> {
        let Self { width, audio_positions, context, .. } = self;
        if let Some(heads) = [self.encoder_heads, self.decoder_heads].into_iter().find(|heads| width % heads != 0) {
            return reject_config(format!("the width {width} does not divide into {heads} heads"));
        }
        // Cross-attention numbers the queries of a step from the end of the window backwards.
        if context > audio_positions {
            return reject_config(format!(
                "max_target_positions is {context}, more than the {audio_positions} of max_source_positions"
            ));
        }
        Ok(self)
    }
}
