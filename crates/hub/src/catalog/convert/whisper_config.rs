//! Writes the JSON files of a Whisper folder, with the names of Hugging Face's transformers.

use std::io::Write;

use serde_json::{Value, json};

use super::whisper_dims::WhisperDims;
use crate::catalog::error::{FolderError, PullError};
use crate::catalog::staging::Staging;
use outpost_models::whisper::SpecialTokens;

/// Latest first timestamp of a text, in steps of 0.02 s: one second, as in OpenAI's decoder.
const MAX_FIRST_TIMESTAMP: u64 = 50;

/// Settings that the weights do not determine.
pub struct WhisperSettings {
    pub tokens: SpecialTokens,
    pub multilingual: bool,
    /// Tokens that are never generated.
    pub suppressed: Vec<u64>,
    /// Tokens that no text begins with.
    pub suppressed_first: Vec<u64>,
    /// Attention heads `(layer, head)` of the decoder that follow the audio; empty if they are not known.
    pub alignment_heads: Vec<(u64, u64)>,
}

/// Writes `config.json`, `generation_config.json` and `preprocessor_config.json`.
pub fn write(dims: &WhisperDims, settings: &WhisperSettings, staging: &Staging) -> Result<(), PullError> {
    write_json(staging, "config.json", &config(dims, settings))?;
    write_json(staging, "generation_config.json", &generation(dims, settings))?;
    write_json(staging, "preprocessor_config.json", &preprocessor(dims))
}

/// Writes a JSON file of the model.
pub fn write_json(staging: &Staging, name: &str, value: &Value) -> Result<(), PullError> {
    let (mut file, path) = staging.create(name)?;
    let text = format!("{value:#}\n");
    Ok(file.write_all(text.as_bytes()).map_err(FolderError::at(&path))?)
}

fn config(dims: &WhisperDims, settings: &WhisperSettings) -> Value {
    json!({
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "activation_function": "gelu",
        "is_encoder_decoder": true,
        "scale_embedding": false,
        "tie_word_embeddings": true,
        "vocab_size": dims.vocabulary,
        "num_mel_bins": dims.mels,
        "d_model": dims.width,
        "encoder_layers": dims.encoder_layers,
        "encoder_attention_heads": dims.heads,
        "encoder_ffn_dim": 4 * dims.width,
        "decoder_layers": dims.decoder_layers,
        "decoder_attention_heads": dims.heads,
        "decoder_ffn_dim": 4 * dims.width,
        "num_hidden_layers": dims.encoder_layers,
        "max_source_positions": dims.audio_positions,
        "max_target_positions": dims.text_positions,
        "bos_token_id": settings.tokens.end_of_text,
        "eos_token_id": settings.tokens.end_of_text,
        "pad_token_id": settings.tokens.end_of_text,
        "decoder_start_token_id": settings.tokens.start_of_transcript(),
        "median_filter_width": 7,
    })
}

fn generation(dims: &WhisperDims, settings: &WhisperSettings) -> Value {
    let tokens = settings.tokens;
    let mut config = json!({
        "bos_token_id": tokens.end_of_text,
        "eos_token_id": tokens.end_of_text,
        "pad_token_id": tokens.end_of_text,
        "decoder_start_token_id": tokens.start_of_transcript(),
        "prev_sot_token_id": tokens.start_of_previous(),
        "no_timestamps_token_id": tokens.no_timestamps(),
        "is_multilingual": settings.multilingual,
        "return_timestamps": false,
        "max_initial_timestamp_index": MAX_FIRST_TIMESTAMP,
        "max_length": dims.text_positions,
        "begin_suppress_tokens": settings.suppressed_first,
        "suppress_tokens": settings.suppressed,
    });
    if !settings.alignment_heads.is_empty() {
        config["alignment_heads"] = json!(settings.alignment_heads);
    }
    if settings.multilingual {
        let languages =
            tokens.codes().zip(tokens.first_language()..).map(|(code, id)| (format!("<|{code}|>"), id.into()));
        config["lang_to_id"] = Value::Object(languages.collect());
        config["task_to_id"] = json!({"transcribe": tokens.transcribe(), "translate": tokens.translate()});
    }
    config
}

fn preprocessor(dims: &WhisperDims) -> Value {
    json!({
        "feature_extractor_type": "WhisperFeatureExtractor",
        "processor_class": "WhisperProcessor",
        "sampling_rate": 16000,
        "chunk_length": 30,
        "n_samples": 480_000,
        "nb_max_frames": 3000,
        "n_fft": 400,
        "hop_length": 160,
        "feature_size": dims.mels,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": false,
    })
}
