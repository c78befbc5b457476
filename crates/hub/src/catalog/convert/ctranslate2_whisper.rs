//! Multilingual Whisper models of CTranslate2 (the format of faster-whisper), to the layout of Hugging Face.
//!
//! CTranslate2 stores the projections of query, key and value as one matrix. Their rows are cut apart again.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use serde::Deserialize;

use super::ctranslate2::Ctranslate2Model;
use super::safetensors_writer;
use super::tensor::{Data, Tensor};
use super::whisper_config::{self, WhisperSettings};
use super::whisper_dims::WhisperDims;
use crate::catalog::error::PullError;
use crate::catalog::staging::Staging;
use outpost_models::whisper::{LANGUAGES, LANGUAGES_BEFORE_V3, SpecialTokens};

/// The weights.
pub const MODEL: &str = "model.bin";
/// CTranslate2's `config.json`.
pub const CONFIG: &str = "ctranslate2.json";

const MAX_CONFIG_BYTES: u64 = 1 << 20;
/// Frames and text positions are read from shapes; the mel bands are the second dimension of this tensor.
const CONV1: &str = "encoder/conv1/weight";
const EMBEDDING: &str = "decoder/embeddings/weight";

#[derive(Deserialize)]
struct Config {
    alignment_heads: Vec<(u64, u64)>,
    lang_ids: Vec<u64>,
    suppress_ids: Vec<u64>,
    suppress_ids_begin: Vec<u64>,
}

/// Writes the weights and the configurations. The package has the tokenizer.
pub fn convert(inputs: &Path, staging: &Staging) -> Result<(), PullError> {
    let refused = |file: &'static str| {
        move |why: String| PullError::Unconvertible { file: file.into(), why: format!("it {why}") }
    };
    let path = inputs.join(MODEL);
    let (dims, tensors) = read_model(&path).map_err(refused(MODEL))?;
    let settings = read_config(&inputs.join(CONFIG), &dims).map_err(refused(CONFIG))?;
    safetensors_writer::write(&tensors, &path, staging)?;
    whisper_config::write(&dims, &settings, staging)
}

fn read_config(path: &Path, dims: &WhisperDims) -> Result<WhisperSettings, String> {
    let file = File::open(path).map_err(|e| format!("cannot be read: {e}"))?;
    let config: Config =
        serde_json::from_reader(file.take(MAX_CONFIG_BYTES)).map_err(|e| format!("cannot be read: {e}"))?;
    let tokens = SpecialTokens::multilingual(config.lang_ids.len() as u64);
    let languages = LANGUAGES_BEFORE_V3..=LANGUAGES.len() as u64;
    let in_order = config.lang_ids.iter().copied().eq((tokens.first_language()..).take(config.lang_ids.len()));
    if !languages.contains(&tokens.languages) || !in_order || tokens.vocabulary() != dims.vocabulary {
        return Err("has languages that do not fit the vocabulary of a multilingual Whisper".into());
    }
    if config.alignment_heads.iter().any(|(layer, head)| *layer >= dims.decoder_layers || *head >= dims.heads) {
        return Err("has alignment heads that the model does not have".into());
    }
    Ok(WhisperSettings {
        tokens,
        multilingual: true,
        suppressed: config.suppress_ids,
        suppressed_first: config.suppress_ids_begin,
        alignment_heads: config.alignment_heads,
    })
}

fn read_model(path: &Path) -> Result<(WhisperDims, BTreeMap<String, Tensor>), String> {
    let mut model = Ctranslate2Model::read(path)?;
    if model.specification != "WhisperSpec" {
        return Err(format!("is a '{}', not a Whisper", model.specification));
    }
    let dims = read_dims(&model)?;
    let tied = [("decoder/projection/weight".to_owned(), EMBEDDING.to_owned())];
    if model.aliases != tied {
        return Err("has an output matrix that is not its embedding".into());
    }
    let mut renaming = Renaming { from: std::mem::take(&mut model.tensors), to: BTreeMap::new(), width: dims.width };
    renaming.whole(EMBEDDING, "decoder.embed_tokens.weight")?;
    for part in ["weight", "bias"] {
        for conv in ["conv1", "conv2"] {
            renaming.whole(&format!("encoder/{conv}/{part}"), &format!("encoder.{conv}.{part}"))?;
        }
    }
    for (side, layers) in [("encoder", dims.encoder_layers), ("decoder", dims.decoder_layers)] {
        renaming.whole(&format!("{side}/position_encodings/encodings"), &format!("{side}.embed_positions.weight"))?;
        renaming.norm(&format!("{side}/layer_norm"), &format!("{side}.layer_norm"))?;
        for layer in 0..layers {
            renaming.layer(
                &format!("{side}/layer_{layer}"),
                &format!("{side}.layers.{layer}"),
                side == "decoder",
                path,
            )?;
        }
    }
    if let Some(name) = renaming.from.keys().next() {
        return Err(format!("has the variable {name}, which no Whisper has"));
    }
    dims.check_tensors(&renaming.to)?;
    Ok((dims, renaming.to))
}

