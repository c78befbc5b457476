"""Concurrent chats: compares `outpost serve` with llama.cpp on the same file and number of threads, in alternation.

    cargo build --release
    python3 -m venv /tmp/peer && /tmp/peer/bin/pip install llama-cpp-python numpy
    /tmp/peer/bin/python benches/peers/chat.py

llama.cpp runs through its library in this process: one loop decodes a batch of all sequences per step, as its own
server does. Outpost is called over HTTP with streaming. Prompts are random words, so no prefix is shared. Both
sample greedily and never stop early. Every figure is the median over the runs.
"""

import argparse
import atexit
import http.client
import json
import math
import os
import pathlib
import random
import re
import statistics
import subprocess
import tempfile
import threading
import time

import smoke
from smoke import ROOT

WORDS = "sea stone river light house green paper window summer engine story music garden winter table".split()
# Tokens of prompts and responses.
LENGTH, TOKENS = smoke.few(200, 20), smoke.few(128, 4)
SHARED_PREFIX = smoke.few(1500, 150)


def prompt(tokens, seed):
    """Random words of about `tokens` tokens; each word is one token."""
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(tokens))


class Outpost:
    """An `outpost serve` process with its own data folder. Without `binary`, it is that of `OUTPOST_BIN` or the release build."""

    def __init__(self, model, threads, arguments=(), models=ROOT / "models", binary=None):
        self.model = model
        self.data = tempfile.TemporaryDirectory()
        target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
        binary = binary or os.environ.get("OUTPOST_BIN") or target / "release/outpost"
        command = [binary, "serve", "--listen", "127.0.0.1:0", "--no-pull"]
        command += ["--data", self.data.name, "--models", models, "--threads", str(threads), *arguments]
        self.command = list(map(str, command))
        self.start()
        self.key = (pathlib.Path(self.data.name) / "admin.key").read_text().strip()

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        # The server also ends with a script that fails.
        atexit.register(self.process.kill)
        self.port = int(re.search(r":(\d+)", self.process.stdout.readline())[1])

    def restart(self):
        """Stops the process and starts it again on the same data folder."""
        self.process.terminate()
        self.process.wait()
        self.start()

    def create_project_key(self, name):
        project = self.post("/v1/projects", {"name": name})["id"]
        return self.post("/v1/api-keys", {"name": name, "project_id": project})["secret"]

    def post(self, path, body, key=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        headers = {"authorization": "Bearer " + (key or self.key), "content-type": "application/json"}
        connection.request("POST", path, json.dumps(body), headers)
        return json.loads(connection.getresponse().read())

    def stream(self, text, tokens, key=None):
        """`(seconds from the request to each delta, usage)`."""
        body = {"model": self.model, "messages": [{"role": "user", "content": text}], "max_tokens": tokens}
        body |= {"temperature": 0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        headers = {"authorization": "Bearer " + (key or self.key), "content-type": "application/json"}
        began, times, usage = time.perf_counter(), [], None
        connection.request("POST", "/openai/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        while line := response.readline():
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                usage = event.get("usage") or usage
                if event.get("choices") and "content" in event["choices"][0]["delta"]:
                    times.append(time.perf_counter() - began)
        return times, usage

    def concurrent_streams(self, streams, length, tokens, seed):
        """`(tokens per second, times to first token, inter-token latencies)`."""
        results = [None] * streams

        def run(index):
            results[index] = self.stream(prompt(length, seed * 1000 + index), tokens)

        workers = [threading.Thread(target=run, args=(index,)) for index in range(streams)]
        began = time.perf_counter()
        [worker.start() for worker in workers]
        [worker.join() for worker in workers]
        elapsed = time.perf_counter() - began
        generated = sum(usage["completion_tokens"] for _, usage in results)
        latencies = [b - a for times, _ in results for a, b in zip(times, times[1:])]
        return generated / elapsed, [times[0] for times, _ in results], latencies

    def close(self):
        self.process.terminate()
        self.process.wait()
        self.data.cleanup()


class LlamaCpp:
    """A model in llama.cpp's library. `tokens`: those of a stream's prompt and response, at most."""

    def __init__(self, path, threads, streams, tokens=512):
        import llama_cpp

        self.lib = llama_cpp
        llama_cpp.llama_log_set(self.null_logger(), None)
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        self.vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = max(512, tokens) * streams + 2048, 2048, 512
        params.n_seq_max, params.kv_unified = max(streams, 1), True
        params.n_threads = params.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        self.batch = llama_cpp.llama_batch_init(2048, 0, 1)
        self.vocabulary_size = llama_cpp.llama_vocab_n_tokens(self.vocabulary)

    def null_logger(self):
        self.callback = self.lib.llama_log_callback(lambda *_: None)
        return self.callback

    def tokens(self, text):
        data = text.encode()
        out = (self.lib.llama_token * (len(data) + 2))()
        count = self.lib.llama_tokenize(self.vocabulary, data, len(data), out, len(out), True, True)
        return list(out[:count])

    def clear(self):
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)

    def decode(self, rows):
        """Decodes `rows` of `(token, position, sequence, needs logits)`.

        Returns the most probable next token by sequence, for the rows that need logits.
        """
        import numpy as np

        for index, (token, position, sequence, needs_logits) in enumerate(rows):
            self.batch.token[index], self.batch.pos[index] = token, position
            self.batch.n_seq_id[index], self.batch.seq_id[index][0] = 1, sequence
            self.batch.logits[index] = needs_logits
        self.batch.n_tokens = len(rows)
        assert self.lib.llama_decode(self.context, self.batch) == 0
        best = {}
        for index, (_, _, sequence, needs_logits) in enumerate(rows):
            if needs_logits:
                logits = np.ctypeslib.as_array(self.lib.llama_get_logits_ith(self.context, index), (self.vocabulary_size,))
                best[sequence] = int(logits.argmax())
        return best

    def concurrent_streams(self, streams, length, tokens, seed):
        """The same figures as [`Outpost.concurrent_streams`]."""
        self.clear()
        prompts = [self.tokens(chatml(prompt(length, seed * 1000 + sequence))) for sequence in range(streams)]
        waiting = [(sequence, position, token) for sequence, ids in enumerate(prompts) for position, token in enumerate(ids)]
        newest, times, generated = {}, [[] for _ in prompts], 0
        began = time.perf_counter()
        while waiting or newest:
            rows = [(token, position, sequence, True) for sequence, (position, token) in newest.items()]
            chunk = 512 - len(rows)
            for sequence, position, token in waiting[:chunk]:
                rows.append((token, position, sequence, position + 1 == len(prompts[sequence])))
            waiting = waiting[chunk:]
            for sequence, token in self.decode(rows).items():
                times[sequence].append(time.perf_counter() - began)
                generated += 1
                position = newest[sequence][0] + 1 if sequence in newest else len(prompts[sequence])
                newest[sequence] = (position, token)
                if len(times[sequence]) == tokens:
                    del newest[sequence]
        elapsed = time.perf_counter() - began
        latencies = [b - a for stream in times for a, b in zip(stream, stream[1:])]
        return generated / elapsed, [stream[0] for stream in times], latencies


def chatml(text):
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def p50_p95(values):
    """The median and the 95th percentile, which no values do not have."""
    ordered = sorted(values) or [math.nan]
    return ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.95)]


