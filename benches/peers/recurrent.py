"""Models with recurrent layers: compares `outpost serve` with llama.cpp on the same file and number of threads, in alternation.

    cargo build --release
    python3 -m venv /tmp/peer && /tmp/peer/bin/pip install llama-cpp-python gguf numpy
    /tmp/peer/bin/python benches/peers/recurrent.py

The files have random weights in the shapes of published models, as Q4_K and Q6_K, with the vocabulary of the starter model.
Outpost is called over HTTP with streaming and without speculation, llama.cpp through its library. Every figure is the median over the
runs.
"""

import argparse
import pathlib
import statistics

import smoke
from chat import LlamaCpp, Outpost
from smoke import ROOT

# Layers, width, width of the feed-forward network; query heads, key-value heads, width of a head: Qwen 3.5 0.8B, LFM2 1.2B, Granite 4
# H 1B, and 8 of the 40 layers of Qwen 3.5 35B-A3B.
SHAPES = {
    "qwen35": (24, 1024, 3584, 8, 2, 256), "lfm2": (16, 2048, 8192, 32, 8, 64), "granitehybrid": (40, 1536, 4096, 12, 4, 128),
    "qwen35moe": (8, 2048, 512, 16, 2, 256),
}
SMALL = {
    "qwen35": (4, 256, 256, 2, 1, 256), "lfm2": (3, 256, 256, 4, 2, 64), "granitehybrid": (6, 256, 256, 4, 2, 64),
    "qwen35moe": (4, 256, 256, 2, 1, 256),
}
# Experts, those of a token, and their width, which is that of the shared expert, too.
EXPERTS = {"qwen35moe": smoke.few((256, 8, 512), (4, 2, 256))}
# Of a delta network: key heads, value heads, width of a head.
DELTA_NETS = {"qwen35": smoke.few((16, 16, 128), (2, 2, 128)), "qwen35moe": smoke.few((16, 32, 128), (2, 4, 128))}
# Of a state space: heads, width of a head, rows of a state.
STATE_SPACE = smoke.few((48, 64, 128), (8, 64, 128))
ATTENTION = {"lfm2": (2, 5, 8, 10, 12, 14), "granitehybrid": (5, 15, 25, 35)}


