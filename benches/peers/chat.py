"""Many chats at once: `outpost serve` beside llama.cpp, on one file, with the same threads, in turns.

    cargo build --release
    python3 -m venv /tmp/peer && /tmp/peer/bin/pip install llama-cpp-python numpy
    /tmp/peer/bin/python benches/peers/chat.py

llama.cpp runs through its library in this process: one loop that decodes a batch of all sequences a step, as
its own server does. Ours is asked over HTTP, streaming. Prompts are random words, so nothing is shared; both
take the likeliest token and never stop early. Every figure is the median over the runs.
"""

import argparse
import http.client
import json
import os
import pathlib
import random
import statistics
import subprocess
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORDS = "sea stone river light house green paper window summer engine story music garden winter table".split()


def prompt(tokens, seed):
    """About so many tokens; a word is one."""
    pick = random.Random(seed)
    return " ".join(pick.choice(WORDS) for _ in range(tokens))


class Outpost:
    def __init__(self, model, threads, more=(), models=ROOT / "models", binary=None):
        self.model = model
        self.data = tempfile.TemporaryDirectory()
        target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
        command = [binary or target / "release/outpost", "serve", "--listen", "127.0.0.1:0", "--no-pull"]
        command += ["--data", self.data.name, "--models", models, "--threads", str(threads), *more]
        self.process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.port = int(self.process.stdout.readline().rsplit(":", 1)[1])
        self.key = (pathlib.Path(self.data.name) / "admin.key").read_text().strip()

    def tenant(self, name):
        project = self.post("/v1/projects", {"name": name})["id"]
        return self.post("/v1/api-keys", {"name": name, "project_id": project})["secret"]

    def post(self, path, body, key=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        headers = {"authorization": "Bearer " + (key or self.key), "content-type": "application/json"}
        connection.request("POST", path, json.dumps(body), headers)
        return json.loads(connection.getresponse().read())

    def stream(self, text, tokens, key=None):
        """Times of the pieces, counted from the request, and the usage."""
        body = {"model": self.model, "messages": [{"role": "user", "content": text}], "max_tokens": tokens}
        body |= {"temperature": 0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        headers = {"authorization": "Bearer " + (key or self.key), "content-type": "application/json"}
        began, times, usage = time.perf_counter(), [], None
        connection.request("POST", "/openai/v1/chat/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        while line := answer.readline():
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                usage = event.get("usage") or usage
                if event.get("choices") and "content" in event["choices"][0]["delta"]:
                    times.append(time.perf_counter() - began)
        return times, usage

    def many(self, streams, length, tokens, seed):
        """Tokens a second, times to first tokens, gaps."""
        found = [None] * streams

        def one(at):
            found[at] = self.stream(prompt(length, seed * 1000 + at), tokens)

        workers = [threading.Thread(target=one, args=(at,)) for at in range(streams)]
        began = time.perf_counter()
        [worker.start() for worker in workers]
        [worker.join() for worker in workers]
        took = time.perf_counter() - began
        made = sum(usage["completion_tokens"] for _, usage in found)
        gaps = [b - a for times, _ in found for a, b in zip(times, times[1:])]
        return made / took, [times[0] for times, _ in found], gaps

    def close(self):
        self.process.terminate()
        self.process.wait()
        self.data.cleanup()


class LlamaCpp:
    def __init__(self, path, threads, streams):
        import llama_cpp

        self.lib = llama_cpp
        llama_cpp.llama_log_set(self.quiet(), None)
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        self.vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = 512 * streams + 2048, 2048, 512
        params.n_seq_max, params.kv_unified = max(streams, 1), True
        params.n_threads = params.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        self.batch = llama_cpp.llama_batch_init(2048, 0, 1)
        self.size = llama_cpp.llama_vocab_n_tokens(self.vocabulary)

    def quiet(self):
        self.callback = self.lib.llama_log_callback(lambda *_: None)
        return self.callback

    def tokens(self, text):
        out = (self.lib.llama_token * 4096)()
        data = text.encode()
        count = self.lib.llama_tokenize(self.vocabulary, data, len(data), out, 4096, True, True)
        return list(out[:count])

    def clear(self):
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)

    def decode(self, rows):
        """`rows`: (token, position, sequence, wants logits). The likeliest next token of those that want."""
        import numpy as np

        for at, (token, position, sequence, wanted) in enumerate(rows):
            self.batch.token[at], self.batch.pos[at] = token, position
            self.batch.n_seq_id[at], self.batch.seq_id[at][0] = 1, sequence
            self.batch.logits[at] = wanted
        self.batch.n_tokens = len(rows)
        assert self.lib.llama_decode(self.context, self.batch) == 0
        best = {}
        for at, row in enumerate(rows):
            if row[3]:
                logits = np.ctypeslib.as_array(self.lib.llama_get_logits_ith(self.context, at), (self.size,))
                best[row[2]] = int(logits.argmax())
        return best

    def many(self, streams, length, tokens, seed):
        self.clear()
        prompts = [self.tokens(chatml(prompt(length, seed * 1000 + at))) for at in range(streams)]
        waiting = [(at, place, token) for at, text in enumerate(prompts) for place, token in enumerate(text)]
        newest, times, made = {}, [[] for _ in prompts], 0
        began = time.perf_counter()
        while waiting or newest:
            rows = [(token, place, at, True) for at, (place, token) in newest.items()]
            room = 512 - len(rows)
            for at, place, token in waiting[:room]:
                rows.append((token, place, at, place + 1 == len(prompts[at])))
            waiting = waiting[room:]
            for at, token in self.decode(rows).items():
                times[at].append(time.perf_counter() - began)
                made += 1
                place = newest[at][0] + 1 if at in newest else len(prompts[at])
                newest[at] = (place, token)
                if len(times[at]) == tokens:
                    del newest[at]
        took = time.perf_counter() - began
        return made / took, [one[0] for one in times], [b - a for one in times for a, b in zip(one, one[1:])]


def chatml(text):
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def spread(values):
    ordered = sorted(values)
    return ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.95)]


