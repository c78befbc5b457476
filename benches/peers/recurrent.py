"""Models with recurrent layers: compares `outpost serve` with llama.cpp on the same file and number of threads, in alternation.

    cargo build --release
    python3 -m venv /tmp/peer && /tmp/peer/bin/pip install llama-cpp-python gguf numpy
    /tmp/peer/bin/python benches/peers/recurrent.py

The files have random weights in the shapes of published models, as Q4_K and Q6_K, with the vocabulary of the starter model.
Outpost is called over HTTP with streaming and without speculation, llama.cpp through its library. Every figure is the median over the
runs.
"""

import argparse
import dataclasses
import pathlib
import statistics

import smoke
from chat import LlamaCpp, Outpost
from smoke import ROOT


@dataclasses.dataclass(frozen=True)
class Shape:
    architecture: str
    layers: int
    width: int
    # The width of the feed-forward network, if it has no experts.
    inner: int
    # Query heads, key-value heads and width of a head.
    heads: tuple[int, int, int]
    # The layers with attention. In all others, the mixer is a recurrent one.
    attention: tuple[int, ...]
    # Key heads, value heads, and width of a head.
    delta_net: tuple[int, int, int] | None = None
    # Heads, width of a head, and rows of a state.
    state_space: tuple[int, int, int] | None = None
    # Experts, those of a token, their width, and that of the shared expert (0: there is none).
    experts: tuple[int, int, int, int] | None = None
    # First layers that have no experts.
    dense: int = 0


def every_fourth(layers):
    return tuple(range(3, layers, 4))


LFM2, GRANITE = (2, 5, 8, 10, 12, 14), (5, 15, 25, 35)
SHAPES = {
    "qwen3.5-0.8b": Shape("qwen35", 24, 1024, 3584, (8, 2, 256), every_fourth(24), delta_net=(16, 16, 128)),
    "qwen3.5-4b": Shape("qwen35", 32, 2560, 9216, (16, 4, 256), every_fourth(32), delta_net=(16, 32, 128)),
    # 8 of 40 layers.
    "qwen3.5-35b-a3b": Shape(
        "qwen35moe", 8, 2048, 512, (16, 2, 256), every_fourth(8), delta_net=(16, 32, 128), experts=(256, 8, 512, 512)
    ),
    "lfm2-1.2b": Shape("lfm2", 16, 2048, 8192, (32, 8, 64), LFM2),
    # 8 of 24 layers.
    "lfm2-8b-a1b": Shape("lfm2moe", 8, 2048, 7168, (32, 8, 64), (2, 6), experts=(32, 4, 1792, 0), dense=2),
    "granite-4-h-1b": Shape("granitehybrid", 40, 1536, 4096, (12, 4, 128), GRANITE, state_space=(48, 64, 128)),
    "granite-4-h-tiny": Shape(
        "granitehybrid", 40, 1536, 512, (12, 4, 128), GRANITE, state_space=(48, 64, 128), experts=(64, 6, 512, 1024)
    ),
}
# The same architectures with small sizes.
SMALL = {
    "qwen3.5-0.8b": Shape("qwen35", 4, 256, 256, (2, 1, 256), (3,), delta_net=(2, 2, 128)),
    "qwen3.5-35b-a3b": Shape("qwen35moe", 4, 256, 256, (2, 1, 256), (3,), delta_net=(2, 4, 128), experts=(4, 2, 256, 256)),
    "lfm2-8b-a1b": Shape("lfm2moe", 3, 256, 256, (4, 2, 64), (2,), experts=(4, 2, 256, 0), dense=1),
    "granite-4-h-1b": Shape("granitehybrid", 6, 256, 256, (4, 2, 64), (5,), state_space=(8, 64, 128)),
    "granite-4-h-tiny": Shape(
        "granitehybrid", 6, 256, 256, (4, 2, 64), (5,), state_space=(8, 64, 128), experts=(4, 2, 256, 256)
    ),
}


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


