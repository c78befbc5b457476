"""The time between the tokens of a chat, alone and beside transcriptions and speech of the same server.

    cargo build --release
    /tmp/peer/bin/python benches/peers/chat_beside_audio.py MODELS/CHAT MODELS/whisper-base CLIP.wav [--speech MODELS/kokoro-82m]

A stream of tokens is timed alone, and then while clients transcribe a clip over and over, and, with `--speech`, while one
generates speech. Each round does this once for each. The figures are the 50th and the 95th percentile over all rounds.
"""

import argparse
import pathlib
import statistics
import tempfile
import threading

import smoke
from audio_server import AudioServer

TEXT = "The ferry leaves the harbour at nine. Please bring a coat, because it is cold on deck. " * 4
QUESTION = "Describe a harbour in the morning."


class Load:
    """Runs functions over and over, each in a thread of its own, until it is closed."""

    def __init__(self, functions):
        self.ended = threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(function,)) for function in functions]

    def run(self, function):
        while not self.ended.is_set():
            function()

    def __enter__(self):
        [thread.start() for thread in self.threads]

    def __exit__(self, *_):
        self.ended.set()
        [thread.join() for thread in self.threads]


def percentiles(gaps):
    return statistics.median(gaps) * 1000, statistics.quantiles(gaps, n=20)[-1] * 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chat", type=pathlib.Path, help="folder of a chat model")
    parser.add_argument("whisper", type=pathlib.Path, help="folder of a Whisper model")
    parser.add_argument("clip", type=pathlib.Path)
    parser.add_argument("--speech", type=pathlib.Path, help="folder of Kokoro")
    parser.add_argument("--clients", type=int, default=4, help="clients that transcribe")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--binary", type=pathlib.Path, help="binary of Outpost, else that of OUTPOST_BIN, or target/release/outpost")
    line = "{models}/smollm2-135m-instruct {models}/tiny-whisper {clips}/clip.wav --speech {models}/tiny-kokoro"
    smoke.run(parser, measure, line + " --clients 1 --tokens 8 --rounds 1")


def measure(args):
    with tempfile.TemporaryDirectory() as folder:
        for model in filter(None, [args.chat, args.whisper, args.speech]):
            (pathlib.Path(folder) / model.name).symlink_to(model.resolve())
        server = AudioServer(pathlib.Path(folder) / args.chat.name, args.threads, binary=args.binary)
        transcribe = lambda: server.transcribe(args.clip, model=args.whisper.name)
        loads = {"alone": [], f"{args.clients} transcriptions": [transcribe] * args.clients}
        if args.speech:
            speak = lambda: server.speak(TEXT, "af_heart", args.speech.name)
            loads |= {"speech": [speak], f"{args.clients} transcriptions and speech": [transcribe] * args.clients + [speak]}
        gaps = {name: [] for name in loads}
        try:
            for round in range(args.rounds + 1):
                for name, functions in loads.items():
                    with Load(functions):
                        times, _ = server.stream(QUESTION, args.tokens)
                    # The first round loads the models.
                    gaps[name] += [later - earlier for earlier, later in zip(times, times[1:])] if round else []
        finally:
            server.close()
    print("| beside | median, ms | 95th percentile, ms | ratio to alone |\n|---|---|---|---|")
    alone = percentiles(gaps["alone"])[1]
    for name, values in gaps.items():
        median, high = percentiles(values)
        print(f"| {name} | {median:.2f} | {high:.2f} | {high / alone:.2f} |")


if __name__ == "__main__":
    main()
