"""Compares the speed of two builds of `outpost` on one machine.

    cargo build --release && cp target/release/outpost /tmp/new
    git stash || git checkout BASE; cargo build --release && cp target/release/outpost /tmp/old
    python3 benches/compare_builds.py /tmp/old /tmp/new [--image-models ROOT --image-model NAME] [--transcription-model NAME]

Both servers run at the same time and are measured alternately, so that other load on the machine affects both. Each
round starts new processes, because the placement of memory alone changes the speed by a few per cent. The ratio is the
median of the rounds' ratios, with their interquartile range in brackets. Above 1, the new build is faster.

`--image-model` is a Stable Diffusion model, which generates images of 256 × 256 with bfloat16 weights.
`peers/image.py --keep` creates one. `--transcription-model` is a Whisper model among the others, which transcribes 30 s of
noise.
"""

import argparse
import http.client
import io
import json
import pathlib
import random
import statistics
import sys
import time
import wave

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "benches/peers"))

import smoke  # noqa: E402
from audio_server import multipart  # noqa: E402
from chat import Outpost, prompt  # noqa: E402

CHAT, EMBEDDINGS = "smollm2-135m-instruct", "all-minilm-l6-v2"


class Server(Outpost):
    def __init__(self, binary, model, threads, arguments, models):
        super().__init__(model, threads, arguments, models, binary)
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port)

    def connect(self):
        """Opens a new connection, because the server closes idle ones."""
        self.connection.close()
        self.connection.connect()

    def request_seconds(self, method, path, body=None, kind="application/json"):
        """The duration of one request, in seconds. A body that is not bytes is sent as JSON."""
        headers = {"authorization": "Bearer " + self.key, "content-type": kind}
        content = body if body is None or isinstance(body, bytes) else json.dumps(body)
        began = time.perf_counter()
        self.connection.request(method, path, content, headers)
        response = self.connection.getresponse()
        text = response.read()
        assert response.status == 200, text
        return time.perf_counter() - began


def median_of(count, measure):
    return statistics.median(measure(index) for index in range(smoke.few(count, 1)))


def short_chat(server, seed):
    body = {"model": CHAT, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "temperature": 0}
    return 1 / median_of(60, lambda _: server.request_seconds("POST", "/v1/chat/completions", body))


def prefill(tokens):
    def measure(server, seed):
        times, usage = server.stream(prompt(smoke.few(tokens, 20), seed), 2)
        return usage["prompt_tokens"] / times[0]

    return measure


def decode(server, seed):
    times, usage = server.stream(prompt(64, seed), smoke.few(129, 4))
    return (usage["completion_tokens"] - 1) / (times[-1] - times[0])


def streams(count):
    length, tokens = smoke.few((200, 64), (20, 4))
    return lambda server, seed: server.concurrent_streams(smoke.few(count, 2), length, tokens, seed)[0]


def embeddings(tokens, batch):
    repeat, batch = 40 if tokens * batch < 1000 else 3, smoke.few(batch, min(batch, 2))

    def measure(server, seed):
        # No text is repeated, and both servers get the same texts.
        texts = lambda index: [prompt(tokens - 2, f"{seed} {index} {row}") for row in range(batch)]
        bodies = [{"model": EMBEDDINGS, "input": texts(index), "encoding_format": "base64"} for index in range(repeat)]
        return batch / median_of(repeat, lambda index: server.request_seconds("POST", "/v1/embeddings", bodies[index]))

    return measure


def metered_read(server, seed):
    return 1 / median_of(500, lambda _: server.request_seconds("GET", "/v1/me"))


def image(server, seed):
    size = smoke.few("256x256", "64x64")
    body = {"model": server.model, "prompt": "a lighthouse", "size": size, "steps": 2, "seed": seed + 1}
    return 1 / server.request_seconds("POST", "/v1/images/generations", body)


def transcription(server, seed):
    seconds = smoke.few(30, 1)
    noise = random.Random(seed).randbytes(2 * smoke.RATE * seconds)
    audio = io.BytesIO()
    with wave.open(audio, "wb") as file:
        file.setparams((1, 2, smoke.RATE, 0, "NONE", ""))
        file.writeframes(noise)
    fields = {"model": server.model, "temperature": "0", "language": "en"}
    body, kind = multipart(fields, "noise.wav", audio.getvalue())
    return seconds / server.request_seconds("POST", "/v1/audio/transcriptions", body, kind)


MEASURES = {
    "chat of 1 token, requests/s": short_chat,
    "prefill of 512, tokens/s": prefill(512),
    "prefill of 1,900, tokens/s": prefill(1900),
    "decode of 128, tokens/s": decode,
    "1 stream, tokens/s": streams(1),
    "8 streams, tokens/s": streams(8),
    "32 streams, tokens/s": streams(32),
    "embeddings, 16 tokens x 1, texts/s": embeddings(16, 1),
    "embeddings, 128 tokens x 32, texts/s": embeddings(128, 32),
    "GET /v1/me, requests/s": metered_read,
}


def compare(measures, args, model, arguments, models):
    """Prints a row for each measure; the measures return values where larger is better."""
    selected = {name: measure for name, measure in measures.items() if not args.only or args.only in name}
    results = {name: ([], []) for name in selected}
    for round_index in range(args.rounds if selected else 0):
        servers = [Server(binary, model, args.threads, arguments, models) for binary in (args.old, args.new)]
        for name, measure in selected.items():
            for server in servers:
                server.connect()
                measure(server, -1)
            for build in (0, 1) if round_index % 2 == 0 else (1, 0):
                servers[build].connect()
                results[name][build].append(measure(servers[build], round_index))
        [server.close() for server in servers]
    for name, builds in results.items():
        old, new = map(statistics.median, builds)
        ratios = sorted(b / a for a, b in zip(*builds))
        quartiles = f"{ratios[len(ratios) // 4]:.2f}–{ratios[-1 - len(ratios) // 4]:.2f}"
        print(f"| {name} | {old:.4g} | {new:.4g} | {statistics.median(ratios):.3f} ({quartiles}) |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=pathlib.Path)
    parser.add_argument("new", type=pathlib.Path)
    parser.add_argument("--models", type=pathlib.Path, default=ROOT / "models")
    parser.add_argument("--image-models", type=pathlib.Path)
    parser.add_argument("--image-model")
    parser.add_argument("--transcription-model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", help="measures whose name contains this")
    smoke.run(parser, measure, "{binary} {binary} --rounds 1 --image-models {models} --image-model sd1")


def measure(args):
    print("| | old | new | new / old |\n|---|---|---|---|")
    compare(MEASURES, args, CHAT, ["--no-speculation"], args.models)
    if args.image_model:
        compare({"image of 256 x 256, images/s": image}, args, args.image_model, ["--precision", "bf16"], args.image_models)
    if args.transcription_model:
        measures = {"transcription, seconds of audio/s": transcription}
        compare(measures, args, args.transcription_model, [], args.models)


if __name__ == "__main__":
    main()
