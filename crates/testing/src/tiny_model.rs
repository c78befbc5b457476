//! Writes a tiny chat model with random weights: a real GGUF file that loads in milliseconds.

use std::fs;
use std::path::{Path, PathBuf};

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};

/// The options of a tiny model. Larger `blocks` and `width` make it slower.
#[derive(Clone, Debug)]
pub struct TinyModel {
    /// `llama`, `qwen2` (with biases), `gemma3`, `lfm2`, `qwen35` or `granitehybrid`. In `gemma3`, the first block and every second
    /// one from there have a [`WINDOW`]; in the last three, these are recurrent.
    pub architecture: &'static str,
    pub context: u32,
    pub blocks: usize,
    /// Additional blocks whose outputs are zeros. The model is larger and its output stays the same.
    pub zero_blocks: usize,
    /// A multiple of 128 if quantized, of 8 otherwise.
    pub width: usize,
    /// Weights as Q8_0 instead of F32.
    pub quantized: bool,
    /// Uses the embedding matrix as output head. A tied random model mostly repeats itself.
    pub tied: bool,
    pub seed: u64,
    /// Appends a layer for multi-token prediction. The rest of the model stays the same.
    pub mtp: bool,
    pub template: Option<&'static str>,
    /// The template for conversations with tools.
    pub tool_template: Option<&'static str>,
    /// Additional tokens, each with its `tokenizer.ggml.token_type`.
    pub markers: &'static [(&'static str, i32)],
    /// Additional merges.
    pub merges: &'static [&'static str],
    /// Tokens that a convolution of a recurrent layer depends on.
    pub conv_kernel: usize,
    /// Metadata keys that name the tokens with these texts.
    pub named_tokens: &'static [(&'static str, &'static str)],
}

pub const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] \
    + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

