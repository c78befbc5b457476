"""Embeddings: compares `outpost serve` with onnxruntime and torch on the same model and threads, in alternation.

    cargo build --release
    python3 -m venv /tmp/peer && /tmp/peer/bin/pip install torch transformers onnx onnxscript onnxruntime numpy
    /tmp/peer/bin/python benches/peers/embed.py [--precision bf16] [--clients] [--huge]

Outpost is called over HTTP and returns base64, as the openai package requests it. With `--in-process`, the engine runs
in a process without a server, like the peers. The peers are onnxruntime with its own fusions for BERT, in f32 and with
8-bit weights and activations (`quantize_dynamic`, per channel, full range), and torch through transformers, in f32 and
in bfloat16. Every runner takes texts and returns vectors, so the time of tokenization is included. Peers pad to the
longest text of a batch. Texts are random words of one token each, so their token counts are exact, and no text is
repeated. Figures are medians over alternating runs. A cosine is the minimum of a batch, relative to torch in f32.

`--clients` measures 1 and 32 clients, each with one text at a time and its own connection. Peers without HTTP get as
many texts in one call, which is the most that they could gain from batching. `--huge` measures the latency of 32 small
clients by themselves and during two requests with a million tokens in all, and the inter-token latency of a chat
(`--chat`) by itself and during a request of 2,048 texts.
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

import smoke
from chat import ROOT, Outpost, p50_p95, prompt

PEERS = ["onnx-f32", "onnx-int8", "torch-f32", "torch-bf16"]
BATCHES, LENGTHS, MIXED = (1, 8, 32), (16, 128, 256), (8, 256)
# Seconds between two runners: a library's threads may spin for a short time after their work.
PAUSE = smoke.few(0.3, 0)
# Texts of a large request, and seconds of small ones.
LARGE, SMALL_SECONDS = smoke.few((2048, 5), (8, 0.2))
# Packages of the peers and of their export.
PACKAGES = ("transformers", "torch", "onnx", "onnxscript", "onnxruntime")


def precision_arguments(model, kind):
    """The server's arguments for a precision."""
    return [] if kind == "f32" else ["--precision", f"{model}={kind}"]


def text(tokens, seed):
    """A text of `tokens` tokens, including the two special ones."""
    return prompt(tokens - 2, seed)


def batch(size, tokens, seed):
    """`size` texts of `tokens` tokens each; if `tokens` is `None`, of lengths with a log-uniform distribution."""
    rng = random.Random(seed)
    bounds = [math.log(bound) for bound in MIXED]
    length = lambda: tokens or round(math.exp(rng.uniform(*bounds)))
    return [text(length(), seed * 4099 + index) for index in range(size)]


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


def peer_main(name, path, folder, threads, limit, pipe):
    """The process of a peer: receives batches and sends `(seconds, vectors of the last batch)`."""
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
        results = [vectors(texts) for texts in batches]
        pipe.send((time.perf_counter() - began, results[-1]))


