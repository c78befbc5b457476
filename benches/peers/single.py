"""One chat alone: prefill and decode of `outpost serve` beside llama.cpp, on one file, same threads, in turns.

    cargo build --release
    python3 -m venv /tmp/peer && CMAKE_ARGS=-DGGML_NATIVE=ON /tmp/peer/bin/pip install llama-cpp-python numpy
    /tmp/peer/bin/python benches/peers/single.py [--kinds Q4_0 Q8_0] [--threads 2 1] [--perplexity]
                                                 [--models ROOT --model NAME]

Ours is asked over HTTP, streaming, without guesses: prefill is prompt tokens over the time to the first token, decode
the tokens after it over theirs. llama.cpp runs through its library in a process of its own, without any server; a
prompt goes in calls of 2,048 tokens, decoding takes the likeliest token. `--kinds` makes more files of the model with
llama.cpp's own quantiser. Figures are medians over alternating runs.

A share is of what the machine gives at most, as the kernels' own benchmark measures it: for prefill the 8-bit products
of all matrices but embedding and head, for decode the reading of the file. `--perplexity` compares that of the fixed
text of the tests, too, whole and by f16 keys and values on both sides.
"""

import argparse
import contextlib
import ctypes
import multiprocessing
import os
import pathlib
import re
import statistics
import subprocess
import tempfile
import time

from chat import ROOT, LlamaCpp, Outpost, chatml, prompt

# llama.cpp's numbers of file types.
FILES = {"F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K_M": 12, "Q4_K_M": 15}
FILES |= {"Q5_K_M": 17, "Q6_K": 18, "IQ4_NL": 25, "IQ4_XS": 30, "BF16": 32}
PREFILL, DECODE, DEEP = (512, 2048), 128, 64


def resident(pid):
    """MiB of memory that a process holds."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) / 1024


def peer(path, threads, pipe):
    """llama.cpp's life: measures what it is asked for."""
    bare, began = resident(os.getpid()), time.perf_counter()
    llama = LlamaCpp(path, threads, 6)
    took, lib = time.perf_counter() - began, llama.lib
    weights = lib.llama_model_n_params(llama.model) - lib.llama_model_n_embd(llama.model) * llama.size
    pipe.send((took, weights))
    while (what := pipe.recv()) is not None:
        length, tokens, seed = what
        llama.clear()
        ids = llama.tokens(chatml(prompt(length, seed)))
        began = time.perf_counter()
        rows = [(token, at, 0, at + 1 == len(ids)) for at, token in enumerate(ids)]
        newest = [llama.decode(rows[at : at + 2048]) for at in range(0, len(rows), 2048)][-1][0]
        first = time.perf_counter() - began
        for at in range(tokens):
            newest = llama.decode([(newest, len(ids) + at, 0, True)])[0]
        pipe.send((len(ids) / first, tokens / max(time.perf_counter() - began - first, 1e-9), resident(os.getpid()) - bare))


class Ours(Outpost):
    def __init__(self, models, name, threads):
        super().__init__(name, threads, ["--no-speculation"], models)
        began = time.perf_counter()
        self.post(f"/v1/models/{name}/load", {})
        self.loaded = time.perf_counter() - began

    def measure(self, length, tokens, seed):
        times, usage = self.stream(prompt(length, seed), tokens + 1)
        made = usage["completion_tokens"] - 1
        decode = made / (times[-1] - times[0]) if made else 0
        return usage["prompt_tokens"] / times[0], decode, resident(self.process.pid)


def quantised(path, kind, folder):
    """The file in another type, by llama.cpp."""
    import llama_cpp

    out = folder / f"{path.parent.name}-{kind.lower()}" / f"{kind}.gguf"
    out.parent.mkdir()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize, params.nthread = FILES[kind], True, 2
    assert llama_cpp.llama_model_quantize(str(path).encode(), str(out).encode(), ctypes.byref(params)) == 0
    return out


def limits(threads):
    """GB/s of memory and billions of 8-bit operations a second."""
    command = ["cargo", "bench", "-q", "-p", "outpost-kernels", "--bench", "speed", "--", "Q4_1", str(threads)]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    return tuple(map(float, re.search(r"memory ([\d.]+) GB/s, dot products (\d+) GOP/s", text).groups()))


