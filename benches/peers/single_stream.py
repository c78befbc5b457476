"""A single chat: compares prefill and decode of `outpost serve` with llama.cpp on the same file and threads.

    cargo build --release
    python3 -m venv /tmp/peer && CMAKE_ARGS=-DGGML_NATIVE=ON /tmp/peer/bin/pip install llama-cpp-python numpy
    /tmp/peer/bin/python benches/peers/single_stream.py [--kinds Q4_0 Q8_0] [--threads 2 1] [--perplexity]
                                                        [--models ROOT --model NAME]

Outpost is called over HTTP with streaming and without speculative decoding. The prefill rate is the number of prompt
tokens divided by the time to the first token. The decode rate is the number of later tokens divided by their time.
llama.cpp runs through its library in a process of its own, without a server. It gets a prompt in calls of 2,048 tokens
and samples greedily. `--kinds` creates further files of the model with llama.cpp's own quantizer. Figures are medians
over alternating runs.

The utilization is relative to the machine's maximum, as the kernels' own benchmark measures it: for prefill the 8-bit
products of all matrices except embedding and head, for decode the reading of the file. `--perplexity` also compares the
perplexity of the tests' fixed text, with f16 keys and values on both.
"""

import argparse
import contextlib
import ctypes
import math
import multiprocessing
import os
import pathlib
import re
import statistics
import subprocess
import tempfile
import time

import smoke
from chat import ROOT, LlamaCpp, Outpost, chatml, prompt

# llama.cpp's file types, as in `llama_ftype`.
FILE_TYPES = {"F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K_M": 12, "Q4_K_M": 15}
FILE_TYPES |= {"Q5_K_M": 17, "Q6_K": 18, "IQ4_NL": 25, "IQ4_XS": 30, "BF16": 32}
PREFILL, DECODE, DECODE_AT_DEPTH = smoke.few(((512, 2048), 128, 64), ((20, 40), 4, 4))


def resident_memory(pid):
    """The resident memory of a process, in MiB."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) / 1024


def peer_main(path, threads, pipe):
    """The process of llama.cpp: sends `(prefill tokens/s, decode tokens/s, MiB)` for each request."""
    baseline, began = resident_memory(os.getpid()), time.perf_counter()
    llama = LlamaCpp(path, threads, 6)
    load_seconds, lib = time.perf_counter() - began, llama.lib
    weights = lib.llama_model_n_params(llama.model) - lib.llama_model_n_embd(llama.model) * llama.vocabulary_size
    pipe.send((load_seconds, weights))
    while (request := pipe.recv()) is not None:
        length, tokens, seed = request
        llama.clear()
        ids = llama.tokens(chatml(prompt(length, seed)))
        began = time.perf_counter()
        rows = [(token, position, 0, position + 1 == len(ids)) for position, token in enumerate(ids)]
        newest = [llama.decode(rows[start : start + 2048]) for start in range(0, len(rows), 2048)][-1][0]
        first = time.perf_counter() - began
        for index in range(tokens):
            newest = llama.decode([(newest, len(ids) + index, 0, True)])[0]
        rest = max(time.perf_counter() - began - first, 1e-9)
        pipe.send((len(ids) / first, tokens / rest, resident_memory(os.getpid()) - baseline))


class ChatServer(Outpost):
    def __init__(self, models, name, threads):
        super().__init__(name, threads, ["--no-speculation"], models)
        began = time.perf_counter()
        self.post(f"/v1/models/{name}/load", {})
        self.load_seconds = time.perf_counter() - began

    def measure(self, length, tokens, seed):
        times, usage = self.stream(prompt(length, seed), tokens + 1)
        generated = usage["completion_tokens"] - 1
        decode = generated / (times[-1] - times[0]) if generated else 0
        return usage["prompt_tokens"] / times[0], decode, resident_memory(self.process.pid)


def quantize(path, kind, folder):
    """Writes the file in another type with llama.cpp, and returns its path."""
    import llama_cpp

    out = folder / f"{path.parent.name}-{kind.lower()}" / f"{kind}.gguf"
    out.parent.mkdir()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize, params.nthread = FILE_TYPES[kind], True, 2
    assert llama_cpp.llama_model_quantize(str(path).encode(), str(out).encode(), ctypes.byref(params)) == 0
    return out


def machine_limits(threads):
    """`(memory bandwidth in GB/s, 8-bit operations in GOP/s)`."""
    if smoke.IS_ON:
        smoke.skip("cargo bench, for the machine's maximum")
        return math.nan, math.nan
    command = ["cargo", "bench", "-q", "-p", "outpost-kernels", "--bench", "speed", "--", "Q4_1", str(threads)]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    return tuple(map(float, re.search(r"memory ([\d.]+) GB/s, dot products (\d+) GOP/s", text).groups()))


def perplexities(path, threads):
    """`(Outpost's, llama.cpp's)` perplexity of the tests' text."""
    import llama_cpp
    import numpy as np

    text = (ROOT / "tests/fixtures/perplexity.txt").read_text()
    model = llama_cpp.Llama(str(path), n_ctx=2048, n_batch=512, logits_all=True, n_threads=threads, verbose=False)
    tokens = model.tokenize(text.encode(), add_bos=False, special=False)
    model.eval(tokens)
    logits = np.array(model.scores[: len(tokens) - 1], dtype=np.float64)
    norm = np.log(np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)) + logits.max(axis=1)
    llama_perplexity = float(np.exp((norm - logits[np.arange(len(tokens) - 1), tokens[1:]]).mean()))
    command = ["cargo", "test", "-q", "--test", "reference", "perplexity_of_a_gguf_file", "--", "--ignored", "--nocapture"]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"GGUF": str(path)}).stdout
    return float(re.search(r"perplexity ([\d.]+)", text).group(1)), llama_perplexity


