"""A conversation of many turns: the tokens that each turn computes, and the time to the first token after a restart.

    cargo build --release
    python3 -m venv /tmp/peer && /tmp/peer/bin/pip install gguf numpy
    /tmp/peer/bin/python benches/conversation.py [--only NAME ...]

The models are the starter model and those of `peers/recurrent.py`, with random weights. The prompt of a turn is the whole text so far and
some new tokens, as token IDs. A turn has computed what of its prompt was not in the prefix cache.

Two servers with speculation hold the same conversation, one of them with a prefix cache on disk. Then both are restarted and continue it. The
first request of a server is short, because it loads the model. The files are still in the page cache of the operating system, so the disk
itself is not measured.
"""

import argparse
import http.client
import json
import pathlib
import random
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "benches/peers"))

import smoke  # noqa: E402
from chat import Outpost  # noqa: E402
from recurrent import SHAPES, SMALL, write_model  # noqa: E402

CHAT = "smollm2-135m-instruct"
TURNS = smoke.few(20, 3)
# New tokens of a prompt, which are as many as a user and the tools of an agent write, and tokens of a response.
NEW, GENERATED = smoke.few((96, 48), (20, 4))


def new_tokens(turn):
    return random.Random(turn).sample(range(1000, 8000), NEW)


def turn(server, text):
    """The seconds to the first token, the cached tokens, and the tokens of the response."""
    body = {"model": server.model, "prompt": text, "max_tokens": GENERATED, "temperature": 0, "ignore_eos": True}
    body |= {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    headers = {"authorization": "Bearer " + server.key, "content-type": "application/json"}
    began, first, cached, tokens = time.perf_counter(), None, None, []
    connection.request("POST", "/openai/v1/completions", json.dumps(body), headers)
    response = connection.getresponse()
    assert response.status == 200, response.read()
    while line := response.readline():
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            for choice in event["choices"]:
                tokens += choice.get("token_ids") or []
                first = first or (tokens and time.perf_counter() - began)
            if event.get("usage"):
                cached = event["usage"]["prompt_tokens_details"]["cached_tokens"]
    return first, cached, tokens


def converse(server):
    """Holds the conversation. Returns the text, the computed tokens beyond the new ones of each turn, and the last time to a token."""
    text, extra, first = [], [], None
    for index in range(TURNS):
        text += new_tokens(index)
        first, cached, tokens = turn(server, text)
        extra.append(len(text) - cached - NEW)
        text += tokens
    return text, extra, first


def continue_after_restart(server, text):
    server.restart()
    turn(server, new_tokens("warm"))
    return turn(server, text + new_tokens(TURNS))


def measure_model(name, path, args):
    plain, on_disk = (Outpost(name, args.threads, extra, path) for extra in ([], ["--prefix-cache-disk", "16GiB"]))
    (text, extra, in_memory), (same_text, *_) = map(converse, (plain, on_disk))
    assert text == same_text
    computed, _, expected = continue_after_restart(plain, text)
    read, cached, tokens = continue_after_restart(on_disk, text)
    assert tokens == expected
    missing = len(text) - cached
    milliseconds = " | ".join(f"{1000 * seconds:.0f}" for seconds in (in_memory, read, computed))
    print(f"| {name} | {len(text)} | {min(extra[1:])}–{max(extra[1:])} | {missing} | {milliseconds} |", flush=True)
    plain.close()
    on_disk.close()


def measure(args):
    print("| model | tokens | computed again per turn | after the restart | first token from memory, ms | from disk | computed |")
    print("|---|---|---|---|---|---|---|")
    if CHAT in args.only:
        measure_model(CHAT, args.models, args)
    if smoke.lacks("gguf") or smoke.lacks("numpy"):
        return
    vocabulary = next((args.models / CHAT).glob("*.gguf"))
    for name, shape in smoke.few(SHAPES, SMALL).items():
        if name in args.only:
            path = smoke.folder() / "conversation" / name / f"{name}.gguf"
            path.parent.mkdir(parents=True)
            write_model(path, vocabulary, shape)
            measure_model(name, path.parents[1], args)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=pathlib.Path, default=ROOT / "models", help="the folder with the starter model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=[CHAT, *SHAPES], nargs="*", default=[CHAT, *SHAPES], help="the models to measure")
    smoke.run(parser, measure, "--models {models}")


if __name__ == "__main__":
    main()