def perplexities(path, threads):
    """Ours and llama.cpp's of the tests' text."""
    import llama_cpp
    import numpy as np

    text = (ROOT / "tests/fixtures/perplexity.txt").read_text()
    model = llama_cpp.Llama(str(path), n_ctx=2048, n_batch=512, logits_all=True, n_threads=threads, verbose=False)
    tokens = model.tokenize(text.encode(), add_bos=False, special=False)
    model.eval(tokens)
    logits = np.array(model.scores[: len(tokens) - 1], dtype=np.float64)
    norm = np.log(np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)) + logits.max(axis=1)
    theirs = float(np.exp((norm - logits[np.arange(len(tokens) - 1), tokens[1:]]).mean()))
    command = ["cargo", "test", "-q", "--test", "reference", "the_perplexity_of_a_file", "--", "--ignored", "--nocapture"]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"GGUF": str(path)}).stdout
    return float(re.search(r"perplexity ([\d.]+)", text).group(1)), theirs


def compare(models, path, threads, args, limits):
    here, there = multiprocessing.Pipe()
    theirs = multiprocessing.get_context("spawn").Process(target=peer, args=(path, threads, there))
    theirs.start()
    their_load, weights = here.recv()
    ours = Ours(models, path.parent.name, threads)

    def ask(*what):
        here.send(what)
        return here.recv()

    # Later, ours keeps what prompts computed, as far as it has leave to.
    memory = {side: one(64, 8, 1)[2] for side, one in (("ours", ours.measure), ("theirs", ask))}
    print(f"\n{path.parent.name}, {path.stat().st_size / 1e6:.0f} MB, {threads} threads; memory {limits[0]:.1f} GB/s, 8-bit products {limits[1]:.0f} GOP/s\n")
    print("| | ours | llama.cpp | ratio | share of the limit, ours / llama.cpp |\n|---|---|---|---|---|")
    # What a token needs of the limit: operations, and gigabytes.
    work = (2e-9 * weights / limits[1], path.stat().st_size / 1e9 / limits[0])
    seed = 100
    cases = [(f"prefill {length}, tok/s", length, 0, 0) for length in PREFILL]
    cases += [(f"decode {DECODE}, tok/s", 16, DECODE, 1), (f"decode at depth {PREFILL[1]}, tok/s", PREFILL[1], DEEP, 1)]
    for name, length, tokens, which in cases:
        found = {"ours": [], "theirs": []}
        for _ in range(args.runs):
            seed += 1
            for side, one in (("ours", ours.measure), ("theirs", ask)):
                found[side].append(one(length, tokens, seed)[which])
        a, b = (statistics.median(found[side]) for side in ("ours", "theirs"))
        print(f"| {name} | {a:.0f} | {b:.0f} | {a / b:.2f} | {a * work[which]:.0%} / {b * work[which]:.0%} |", flush=True)
    print(f"| resident after the first answer, MiB | {memory['ours']:.0f} | {memory['theirs']:.0f} | {memory['ours'] / memory['theirs']:.2f} | |")
    print(f"| loading, s | {ours.loaded:.2f} | {their_load:.2f} | {ours.loaded / their_load:.2f} | |", flush=True)
    here.send(None)
    theirs.join()
    ours.close()
    if args.perplexity:
        a, b = perplexities(path, threads)
        print(f"| perplexity | {a:.3f} | {b:.3f} | {a / b:.4f} | |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=pathlib.Path, default=ROOT / "models")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--kinds", nargs="*", default=[], choices=list(FILES), help="more types, made of the model's file")
    parser.add_argument("--threads", type=int, nargs="*", default=[2])
    parser.add_argument("--perplexity", action="store_true")
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    path = next((args.models / args.model).glob("*.gguf"))
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        files = [(args.models, path)] + [(folder, quantised(path, kind, folder)) for kind in args.kinds]
        for threads in args.threads:
            most = limits(threads)
            for models, file in files:
                compare(models, file, threads, args, most)


if __name__ == "__main__":
    main()