class Peer:
    """A peer in its own process."""

    def __init__(self, *arguments, threads):
        self.pipe, child_pipe = multiprocessing.Pipe()
        # The process is spawned, so that a library reads its number of threads from the environment when it starts.
        variables = {"OMP_NUM_THREADS": str(threads), "RAYON_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "true"}
        os.environ.update(variables | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"})
        self.process = multiprocessing.get_context("spawn").Process(target=peer_main, args=(*arguments, child_pipe))
        self.process.start()
        child_pipe.close()
        self.pipe.recv()

    def measure(self, batches):
        self.pipe.send(batches)
        return self.pipe.recv()

    def close(self):
        self.pipe.send(None)
        self.process.join()


class Connection:
    """A connection that stays open. It does little, because the clients run on the measured machine."""

    def __init__(self, server):
        self.head = f"POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {server.key}\r\n"
        self.head += "content-type: application/json\r\ncontent-length: "
        self.model = server.model
        self.socket = socket.create_connection(("127.0.0.1", server.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def embed(self, texts):
        body = json.dumps({"model": self.model, "input": texts, "encoding_format": "base64"}).encode()
        self.socket.sendall(f"{self.head}{len(body)}\r\n\r\n".encode() + body)
        response = http.client.HTTPResponse(self.socket)
        response.begin()
        data = response.read()
        assert response.status == 200, data[:500]
        return data


class Engine:
    """Outpost's engine without a server: `benches/embed.rs`."""

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
        result = json.loads(self.process.stdout.readline())
        return result["seconds"], np.array(result["vectors"], dtype=np.float32)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class EmbeddingServer(Outpost):
    def __init__(self, args):
        super().__init__(args.model, args.threads, precision_arguments(args.model, args.precision) + args.serve, args.models)
        self.measure([["warm"]])

    def vectors(self, connection, texts):
        import numpy as np

        rows = sorted(json.loads(connection.embed(texts))["data"], key=lambda row: row["index"])
        return np.stack([np.frombuffer(base64.b64decode(row["embedding"]), dtype="<f4") for row in rows])

    def measure(self, batches):
        # A new connection for each run: the server may close an idle one.
        connection = Connection(self)
        began = time.perf_counter()
        results = [self.vectors(connection, texts) for texts in batches]
        return time.perf_counter() - began, results[-1]

    def clients(self, count, tokens, seconds, seed, run=None):
        """`(requests per second, latencies)` of `count` clients, for `seconds` or as long as the function `run` takes."""
        ready, stop = threading.Barrier(count + 1), threading.Event()

        def client(index):
            texts = itertools.cycle([text(tokens, (seed * 1009 + index) * 10_007 + turn) for turn in range(smoke.few(4000 // count + 600, 2))])
            ready.wait()
            connection, latencies = Connection(self), []
            while not stop.is_set():
                began = time.perf_counter()
                connection.embed([next(texts)])
                latencies.append(time.perf_counter() - began)
            connection.socket.close()
            return latencies

        with ThreadPoolExecutor(count) as pool:
            workers = [pool.submit(client, index) for index in range(count)]
            ready.wait()
            began = time.perf_counter()
            run() if run else time.sleep(seconds)
            stop.set()
            elapsed = time.perf_counter() - began
            latencies = [latency for worker in workers for latency in worker.result()]
        return len(latencies) / elapsed, latencies


def export(path, folder, quantise):
    """Exports the model as ONNX with the fusions of onnxruntime, and if requested its 8-bit form."""
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
    axes = {name: {0: "batch", 1: "length"} for name in [*names, "hidden"]}
    # The fusions match the graphs of the older exporter. In those of the newer one they find no attention.
    torch.onnx.export(Hidden().eval(), (ids, mask, torch.zeros_like(ids)), folder / "plain.onnx", input_names=names,
                      output_names=["hidden"], dynamic_axes=axes, opset_version=17, dynamo=False)
    config = model.config
    fused = optimizer.optimize_model(str(folder / "plain.onnx"), model_type="bert", num_heads=config.num_attention_heads,
                                     hidden_size=config.hidden_size, opt_level=0, use_gpu=False)
    operators = fused.get_fused_operator_statistics()
    assert (operators["Attention"], operators["BiasGelu"]) == (config.num_hidden_layers,) * 2, operators
    fused.save_model_to_file(str(folder / "f32.onnx"))
    if quantise:
        import onnx
        from onnxruntime.quantization import QuantType, quantize_dynamic

        # Type inference does not pass through the fused operators.
        options = {"DefaultTensorType": onnx.TensorProto.FLOAT}
        quantize_dynamic(folder / "f32.onnx", folder / "int8.onnx", per_channel=True, reduce_range=False,
                         weight_type=QuantType.QInt8, extra_options=options)


def start_runners(args, path, folder, stack):
    """Outpost and the peers, by name."""
    runners = {}
    if not args.no_outpost:
        runners["outpost"] = (Engine if args.in_process else EmbeddingServer)(args)
    for name in args.peers:
        runners[name] = Peer(name, path, folder, args.threads, args.limit, threads=args.threads)
    for runner in runners.values():
        stack.callback(runner.close)
    return runners


def check_token_counts(path, args):
    """Checks that every word is one token."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    for tokens in {*args.tokens, args.limit}:
        for seed in range(4):
            count = len(tokenizer(text(tokens, seed))["input_ids"])
            assert count == tokens, f"a text of {tokens} tokens has {count}"


def rotated(names, run):
    """The names, starting with another one in each run."""
    names = list(names)
    return names[run % len(names) :] + names[: run % len(names)]


def measure_runners(runners, args, size, tokens, seed):
    """`(texts per second, minimum cosine to torch in f32)` of each runner."""
    import numpy as np

    speed, cosine, counts = {name: [] for name in runners}, {}, {}
    sample = [batch(size, tokens, seed)]
    vectors = {}
    for name, runner in runners.items():
        runner.measure(sample)
        seconds, vectors[name] = runner.measure(sample)
        # The number of calls that makes a run last `args.seconds`.
        counts[name] = max(1, round(args.seconds / seconds))
    if "torch-f32" in vectors:
        cosine = {name: float(np.min(np.sum(rows * vectors["torch-f32"], axis=1))) for name, rows in vectors.items()}
    for run in range(args.runs):
        for name in rotated(runners, run):
            batches = [batch(size, tokens, seed + (run + 1) * 1_000_003 + index) for index in range(counts[name])]
            time.sleep(PAUSE)
            seconds, _ = runners[name].measure(batches)
            speed[name].append(size * counts[name] / seconds)
    return {name: statistics.median(speeds) for name, speeds in speed.items()}, cosine


def print_row(label, speed, names, cosine=None):
    ratio = lambda peer: f" ({speed['outpost'] / speed[peer]:.2f})" if "outpost" in speed and peer != "outpost" else ""
    cells = [label] + [f"{speed[name]:.1f}{ratio(name)}" for name in names]
    if cosine is not None:
        cells.append(" / ".join(f"{cosine[name]:.6f}" if name in cosine else "–" for name in names if name != "torch-f32"))
    print(f"| {' | '.join(cells)} |", flush=True)


def print_header(*cells):
    print(f"\n| {' | '.join(cells)} |\n{'|---' * len(cells)}|", flush=True)


def measure_batches(args, runners):
    print("\nTexts per second; in brackets, Outpost's speed relative to the peer's.")
    print_header("tokens x batch", *runners, "minimum cosine: " + " / ".join(name for name in runners if name != "torch-f32"))
    for tokens in [*args.tokens, None]:
        for size in args.batches:
            speed, cosine = measure_runners(runners, args, size, tokens, (tokens or 77) * 100 + size)
            print_row(f"{tokens or 'mixed'} x {size}", speed, list(runners), cosine)


def measure_clients(args, runners):
    print("\nRequests of one text per second; peers get all texts in one call, without HTTP; brackets as above.")
    print_header("tokens, clients", *runners)
    for tokens in args.tokens:
        for count in (1, 32):
            speed = {name: [] for name in runners}
            calls = {}
            for name, runner in runners.items():
                if name != "outpost":
                    runner.measure([batch(count, tokens, 5)])
                    calls[name] = max(1, round(args.seconds / runner.measure([batch(count, tokens, 6)])[0]))
            for run in range(args.runs):
                for name in rotated(runners, run):
                    time.sleep(PAUSE)
                    if name == "outpost":
                        speed[name].append(runners[name].clients(count, tokens, max(args.seconds, smoke.few(1, 0.1)), run)[0])
                        continue
                    batches = [batch(count, tokens, (run + 1) * 1_000_003 + index) for index in range(calls[name])]
                    seconds, _ = runners[name].measure(batches)
                    speed[name].append(count * calls[name] / seconds)
            print_row(f"{tokens}, {count}", {name: statistics.median(speeds) for name, speeds in speed.items()}, list(runners))


def measure_huge_requests(args, server):
    """The 95th percentile of small requests, by themselves and during two requests with a million tokens in all."""
    idle, busy, speed = [], [], []
    for run in range(args.runs):
        idle.append(p50_p95(server.clients(32, 16, SMALL_SECONDS, run * 2)[1])[1])
        requests = [batch(LARGE, args.limit, run * 2 + index) for index in range(2)]

        def send_huge():
            began = time.perf_counter()
            with ThreadPoolExecutor(len(requests)) as pool:
                list(pool.map(lambda texts: Connection(server).embed(texts), requests))
            speed.append(sum(map(len, requests)) * args.limit / (time.perf_counter() - began))

        busy.append(p50_p95(server.clients(32, 16, 0, run * 2 + 1, send_huge)[1])[1])
    a, b = statistics.median(idle), statistics.median(busy)
    print(f"\n32 clients of one text of 16 tokens, p95: idle {a * 1e3:.1f} ms, during two requests of {2 * LARGE * args.limit:,} tokens")
    print(f"{b * 1e3:.1f} ms ({b / a:.1f} times); the large ones got {statistics.median(speed):.0f} tokens/s", flush=True)


def measure_chat_latency(args, server):
    """Inter-token latency of a chat, by itself and while texts are embedded."""
    chat = copy.copy(server)
    chat.model = args.chat
    idle, busy = [], []
    chat.stream(prompt(50, 1), 8)
    for run in range(args.runs):
        for latencies, seed in (idle, run * 2), (busy, run * 2 + 1):
            texts = batch(LARGE, args.limit, seed)
            with ThreadPoolExecutor(1) as pool:
                request = pool.submit(Connection(server).embed, texts) if latencies is busy else None
                time.sleep(smoke.few(2, 0))
                times, _ = chat.stream(prompt(50, seed + 100), smoke.few(200, 4))
                assert request is None or smoke.IS_ON or not request.done(), "the texts were done before the chat"
            latencies.extend(b - a for a, b in zip(times, times[1:]))
    (a50, a95), (b50, b95) = p50_p95(idle), p50_p95(busy)
    print(f"\nA chat's inter-token latency: idle p50 {a50 * 1e3:.1f}, p95 {a95 * 1e3:.1f} ms; during {LARGE:,} texts of {args.limit} tokens")
    print(f"p50 {b50 * 1e3:.1f}, p95 {b95 * 1e3:.1f} ms", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=pathlib.Path, default=ROOT / "models")
    parser.add_argument("--model", default="all-minilm-l6-v2", help="a model with mean pooling, whose vocabulary contains the words of `chat.py`")
    parser.add_argument("--limit", type=int, default=256, help="the model's maximum number of tokens per text")
    parser.add_argument("--precision", choices=["f32", "bf16", "int8"], default="f32", help="Outpost's precision")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="approximate duration of a run")
    parser.add_argument("--batches", type=int, nargs="*", default=list(BATCHES))
    parser.add_argument("--tokens", type=int, nargs="*", default=list(LENGTHS))
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=PEERS)
    parser.add_argument("--serve", nargs="*", default=[], help="further arguments of outpost serve, without dashes")
    parser.add_argument("--no-outpost", action="store_true", help="measure only the peers")
    parser.add_argument("--in-process", action="store_true", help="run Outpost's engine without a server, like the peers")
    parser.add_argument("--clients", action="store_true")
    parser.add_argument("--huge", action="store_true")
    parser.add_argument("--chat", default="smollm2-135m-instruct")
    least = "--models {models} --batches 1 --tokens 16 --runs 1 --seconds 0.01"
    smoke.run(parser, measure, least, least + " --clients", "--models {models} --limit 16 --runs 1 --huge")


def measure(args):
    args.serve = ["--" + argument for argument in args.serve]
    os.environ["HF_HUB_OFFLINE"] = "1"
    if smoke.lacks("numpy"):
        return
    if any([smoke.lacks(name) for name in PACKAGES]):
        args.peers = []
    if smoke.IS_ON:
        smoke.skip("--in-process, which compiles")
    path = args.models / args.model
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if args.huge:
            server = EmbeddingServer(args)
            stack.callback(server.close)
            measure_huge_requests(args, server)
            return measure_chat_latency(args, server)
        if args.peers or not smoke.IS_ON:
            check_token_counts(path, args)
        if any(name.startswith("onnx") for name in args.peers):
            exporter = multiprocessing.get_context("spawn").Process(target=export, args=(path, folder, "onnx-int8" in args.peers))
            exporter.start()
            exporter.join()
            assert exporter.exitcode == 0, "the export failed"
        runners = start_runners(args, path, folder, stack)
        (measure_clients if args.clients else measure_batches)(args, runners)


if __name__ == "__main__":
    main()
