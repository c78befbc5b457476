// Writes a chat model with random weights that trains in seconds: a GGUF file of a llama with two blocks.

import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const [WIDTH, INNER, BLOCKS, HEADS, KV_HEADS, CONTEXT] = [64, 128, 2, 4, 2, 512];
const KV_WIDTH = (WIDTH / HEADS) * KV_HEADS;
const MERGES = ["h e", "i n"];
const SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
const TEMPLATE = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
// Types of GGUF values.
const [INT32, UINT32, FLOAT32, STRING, ARRAY] = [5, 4, 6, 8, 9];
const ALIGNMENT = 32;

const number = (bytes, write) => (value) => {
  const buffer = Buffer.alloc(bytes);
  buffer[write](value);
  return buffer;
};
const uint32 = number(4, "writeUInt32LE");
const int32 = number(4, "writeInt32LE");
const float32 = number(4, "writeFloatLE");
const uint64 = (value) => number(8, "writeBigUInt64LE")(BigInt(value));
const string = (text) => Buffer.concat([uint64(Buffer.byteLength(text)), Buffer.from(text)]);
const array = (type, items) => Buffer.concat([uint32(type), uint64(items.length), ...items]);

/** The alphabet of bytes, the merged tokens and the special tokens. */
function vocabulary() {
  const isPlain = (byte) => (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte !== 0xad);
  const plain = Array.from({ length: 256 }, (_, byte) => byte).filter(isPlain).map((byte) => String.fromCharCode(byte));
  const others = Array.from({ length: 256 - plain.length }, (_, at) => String.fromCharCode(0x100 + at));
  return [...plain, ...others, ...MERGES.map((merge) => merge.replace(" ", "")), ...SPECIALS];
}

function metadata(tokens) {
  const size = (name, value) => [`llama.${name}`, UINT32, uint32(value)];
  const entries = [
    ["general.architecture", STRING, string("llama")], ["general.license", STRING, string("apache-2.0")],
    size("context_length", CONTEXT), size("block_count", BLOCKS), size("embedding_length", WIDTH), size("feed_forward_length", INNER),
    size("attention.head_count", HEADS), size("attention.head_count_kv", KV_HEADS), size("rope.dimension_count", WIDTH / HEADS),
    ["llama.attention.layer_norm_rms_epsilon", FLOAT32, float32(1e-5)],
    ["tokenizer.ggml.model", STRING, string("gpt2")], ["tokenizer.ggml.pre", STRING, string("smollm")],
    ["tokenizer.ggml.tokens", ARRAY, array(STRING, tokens.map(string))],
    ["tokenizer.ggml.token_type", ARRAY, array(INT32, tokens.map((token) => int32(SPECIALS.includes(token) ? 3 : 1)))],
    ["tokenizer.ggml.merges", ARRAY, array(STRING, MERGES.map(string))],
    ["tokenizer.ggml.bos_token_id", UINT32, uint32(tokens.length - 2)], ["tokenizer.ggml.eos_token_id", UINT32, uint32(tokens.length - 1)],
    ["tokenizer.chat_template", STRING, string(TEMPLATE)],
  ];
  return [entries.length, Buffer.concat(entries.flatMap(([key, type, value]) => [string(key), uint32(type), value]))];
}

/** Numbers from -1 to 1, the same in every run. */
function* randomNumbers() {
  let state = 1;
  for (;;) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    yield state / 2 ** 31 - 1;
  }
}

/** `[name, shape, values]` of each tensor. */
function tensors(tokens) {
  const random = randomNumbers();
  const values = (count, center, scale) => Float32Array.from({ length: count }, () => center + random.next().value * scale);
  const matrix = (name, rows, columns, scale) => [`${name}.weight`, [rows, columns], values(rows * columns, 0, scale)];
  const norm = (name) => [`${name}.weight`, [WIDTH], values(WIDTH, 1, 0.2)];
  const block = (at) => [
    ["attn_q", WIDTH, WIDTH], ["attn_k", KV_WIDTH, WIDTH], ["attn_v", KV_WIDTH, WIDTH], ["attn_output", WIDTH, WIDTH], ["ffn_gate", INNER, WIDTH], ["ffn_up", INNER, WIDTH], ["ffn_down", WIDTH, INNER],
  ].map(([name, rows, columns]) => matrix(`blk.${at}.${name}`, rows, columns, 1.5 / Math.sqrt(columns))).concat(["attn_norm", "ffn_norm"].map((name) => norm(`blk.${at}.${name}`)));
  return [matrix("token_embd", tokens.length, WIDTH, 1), ...Array.from({ length: BLOCKS }, (_, at) => block(at)).flat(), matrix("output", tokens.length, WIDTH, 4 / Math.sqrt(WIDTH)), norm("output_norm")];
}

const padded = (length) => Math.ceil(length / ALIGNMENT) * ALIGNMENT;

/** Writes `directory/name/name.gguf`. */
export function writeTinyModel(directory, name) {
  const tokens = vocabulary();
  const list = tensors(tokens);
  const [count, values] = metadata(tokens);
  const parts = [Buffer.from("GGUF"), uint32(3), uint64(list.length), uint64(count), values];
  let offset = 0;
  for (const [tensor, shape, { byteLength }] of list) {
    // Zero is the number of the type F32.
    parts.push(string(tensor), uint32(shape.length), ...[...shape].reverse().map(uint64), uint32(0), uint64(offset));
    offset += padded(byteLength);
  }
  const header = Buffer.concat(parts);
  const file = Buffer.alloc(padded(header.length) + offset);
  header.copy(file);
  let at = padded(header.length);
  for (const [, , { buffer, byteLength }] of list) {
    Buffer.from(buffer).copy(file, at);
    at += padded(byteLength);
  }
  mkdirSync(join(directory, name));
  writeFileSync(join(directory, name, `${name}.gguf`), file);
}
