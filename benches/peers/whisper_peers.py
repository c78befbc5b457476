"""Whisper in faster-whisper and in whisper.cpp (pywhispercpp), from the same Hugging Face folder.

Neither package reads safetensors. faster-whisper gets a CTranslate2 folder from CTranslate2's own converter. whisper.cpp
gets a ggml file, written here as whisper.cpp reads it: hyperparameters, mel filters, vocabulary, tensors. `f16` files
match those that whisper.cpp publishes. `q8_0` quantizes matrices in blocks of 32 with an f16 scale, as its quantizer does.
"""

import argparse
import json
import pathlib
import struct
import threading

import numpy as np

import smoke

GGML_MAGIC, F32, F16, Q8_0, BLOCK = 0x67676D6C, 0, 1, 8, 32
# File types of the header. Quantized files also have the version 2 of the quantization, in thousands.
FILE_TYPES = {"f16": 1, "q8_0": 2007}
NAMES = [
    ("model.", ""), (".layers.", ".blocks."), (".self_attn_layer_norm", ".attn_ln"), (".encoder_attn_layer_norm", ".cross_attn_ln"),
    (".self_attn.", ".attn."), (".encoder_attn.", ".cross_attn."), (".q_proj", ".query"), (".k_proj", ".key"), (".v_proj", ".value"),
    (".out_proj", ".out"), (".fc1", ".mlp.0"), (".fc2", ".mlp.2"), (".final_layer_norm", ".mlp_ln"), ("encoder.layer_norm", "encoder.ln_post"),
    ("decoder.layer_norm", "decoder.ln"), ("embed_tokens", "token_embedding"), ("embed_positions.weight", "positional_embedding"),
]  # fmt: skip


def ctranslate2_folder(model, cache):
    """Converts a Hugging Face folder to a CTranslate2 folder with f16 weights, once."""
    out = cache / f"{model.name}-ctranslate2"
    if not out.exists():
        from ctranslate2.converters import TransformersConverter

        files = ["tokenizer.json", "preprocessor_config.json"]
        TransformersConverter(str(model), copy_files=files).convert(str(out), quantization="float16", force=True)
    return out


def ggml_file(model, cache, kind):
    """Converts a Hugging Face folder to a ggml file of the kind `f16` or `q8_0`, once."""
    out = cache / f"ggml-{model.name}-{kind}.bin"
    if not out.exists():
        cache.mkdir(parents=True, exist_ok=True)
        partial = out.with_suffix(".partial")
        with partial.open("wb") as file:
            write_ggml(file, model, kind)
        partial.rename(out)
    return out


def write_ggml(file, model, kind):
    from safetensors.numpy import load_file

    config = json.loads((model / "config.json").read_text())
    sides = [config[name] for name in ("max_source_positions", "d_model", "encoder_attention_heads", "encoder_layers")]
    sides += [config[name] for name in ("max_target_positions", "d_model", "decoder_attention_heads", "decoder_layers")]
    file.write(struct.pack("<12i", GGML_MAGIC, config["vocab_size"], *sides, config["num_mel_bins"], FILE_TYPES[kind]))
    write_mel_filters(file, config["num_mel_bins"])
    write_vocabulary(file, json.loads((model / "vocab.json").read_text()))
    for name, values in load_file(model / "model.safetensors").items():
        if name != "proj_out.weight":
            write_tensor(file, ggml_name(name), values, kind)


def write_mel_filters(file, bins):
    from transformers.audio_utils import mel_filter_bank

    filters = mel_filter_bank(201, bins, 0.0, 8000.0, 16_000, norm="slaney", mel_scale="slaney").T.astype("<f4")
    file.write(struct.pack("<2i", *filters.shape) + filters.tobytes())


def write_vocabulary(file, vocabulary):
    """The bytes of each token in order of its ID. whisper.cpp adds the special tokens itself."""
    byte_of = byte_alphabet()
    tokens = sorted(vocabulary.items(), key=lambda item: item[1])
    file.write(struct.pack("<i", len(tokens)))
    for text, _ in tokens:
        data = bytes(byte_of[char] for char in text) if all(char in byte_of for char in text) else text.encode()
        file.write(struct.pack("<i", len(data)) + data)


