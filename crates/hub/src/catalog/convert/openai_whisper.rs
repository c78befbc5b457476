//! English-only Whisper checkpoints as OpenAI publishes them (`tiny.en.pt` …), to the layout of Hugging Face.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::pickle_value::Value;
use super::safetensors_writer;
use super::tensor::Tensor;
use super::tiktoken::{self, Ranks};
use super::torch_checkpoint::TorchCheckpoint;
use super::whisper_config::{self, WhisperSettings, write_json};
use super::whisper_dims::WhisperDims;
use super::whisper_tokenizer::tokenizer;
use crate::catalog::error::PullError;
use crate::catalog::staging::Staging;
use outpost_models::whisper::SpecialTokens;

/// English-only: tokens of text that stand for sounds, brackets or speaker labels rather than for speech. They are the
/// result of `non_speech_tokens` in OpenAI's tokenizer.
const ENGLISH_NON_SPEECH: [u64; 84] = [
    1, 2, 7, 8, 9, 10, 14, 25, 26, 27, 28, 29, 31, 58, 59, 60, 61, 62, 63, 90, 91, 92, 93, 357, 366, 438, 532, 685,
    705, 796, 930, 1058, 1220, 1267, 1279, 1303, 1343, 1377, 1391, 1635, 1782, 1875, 2162, 2361, 2488, 3467, 4008,
    4211, 4600, 4808, 5299, 5855, 6329, 7203, 9609, 9959, 10563, 10786, 11420, 11709, 11907, 13163, 13697, 13700,
    14808, 15306, 16410, 16791, 17992, 19203, 19510, 20724, 22305, 22935, 27007, 30109, 30420, 33409, 34949, 40283,
    40493, 40549, 47282, 49146,
];

/// The checkpoint of `torch.save`.
pub const CHECKPOINT: &str = "checkpoint.pt";
/// The ranks of GPT-2's tokens.
pub const RANKS: &str = "ranks.tiktoken";

/// The token of a space, which no text begins with.
const SPACE: u64 = 220;
/// `(layer, head)` of tiny.en, from OpenAI's `whisper/__init__.py`.
const TINY_EN_ALIGNMENT: [(u64, u64); 8] = [(1, 0), (2, 0), (2, 5), (3, 0), (3, 1), (3, 2), (3, 3), (3, 4)];

/// Writes the weights, the configurations and the tokenizer.
pub fn convert(inputs: &Path, staging: &Staging) -> Result<(), PullError> {
    let refused = |file: &'static str| {
        move |why: String| PullError::Unconvertible { file: file.into(), why: format!("it {why}") }
    };
    let path = inputs.join(CHECKPOINT);
    let (dims, tensors) = read_checkpoint(&path).map_err(refused(CHECKPOINT))?;
    let tokenizer = read_ranks(&inputs.join(RANKS))
        .and_then(|ranks| tokenizer(&ranks, SpecialTokens::ENGLISH))
        .map_err(refused(RANKS))?;
    safetensors_writer::write(&tensors, &path, staging)?;
    whisper_config::write(&dims, &settings(&dims), staging)?;
    write_json(staging, "tokenizer.json", &tokenizer)
}

fn settings(dims: &WhisperDims) -> WhisperSettings {
    let tokens = SpecialTokens::ENGLISH;
    let is_tiny = (dims.width, dims.decoder_layers) == (384, 4);
    WhisperSettings {
        tokens,
        multilingual: false,
        suppressed: ENGLISH_NON_SPEECH.into_iter().chain(tokens.never_generated()).collect(),
        suppressed_first: vec![SPACE, tokens.end_of_text],
        alignment_heads: if is_tiny { TINY_EN_ALIGNMENT.to_vec() } else { Vec::new() },
    }
}

fn read_ranks(path: &Path) -> Result<Ranks, String> {
    let mut text = String::new();
    let file = File::open(path).map_err(|e| format!("cannot be read: {e}"))?;
    file.take(tiktoken::MAX_BYTES).read_to_string(&mut text).map_err(|e| format!("cannot be read: {e}"))?;
    Ranks::parse(&text)
}

