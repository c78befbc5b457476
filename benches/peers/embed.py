"""Texts to vectors: `outpost serve` beside onnxruntime and torch, on one model, with the same threads, in turns.

    cargo build --release
    python3 -m venv /tmp/peer && /tmp/peer/bin/pip install torch transformers onnx onnxscript onnxruntime numpy
    /tmp/peer/bin/python benches/peers/embed.py [--precision bf16] [--clients] [--huge]

Ours is asked over HTTP for base64, as the openai package does, or with `--in-process` through the engine in a process
without a server, as the peers are through their libraries: onnxruntime on an export with its own fusions for BERT, in
f32 and with 8-bit weights and activations (`quantize_dynamic`, per channel, full range); torch through transformers,
in f32 and in bfloat16. All have texts come in and vectors go out, so tokenising counts for everybody, and peers pad to
the longest of a batch. Texts are random words of one token each, so that all have exactly the tokens asked for, and no
text comes twice. Figures are medians over alternating runs; a cosine is the least of a batch, to torch in f32.

`--clients`: that many clients, each with one text at a time and a connection of its own, beside peers without HTTP that
get so many texts in one call, which is the most that they could gain by collecting them. `--huge`: a million tokens in
two requests, and how long 32 small clients wait alone and beside them; and the gaps between tokens of a chat (`--chat`)
alone and beside a request of 2,048 texts.
"""

import argparse
import base64
import contextlib
import copy
import http.client
import itertools
import json
import math
import multiprocessing
import os
import pathlib
import random
import socket
import statistics
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from chat import ROOT, Outpost, prompt, spread

PEERS = ["onnx-f32", "onnx-int8", "torch-f32", "torch-bf16"]
BATCHES, LENGTHS, MIXED = (1, 8, 32), (16, 128, 256), (8, 256)
# Threads of a library may spin for a moment after their work; the next side waits that long.
PAUSE = 0.3


def precision(model, kind):
    """The server's arguments for it."""
    return [] if kind == "f32" else ["--precision", f"{model}={kind}"]


def text(tokens, seed):
    """A text of so many tokens, with the two special ones."""
    return prompt(tokens - 2, seed)


def batch(size, tokens, seed):
    """Texts of so many tokens; where `tokens` is none, of lengths spread evenly by their logarithm."""
    dice = random.Random(seed)
    ends = [math.log(end) for end in MIXED]
    length = lambda: tokens or round(math.exp(dice.uniform(*ends)))
    return [text(length(), seed * 4099 + at) for at in range(size)]


class Onnx:
    def __init__(self, path, folder, kind, threads):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        self.session = onnxruntime.InferenceSession(str(folder / f"{kind}.onnx"), options, providers=["CPUExecutionProvider"])

    def __call__(self, inputs):
        return self.session.run(None, dict(inputs))[0]


class Torch:
    def __init__(self, path, folder, kind, threads):
        import torch
        import transformers

        torch.set_num_threads(threads)
        self.torch = torch
        self.model = transformers.AutoModel.from_pretrained(path, dtype=torch.float32).eval()
        if kind == "bf16":
            self.model = self.model.to(torch.bfloat16)

    def __call__(self, inputs):
        with self.torch.inference_mode():
            inputs = {name: self.torch.from_numpy(value) for name, value in inputs.items()}
            return self.model(**inputs).last_hidden_state.float().numpy()


def peer(name, path, folder, threads, limit, pipe):
    """A peer's life: makes vectors of what it is sent, and tells how long that took."""
    import numpy as np
    import transformers

    transformers.logging.disable_progress_bar()
    library, kind = name.split("-")
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    model = {"onnx": Onnx, "torch": Torch}[library](path, folder, kind, threads)

    def vectors(texts):
        inputs = tokenizer(texts, padding="longest", truncation=True, max_length=limit, return_tensors="np")
        mask = inputs["attention_mask"][..., None].astype(np.float32)
        mean = (model(inputs) * mask).sum(1) / mask.sum(1)
        return mean / np.linalg.norm(mean, axis=1, keepdims=True)

    pipe.send(None)
    while (batches := pipe.recv()) is not None:
        began = time.perf_counter()
        found = [vectors(texts) for texts in batches]
        pipe.send((time.perf_counter() - began, found[-1]))