def concurrency(args, path):
    """Throughput and latency of concurrent streams."""
    names = ["outpost"] if smoke.lacks("llama_cpp") or smoke.lacks("numpy") else ["outpost", "llama"]
    print("\nIn each column: Outpost / llama.cpp.\n\n| streams | tok/s | ratio | first token p50, ms | inter-token p50, ms | inter-token p95, ms |")
    print("|---|---|---|---|---|---|")
    for streams in args.streams:
        runners = {"outpost": Outpost(args.model, args.threads, args.serve)}
        if "llama" in names:
            runners["llama"] = LlamaCpp(path, args.threads, streams)
        runners["outpost"].stream("warm", 4)
        runs = {name: [] for name in names}
        for run in range(args.runs):
            for name, runner in runners.items():
                runs[name].append(runner.concurrent_streams(streams, LENGTH, TOKENS, run))
        runners["outpost"].close()
        speed = {name: statistics.median(run[0] for run in figures) for name, figures in runs.items()}
        first = {name: statistics.median(t for run in figures for t in run[1]) for name, figures in runs.items()}
        latency = {name: p50_p95([seconds for run in figures for seconds in run[2]]) for name, figures in runs.items()}
        cells = [
            " / ".join(f"{speed[name]:.0f}" for name in names),
            f"{speed['outpost'] / speed[names[-1]]:.2f}",
            " / ".join(f"{first[name] * 1e3:.0f}" for name in names),
            " / ".join(f"{latency[name][0] * 1e3:.1f}" for name in names),
            " / ".join(f"{latency[name][1] * 1e3:.1f}" for name in names),
        ]
        print(f"| {streams} | {' | '.join(cells)} |", flush=True)