class Llama:
    """llama.cpp in its own process."""

    def __init__(self, path, threads):
        self.pipe, child_pipe = multiprocessing.Pipe()
        self.process = multiprocessing.get_context("spawn").Process(target=peer_main, args=(path, threads, child_pipe))
        self.process.start()
        self.load_seconds, self.weights = self.pipe.recv()

    def measure(self, *request):
        self.pipe.send(request)
        return self.pipe.recv()

    def close(self):
        self.pipe.send(None)
        self.process.join()


def compare(models, path, threads, args, limits):
    llama = None if smoke.lacks("llama_cpp") or smoke.lacks("numpy") else Llama(path, threads)
    outpost = ChatServer(models, path.parent.name, threads)
    # A smoke run without llama.cpp compares Outpost with itself.
    llama, weights = llama or outpost, llama.weights if llama else math.nan
    runners = {"outpost": outpost.measure, "llama": llama.measure}
    # Measured first: Outpost's prefix cache grows with later prompts.
    memory = {name: measure(64, 8, 1)[2] for name, measure in runners.items()}
    print(f"\n{path.parent.name}, {path.stat().st_size / 1e6:.0f} MB, {threads} threads; memory {limits[0]:.1f} GB/s, 8-bit products {limits[1]:.0f} GOP/s\n")
    print("| | Outpost | llama.cpp | ratio | utilization, Outpost / llama.cpp |\n|---|---|---|---|---|")
    # Seconds per token at the limit: by operations (prefill), and by bandwidth (decode).
    ideal = (2e-9 * weights / limits[1], path.stat().st_size / 1e9 / limits[0])
    seed = 100
    cases = [(f"prefill {length}, tok/s", length, 0, 0) for length in PREFILL]
    cases += [(f"decode {DECODE}, tok/s", 16, DECODE, 1), (f"decode at depth {PREFILL[1]}, tok/s", PREFILL[1], DECODE_AT_DEPTH, 1)]
    for label, length, tokens, figure in cases:
        results = {name: [] for name in runners}
        for _ in range(args.runs):
            seed += 1
            for name, measure in runners.items():
                results[name].append(measure(length, tokens, seed)[figure])
        a, b = (statistics.median(results[name]) for name in runners)
        print(f"| {label} | {a:.0f} | {b:.0f} | {a / b:.2f} | {a * ideal[figure]:.0%} / {b * ideal[figure]:.0%} |", flush=True)
    a, b = memory["outpost"], memory["llama"]
    print(f"| resident after the first response, MiB | {a:.0f} | {b:.0f} | {a / b:.2f} | |")
    a, b = outpost.load_seconds, llama.load_seconds
    print(f"| load, s | {a:.2f} | {b:.2f} | {a / b:.2f} | |", flush=True)
    llama.close()
    outpost.close()
    if args.perplexity:
        a, b = perplexities(path, threads)
        print(f"| perplexity | {a:.3f} | {b:.3f} | {a / b:.4f} | |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=pathlib.Path, default=ROOT / "models")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--kinds", nargs="*", default=[], choices=list(FILE_TYPES), help="further types, quantized from the model's file")
    parser.add_argument("--threads", type=int, nargs="*", default=[2])
    parser.add_argument("--perplexity", action="store_true")
    parser.add_argument("--runs", type=int, default=5)
    smoke.run(parser, measure, "--models {models} --threads 1 --runs 1")


def measure(args):
    path = next((args.models / args.model).glob("*.gguf"))
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        files = [(args.models, path)] + [(folder, quantize(path, kind, folder)) for kind in args.kinds]
        for threads in args.threads:
            limits = machine_limits(threads)
            for models, file in files:
                compare(models, file, threads, args, limits)


if __name__ == "__main__":
    main()