const HEADS: usize = 4;
const KV_HEADS: usize = 2;
/// Positions that a token sees in a layer with a window.
pub const WINDOW: u32 = 40;
/// The heads of a delta network: of keys and of values. Together, the heads of each have the width of the model.
const KEY_HEADS: usize = 2;
const VALUE_HEADS: usize = 4;
/// Rows of the state of a head of Mamba-2.
const STATE: usize = 8;
const MERGES: &[&str] = &[
    "Ġ t", "h e", "Ġt he", "i n", "Ġ a", "e r", "o n", "Ġ s", "r e", "a n", "Ġ w", "n d", "a t", "l l", "l o", "he ll",
    "hell o",
];
const SPECIALS: &[&str] = &["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

/// The value of [`TinyModel::default`], for constants.
pub const DEFAULT: TinyModel = TinyModel {
    architecture: "llama",
    context: 512,
    blocks: 2,
    zero_blocks: 0,
    width: 64,
    quantized: false,
    tied: false,
    seed: 1,
    mtp: false,
    template: Some(CHATML),
    tool_template: None,
    markers: &[],
    merges: &[],
    conv_kernel: 3,
    named_tokens: &[],
};

impl Default for TinyModel {
    fn default() -> Self {
        DEFAULT
    }
}

/// Writes `<dir>/<name>/<name>.gguf`.
pub fn write(dir: &Path, name: &str, options: &TinyModel) -> PathBuf {
    let folder = dir.join(name);
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join(format!("{name}.gguf"));
    fs::write(&path, bytes(options)).unwrap();
    path
}

/// The bytes of the GGUF file. They are deterministic.
pub fn bytes(options: &TinyModel) -> Vec<u8> {
    bytes_with_tensors(options, |_| ())
}

/// The bytes of the GGUF file with changed or further tensors.
pub fn bytes_with_tensors(options: &TinyModel, change: impl FnOnce(&mut Vec<TensorRow>)) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    let (metadata, entries) = metadata(options);
    let mut tensors = tensors(options);
    change(&mut tensors);
    out.extend(3u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend(entries.to_le_bytes());
    out.extend(metadata);
    let mut offset = 0u64;
    for (name, shape, kind, data) in &tensors {
        text(&mut out, name);
        out.extend((shape.len() as u32).to_le_bytes());
        shape.iter().rev().for_each(|&size| out.extend((size as u64).to_le_bytes()));
        out.extend(kind.to_le_bytes());
        out.extend(offset.to_le_bytes());
        offset += data.len().next_multiple_of(32) as u64;
    }
    for (_, _, _, data) in &tensors {
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend(data);
    }
    out
}

/// Name, shape, GGML type number, and bytes of a tensor.
pub type TensorRow = (String, Vec<usize>, u32, Vec<u8>);

fn tensors(options: &TinyModel) -> Vec<TensorRow> {
    let TinyModel { width, blocks, zero_blocks, .. } = *options;
    let (inner, kv) = (width * 2, width / HEADS * KV_HEADS);
    let (mut random, mut zero_random, mut mtp_random) =
        (Random(options.seed), Random(!options.seed), Random(options.seed ^ 1 << 32));
    let mut tensors = vec![matrix("token_embd.weight", vocabulary(options).len(), width, 1., options, &mut random)];
    for block in 0..blocks + zero_blocks + usize::from(options.mtp) {
        // Other blocks have random generators of their own, so that the first ones do not depend on them.
        let (random, output_scale) = match block {
            block if block < blocks => (&mut random, 1.),
            block if block < blocks + zero_blocks => (&mut zero_random, 0.),
            _ => (&mut mtp_random, 1.),
        };
        let mut add = |name: &str, rows: usize, columns: usize| {
            let is_output = ["attn_output", "shortconv.out_proj", "ssm_out", "ffn_down"].contains(&name);
            let factor = if is_output { output_scale } else { 1. };
            let scale = factor * 1.5 / (columns as f32).sqrt();
            tensors.push(matrix(&format!("blk.{block}.{name}.weight"), rows, columns, scale, options, random));
        };
        match has_attention(options, block) {
            true => {
                add("attn_q", if options.architecture == "qwen35" { 2 * width } else { width }, width);
                add("attn_k", kv, width);
                add("attn_v", kv, width);
                add("attn_output", width, width);
            }
            false if options.architecture == "qwen35" => {
                add("attn_qkv", 3 * width, width);
                add("attn_gate", width, width);
                add("ssm_alpha", VALUE_HEADS, width);
                add("ssm_beta", VALUE_HEADS, width);
                add("ssm_out", width, width);
            }
            false if options.architecture == "granitehybrid" => {
                add("ssm_in", 2 * width + 2 * STATE + VALUE_HEADS, width);
                add("ssm_out", width, width);
            }
            false => {
                add("shortconv.in_proj", 3 * width, width);
                add("shortconv.out_proj", width, width);
            }
        }
        add("ffn_gate", inner, width);
        add("ffn_up", inner, width);
        add("ffn_down", width, inner);
        let ffn_norm = if options.architecture == "qwen35" { "post_attention_norm" } else { "ffn_norm" };
        for name in ["attn_norm", ffn_norm] {
            tensors.push(vector(&format!("blk.{block}.{name}.weight"), width, 1., random));
        }
        if options.architecture == "gemma3" {
            for name in ["post_attention_norm", "post_ffw_norm"] {
                tensors.push(vector(&format!("blk.{block}.{name}.weight"), width, 1., random));
            }
        }
        if ["lfm2", "qwen35", "gemma3"].contains(&options.architecture) && has_attention(options, block) {
            for name in ["attn_q_norm", "attn_k_norm"] {
                tensors.push(vector(&format!("blk.{block}.{name}.weight"), width / HEADS, 1., random));
            }
        }
        if !has_attention(options, block) {
            let floats = TinyModel { quantized: false, ..*options };
            let mut conv = |name: &str, channels: usize| {
                tensors.push(matrix(
                    &format!("blk.{block}.{name}"),
                    channels,
                    options.conv_kernel,
                    0.7,
                    &floats,
                    random,
                ));
            };
            match options.architecture {
                "qwen35" => conv("ssm_conv1d.weight", 3 * width),
                "granitehybrid" => conv("ssm_conv1d.weight", width + 2 * STATE),
                _ => conv("shortconv.conv.weight", width),
            }
        }
        if options.architecture == "qwen35" && !has_attention(options, block) {
            for (name, size, centre) in [
                ("ssm_a", VALUE_HEADS, -0.5),
                ("ssm_dt.bias", VALUE_HEADS, 0.),
                ("ssm_norm.weight", width / VALUE_HEADS, 1.),
            ] {
                tensors.push(vector(&format!("blk.{block}.{name}"), size, centre, random));
            }
        }
        if options.architecture == "granitehybrid" && !has_attention(options, block) {
            for (name, size, centre) in [
                ("ssm_conv1d.bias", width + 2 * STATE, 0.),
                ("ssm_a", VALUE_HEADS, -0.5),
                ("ssm_d", VALUE_HEADS, 1.),
                ("ssm_dt.bias", VALUE_HEADS, 0.),
                ("ssm_norm.weight", width, 1.),
            ] {
                tensors.push(vector(&format!("blk.{block}.{name}"), size, centre, random));
            }
        }
        if options.architecture == "qwen2" {
            for (name, size) in [("attn_q", width), ("attn_k", kv), ("attn_v", kv)] {
                tensors.push(vector(&format!("blk.{block}.{name}.bias"), size, 0., random));
            }
        }
    }
    if options.mtp {
        let block = blocks + zero_blocks;
        let scale = 1.5 / (2. * width as f32).sqrt();
        let name = |name: &str| format!("blk.{block}.nextn.{name}.weight");
        tensors.push(matrix(&name("eh_proj"), width, 2 * width, scale, options, &mut mtp_random));
        for norm in ["enorm", "hnorm", "shared_head_norm"] {
            tensors.push(vector(&name(norm), width, 1., &mut mtp_random));
        }
    }
    if !options.tied {
        tensors.push(matrix(
            "output.weight",
            vocabulary(options).len(),
            width,
            4. / (width as f32).sqrt(),
            options,
            &mut random,
        ));
    }
    let output_norm = if options.architecture == "lfm2" { "token_embd_norm.weight" } else { "output_norm.weight" };
    tensors.push(vector(output_norm, width, 1., &mut random));
    tensors
}

fn is_hybrid(options: &TinyModel) -> bool {
    ["lfm2", "qwen35", "granitehybrid"].contains(&options.architecture)
}

/// Whether a block has attention, and is not recurrent.
fn has_attention(options: &TinyModel, block: usize) -> bool {
    !is_hybrid(options) || block % 2 == 1 || block == options.blocks + options.zero_blocks
}

fn matrix(name: &str, rows: usize, columns: usize, scale: f32, options: &TinyModel, random: &mut Random) -> TensorRow {
    let values: Vec<f32> = (0..rows * columns).map(|_| random.number() * scale).collect();
    let (dtype, type_number) = if options.quantized { (GgmlDType::Q8_0, 8) } else { (GgmlDType::F32, 0) };
    let tensor = Tensor::from_vec(values, (rows, columns), &Device::Cpu).unwrap();
    let data = QTensor::quantize(&tensor, dtype).unwrap().data().unwrap().into_owned();
    (name.to_owned(), vec![rows, columns], type_number, data)
}

fn vector(name: &str, size: usize, center: f32, random: &mut Random) -> TensorRow {
    let data = (0..size).flat_map(|_| (center + random.number() * 0.2).to_le_bytes()).collect();
    (name.to_owned(), vec![size], 0, data)
}

fn metadata(options: &TinyModel) -> (Vec<u8>, u64) {
    let architecture = options.architecture;
    let tokens = vocabulary(options);
    let plain = tokens.len() - SPECIALS.len() - options.markers.len();
    let markers = options.markers.iter().map(|(_, kind)| *kind);
    let merges = [MERGES, options.merges].concat();
    let kinds: Vec<i32> =
        std::iter::repeat_n(1, plain).chain(markers).chain(std::iter::repeat_n(3, SPECIALS.len())).collect();
    let (mut out, mut entries) = (Vec::new(), 0);
    let mut add = |key: &str, kind: u32, value: &[u8]| {
        text(&mut out, key);
        out.extend(kind.to_le_bytes());
        out.extend(value);
        entries += 1;
    };
    add("general.architecture", 8, &string(architecture));
    add("general.license", 8, &string("apache-2.0"));
    let sizes = [
        ("context_length", options.context),
        ("block_count", (options.blocks + options.zero_blocks) as u32 + u32::from(options.mtp)),
        ("embedding_length", options.width as u32),
        ("feed_forward_length", 2 * options.width as u32),
        ("attention.head_count", HEADS as u32),
        ("rope.dimension_count", (options.width / HEADS) as u32),
    ];
    for (key, size) in sizes {
        add(&format!("{architecture}.{key}"), 4, &size.to_le_bytes());
    }
    if options.mtp {
        add(&format!("{architecture}.nextn_predict_layers"), 4, &1u32.to_le_bytes());
    }
    let blocks = 0..options.blocks + options.zero_blocks + usize::from(options.mtp);
    let kv_heads = blocks.map(|block| if has_attention(options, block) { KV_HEADS as u32 } else { 0 });
    match architecture {
        "qwen35" => {
            add("qwen35.attention.head_count_kv", 4, &(KV_HEADS as u32).to_le_bytes());
            let sizes = [
                ("conv_kernel", options.conv_kernel),
                ("state_size", options.width / KEY_HEADS),
                ("group_count", KEY_HEADS),
                ("time_step_rank", VALUE_HEADS),
                ("inner_size", options.width),
            ];
            for (key, size) in sizes {
                add(&format!("qwen35.ssm.{key}"), 4, &(size as u32).to_le_bytes());
            }
            add("qwen35.full_attention_interval", 4, &2u32.to_le_bytes());
        }
        "granitehybrid" => {
            let kv_heads = array(4, kv_heads.map(|heads| heads.to_le_bytes().to_vec()));
            add("granitehybrid.attention.head_count_kv", 9, &kv_heads);
            let sizes = [
                ("conv_kernel", options.conv_kernel),
                ("state_size", STATE),
                ("group_count", 1),
                ("time_step_rank", VALUE_HEADS),
                ("inner_size", options.width),
            ];
            for (key, size) in sizes {
                add(&format!("granitehybrid.ssm.{key}"), 4, &(size as u32).to_le_bytes());
            }
        }
        "lfm2" => {
            let kv_heads = array(4, kv_heads.map(|heads| heads.to_le_bytes().to_vec()));
            add("lfm2.attention.head_count_kv", 9, &kv_heads);
            add("lfm2.shortconv.l_cache", 4, &(options.conv_kernel as u32).to_le_bytes());
        }
        _ => add(&format!("{architecture}.attention.head_count_kv"), 4, &(KV_HEADS as u32).to_le_bytes()),
    }
    if architecture == "gemma3" {
        add("gemma3.attention.sliding_window", 4, &WINDOW.to_le_bytes());
        add("gemma3.attention.sliding_window_pattern", 4, &2u32.to_le_bytes());
    }
    add(&format!("{architecture}.attention.layer_norm_rms_epsilon"), 6, &1e-5f32.to_le_bytes());
    add("tokenizer.ggml.model", 8, &string("gpt2"));
    add("tokenizer.ggml.pre", 8, &string("smollm"));
    add("tokenizer.ggml.tokens", 9, &array(8, tokens.iter().map(|token| string(token))));
    add("tokenizer.ggml.token_type", 9, &array(5, kinds.iter().map(|kind| kind.to_le_bytes().to_vec())));
    add("tokenizer.ggml.merges", 9, &array(8, merges.iter().map(|merge| string(merge))));
    add("tokenizer.ggml.bos_token_id", 4, &(tokens.len() as u32 - 2).to_le_bytes());
    add("tokenizer.ggml.eos_token_id", 4, &(tokens.len() as u32 - 1).to_le_bytes());
    for (key, text) in options.named_tokens {
        let id = tokens.iter().position(|token| token == text).unwrap();
        add(key, 4, &(id as u32).to_le_bytes());
    }
    if let Some(template) = options.template {
        add("tokenizer.chat_template", 8, &string(template));
    }
    if let Some(template) = options.tool_template {
        add("tokenizer.chat_template.tool_use", 8, &string(template));
    }
    (out, entries)
}

/// The tokens of single bytes in a byte-level tokenizer: first the bytes that are printed as they are, then the others.
pub fn byte_alphabet() -> Vec<String> {
    let plain = bytes_in_order().into_iter().filter(is_printed).map(|byte| char::from(byte).to_string());
    plain.chain((0x100..0x144u32).map(|code| char::from_u32(code).unwrap().to_string())).collect()
}

/// The bytes of [`byte_alphabet`].
pub fn bytes_in_order() -> Vec<u8> {
    let (printed, others): (Vec<u8>, Vec<u8>) = (0..=u8::MAX).partition(is_printed);
    [printed, others].concat()
}

fn is_printed(byte: &u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// The byte alphabet, the merged tokens, the markers and the special tokens.
pub fn vocabulary(options: &TinyModel) -> Vec<String> {
    let mut tokens = byte_alphabet();
    tokens.extend(MERGES.iter().map(|merge| merge.replace(' ', "")));
    tokens.extend(options.markers.iter().map(|(marker, _)| (*marker).to_owned()));
    tokens.extend(SPECIALS.iter().map(|special| (*special).to_owned()));
    tokens
}

fn array(kind: u32, items: impl ExactSizeIterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut out = kind.to_le_bytes().to_vec();
    out.extend((items.len() as u64).to_le_bytes());
    items.for_each(|item| out.extend(item));
    out
}

fn string(value: &str) -> Vec<u8> {
    let mut out = Vec::new();
    text(&mut out, value);
    out
}

fn text(out: &mut Vec<u8>, value: &str) {
    out.extend((value.len() as u64).to_le_bytes());
    out.extend(value.as_bytes());
}

/// SplitMix64, scaled to numbers from -1 to 1.
pub struct Random(pub u64);

impl Random {
    pub fn number(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^= mixed >> 31;
        (mixed >> 40) as f32 / (1u32 << 23) as f32 - 1.
    }
}
