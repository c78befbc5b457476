"""Speech to text: compares `outpost serve` with faster-whisper (int8) and whisper.cpp on the same clips and threads.

    cargo build --release
    apt-get install espeak-ng sox
    python3 -m venv /tmp/peer
    /tmp/peer/bin/pip install faster-whisper pywhispercpp transformers torch safetensors soundfile jiwer
    /tmp/peer/bin/python benches/peers/speech_clips.py /tmp/clips
    /tmp/peer/bin/python benches/peers/transcription.py /tmp/clips MODELS/whisper-base [--threads 2] [--no-outpost]

Every peer transcribes the same 16 kHz WAV files with the same weights. The peers run as libraries, each in a process of
its own that keeps its model loaded; Outpost is called over HTTP with `verbose_json`. The language is given, so none
detects it. Timestamps are on everywhere. Each round times each peer once, so drifts of the machine meet all. Before it,
each peer transcribes the clip once, untimed. Figures are medians.

Speed is seconds of audio per second, the inverse of the real-time factor. Memory is the highest resident memory of the
process after the clips of 5 s and 30 s, and after the clip of 10 min. It includes Python for the peers and excludes
Outpost's child that decodes files. `8 at once` is the audio of eight clips over the time until all have their text; the
same clips one after another give the gain. A library gets the eight from eight threads; whisper.cpp takes one at a time.
The word error rate is over all English clips, with Whisper's normalizer.
"""

import argparse
import concurrent.futures
import json
import multiprocessing
import os
import pathlib
import shlex
import statistics
import time

import smoke
from audio_server import AudioServer, WordErrors, peak_memory
from whisper_peers import PEERS, ctranslate2_folder, ggml_file

TIMING = smoke.few({"5-seconds": 5, "30-seconds": 30, "10-minutes": 600}, {"clip": 1})
# Clips of 5 to 20 s, for eight requests at once.
EIGHT = smoke.few(["librivox-0870", "librivox-0890", "librivox-0920", "jfk", "en-demo-nogo", "en-dir-intro", "en-confbridge-mute-extended", "en-demo-abouttotry"], ["clip", "clip"])


def peer_main(name, model, cache, threads, pipe):
    """The process of a library. Takes a list of paths, transcribes them at once, and sends `(seconds, texts, MiB)`."""
    peer = PEERS[name](model, cache, threads)
    pipe.send(None)
    while (paths := pipe.recv()) is not None:
        with concurrent.futures.ThreadPoolExecutor(len(paths)) as pool:
            began = time.perf_counter()
            texts = list(pool.map(peer.transcribe, paths))
            elapsed = time.perf_counter() - began
        pipe.send((elapsed, texts, peak_memory(os.getpid())))


class Library:
    def __init__(self, name, args):
        self.pipe, child_pipe = multiprocessing.Pipe()
        arguments = (name, args.model, args.cache, args.threads, child_pipe)
        self.process = multiprocessing.get_context("spawn").Process(target=peer_main, args=arguments)
        self.process.start()
        self.pipe.recv()

    def measure(self, paths):
        self.pipe.send(paths)
        return self.pipe.recv()

    def close(self):
        self.pipe.send(None)
        self.process.join()


class Server:
    def __init__(self, args):
        self.server = AudioServer(args.model, args.threads, args.serve, args.binary)

    def measure(self, paths):
        with concurrent.futures.ThreadPoolExecutor(len(paths)) as pool:
            began = time.perf_counter()
            texts = list(pool.map(self.server.transcribe, paths))
            return time.perf_counter() - began, texts, self.server.peak_memory()

    def close(self):
        self.server.close()


def medians(runners, paths, runs):
    """The median seconds of each runner, in alternating runs after one that is not timed."""
    times = {name: [] for name in runners}
    for run in range(runs + 1):
        for name, runner in runners.items():
            seconds, _, _ = runner.measure(paths)
            times[name] += [seconds] if run else []
            time.sleep(smoke.few(0.3, 0))
    return {name: statistics.median(values) for name, values in times.items()}


