//! Writes a tiny Whisper model with random weights: a Hugging Face folder that loads in milliseconds. Its texts consist of
//! lower-case letters and spaces.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::tiny_model::{Random, byte_alphabet};

const WIDTH: usize = 16;
const INNER: usize = 4 * WIDTH;
const HEADS: usize = 2;
const LAYERS: usize = 2;
const MELS: usize = 80;
const AUDIO_POSITIONS: usize = 1500;
/// A window has at most half as many tokens of text.
const POSITIONS: usize = 48;
const TIMESTAMPS: usize = 1501;
/// Rows of the embedding: multilingual models have one more than those that know only English.
const ENGLISH_ROWS: usize = 51_864;
/// Bytes, then these tokens, then the timestamps.
const BYTES: usize = 256;
const SPECIALS: [&str; 9] = [
    "<|endoftext|>",
    "<|startoftranscript|>",
    "<|en|>",
    "<|de|>",
    "<|translate|>",
    "<|transcribe|>",
    "<|startofprev|>",
    "<|nospeech|>",
    "<|notimestamps|>",
];

/// Writes `<dir>/<name>/`. Multilingual models know English and German.
pub fn write(dir: &Path, name: &str, multilingual: bool) {
    let folder = dir.join(name);
    fs::create_dir_all(&folder).unwrap();
    let rows = ENGLISH_ROWS + usize::from(multilingual);
    let config = json!({
        "architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "activation_function": "gelu",
        "d_model": WIDTH, "num_mel_bins": MELS, "vocab_size": rows,
        "encoder_layers": LAYERS, "encoder_attention_heads": HEADS, "encoder_ffn_dim": INNER,
        "decoder_layers": LAYERS, "decoder_attention_heads": HEADS, "decoder_ffn_dim": INNER,
        "max_source_positions": AUDIO_POSITIONS, "max_target_positions": POSITIONS,
        "bos_token_id": BYTES, "eos_token_id": BYTES, "pad_token_id": BYTES, "decoder_start_token_id": BYTES + 1,
        "scale_embedding": false, "tie_word_embeddings": true,
    });
    let generation =
        json!({ "suppress_tokens": [], "begin_suppress_tokens": [BYTES], "is_multilingual": multilingual });
    for (file, value) in [
        ("config.json", config),
        ("generation_config.json", generation),
        ("preprocessor_config.json", json!({ "feature_size": MELS, "sampling_rate": 16_000, "n_fft": 400 })),
        ("tokenizer.json", tokenizer()),
    ] {
        fs::write(folder.join(file), value.to_string()).unwrap();
    }
    fs::write(folder.join("model.safetensors"), safetensors(&tensors(rows))).unwrap();
}

/// A byte-level tokenizer without merges.
fn tokenizer() -> Value {
    let vocabulary: BTreeMap<String, usize> = byte_alphabet().into_iter().zip(0..).collect();
    let times = (0..TIMESTAMPS).map(|time| format!("<|{}.{:02}|>", time / 50, time % 50 * 2));
    let added = SPECIALS.iter().map(|text| (*text).to_owned()).chain(times).enumerate().map(|(index, text)| {
        json!({
            "id": BYTES + index, "content": text, "special": index < SPECIALS.len(), "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false,
        })
    });
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": added.collect::<Vec<_>>(), "pre_tokenizer": bytes, "decoder": bytes,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "", "end_of_word_suffix": "",
            "fuse_unk": false, "vocab": vocabulary, "merges": [],
        },
    })
}

type Tensors = Vec<(String, Vec<usize>, Vec<f32>)>;

fn tensors(rows: usize) -> Tensors {
    let mut random = Random(5);
    let mut all: Tensors = Vec::new();
    let mut add = |name: String, shape: &[usize], center: f32, scale: f32| {
        let values = (0..shape.iter().product()).map(|_| center + scale * random.number()).collect();
        all.push((format!("model.{name}"), shape.to_vec(), values));
    };
    for (index, channels) in [(1, MELS), (2, WIDTH)] {
        add(format!("encoder.conv{index}.weight"), &[WIDTH, channels, 3], 0., 0.2);
        add(format!("encoder.conv{index}.bias"), &[WIDTH], 0., 0.1);
    }
    for (network, positions) in [("encoder", AUDIO_POSITIONS), ("decoder", POSITIONS)] {
        add(format!("{network}.embed_positions.weight"), &[positions, WIDTH], 0., 0.3);
        add(format!("{network}.layer_norm.weight"), &[WIDTH], 1., 0.1);
        add(format!("{network}.layer_norm.bias"), &[WIDTH], 0., 0.1);
        for layer in 0..LAYERS {
            let prefix = format!("{network}.layers.{layer}");
            let attentions: &[&str] =
                if network == "encoder" { &["self_attn"] } else { &["self_attn", "encoder_attn"] };
            for attention in attentions {
                for name in ["q_proj", "k_proj", "v_proj", "out_proj"] {
                    add(format!("{prefix}.{attention}.{name}.weight"), &[WIDTH, WIDTH], 0., 0.5);
                    if name != "k_proj" {
                        add(format!("{prefix}.{attention}.{name}.bias"), &[WIDTH], 0., 0.1);
                    }
                }
            }
            let norms = attentions.iter().map(|attention| format!("{attention}_layer_norm"));
            for norm in norms.chain(["final_layer_norm".to_owned()]) {
                add(format!("{prefix}.{norm}.weight"), &[WIDTH], 1., 0.1);
                add(format!("{prefix}.{norm}.bias"), &[WIDTH], 0., 0.1);
            }
            for (name, [outputs, inputs]) in [("fc1", [INNER, WIDTH]), ("fc2", [WIDTH, INNER])] {
                add(format!("{prefix}.{name}.weight"), &[outputs, inputs], 0., 0.3);
                add(format!("{prefix}.{name}.bias"), &[outputs], 0., 0.1);
            }
        }
    }
    bias_tokens(&mut all);
    all.push(("model.decoder.embed_tokens.weight".to_owned(), vec![rows, WIDTH], embedding(rows, &mut random)));
    all
}

/// Makes the first number of the last hidden state 4, so that the first number of an embedding is the bias of its token.
fn bias_tokens(tensors: &mut Tensors) {
    for (name, value) in [("weight", 0.), ("bias", 4.)] {
        let name = format!("model.decoder.layer_norm.{name}");
        tensors.iter_mut().find(|(found, ..)| *found == name).unwrap().2[0] = value;
    }
}

fn embedding(rows: usize, random: &mut Random) -> Vec<f32> {
    // The tokenizer's order of bytes begins with those that are printed as they are, from `!` on; a space is at 220.
    let letter = |id: usize| id == 220 || (usize::from(b'a' - b'!')..=usize::from(b'z' - b'!')).contains(&id);
    let first_time = BYTES + SPECIALS.len();
    let mut values = Vec::with_capacity(rows * WIDTH);
    for id in 0..rows {
        let is_used = letter(id) || (BYTES..first_time + TIMESTAMPS).contains(&id);
        values.push(if is_used { 0. } else { -25. });
        values.extend((1..WIDTH).map(|_| 0.6 * random.number()));
    }
    values
}

fn safetensors(tensors: &Tensors) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, shape, values) in tensors {
        let begin = data.len();
        data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        header.insert(name.clone(), json!({ "dtype": "F32", "shape": shape, "data_offsets": [begin, data.len()] }));
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}