class Peer:
    def __init__(self, *what, threads):
        here, there = multiprocessing.Pipe()
        self.pipe = here
        # Spawned, so that a library finds its number of threads in the environment before it starts.
        more = {"OMP_NUM_THREADS": str(threads), "RAYON_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "true"}
        os.environ.update(more | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"})
        self.process = multiprocessing.get_context("spawn").Process(target=peer, args=(*what, there))
        self.process.start()
        there.close()
        self.pipe.recv()

    def measure(self, batches):
        self.pipe.send(batches)
        return self.pipe.recv()

    def close(self):
        self.pipe.send(None)
        self.process.join()


class Wire:
    """A connection that stays open. Small on purpose: the clients run on the machine that they measure."""

    def __init__(self, server):
        self.head = f"POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {server.key}\r\n"
        self.head += "content-type: application/json\r\ncontent-length: "
        self.model = server.model
        self.socket = socket.create_connection(("127.0.0.1", server.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, texts):
        body = json.dumps({"model": self.model, "input": texts, "encoding_format": "base64"}).encode()
        self.socket.sendall(f"{self.head}{len(body)}\r\n\r\n".encode() + body)
        answer = http.client.HTTPResponse(self.socket)
        answer.begin()
        data = answer.read()
        assert answer.status == 200, data[:500]
        return data


class Engine:
    """Ours without a server: `benches/embed.rs`."""

    def __init__(self, args):
        command = ["cargo", "bench", "--quiet", "--bench", "embed", "--", args.model, "--models", args.models.resolve()]
        command += ["--threads", args.threads, "--precision", args.precision]
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self.process = subprocess.Popen(list(map(str, command)), **pipes)
        assert self.process.stdout.readline() == "ready\n"

    def measure(self, batches):
        import numpy as np

        self.process.stdin.write(json.dumps(batches) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        return answer["took"], np.array(answer["vectors"], dtype=np.float32)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Ours(Outpost):
    def __init__(self, args):
        super().__init__(args.model, args.threads, precision(args.model, args.precision) + args.serve, args.models)
        self.measure([["warm"]])

    def vectors(self, wire, texts):
        import numpy as np

        rows = sorted(json.loads(wire.ask(texts))["data"], key=lambda row: row["index"])
        return np.stack([np.frombuffer(base64.b64decode(row["embedding"]), dtype="<f4") for row in rows])

    def measure(self, batches):
        # One for each turn: a server need not keep those that nobody uses.
        wire = Wire(self)
        began = time.perf_counter()
        found = [self.vectors(wire, texts) for texts in batches]
        return time.perf_counter() - began, found[-1]

    def clients(self, count, tokens, seconds, seed, until=None):
        """Requests a second, and how long each took; `until` goes on as long as it says."""
        ready, stop = threading.Barrier(count + 1), threading.Event()

        def one(at):
            texts = itertools.cycle([text(tokens, (seed * 1009 + at) * 10_007 + turn) for turn in range(4000 // count + 600)])
            ready.wait()
            wire, took = Wire(self), []
            while not stop.is_set():
                began = time.perf_counter()
                wire.ask([next(texts)])
                took.append(time.perf_counter() - began)
            wire.socket.close()
            return took

        with ThreadPoolExecutor(count) as pool:
            workers = [pool.submit(one, at) for at in range(count)]
            ready.wait()
            began = time.perf_counter()
            until() if until else time.sleep(seconds)
            stop.set()
            lasted = time.perf_counter() - began
            found = [took for worker in workers for took in worker.result()]
        return len(found) / lasted, found


def export(path, folder, quantise):
    """The model as ONNX, with the fusions of onnxruntime, and its 8-bit form."""
    import torch
    import transformers
    from onnxruntime.transformers import optimizer

    transformers.logging.disable_progress_bar()
    model = transformers.AutoModel.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    names = ["input_ids", "attention_mask", "token_type_ids"]

    class Hidden(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, *inputs):
            return self.model(**dict(zip(names, inputs))).last_hidden_state

    ids = torch.arange(1000, 1018).reshape(2, 9)
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    free = {name: {0: "batch", 1: "length"} for name in [*names, "hidden"]}
    # The fusions know the graphs of the older exporter; in those of the newer one they find no attention.
    torch.onnx.export(Hidden().eval(), (ids, mask, torch.zeros_like(ids)), folder / "plain.onnx", input_names=names,
                      output_names=["hidden"], dynamic_axes=free, opset_version=17, dynamo=False)
    config = model.config
    fused = optimizer.optimize_model(str(folder / "plain.onnx"), model_type="bert", num_heads=config.num_attention_heads,
                                     hidden_size=config.hidden_size, opt_level=0, use_gpu=False)
    found = fused.get_fused_operator_statistics()
    assert (found["Attention"], found["BiasGelu"]) == (config.num_hidden_layers,) * 2, found
    fused.save_model_to_file(str(folder / "f32.onnx"))
    if quantise:
        import onnx
        from onnxruntime.quantization import QuantType, quantize_dynamic

        # Types do not pass through the fused operators by themselves.
        more = {"DefaultTensorType": onnx.TensorProto.FLOAT}
        quantize_dynamic(folder / "f32.onnx", folder / "int8.onnx", per_channel=True, reduce_range=False,
                         weight_type=QuantType.QInt8, extra_options=more)


def sides(args, path, folder, stack):
    """All that are measured, by name."""
    found = {}
    if not args.no_ours:
        found["ours"] = (Engine if args.in_process else Ours)(args)
    for name in args.peers:
        found[name] = Peer(name, path, folder, args.threads, args.limit, threads=args.threads)
    for side in found.values():
        stack.callback(side.close)
    return found


def check(path, args):
    """Every word is one token."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    for tokens in {*args.tokens, args.limit}:
        for seed in range(4):
            count = len(tokenizer(text(tokens, seed))["input_ids"])
            assert count == tokens, f"a text of {tokens} tokens came out at {count}"


def rounds(found, args, size, tokens, seed):
    """Sentences a second of each side, and its least cosine to torch in f32."""
    import numpy as np

    speed, cosine, counts = {name: [] for name in found}, {}, {}
    shown = [batch(size, tokens, seed)]
    vectors = {}
    for name, side in found.items():
        side.measure(shown)
        took, vectors[name] = side.measure(shown)
        # So many calls that a run takes long enough to be measured.
        counts[name] = max(1, round(args.seconds / took))
    if "torch-f32" in vectors:
        cosine = {name: float(np.min(np.sum(rows * vectors["torch-f32"], axis=1))) for name, rows in vectors.items()}
    names = list(found)
    for run in range(args.runs):
        for name in names[run % len(names) :] + names[: run % len(names)]:
            batches = [batch(size, tokens, seed + (run + 1) * 1_000_003 + at) for at in range(counts[name])]
            time.sleep(PAUSE)
            took, _ = found[name].measure(batches)
            speed[name].append(size * counts[name] / took)
    return {name: statistics.median(all) for name, all in speed.items()}, cosine


def line(name, speed, names, cosine=None):
    ratio = lambda peer: f" ({speed['ours'] / speed[peer]:.2f})" if "ours" in speed and peer != "ours" else ""
    cells = [name] + [f"{speed[one]:.1f}{ratio(one)}" for one in names]
    if cosine is not None:
        cells.append(" / ".join(f"{cosine[one]:.6f}" if one in cosine else "–" for one in names if one != "torch-f32"))
    print(f"| {' | '.join(cells)} |", flush=True)


def header(*cells):
    print(f"\n| {' | '.join(cells)} |\n{'|---' * len(cells)}|", flush=True)


def speeds(args, found):
    print("\nSentences a second; in brackets ours as a multiple of theirs.")
    header("tokens x batch", *found, "least cosine: " + " / ".join(one for one in found if one != "torch-f32"))
    for tokens in [*args.tokens, None]:
        for size in args.batches:
            speed, cosine = rounds(found, args, size, tokens, (tokens or 77) * 100 + size)
            line(f"{tokens or 'mixed'} x {size}", speed, list(found), cosine)


def clients(args, found):
    print("\nRequests of one text a second; peers get all texts in one call, without HTTP; in brackets, as above.")
    header("tokens, clients", *found)
    for tokens in args.tokens:
        for count in (1, 32):
            speed = {name: [] for name in found}
            calls = {}
            for name, side in found.items():
                if name != "ours":
                    side.measure([batch(count, tokens, 5)])
                    calls[name] = max(1, round(args.seconds / side.measure([batch(count, tokens, 6)])[0]))
            for run in range(args.runs):
                for name in list(found)[run % len(found) :] + list(found)[: run % len(found)]:
                    time.sleep(PAUSE)
                    if name == "ours":
                        speed[name].append(found[name].clients(count, tokens, max(args.seconds, 1), run)[0])
                        continue
                    took, _ = found[name].measure([batch(count, tokens, (run + 1) * 1_000_003 + at) for at in range(calls[name])])
                    speed[name].append(count * calls[name] / took)
            line(f"{tokens}, {count}", {name: statistics.median(all) for name, all in speed.items()}, list(found))


def huge(args, server):
    """The 95th percentile of small requests, alone and beside a million tokens."""
    alone, beside, speed = [], [], []
    for run in range(args.runs):
        alone.append(spread(server.clients(32, 16, 5, run * 2)[1])[1])
        texts = [batch(2048, args.limit, run * 2 + at) for at in range(2)]

        def ask():
            began = time.perf_counter()
            with ThreadPoolExecutor(len(texts)) as pool:
                list(pool.map(lambda one: Wire(server).ask(one), texts))
            speed.append(sum(map(len, texts)) * args.limit / (time.perf_counter() - began))

        beside.append(spread(server.clients(32, 16, 0, run * 2 + 1, ask)[1])[1])
    a, b = statistics.median(alone), statistics.median(beside)
    print(f"\n32 clients of one text of 16 tokens, p95: alone {a * 1e3:.1f} ms, beside {2 * 2048 * args.limit:,} tokens in two")
    print(f"requests {b * 1e3:.1f} ms ({b / a:.1f} times); the large ones got {statistics.median(speed):.0f} tokens/s", flush=True)


def beside_chat(args, server):
    """Gaps between the tokens of a chat, alone and while texts are embedded."""
    chat = copy.copy(server)
    chat.model = args.chat
    alone, beside = [], []
    chat.stream(prompt(50, 1), 8)
    for run in range(args.runs):
        for found, seed in (alone, run * 2), (beside, run * 2 + 1):
            texts = batch(2048, args.limit, seed)
            with ThreadPoolExecutor(1) as pool:
                large = pool.submit(Wire(server).ask, texts) if found is beside else None
                time.sleep(2)
                times, _ = chat.stream(prompt(50, seed + 100), 200)
                assert large is None or not large.done(), "the texts were done before the chat"
            found.extend(b - a for a, b in zip(times, times[1:]))
    (a50, a95), (b50, b95) = spread(alone), spread(beside)
    print(f"\nA chat's gaps: alone p50 {a50 * 1e3:.1f}, p95 {a95 * 1e3:.1f} ms; beside 2,048 texts of {args.limit} tokens")
    print(f"p50 {b50 * 1e3:.1f}, p95 {b95 * 1e3:.1f} ms", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=pathlib.Path, default=ROOT / "models")
    parser.add_argument("--model", default="all-minilm-l6-v2", help="mean pooling and a vocabulary that has the words of `chat.py`")
    parser.add_argument("--limit", type=int, default=256, help="tokens that the model reads of a text")
    parser.add_argument("--precision", choices=["f32", "bf16", "int8"], default="f32", help="ours")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="about how long a run takes")
    parser.add_argument("--batches", type=int, nargs="*", default=list(BATCHES))
    parser.add_argument("--tokens", type=int, nargs="*", default=list(LENGTHS))
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=PEERS)
    parser.add_argument("--serve", nargs="*", default=[], help="more arguments of outpost serve, without dashes")
    parser.add_argument("--no-ours", action="store_true", help="the peers alone")
    parser.add_argument("--in-process", action="store_true", help="ours without a server, as the peers are")
    parser.add_argument("--clients", action="store_true")
    parser.add_argument("--huge", action="store_true")
    parser.add_argument("--chat", default="smollm2-135m-instruct")
    args = parser.parse_args()
    args.serve = ["--" + one for one in args.serve]
    os.environ["HF_HUB_OFFLINE"] = "1"
    path = args.models / args.model
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if args.huge:
            server = Ours(args)
            stack.callback(server.close)
            huge(args, server)
            return beside_chat(args, server)
        check(path, args)
        if any(name.startswith("onnx") for name in args.peers):
            maker = multiprocessing.get_context("spawn").Process(target=export, args=(path, folder, "onnx-int8" in args.peers))
            maker.start()
            maker.join()
            assert maker.exitcode == 0, "the export failed"
        found = sides(args, path, folder, stack)
        (clients if args.clients else speeds)(args, found)


if __name__ == "__main__":
    main()
