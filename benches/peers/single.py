"""One chat alone: prefill and decode of `outpost serve` beside llama.cpp, on one file, same threads, in turns.

    cargo build --release
    python3 -m venv /tmp/peer && /tmp/peer/bin/pip install llama-cpp-python numpy
    /tmp/peer/bin/python benches/peers/single.py [--kinds Q4_0 Q8_0] [--threads 2] [--models ROOT --model NAME]

Ours is asked over HTTP, streaming, without guesses: prefill is prompt tokens over the time to the first token, decode
the tokens after it over theirs. llama.cpp runs through its library in a process of its own, without any server; a
prompt goes in calls of 2,048 tokens, decoding takes the likeliest token. `--kinds` makes more files of the model with llama.cpp's own
quantiser. Figures are medians over alternating runs; the machine's limits come from the kernels' own benchmark.
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

FILES = {"Q4_0": 2, "Q4_1": 3, "Q8_0": 7}
PREFILL, DECODE, DEEP = (512, 2048), 128, 64


def resident(pid):
    """MiB of memory that a process holds."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) / 1024


def peer(path, threads, pipe):
    """llama.cpp's life: measures what it is asked for."""
    bare, began = resident(os.getpid()), time.perf_counter()
    llama = LlamaCpp(path, threads, 6)
    pipe.send(("loaded", time.perf_counter() - began))
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


def compare(models, path, args):
    here, there = multiprocessing.Pipe()
    theirs = multiprocessing.get_context("spawn").Process(target=peer, args=(path, args.threads, there))
    theirs.start()
    _, their_load = here.recv()
    ours = Ours(models, path.parent.name, args.threads)

    def ask(*what):
        here.send(what)
        return here.recv()

    # Later, ours keeps what prompts computed, as far as it has leave to.
    memory = {side: one(64, 8, 1)[2] for side, one in (("ours", ours.measure), ("theirs", ask))}
    print(f"\n{path.parent.name}, {path.stat().st_size / 1e6:.0f} MB, {args.threads} threads\n")
    print("| | ours | llama.cpp | ratio |\n|---|---|---|---|")
    seed, figures = 100, {}
    cases = [(f"prefill {length}, tok/s", length, 0, 0) for length in PREFILL]
    cases += [(f"decode {DECODE}, tok/s", 16, DECODE, 1), (f"decode at depth {PREFILL[1]}, tok/s", PREFILL[1], DEEP, 1)]
    for name, length, tokens, which in cases:
        found = {"ours": [], "theirs": []}
        for _ in range(args.runs):
            seed += 1
            for side, one in (("ours", ours.measure), ("theirs", ask)):
                found[side].append(one(length, tokens, seed)[which])
        a, b = (statistics.median(found[side]) for side in ("ours", "theirs"))
        figures[name] = a
        print(f"| {name} | {a:.0f} | {b:.0f} | {a / b:.2f} |", flush=True)
    print(f"| resident after the first answer, MiB | {memory['ours']:.0f} | {memory['theirs']:.0f} | {memory['ours'] / memory['theirs']:.2f} |")
    print(f"| loading, s | {ours.loaded:.2f} | {their_load:.2f} | {ours.loaded / their_load:.2f} |", flush=True)
    here.send(None)
    theirs.join()
    ours.close()
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=pathlib.Path, default=ROOT / "models")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--kinds", nargs="*", default=[], choices=list(FILES), help="more types, made of the model's file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    memory, products = limits(args.threads)
    print(f"limits: memory {memory:.1f} GB/s, 8-bit products {products:.0f} GOP/s")
    path = next((args.models / args.model).glob("*.gguf"))
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        files = [(args.models, path)] + [(folder, quantised(path, kind, folder)) for kind in args.kinds]
        for models, file in files:
            figures = compare(models, file, args)
            decode = figures[f"decode {DECODE}, tok/s"] * file.stat().st_size / 1e9
            print(f"\ndecode reads {decode:.1f} GB/s of weights, {decode / memory:.0%} of memory", flush=True)


if __name__ == "__main__":
    main()