def write_model(path, vocabulary, shape):
    writer = Writer(path, shape.architecture, vocabulary)
    write_sizes(writer, shape)
    is_qwen, is_lfm2 = shape.architecture.startswith("qwen35"), shape.architecture.startswith("lfm2")
    writer.matrix("token_embd", writer.vocabulary, shape.width, bits=6, gain=8.0)
    for layer in range(shape.layers):
        stem = f"blk.{layer}."
        writer.norm(stem + "attn_norm", shape.width)
        writer.norm(stem + ("post_attention_norm" if is_qwen else "ffn_norm"), shape.width)
        if layer in shape.attention:
            write_attention(writer, stem, shape, is_qwen, is_qwen or is_lfm2)
        elif shape.delta_net:
            write_delta_net(writer, stem, shape.width, *shape.delta_net)
        elif shape.state_space:
            write_state_space(writer, stem, shape.width, *shape.state_space)
        else:
            writer.matrix(stem + "shortconv.in_proj", 3 * shape.width, shape.width)
            writer.matrix(stem + "shortconv.out_proj", shape.width, shape.width)
            writer.floats(stem + "shortconv.conv.weight", (shape.width, 3), spread=0.5)
        down = 6 if layer % 2 == 0 else 4
        if shape.experts and layer >= shape.dense:
            write_experts(writer, stem, shape, down)
        else:
            write_feed_forward(writer, stem, "", shape.width, shape.inner, down)
    writer.norm("token_embd_norm" if is_lfm2 else "output_norm", shape.width)
    writer.close()


def write_sizes(writer, shape):
    file, (heads, kv_heads, head) = writer.file, shape.heads
    file.add_context_length(16384)
    file.add_embedding_length(shape.width)
    file.add_block_count(shape.layers)
    file.add_feed_forward_length(shape.inner)
    file.add_head_count(heads)
    file.add_layer_norm_rms_eps(1e-6)
    file.add_vocab_size(writer.vocabulary)
    file.add_rope_freq_base(1e6)
    if shape.experts:
        count, used, width, shared = shape.experts
        file.add_expert_count(count)
        file.add_expert_used_count(used)
        file.add_expert_feed_forward_length(width)
        if shared:
            file.add_expert_shared_feed_forward_length(shared)
        else:
            file.add_leading_dense_block_count(shape.dense)
            file.add_expert_gating_func(writer.gguf.ExpertGatingFuncType.SIGMOID)
    if shape.delta_net:
        keys, values, each = shape.delta_net
        file.add_head_count_kv(kv_heads)
        file.add_key_length(head)
        file.add_value_length(head)
        file.add_rope_dimension_count(64)
        file.add_rope_dimension_sections([11, 11, 10, 0])
        write_recurrence(file, keys, values, each, values * each)
        file.add_uint32(f"{shape.architecture}.full_attention_interval", 4)
    else:
        file.add_head_count_kv([kv_heads if layer in shape.attention else 0 for layer in range(shape.layers)])
    if shape.state_space:
        values, each, state = shape.state_space
        write_recurrence(file, 1, values, state, values * each)
        file.add_rope_scaling_finetuned(False)
    if shape.architecture.startswith("lfm2"):
        file.add_shortconv_l_cache(3)


def write_recurrence(file, keys, values, state, inner):
    """The sizes of a recurrence: heads of keys and of values, rows of a state, and elements of all values."""
    file.add_ssm_conv_kernel(4)
    file.add_ssm_state_size(state)
    file.add_ssm_group_count(keys)
    file.add_ssm_time_step_rank(values)
    file.add_ssm_inner_size(inner)


def write_attention(writer, stem, shape, is_gated, has_norms):
    (heads, kv_heads, head), width = shape.heads, shape.width
    writer.matrix(stem + "attn_q", heads * head * (2 if is_gated else 1), width)
    writer.matrix(stem + "attn_k", kv_heads * head, width)
    writer.matrix(stem + "attn_v", kv_heads * head, width, bits=6)
    writer.matrix(stem + "attn_output", width, heads * head)
    if has_norms:
        writer.norm(stem + "attn_q_norm", head)
        writer.norm(stem + "attn_k_norm", head)


def write_delta_net(writer, stem, width, keys, values, each):
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


