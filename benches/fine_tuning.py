"""Fine-tunes a model on the invented task of tests/fixtures/orders, and measures what it has learned.

    python3 benches/fine_tuning.py target/release/outpost models smollm2-135m-instruct

Prints the exact matches on orders that it has not seen before and after the training, its losses, duration and memory.
"""

import argparse
import json
import sys
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "benches/peers"))

import smoke  # noqa: E402
from chat import Outpost  # noqa: E402

ORDERS = ROOT / "tests/fixtures/orders"
# Lines of each file that are used.
LINES = smoke.few(None, 1)


def lines(name):
    return (ORDERS / name).read_text().splitlines(keepends=True)[:LINES]


class Server(Outpost):
    def call(self, method, path, body=None, content_type="application/json"):
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"authorization": f"Bearer {self.key}", "content-type": content_type}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1{path}", data, headers, method=method)
        return json.load(urllib.request.urlopen(request))

    def upload(self, name):
        head = (
            '--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n'
            '--x\r\ncontent-disposition: form-data; name="file"; filename="orders.jsonl"\r\n\r\n'
        )
        body = head.encode() + "".join(lines(name)).encode() + b"\r\n--x--\r\n"
        return self.call("POST", "/files", body, "multipart/form-data; boundary=x")["id"]

    def exact_matches(self, model):
        chats = [json.loads(line)["messages"] for line in lines("test.jsonl")]
        found = 0
        for request, order in chats:
            chat = {"model": model, "messages": [request], "temperature": 0, "max_tokens": 40}
            answer = self.call("POST", "/chat/completions", chat)["choices"][0]["message"]["content"]
            found += answer.strip() == order["content"]
        return f"{found} of {len(chats)}"

    def memory(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(line.split(maxsplit=1)[1] for line in status.splitlines() if line.startswith("VmHWM"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("models")
    parser.add_argument("model")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    smoke.run(parser, measure, "{binary} {models} smollm2-135m-instruct --epochs 1")


def measure(arguments):
    server = Server(arguments.model, arguments.threads, models=arguments.models, binary=arguments.binary)
    try:
        print("exact matches before:", server.exact_matches(arguments.model))
        new = {
            "model": arguments.model,
            "training_file": server.upload("train.jsonl"),
            "validation_file": server.upload("validation.jsonl"),
            "seed": 7,
            "hyperparameters": {"n_epochs": arguments.epochs, "batch_size": arguments.batch_size},
        }
        began = time.monotonic()
        path = "/fine_tuning/jobs/" + server.call("POST", "/fine_tuning/jobs", new)["id"]
        while (job := server.call("GET", path))["state"] in ("queued", "running"):
            time.sleep(smoke.few(1, 0.1))
        print(f"{job['state']} after {time.monotonic() - began:.0f} s:", job["error"] or job["progress"])
        print("exact matches after:", server.exact_matches(job["fine_tuned_model"]))
        print("peak memory:", server.memory())
    finally:
        server.close()


if __name__ == "__main__":
    main()
