// Writes a multilingual Whisper model with random weights: a Hugging Face folder that loads in milliseconds. Its texts consist of
// lower-case letters and spaces.

import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const [WIDTH, INNER, HEADS, LAYERS, MELS] = [16, 64, 2, 2, 80];
// Positions of a window of audio and of its text, of which a window uses at most half.
const [AUDIO_POSITIONS, POSITIONS] = [1500, 48];
const TIMESTAMPS = 1501;
const ROWS = 51_865;
// Bytes, then these tokens, then the timestamps.
const BYTES = 256;
const SPECIALS = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"];
// The token of a space, and those of the letters.
const SPACE = 220;
const isLetter = (id) => id === SPACE || (id >= 97 - 33 && id <= 122 - 33);
const ALIGNMENT = 8;

const config = {
  architectures: ["WhisperForConditionalGeneration"], model_type: "whisper", activation_function: "gelu", d_model: WIDTH, num_mel_bins: MELS, vocab_size: ROWS,
  encoder_layers: LAYERS, encoder_attention_heads: HEADS, encoder_ffn_dim: INNER, decoder_layers: LAYERS, decoder_attention_heads: HEADS, decoder_ffn_dim: INNER,
  max_source_positions: AUDIO_POSITIONS, max_target_positions: POSITIONS, bos_token_id: BYTES, eos_token_id: BYTES, pad_token_id: BYTES, decoder_start_token_id: BYTES + 1,
  scale_embedding: false, tie_word_embeddings: true,
};
const generation = { suppress_tokens: [], begin_suppress_tokens: [BYTES], is_multilingual: true };
const preprocessor = { feature_size: MELS, sampling_rate: 16_000, n_fft: 400 };

/** A byte-level tokenizer without merges. */
function tokenizer() {
  const isPlain = (byte) => (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte !== 0xad);
  const plain = Array.from({ length: BYTES }, (_, byte) => byte).filter(isPlain).map((byte) => String.fromCharCode(byte));
  const letters = [...plain, ...Array.from({ length: BYTES - plain.length }, (_, at) => String.fromCharCode(0x100 + at))];
  const times = Array.from({ length: TIMESTAMPS }, (_, time) => `<|${(time / 50).toFixed(2)}|>`);
  const added = [...SPECIALS, ...times].map((content, at) => ({ id: BYTES + at, content, special: at < SPECIALS.length, single_word: false, lstrip: false, rstrip: false, normalized: false }));
  const bytes = { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: true };
  return {
    version: "1.0", truncation: null, padding: null, normalizer: null, post_processor: null, added_tokens: added, pre_tokenizer: bytes, decoder: bytes,
    model: {
      type: "BPE", dropout: null, unk_token: null, continuing_subword_prefix: "", end_of_word_suffix: "", fuse_unk: false,
      vocab: Object.fromEntries(letters.map((letter, at) => [letter, at])), merges: [],
    },
  };
}

/** Numbers from -1 to 1, the same in every run (mulberry32). */
function randomNumbers(seed) {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 31 - 1;
  };
}

/** `[name, shape, values]` of each tensor. */
function tensors() {
  const random = randomNumbers(5);
  const all = [];
  const add = (name, shape, center, scale) => {
    const count = shape.reduce((product, size) => product * size, 1);
    all.push([`model.${name}`, shape, Float32Array.from({ length: count }, () => center + scale * random())]);
  };
  const norm = (name) => {
    add(`${name}.weight`, [WIDTH], 1, 0.1);
    add(`${name}.bias`, [WIDTH], 0, 0.1);
  };
  [MELS, WIDTH].forEach((channels, at) => {
    add(`encoder.conv${at + 1}.weight`, [WIDTH, channels, 3], 0, 0.2);
    add(`encoder.conv${at + 1}.bias`, [WIDTH], 0, 0.1);
  });
  for (const [network, positions, attentions] of [["encoder", AUDIO_POSITIONS, ["self_attn"]], ["decoder", POSITIONS, ["self_attn", "encoder_attn"]]]) {
    add(`${network}.embed_positions.weight`, [positions, WIDTH], 0, 0.3);
    norm(`${network}.layer_norm`);
    for (let layer = 0; layer < LAYERS; layer++) {
      const prefix = `${network}.layers.${layer}`;
      for (const attention of attentions) {
        for (const name of ["q_proj", "k_proj", "v_proj", "out_proj"]) {
          add(`${prefix}.${attention}.${name}.weight`, [WIDTH, WIDTH], 0, 0.5);
          if (name !== "k_proj") add(`${prefix}.${attention}.${name}.bias`, [WIDTH], 0, 0.1);
        }
        norm(`${prefix}.${attention}_layer_norm`);
      }
      norm(`${prefix}.final_layer_norm`);
      for (const [name, outputs, inputs] of [["fc1", INNER, WIDTH], ["fc2", WIDTH, INNER]]) {
        add(`${prefix}.${name}.weight`, [outputs, inputs], 0, 0.3);
        add(`${prefix}.${name}.bias`, [outputs], 0, 0.1);
      }
    }
  }
  // The first number of the last hidden state is 4, so that the first number of an embedding is the bias of its token.
  const find = (name) => all.find(([found]) => found === `model.decoder.layer_norm.${name}`)[2];
  [find("weight")[0], find("bias")[0]] = [0, 4];
  all.push(["model.decoder.embed_tokens.weight", [ROWS, WIDTH], embedding(random)]);
  return all;
}

function embedding(random) {
  const isSpecial = (id) => id >= BYTES && id < BYTES + SPECIALS.length + TIMESTAMPS;
  const biasOf = (id) => (isLetter(id) ? 0.5 : isSpecial(id) ? 0 : -25);
  // Large numbers make one token far more likely than the others, so that the text is the same in every run.
  return Float32Array.from({ length: ROWS * WIDTH }, (_, at) => (at % WIDTH ? 4 * random() : biasOf(at / WIDTH)));
}

function safetensors(list) {
  const header = {};
  let offset = 0;
  for (const [name, shape, { byteLength }] of list) {
    header[name] = { dtype: "F32", shape, data_offsets: [offset, offset + byteLength] };
    offset += byteLength;
  }
  const text = JSON.stringify(header);
  const length = Buffer.alloc(8);
  const padded = text.padEnd(Math.ceil(text.length / ALIGNMENT) * ALIGNMENT);
  length.writeBigUInt64LE(BigInt(padded.length));
  return Buffer.concat([length, Buffer.from(padded), ...list.map(([, , { buffer }]) => Buffer.from(buffer))]);
}

/** Writes `directory/name/`. The model knows English and German. */
export function writeTinyWhisper(directory, name) {
  const folder = join(directory, name);
  mkdirSync(folder, { recursive: true });
  const files = { "config.json": config, "generation_config.json": generation, "preprocessor_config.json": preprocessor, "tokenizer.json": tokenizer() };
  for (const [file, value] of Object.entries(files)) writeFileSync(join(folder, file), JSON.stringify(value));
  writeFileSync(join(folder, "model.safetensors"), safetensors(tensors()));
}