fn read_checkpoint(path: &Path) -> Result<(WhisperDims, BTreeMap<String, Tensor>), String> {
    let (mut checkpoint, contents) = TorchCheckpoint::open(path)?;
    let dims = read_dims(contents.get("dims").ok_or("has no 'dims'")?)?;
    let state = contents.get("model_state_dict").and_then(Value::entries).ok_or("has no 'model_state_dict'")?;
    let mut tensors = BTreeMap::new();
    for (name, value) in state {
        let Value::Tensor(tensor) = value else { return Err(format!("has '{name}', which is no tensor")) };
        // The causal mask, which early checkpoints have and every implementation makes anew.
        if &**name == "decoder.mask" {
            continue;
        }
        let new_name =
            hugging_face_name(name).ok_or_else(|| format!("has the tensor '{name}', which no Whisper has"))?;
        let tensor = checkpoint.locate(tensor).map_err(|why| format!("has the tensor '{name}', which {why}"))?;
        if tensors.insert(new_name, tensor).is_some() {
            return Err(format!("has the tensor '{name}' twice"));
        }
    }
    dims.check_tensors(&tensors)?;
    Ok((dims, tensors))
}

fn read_dims(dims: &Value) -> Result<WhisperDims, String> {
    let size = |name: &str| dims.get(name).and_then(Value::count).ok_or_else(|| format!("has no size '{name}'"));
    if (size("n_audio_state")?, size("n_audio_head")?) != (size("n_text_state")?, size("n_text_head")?) {
        return Err("has an encoder and a decoder of different widths".into());
    }
    let dims = WhisperDims {
        mels: size("n_mels")?,
        vocabulary: size("n_vocab")?,
        audio_positions: size("n_audio_ctx")?,
        text_positions: size("n_text_ctx")?,
        width: size("n_text_state")?,
        heads: size("n_text_head")?,
        encoder_layers: size("n_audio_layer")?,
        decoder_layers: size("n_text_layer")?,
    };
    if dims.vocabulary != SpecialTokens::ENGLISH.vocabulary() {
        return Err(format!("has a vocabulary of {} tokens, which is not English-only", dims.vocabulary));
    }
    dims.check()
}

/// The name in Hugging Face's layout; `None` for names that OpenAI's Whisper does not have.
fn hugging_face_name(name: &str) -> Option<String> {
    let (side, rest) = name.split_once('.')?;
    let new = match (side, rest) {
        ("encoder" | "decoder", "positional_embedding") => "embed_positions.weight".to_owned(),
        ("decoder", "token_embedding.weight") => "embed_tokens.weight".to_owned(),
        ("encoder", "ln_post.weight") | ("decoder", "ln.weight") => "layer_norm.weight".to_owned(),
        ("encoder", "ln_post.bias") | ("decoder", "ln.bias") => "layer_norm.bias".to_owned(),
        ("encoder", "conv1.weight" | "conv1.bias" | "conv2.weight" | "conv2.bias") => rest.to_owned(),
        ("encoder" | "decoder", _) => {
            let (layer, part) = rest.strip_prefix("blocks.")?.split_once('.')?;
            let (module, kind) = part.rsplit_once('.').filter(|(_, kind)| matches!(*kind, "weight" | "bias"))?;
            let layer: u16 = layer.parse().ok()?;
            format!("layers.{layer}.{}.{kind}", layer_module(module)?)
        }
        _ => return None,
    };
    Some(format!("model.{side}.{new}"))
}

fn layer_module(module: &str) -> Option<&'static str> {
    Some(match module {
        "attn.query" => "self_attn.q_proj",
        "attn.key" => "self_attn.k_proj",
        "attn.value" => "self_attn.v_proj",
        "attn.out" => "self_attn.out_proj",
        "attn_ln" => "self_attn_layer_norm",
        "cross_attn.query" => "encoder_attn.q_proj",
        "cross_attn.key" => "encoder_attn.k_proj",
        "cross_attn.value" => "encoder_attn.v_proj",
        "cross_attn.out" => "encoder_attn.out_proj",
        "cross_attn_ln" => "encoder_attn_layer_norm",
        "mlp.0" => "fc1",
        "mlp.2" => "fc2",
        "mlp_ln" => "final_layer_norm",
        _ => return None,
    })
}