def byte_alphabet():
    """The inverse of GPT-2's mapping of bytes to printable characters."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


def ggml_name(name):
    for old, new in NAMES:
        name = name.replace(old, new)
    return name


def write_tensor(file, name, values, kind):
    """Matrices and convolutions have the file's type. Biases, norms and positions stay f32."""
    if name in ("encoder.conv1.bias", "encoder.conv2.bias"):
        values = values.reshape(-1, 1)
    matrix = values.ndim >= 2 and "bias" not in name and "positional" not in name
    quantized = matrix and values.ndim == 2 and kind == "q8_0"
    element = Q8_0 if quantized else F16 if matrix else F32
    data = name.encode()
    file.write(struct.pack("<3i", values.ndim, len(data), element) + struct.pack(f"<{values.ndim}i", *values.shape[::-1]) + data)
    file.write(q8_0(values) if quantized else values.astype("<f2" if matrix else "<f4").tobytes())


def q8_0(values):
    blocks = values.astype(np.float32).reshape(-1, BLOCK)
    scales = np.abs(blocks).max(axis=1, keepdims=True) / 127
    inverse = np.divide(1, scales, out=np.zeros_like(scales), where=scales > 0)
    rows = np.empty(len(blocks), dtype=[("scale", "<f2"), ("values", "i1", BLOCK)])
    rows["scale"], rows["values"] = scales[:, 0], np.round(blocks * inverse)
    return rows.tobytes()


class FasterWhisper:
    """faster-whisper with int8 weights. `batched` decodes several windows of one file at once."""

    def __init__(self, model, cache, threads, beam_size=None, batched=False):
        from faster_whisper import BatchedInferencePipeline, WhisperModel

        folder = ctranslate2_folder(model, cache)
        whisper = WhisperModel(str(folder), device="cpu", compute_type="int8", cpu_threads=threads, local_files_only=True)
        self.whisper = BatchedInferencePipeline(model=whisper) if batched else whisper
        self.options = ({"beam_size": beam_size} if beam_size else {}) | ({"batch_size": 8} if batched else {})

    def transcribe(self, path):
        segments, _ = self.whisper.transcribe(str(path), language="en", **self.options)
        return "".join(segment.text for segment in segments).strip()


class WhisperCpp:
    """whisper.cpp with greedy decoding, its own default (best of 5 at higher temperatures). One call at a time: a context
    is not safe for threads."""

    def __init__(self, model, cache, threads, kind):
        from pywhispercpp.model import Model

        quiet = {"print_progress": False, "print_realtime": False, "redirect_whispercpp_logs_to": None}
        self.whisper = Model(str(ggml_file(model, cache, kind)), n_threads=threads, language="en", **quiet)
        self.lock = threading.Lock()

    def transcribe(self, path):
        with self.lock:
            return " ".join(segment.text for segment in self.whisper.transcribe(str(path))).strip()


PEERS = {
    "faster-whisper int8, beam 1": lambda *args: FasterWhisper(*args, beam_size=1),
    "faster-whisper int8, beam 5": lambda *args: FasterWhisper(*args),
    "faster-whisper int8, batched": lambda *args: FasterWhisper(*args, beam_size=1, batched=True),
    "whisper.cpp f16": lambda *args: WhisperCpp(*args, "f16"),
    "whisper.cpp q8_0": lambda *args: WhisperCpp(*args, "q8_0"),
}



def convert(args):
    if smoke.lacks("ctranslate2") or smoke.lacks("transformers") or smoke.lacks("safetensors"):
        return
    print(ctranslate2_folder(args.model, args.cache), *(ggml_file(args.model, args.cache, kind) for kind in FILE_TYPES))


def main():
    parser = argparse.ArgumentParser(description="Converts a Whisper model for both packages, and measures nothing.")
    parser.add_argument("model", type=pathlib.Path, help="Hugging Face folder of a Whisper model")
    parser.add_argument("cache", type=pathlib.Path, help="folder of converted models")
    smoke.run(parser, convert, "{models}/tiny-whisper {folder}/cache")


if __name__ == "__main__":
    main()
