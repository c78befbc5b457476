"""The time that an upstream model adds to a request: the same target called directly, and through `outpost serve`.

    cargo build --release
    python3 benches/peers/upstream.py [--rate 500] [--seconds 20] [--data /dev/shm]

The target is a process that answers every request for embeddings at once, so what is measured is the way there and back:
HTTP, authentication, limits, metering and JSON. `without a target` are requests that the server answers itself
(`GET /v1/models/ID`), with the same authentication and metering. Requests begin at a fixed rate on connections that stay
open; the three kinds take turns of a second. The usage of a request is on disk before its response is sent; with
`--data` in memory, the time of the disk is left out.
"""

import argparse
import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time

import smoke
from chat import Outpost

MODEL = "vectors"
VECTOR = [0.05] * 384
ANSWER = json.dumps({"data": [{"index": 0, "embedding": VECTOR}], "usage": {"prompt_tokens": 4, "total_tokens": 4}}).encode()
THREADS = 8
# Seconds of a turn.
TURN = smoke.few(1, 0.1)


def serve_target(port):
    """The target: answers each request as soon as its body has arrived."""
    import asyncio

    class Target(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport, self.buffer = transport, b""

        def data_received(self, data):
            self.buffer += data
            while b"\r\n\r\n" in self.buffer:
                head, rest = self.buffer.split(b"\r\n\r\n", 1)
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                if len(rest) < length:
                    return
                self.buffer = rest[length:]
                size = str(len(ANSWER)).encode()
                self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: " + size + b"\r\n\r\n" + ANSWER)

    async def run():
        server = await asyncio.get_running_loop().create_server(Target, "127.0.0.1", port)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    asyncio.run(run())


class Client:
    """A connection that stays open."""

    def __init__(self, port, path, key, method="POST"):
        body = json.dumps({"model": MODEL, "input": "the tide is coming in", "encoding_format": "float"}).encode()
        body = body if method == "POST" else b""
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n"
        self.request = head.encode() + f"content-length: {len(body)}\r\n\r\n".encode() + body
        self.connection = socket.create_connection(("127.0.0.1", port))
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def call(self):
        """Seconds of one request."""
        began = time.perf_counter()
        self.connection.sendall(self.request)
        received = b""
        while b"\r\n\r\n" not in received:
            received += self.connection.recv(65536)
        head, body = received.split(b"\r\n\r\n", 1)
        assert head.startswith(b"HTTP/1.1 200"), received[:400]
        left = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]) - len(body)
        while left > 0:
            left -= len(self.connection.recv(65536))
        return time.perf_counter() - began


def measure(clients, rate, seconds):
    """Seconds of the requests that begin at this rate."""
    times, began = [[] for _ in clients], time.perf_counter() + 0.01

    def work(number, client):
        step = len(clients) / rate
        due = began + number / rate
        while due < began + seconds:
            time.sleep(max(0, due - time.perf_counter()))
            times[number].append(client.call())
            due += step

    threads = [threading.Thread(target=work, args=pair) for pair in enumerate(clients)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return [one for part in times for one in part]


def percentile(times, share):
    return sorted(times)[min(len(times) - 1, int(len(times) * share))] * 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=500)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--data", help="the folder for the data folder")
    parser.add_argument("--binary", help="the program; default: that of OUTPOST_BIN, or the release build")
    smoke.run(parser, compare, "--rate 80 --seconds 1")


def compare(options):
    if options.data:
        tempfile.tempdir = options.data
    target = subprocess.Popen([sys.executable, __file__, "target"], stdout=subprocess.PIPE, text=True)
    port = int(target.stdout.readline())
    with tempfile.TemporaryDirectory() as models:
        folder = pathlib.Path(models) / MODEL
        folder.mkdir()
        (folder / "upstream.toml").write_text(f'kind = "embedding"\n[[target]]\nurl = "http://127.0.0.1:{port}/v1"\n')
        server = Outpost(MODEL, 1, models=pathlib.Path(models), binary=options.binary)
        direct = [Client(port, "/v1/embeddings", "none") for _ in range(THREADS)]
        hop = [Client(server.port, "/openai/v1/embeddings", server.key) for _ in range(THREADS)]
        alone = [Client(server.port, f"/openai/v1/models/{MODEL}", server.key, "GET") for _ in range(THREADS)]
        kinds = {"direct": direct, "without a target": alone, "through outpost": hop}
        results = {name: [] for name in kinds}
        for second in range(options.seconds + 1):
            for name, clients in kinds.items():
                times = measure(clients, options.rate, TURN)
                results[name] += times if second else []
        for name, times in results.items():
            figures = "  ".join(f"p{share * 100:g} {percentile(times, share):.2f} ms" for share in (0.5, 0.9, 0.99))
            print(f"{name:16} {len(times)} requests  {figures}")
        server.process.terminate()
        server.process.wait()
    target.terminate()


if __name__ == "__main__":
    serve_target(0) if sys.argv[1:] == ["target"] else main()