def concurrency(args, path):
    print("\n| streams | ours tok/s | llama.cpp tok/s | ratio | first token p50 (ours / theirs) | gap p50 | gap p95 |")
    print("|---|---|---|---|---|---|---|")
    for streams in args.streams:
        ours, theirs = Outpost(args.model, args.threads, args.serve), LlamaCpp(path, args.threads, streams)
        ours.stream("warm", 4)
        runs = {"ours": [], "theirs": []}
        for run in range(args.runs):
            runs["ours"].append(ours.many(streams, 200, 128, run))
            runs["theirs"].append(theirs.many(streams, 200, 128, run))
        ours.close()
        speed = {name: statistics.median(run[0] for run in all) for name, all in runs.items()}
        first = {name: statistics.median(t for run in all for t in run[1]) for name, all in runs.items()}
        gaps = {name: spread([gap for run in all for gap in run[2]]) for name, all in runs.items()}
        print(
            f"| {streams} | {speed['ours']:.0f} | {speed['theirs']:.0f} | {speed['ours'] / speed['theirs']:.2f} "
            f"| {first['ours'] * 1e3:.0f} / {first['theirs'] * 1e3:.0f} ms "
            f"| {gaps['ours'][0] * 1e3:.1f} / {gaps['theirs'][0] * 1e3:.1f} ms "
            f"| {gaps['ours'][1] * 1e3:.1f} / {gaps['theirs'][1] * 1e3:.1f} ms |",
            flush=True,
        )


def prefix(args):
    """A shared prefix of 1,500 tokens: cold, warm, and for another project."""
    server = Outpost(args.model, args.threads, args.serve)
    keys = [server.tenant("one"), server.tenant("two")]
    server.stream("warm", 4)
    cold, warm, other = [], [], []
    for run in range(args.runs):
        shared = prompt(1500, 77_000 + run)
        ask = lambda end, key: server.stream(f"{shared} {end}", 2, key)
        cold.append(ask("first", keys[0])[0][0])
        times, usage = ask("second", keys[0])
        warm.append(times[0])
        assert usage["prompt_tokens_details"]["cached_tokens"] > 1400, usage
        times, usage = ask("second", keys[1])
        other.append(times[0])
        # The template's own first words may come from this project's last prompt.
        assert usage["prompt_tokens_details"]["cached_tokens"] < 64, usage
    server.close()
    cold, warm, other = map(statistics.median, (cold, warm, other))
    print(f"\nshared prefix of 1,500 tokens, time to first token: cold {cold * 1e3:.0f} ms, warm {warm * 1e3:.0f} ms")
    print(f"({warm / cold:.1%} of cold), another project {other * 1e3:.0f} ms ({other / cold:.1%} of cold)", flush=True)


def stall(args):
    """Gaps of running streams, idle and while a prompt of 1,900 tokens arrives."""
    server = Outpost(args.model, args.threads, args.serve)
    server.stream("warm", 4)
    idle, busy = [], []
    for run in range(args.runs):
        found = []
        readers = [
            threading.Thread(target=lambda at: found.append(server.stream(prompt(100, run * 50 + at), 400)[0]), args=(at,))
            for at in range(4)
        ]
        began = time.perf_counter()
        [reader.start() for reader in readers]
        time.sleep(1.0)
        asked = time.perf_counter() - began
        times, _ = server.stream(prompt(1900, 90_000 + run), 2)
        done = asked + times[0]
        [reader.join() for reader in readers]
        for one in found:
            for a, b in zip(one, one[1:]):
                if a > 0.5:
                    (busy if asked < b < done else idle).append(b - a)
    server.close()
    print(f"\n4 streams, gaps p50/p95: idle {spread(idle)[0] * 1e3:.1f}/{spread(idle)[1] * 1e3:.1f} ms,")
    print(f"while 1,900 prompt tokens arrive {spread(busy)[0] * 1e3:.1f}/{spread(busy)[1] * 1e3:.1f} ms:")
    print(f"p95 {spread(busy)[1] / spread(idle)[1]:.1f} times idle", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 4, 8, 16, 32])
    parser.add_argument("--serve", nargs="*", default=[], help="more arguments of outpost serve, without dashes")
    parser.add_argument("--only", choices=["concurrency", "prefix", "stall"])
    args = parser.parse_args()
    args.serve = ["--" + one for one in args.serve]
    path = next((ROOT / "models" / args.model).glob("*.gguf"))
    if args.only in (None, "prefix"):
        prefix(args)
    if args.only in (None, "stall"):
        stall(args)
    if args.only in (None, "concurrency"):
        concurrency(args, path)


if __name__ == "__main__":
    main()