class Writer:
    """Writes a GGUF file of an architecture with random weights."""

    def __init__(self, path, architecture, vocabulary):
        import gguf
        import numpy as np

        self.gguf, self.np, self.random = gguf, np, np.random.default_rng(0)
        self.file = gguf.GGUFWriter(path, architecture)
        fields = gguf.GGUFReader(vocabulary).fields
        for name, field in fields.items():
            if name.startswith("tokenizer."):
                kind, value = field.types[0], field.contents()
                if kind == gguf.GGUFValueType.ARRAY:
                    self.file.add_array(name, value)
                else:
                    self.file.add_key_value(name, value, kind)
        self.vocabulary = len(fields["tokenizer.ggml.tokens"].data)

    def matrix(self, name, rows, columns, bits=4, gain=1.0, experts=1):
        """Random codes in blocks of 256. All blocks have the factors with which weights have about the spread `gain / √columns`: a
        code times its scale has a spread of 185 (Q4_K, with a mean that the offset removes) or 1370 (Q6_K). The factor of Q6_K is
        a normal f16."""
        np, spread, blocks = self.np, gain / columns**0.5, experts * rows * columns // 256
        half = lambda number: np.frombuffer(np.float16(number).tobytes(), np.uint8)
        data = self.random.integers(0, 256, (blocks, 144 if bits == 4 else 210), dtype=np.uint8)
        if bits == 4:
            data[:, :2], data[:, 2:4] = half(spread / 185), half(spread / 185 * 7.5)
        else:
            data[:, 208:] = half(max(spread / 1370, 6.2e-5))
        kind = self.gguf.GGMLQuantizationType.Q4_K if bits == 4 else self.gguf.GGMLQuantizationType.Q6_K
        shape = (rows, -1) if experts == 1 else (experts, rows, data.size // experts // rows)
        self.file.add_tensor(f"{name}.weight", data.reshape(shape), raw_dtype=kind)

    def floats(self, name, shape, centre=0.0, spread=1.0):
        values = centre + spread * self.random.standard_normal(shape)
        self.file.add_tensor(name, values.astype(self.np.float32))

    def norm(self, name, width):
        self.floats(f"{name}.weight", width, 1.0, 0.05)

    def close(self):
        self.file.write_header_to_file()
        self.file.write_kv_data_to_file()
        self.file.write_tensors_to_file()
        self.file.close()


def write_model(path, architecture, vocabulary, shape):
    writer = Writer(path, architecture, vocabulary)
    file = writer.file
    layers, width, inner, heads, kv_heads, head = shape
    is_qwen, is_granite = architecture.startswith("qwen35"), architecture == "granitehybrid"
    has_attention = [layer % 4 == 3 if is_qwen else layer in ATTENTION[architecture] for layer in range(layers)]
    experts = EXPERTS.get(architecture)
    file.add_context_length(16384)
    file.add_embedding_length(width)
    file.add_block_count(layers)
    file.add_feed_forward_length(inner)
    file.add_head_count(heads)
    file.add_layer_norm_rms_eps(1e-6)
    file.add_vocab_size(writer.vocabulary)
    file.add_rope_freq_base(1e6)
    if experts:
        file.add_expert_count(experts[0])
        file.add_expert_used_count(experts[1])
        file.add_expert_feed_forward_length(experts[2])
        file.add_expert_shared_feed_forward_length(experts[2])
    if is_qwen:
        keys, values, each = DELTA_NETS[architecture]
        file.add_head_count_kv(kv_heads)
        file.add_key_length(head)
        file.add_value_length(head)
        file.add_rope_dimension_count(64)
        file.add_rope_dimension_sections([11, 11, 10, 0])
        write_recurrence(file, keys, values, each, values * each)
        file.add_uint32(f"{architecture}.full_attention_interval", 4)
    else:
        file.add_head_count_kv([kv_heads if attention else 0 for attention in has_attention])
    if is_granite:
        values, each, state = STATE_SPACE
        write_recurrence(file, 1, values, state, values * each)
        file.add_rope_scaling_finetuned(False)
    if architecture == "lfm2":
        file.add_shortconv_l_cache(3)
    writer.matrix("token_embd", writer.vocabulary, width, bits=6, gain=8.0)
    for layer, attention in enumerate(has_attention):
        stem = f"blk.{layer}."
        writer.norm(stem + "attn_norm", width)
        writer.norm(stem + ("post_attention_norm" if is_qwen else "ffn_norm"), width)
        if attention:
            writer.matrix(stem + "attn_q", heads * head * (2 if is_qwen else 1), width)
            writer.matrix(stem + "attn_k", kv_heads * head, width)
            writer.matrix(stem + "attn_v", kv_heads * head, width, bits=6)
            writer.matrix(stem + "attn_output", width, heads * head)
            if not is_granite:
                writer.norm(stem + "attn_q_norm", head)
                writer.norm(stem + "attn_k_norm", head)
        elif is_qwen:
            inputs = (2 * keys + values) * each
            writer.matrix(stem + "attn_qkv", inputs, width)
            writer.matrix(stem + "attn_gate", values * each, width)
            writer.matrix(stem + "ssm_out", width, values * each)
            writer.floats(stem + "ssm_alpha.weight", (values, width), spread=width**-0.5)
            writer.floats(stem + "ssm_beta.weight", (values, width), spread=width**-0.5)
            writer.floats(stem + "ssm_conv1d.weight", (inputs, 4), spread=0.5)
            writer.floats(stem + "ssm_a", values, -1.0, 0.2)
            writer.floats(stem + "ssm_dt.bias", values, spread=0.1)
            writer.norm(stem + "ssm_norm", each)
        elif is_granite:
            inner_width, inputs = values * each, values * each + 2 * state
            writer.matrix(stem + "ssm_in", inner_width + inputs + values, width)
            writer.matrix(stem + "ssm_out", width, inner_width)
            writer.floats(stem + "ssm_conv1d.weight", (inputs, 4), spread=0.5)
            writer.floats(stem + "ssm_conv1d.bias", inputs, spread=0.1)
            writer.floats(stem + "ssm_a", (values, 1), -1.0, 0.2)
            writer.floats(stem + "ssm_d", (values, 1), 1.0, 0.2)
            writer.floats(stem + "ssm_dt.bias", values, -2.0, 0.1)
            writer.floats(stem + "ssm_norm.weight", (1, inner_width), 1.0, 0.05)
        else:
            writer.matrix(stem + "shortconv.in_proj", 3 * width, width)
            writer.matrix(stem + "shortconv.out_proj", width, width)
            writer.floats(stem + "shortconv.conv.weight", (width, 3), spread=0.5)
        down = 6 if layer % 2 == 0 else 4
        if experts:
            count, _, own = experts
            writer.floats(stem + "ffn_gate_inp.weight", (count, width), spread=width**-0.5)
            writer.floats(stem + "ffn_gate_inp_shexp.weight", width, spread=width**-0.5)
            for ending, number in (("_exps", count), ("_shexp", 1)):
                writer.matrix(f"{stem}ffn_gate{ending}", own, width, experts=number)
                writer.matrix(f"{stem}ffn_up{ending}", own, width, experts=number)
                writer.matrix(f"{stem}ffn_down{ending}", width, own, bits=down, experts=number)
        else:
            writer.matrix(stem + "ffn_gate", inner, width)
            writer.matrix(stem + "ffn_up", inner, width)
            writer.matrix(stem + "ffn_down", width, inner, bits=down)
    writer.norm("token_embd_norm" if architecture == "lfm2" else "output_norm", width)
    writer.close()


def write_recurrence(file, keys, values, state, inner):
    """The sizes of a recurrence: heads of keys and of values, rows of a state, and elements of all values."""
    file.add_ssm_conv_kernel(4)
    file.add_ssm_state_size(state)
    file.add_ssm_group_count(keys)
    file.add_ssm_time_step_rank(values)
    file.add_ssm_inner_size(inner)


def prefill(length):
    """Tokens of the prompt per second."""
    figure = lambda rows: length / statistics.median(first[0] for _, first, _ in rows)
    return f"prefill {length:,}", (1, length, 2), figure


def decode(length, tokens):
    """Tokens of the response per second, after a prompt."""
    figure = lambda rows: 1 / statistics.median(statistics.median(latencies) for *_, latencies in rows)
    return f"decode at {length:,}", (1, length, tokens), figure


def streams(count, length, tokens):
    """Tokens of all responses per second, including the time for the prompts."""
    figure = lambda rows: statistics.median(speed for speed, *_ in rows)
    return f"{count} streams of {length} + {tokens}", (count, length, tokens), figure


FIGURES = smoke.few(
    [prefill(500), prefill(2000), decode(50, 64), decode(2000, 48), streams(8, 190, 64)],
    [prefill(30), decode(20, 4), streams(2, 20, 3)],
)


def measure(args):
    if smoke.lacks("gguf") or smoke.lacks("numpy"):
        return
    vocabulary = next((args.models / "smollm2-135m-instruct").glob("*.gguf"))
    shapes = smoke.few(SHAPES, SMALL)
    peers = [] if smoke.lacks("llama_cpp") else ["llama.cpp"]
    for name, shape in ((name, shape) for name, shape in shapes.items() if name in args.only):
        path = smoke.folder() / "random" / name / f"{name}.gguf"
        path.parent.mkdir(parents=True)
        write_model(path, name, vocabulary, shape)
        server = Outpost(name, args.threads, ["--no-speculation"], path.parents[1])
        server.stream("warm", 4)
        print(f"\n| {name} | {' | '.join(['Outpost', *peers, 'ratio'])} |\n|{'---|' * (len(peers) + 3)}")
        for what, call, figure in FIGURES:
            runners = [server, *(LlamaCpp(path, args.threads, call[0]) for _ in peers)]
            runs = [[] for _ in runners]
            for run in range(args.runs):
                for runner, rows in zip(runners, runs):
                    rows.append(runner.concurrent_streams(*call, run))
            found = [figure(rows) for rows in runs]
            print(f"| {what} | {' | '.join(f'{number:.0f}' for number in found)} | {found[0] / found[-1]:.2f} |", flush=True)
        server.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=pathlib.Path, default=ROOT / "models", help="the folder with the starter model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", choices=SHAPES, nargs="*", default=list(SHAPES), help="the shapes to measure")
    smoke.run(parser, measure, "--models {models} --runs 1")


if __name__ == "__main__":
    main()