def prefix_cache(args):
    """Time to first token with a shared prefix: cold, warm, and for another project."""
    server = Outpost(args.model, args.threads, args.serve)
    keys = [server.create_project_key("one"), server.create_project_key("two")]
    server.stream("warm", 4)
    cold, warm, other = [], [], []
    for run in range(args.runs):
        shared = prompt(SHARED_PREFIX, 77_000 + run)
        stream = lambda end, key: server.stream(f"{shared} {end}", 2, key)
        cold.append(stream("first", keys[0])[0][0])
        times, usage = stream("second", keys[0])
        warm.append(times[0])
        assert usage["prompt_tokens_details"]["cached_tokens"] > SHARED_PREFIX - 100, usage
        times, usage = stream("second", keys[1])
        other.append(times[0])
        # The first tokens of the template may be cached from this project's previous prompt.
        assert usage["prompt_tokens_details"]["cached_tokens"] < 64, usage
    server.close()
    cold, warm, other = map(statistics.median, (cold, warm, other))
    print(f"\nshared prefix of {SHARED_PREFIX:,} tokens, time to first token: cold {cold * 1e3:.0f} ms, warm {warm * 1e3:.0f} ms")
    print(f"({warm / cold:.1%} of cold), another project {other * 1e3:.0f} ms ({other / cold:.1%} of cold)", flush=True)


def prefill_stall(args):
    """Inter-token latency of running streams, by themselves and during the prefill of a long prompt."""
    server = Outpost(args.model, args.threads, args.serve)
    server.stream("warm", 4)
    count, tokens, pause, length = smoke.few((4, 400, 1.0, 1900), (1, 40, 0.2, 100))
    idle, busy = [], []
    for run in range(args.runs):
        streams = []
        readers = [
            threading.Thread(target=lambda index: streams.append(server.stream(prompt(100, run * 50 + index), tokens)[0]), args=(index,))
            for index in range(count)
        ]
        began = time.perf_counter()
        [reader.start() for reader in readers]
        time.sleep(pause)
        sent = time.perf_counter() - began
        times, _ = server.stream(prompt(length, 90_000 + run), 2)
        done = sent + times[0]
        [reader.join() for reader in readers]
        for stream in streams:
            for a, b in zip(stream, stream[1:]):
                if a > pause / 2:
                    (busy if sent < b < done else idle).append(b - a)
    server.close()
    (idle50, idle95), (busy50, busy95) = p50_p95(idle), p50_p95(busy)
    print(f"\n{count} streams, inter-token latency p50/p95: idle {idle50 * 1e3:.1f}/{idle95 * 1e3:.1f} ms,")
    print(f"during the prefill of {length:,} tokens {busy50 * 1e3:.1f}/{busy95 * 1e3:.1f} ms:")
    print(f"p95 {busy95 / idle95:.1f} times idle", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 4, 8, 16, 32])
    parser.add_argument("--serve", nargs="*", default=[], help="further arguments of outpost serve, without dashes")
    parser.add_argument("--only", choices=["concurrency", "prefix", "stall"])
    smoke.run(parser, measure, "--runs 1 --streams 2")


def measure(args):
    args.serve = ["--" + argument for argument in args.serve]
    path = next((ROOT / "models" / args.model).glob("*.gguf"))
    if args.only in (None, "prefix"):
        prefix_cache(args)
    if args.only in (None, "stall"):
        prefill_stall(args)
    if args.only in (None, "concurrency"):
        concurrency(args, path)


if __name__ == "__main__":
    main()