def write_state_space(writer, stem, width, values, each, state):
    inner, inputs = values * each, values * each + 2 * state
    writer.matrix(stem + "ssm_in", inner + inputs + values, width)
    writer.matrix(stem + "ssm_out", width, inner)
    writer.floats(stem + "ssm_conv1d.weight", (inputs, 4), spread=0.5)
    writer.floats(stem + "ssm_conv1d.bias", inputs, spread=0.1)
    writer.floats(stem + "ssm_a", (values, 1), -1.0, 0.2)
    writer.floats(stem + "ssm_d", (values, 1), 1.0, 0.2)
    writer.floats(stem + "ssm_dt.bias", values, -2.0, 0.1)
    writer.floats(stem + "ssm_norm.weight", (1, inner), 1.0, 0.05)


def write_experts(writer, stem, shape, down):
    count, _, own, shared = shape.experts
    writer.floats(stem + "ffn_gate_inp.weight", (count, shape.width), spread=shape.width**-0.5)
    write_feed_forward(writer, stem, "_exps", shape.width, own, down, count)
    if shared:
        write_feed_forward(writer, stem, "_shexp", shape.width, shared, down)
    else:
        writer.floats(stem + "exp_probs_b.bias", count, spread=0.1)
    if shape.delta_net:
        writer.floats(stem + "ffn_gate_inp_shexp.weight", shape.width, spread=shape.width**-0.5)


def write_feed_forward(writer, stem, ending, width, inner, down, experts=1):
    writer.matrix(f"{stem}ffn_gate{ending}", inner, width, experts=experts)
    writer.matrix(f"{stem}ffn_up{ending}", inner, width, experts=experts)
    writer.matrix(f"{stem}ffn_down{ending}", width, inner, bits=down, experts=experts)


def prefill(length):
    """Tokens of the prompt per second."""
    figure = lambda rows: length / statistics.median(first[0] for _, first, _ in rows)
    return f"prefill {length:,}", figure


def decode(length):
    """Tokens of the response per second, after a prompt."""
    figure = lambda rows: 1 / statistics.median(statistics.median(latencies) for *_, latencies in rows)
    return f"decode at {length:,}", figure


def total(streams, length, tokens):
    """Tokens of all responses per second, including the time for the prompts."""
    figure = lambda rows: statistics.median(speed for speed, *_ in rows)
    return f"{streams} streams of {length} + {tokens}", figure


# Streams, tokens of a prompt and of a response, and the figures of these runs.
CALLS = smoke.few(
    [
        ((1, 500, 2), [prefill(500)]),
        ((1, 2000, 2), [prefill(2000)]),
        ((1, 50, 64), [decode(50)]),
        ((1, 8000, 48), [prefill(8000), decode(8000)]),
        ((8, 190, 64), [total(8, 190, 64)]),
    ],
    [((1, 30, 4), [prefill(30), decode(30)]), ((2, 20, 3), [total(2, 20, 3)])],
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
        write_model(path, vocabulary, shape)
        server = Outpost(name, args.threads, ["--no-speculation"], path.parents[1])
        server.stream("warm", 4)
        print(f"\n| {name} | {' | '.join(['Outpost', *peers, 'ratio'])} |\n|{'---|' * (len(peers) + 3)}")
        for call, figures in CALLS:
            if not any(what.startswith(tuple(args.figures)) for what, _ in figures):
                continue
            streams, length, tokens = call
            # The chat template adds a few tokens.
            runners = [server, *(LlamaCpp(path, args.threads, streams, length + tokens + 32) for _ in peers)]
            runs = [[] for _ in runners]
            for run in range(args.runs):
                for runner, rows in zip(runners, runs):
                    rows.append(runner.concurrent_streams(*call, run))
            for what, figure in figures:
                found = [figure(rows) for rows in runs]
                print(f"| {what} | {' | '.join(f'{number:.1f}' for number in found)} | {found[0] / found[-1]:.2f} |", flush=True)
        server.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=pathlib.Path, default=ROOT / "models", help="the folder with the starter model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", choices=SHAPES, nargs="*", default=list(SHAPES), help="the shapes to measure")
    parser.add_argument("--figures", nargs="*", default=[""], help="beginnings of the figures' names, such as 'decode at 50'")
    smoke.run(parser, measure, "--models {models} --runs 1")


if __name__ == "__main__":
    main()