def row(label, cells, digits, compared=True):
    """A line of the table. The last cell is Outpost's figure relative to the best of the peers."""
    ratio = ""
    if compared and "Outpost" in cells and len(cells) > 1:
        ratio = f"{cells['Outpost'] / max(value for name, value in cells.items() if name != 'Outpost'):.2f}"
    print(f"| {label} | " + " | ".join(f"{value:.{digits}f}" for value in cells.values()) + f" | {ratio} |", flush=True)


def speed(runners, clips, args):
    path = lambda name: clips / f"{name}.wav"
    for name, seconds in TIMING.items():
        if name in args.skip:
            continue
        times = medians(runners, [path(name)], args.runs)
        row(f"{name}, × real time", {peer: seconds / value for peer, value in times.items()}, 1)
        memory(runners, path(next(iter(TIMING))))


def memory(runners, path):
    cells = {name: runner.measure([path])[2] for name, runner in runners.items()}
    print("| peak memory, MiB | " + " | ".join(f"{value:.0f}" for value in cells.values()) + " | |", flush=True)


def concurrency(runners, clips, seconds, args):
    paths = [clips / f"{name}.wav" for name in EIGHT]
    alone = {name: 0.0 for name in runners}
    for path in paths:
        for name, value in medians(runners, [path], args.runs).items():
            alone[name] += value
    together = medians(runners, paths, args.runs)
    row("8 clips one by one, × real time", {name: seconds / value for name, value in alone.items()}, 1)
    row("8 clips at once, × real time", {name: seconds / value for name, value in together.items()}, 1)
    row("gain", {name: alone[name] / together[name] for name in runners}, 2, compared=False)


def word_error_rates(runners, clips, rows, model):
    errors, rows = WordErrors(model), [entry for entry in rows if "english" in entry["groups"]]
    references = [entry["text"] for entry in rows]
    cells = {}
    for name, runner in runners.items():
        texts = [runner.measure([clips / f"{entry['name']}.wav"])[1][0] for entry in rows]
        cells[name] = errors.rate(references, texts)
    print(f"| word error rate, {len(rows)} clips | " + " | ".join(f"{value:.2%}" for value in cells.values()) + " | |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clips", type=pathlib.Path, help="folder that speech_clips.py has filled")
    parser.add_argument("model", type=pathlib.Path, help="Hugging Face folder of a Whisper model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--skip", nargs="*", default=[], choices=list(TIMING), help="clips that are not timed")
    parser.add_argument("--no-outpost", action="store_true", help="the peers only")
    parser.add_argument("--no-concurrency", action="store_true")
    parser.add_argument("--no-word-errors", action="store_true")
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path("/tmp/whisper-peers"), help="folder of converted models")
    parser.add_argument("--binary", type=pathlib.Path, help="binary of Outpost, else that of OUTPOST_BIN, or target/release/outpost")
    parser.add_argument("--serve", type=shlex.split, default=[], help="more arguments of `outpost serve`, such as '--precision int8'")
    smoke.run(parser, compare, "{clips} {models}/tiny-whisper --runs 1 --cache {folder}/cache")


def compare(args):
    args.model = args.model.resolve()
    if any([smoke.lacks(name) for name in ("faster_whisper", "pywhispercpp", "torch")]):
        args.peers = []
    if smoke.lacks("transformers") or smoke.lacks("jiwer"):
        args.no_word_errors = True
    # Converted here, so that torch takes no memory in the measured processes.
    if args.peers or not smoke.IS_ON:
        ctranslate2_folder(args.model, args.cache)
    [ggml_file(args.model, args.cache, kind) for kind in ("f16", "q8_0") if f"whisper.cpp {kind}" in args.peers]
    runners = {} if args.no_outpost else {"Outpost": Server(args)}
    runners |= {name: Library(name, args) for name in args.peers}
    rows = json.loads((args.clips / "manifest.json").read_text())
    try:
        print(f"\n{args.model.name}, {args.threads} threads\n\n| | " + " | ".join(runners) + " | ratio to the best |\n|" + "---|" * (len(runners) + 2))
        speed(runners, args.clips, args)
        if not args.no_concurrency:
            concurrency(runners, args.clips, sum(entry["seconds"] for entry in rows if entry["name"] in EIGHT), args)
        if not args.no_word_errors:
            word_error_rates(runners, args.clips, rows, args.model)
    finally:
        [runner.close() for runner in runners.values()]


if __name__ == "__main__":
    main()
