"""Measures the memory of `outpost serve --memory 1GiB` while clients and upstream models try to fill it.

    cargo build --release
    python3 benches/memory_under_attack.py [--binary target/release/outpost] [--warm-up 8]

At the same time, 300 clients do not read a conversation of 7 MB, upstream models send chats and embeddings without end,
and a speech model has four large lexicons. A chat with a local model must be answered meanwhile. Prints the resident
memory before, the peak, and with child processes. `--warm-up` first fills the prefix cache: each round is four chats of
1,900 tokens.
"""

import argparse
import http.client
import json
import pathlib
import random
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "benches/peers"))

import smoke  # noqa: E402

KOKORO = ROOT / "tests/fixtures/kokoro"
CHAT = "smollm2-135m-instruct"
UNREAD_CLIENTS = smoke.few(300, 2)
LONG_CHAT = smoke.few(1900, 20)
# The server is stopped before the machine runs out of memory.
MAX_BYTES = 12 << 30
WORDS = "sea stone river light house green paper window summer engine story music garden winter table".split()


def flood(connection):
    """Answers one request of the server with a response that does not end."""
    with connection, connection.makefile("rb") as request:
        try:
            head = b"".join(iter(request.readline, b"\r\n"))
            request.read(int(re.search(rb"content-length: (\d+)", head, re.I)[1]))
            kind, begin, part = b"application/json", b'{"object":"list","data":[],"usage":[', b"[]," * 100_000
            if b"/embeddings" not in head:
                delta = b'{"choices":[{"index":0,"delta":{"content":"' + b"x" * 900_000 + b'"}}]}'
                kind, begin, part = b"text/event-stream", b"", b"data: " + delta + b"\n\n"
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: " + kind + b"\r\nconnection: close\r\n\r\n" + begin)
            while True:
                connection.sendall(part)
        except OSError:
            pass


def serve_floods():
    """Starts a target of upstream models and returns its port."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)

    def accept():
        while True:
            threading.Thread(target=flood, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return listener.getsockname()[1]


def write_models(folder, words):
    """A chat model, a speech model with four lexicons of so many words, and two upstream models."""
    (folder / CHAT).symlink_to(ROOT / "models" / CHAT)
    speech = folder / "speech"
    (speech / "voices").mkdir(parents=True)
    (speech / "lexicon").mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(KOKORO / name, speech)
    (speech / "voices/af_heart.bin").write_bytes(struct.pack("<f", 0.1) * (510 * 20))
    for name in ("us_gold", "us_silver", "gb_gold", "gb_silver"):
        entries = (f'"{name[3]}{index:x}":"b\u02c8a"' for index in range(words))
        (speech / f"lexicon/{name}.json").write_text("{" + ",".join(entries) + "}")
    port = serve_floods()
    for name, kind in (("far-chat", "chat"), ("far-embedding", "embedding")):
        (folder / name).mkdir()
        target = f'kind = "{kind}"\n[[target]]\nurl = "http://127.0.0.1:{port}/v1"\n'
        (folder / name / "upstream.toml").write_text(target)


class Server:
    def __init__(self, binary, folder):
        command = [binary, "serve", "--listen", "127.0.0.1:0", "--no-pull", "--memory", "1GiB", "--threads", "2"]
        command += ["--data", folder / "data", "--models", folder / "models"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.port = int(re.search(r":(\d+)", self.process.stdout.readline())[1])
        self.key = (folder / "data/admin.key").read_text().strip()
        self.peak = self.peak_with_children = 0

    def post(self, path, body):
        """`(status, body)`; status 0 if the connection failed."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {"authorization": f"Bearer {self.key}", "content-type": "application/json"}
        try:
            connection.request("POST", path, json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            return 0, repr(error).encode()
        finally:
            connection.close()

    def chat(self, text, **more):
        body = {"model": CHAT, "messages": [{"role": "user", "content": text}], "max_tokens": 4} | more
        return self.post("/v1/chat/completions", body)

    def unread(self, path):
        """A connection that has requested `path` and does not read."""
        client = socket.create_connection(("127.0.0.1", self.port))
        client.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {self.key}\r\n\r\n".encode())
        return client

    def memory(self):
        """Resident megabytes of the process, and with its children."""
        children = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True).stdout.split()
        own = resident(self.process.pid)
        return own, own + sum(map(resident, children))

    def watch(self, stop):
        while not stop.wait(0.1):
            own, whole = self.memory()
            self.peak, self.peak_with_children = max(self.peak, own), max(self.peak_with_children, whole)
            if own > MAX_BYTES // 1_000_000:
                self.process.kill()


def resident(pid):
    try:
        return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1]) // 1000
    except (OSError, TypeError):
        return 0


def in_parallel(calls):
    results = [None] * len(calls)

    def run(index):
        results[index] = calls[index]()

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(calls))]
    [thread.start() for thread in threads]
    [thread.join(90) for thread in threads]
    return results


def warm_up(server, rounds):
    for round_index in range(rounds):
        texts = (" ".join(random.Random(f"{round_index} {row}").choices(WORDS, k=LONG_CHAT)) for row in range(4))
        in_parallel([lambda text=text: server.chat(text) for text in texts])
        print(f"after {4 * (round_index + 1)} long chats: {server.memory()[0]} MB", flush=True)


def attack(server):
    message = {"role": "user", "content": "x" * 100_000}
    status, body = server.post("/v1/conversations", {"messages": [message] * 70})
    assert status == 200, body
    before, stop = server.memory()[0], threading.Event()
    threading.Thread(target=server.watch, args=(stop,), daemon=True).start()
    unread = [server.unread("/v1/conversations/" + json.loads(body)["id"]) for _ in range(UNREAD_CLIENTS)]
    calls = [(f"upstream chat, stream: {stream}", lambda stream=stream: server.chat("hi", model="far-chat", stream=stream))
             for stream in (False, True, False, True)]
    calls += [("upstream embeddings", lambda: server.post("/v1/embeddings", {"model": "far-embedding", "input": "hi"}))] * 4
    speech = {"model": "speech", "voice": "af_heart", "input": "hello"}
    calls += [("speech", lambda: server.post("/v1/audio/speech", speech))] * 2
    calls += [("local chat", lambda: server.chat("hi"))] * 2
    results = in_parallel([call for _, call in calls])
    for (name, _), result in zip(calls, results):
        print(f"{name}: {result[0]} {result[1][:120]}" if result else f"{name}: no response")
    time.sleep(smoke.few(2, 0.2))
    stop.set()
    [client.close() for client in unread]
    time.sleep(smoke.few(5, 0))
    print(f"before {before} MB; peak {server.peak} MB, with child processes {server.peak_with_children} MB; "
          f"{server.memory()[0]} MB five seconds later")
    return results[-1] and results[-1][0] == 200


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "target/release/outpost")
    parser.add_argument("--warm-up", type=int, default=0, metavar="ROUNDS")
    parser.add_argument("--words", type=int, default=1_000_000, help="words of each lexicon")
    smoke.run(parser, measure, "--binary {binary} --warm-up 1 --words 1000")


def measure(args):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "models").mkdir()
        write_models(folder / "models", args.words)
        server = Server(args.binary, folder)
        warm_up(server, args.warm_up)
        is_answered = attack(server)
        server.process.terminate()
        server.process.wait()
    if not is_answered:
        sys.exit("the local chat was not answered")


if __name__ == "__main__":
    main()