fn read_dims(model: &Ctranslate2Model) -> Result<WhisperDims, String> {
    let shape = |name: &str| model.tensors.get(name).map(|tensor| tensor.shape.as_slice()).unwrap_or_default();
    let rows = |name: &str| shape(name).first().copied().unwrap_or_default();
    let heads = |side: &str| model.settings.get(&format!("{side}/num_heads")).copied().unwrap_or_default();
    if heads("encoder") != heads("decoder") {
        return Err("has an encoder and a decoder with different numbers of heads".into());
    }
    let layers = |side: &str| {
        let has = |layer: &u64| !shape(&format!("{side}/layer_{layer}/ffn/linear_0/bias")).is_empty();
        (0..).take_while(has).count() as u64
    };
    WhisperDims {
        mels: shape(CONV1).get(1).copied().unwrap_or_default(),
        vocabulary: rows(EMBEDDING),
        audio_positions: rows("encoder/position_encodings/encodings"),
        text_positions: rows("decoder/position_encodings/encodings"),
        width: rows(CONV1),
        heads: u64::try_from(heads("decoder")).unwrap_or_default(),
        encoder_layers: layers("encoder"),
        decoder_layers: layers("decoder"),
    }
    .check()
}

/// Moves tensors from their names in CTranslate2 to those of Hugging Face, which begin with `model.`.
struct Renaming {
    from: BTreeMap<String, Tensor>,
    to: BTreeMap<String, Tensor>,
    width: u64,
}

impl Renaming {
    fn take(&mut self, name: &str) -> Result<Tensor, String> {
        self.from.remove(name).ok_or_else(|| format!("has no variable {name}"))
    }

    fn put(&mut self, name: &str, tensor: Tensor) {
        self.to.insert(format!("model.{name}"), tensor);
    }

    fn whole(&mut self, from: &str, to: &str) -> Result<(), String> {
        let tensor = self.take(from)?;
        self.put(to, tensor);
        Ok(())
    }

    fn norm(&mut self, from: &str, to: &str) -> Result<(), String> {
        self.whole(&format!("{from}/gamma"), &format!("{to}.weight"))?;
        self.whole(&format!("{from}/beta"), &format!("{to}.bias"))
    }

    fn linear(&mut self, from: &str, to: &str) -> Result<(), String> {
        self.whole(&format!("{from}/weight"), &format!("{to}.weight"))?;
        self.whole(&format!("{from}/bias"), &format!("{to}.bias"))
    }

    fn layer(&mut self, from: &str, to: &str, is_decoder: bool, file: &Path) -> Result<(), String> {
        self.norm(&format!("{from}/self_attention/layer_norm"), &format!("{to}.self_attn_layer_norm"))?;
        self.fused(&format!("{from}/self_attention/linear_0"), &format!("{to}.self_attn"), &["q", "k", "v"], file)?;
        self.linear(&format!("{from}/self_attention/linear_1"), &format!("{to}.self_attn.out_proj"))?;
        if is_decoder {
            self.norm(&format!("{from}/attention/layer_norm"), &format!("{to}.encoder_attn_layer_norm"))?;
            self.linear(&format!("{from}/attention/linear_0"), &format!("{to}.encoder_attn.q_proj"))?;
            self.fused(&format!("{from}/attention/linear_1"), &format!("{to}.encoder_attn"), &["k", "v"], file)?;
            self.linear(&format!("{from}/attention/linear_2"), &format!("{to}.encoder_attn.out_proj"))?;
        }
        self.norm(&format!("{from}/ffn/layer_norm"), &format!("{to}.final_layer_norm"))?;
        self.linear(&format!("{from}/ffn/linear_0"), &format!("{to}.fc1"))?;
        self.linear(&format!("{from}/ffn/linear_1"), &format!("{to}.fc2"))
    }

    /// Cuts a matrix of several projections apart.
    fn fused(&mut self, from: &str, to: &str, projections: &[&str], file: &Path) -> Result<(), String> {
        let (weight, bias) = (self.take(&format!("{from}/weight"))?, self.take(&format!("{from}/bias"))?);
        let parts = projections.len() as u64;
        if weight.shape != [parts * self.width, self.width] {
            return Err(format!("has the shape {:?} for {from}/weight", weight.shape));
        }
        for (block, projection) in (0..parts).zip(projections) {
            let rows = weight.blocks(parts, &[block], vec![self.width, self.width])?;
            self.put(&format!("{to}.{projection}_proj.weight"), rows);
            let part = bias.blocks(parts, &[block], vec![self.width])?;
            match *projection {
                // Whisper's keys have no bias; CTranslate2 stores zeros.
                "k" if is_zero(&part, file)? => {}
                "k" => return Err(format!("has a bias of keys in {from}, which no Whisper has")),
                _ => self.put(&format!("{to}.{projection}_proj.bias"), part),
            }
        }
        Ok(())
    }
}

/// Checks that all elements are zero. The tensor is a small range of the file.
fn is_zero(tensor: &Tensor, file: &Path) -> Result<bool, String> {
    let Data::Ranges(ranges) = &tensor.data else { return Ok(false) };
    let mut open = File::open(file).map_err(|e| format!("cannot be read: {e}"))?;
    for (offset, bytes) in ranges {
        let mut part = Vec::new();
        open.seek(SeekFrom::Start(*offset)).map_err(|e| format!("cannot be read: {e}"))?;
        open.by_ref().take(*bytes).read_to_end(&mut part).map_err(|e| format!("cannot be read: {e}"))?;
        if part.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}
