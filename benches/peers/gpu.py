"""A GPU: compares `outpost serve` with torch on the same card: chats, embeddings and images.

    tools/cuda-toolchain build && tools/cuda-toolchain libraries
    python3 -m venv /tmp/peer && /tmp/peer/bin/pip install torch transformers diffusers accelerate gguf numpy pillow
    /tmp/peer/bin/python benches/peers/gpu.py [--device cuda:1] [--only chat] [--models ROOT --chat NAME --embed NAME --image NAME]

Outpost is called over HTTP. torch runs in processes of its own, without a server, through transformers and diffusers, in
f32 and in bfloat16. Both use the card in alternation. Models of both stay in its memory at the same time.

Chats: streams of one prompt each, all at the same time. torch generates them as one batch of prompts with the same
number of tokens, and reads the weights of a GGUF file as bfloat16. Embeddings: texts of one request, as in `embed.py`.
Images: without `--image`, a model with the shapes of Stable Diffusion 1.5 and random weights, as in `image.py`. Figures
are medians over alternating runs.

`--device cpu` with small numbers checks the script on a machine without a card.
"""

import argparse
import contextlib
import multiprocessing
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

import embed
import image
import smoke
from chat import ROOT, Outpost, prompt

PEERS = ["torch-f32", "torch-bf16"]
# Where `tools/cuda-toolchain libraries` installs what Outpost loads. torch has its own.
LIBRARIES = ROOT / "target/cuda/libraries/nvidia/cu13/lib"


@contextlib.contextmanager
def library_path():
    """The environment of the server. torch must not see it, because it could load libraries of another version."""
    before = os.environ.get("LD_LIBRARY_PATH")
    if LIBRARIES.exists():
        os.environ["LD_LIBRARY_PATH"] = f"{LIBRARIES}:{before}" if before else str(LIBRARIES)
    yield
    os.environ.pop("LD_LIBRARY_PATH", None)
    if before:
        os.environ["LD_LIBRARY_PATH"] = before


def memory(pid, device):
    """The memory of a process on the card, or on the CPU its peak resident memory, in GiB."""
    if not device.startswith("cuda"):
        return image.peak_memory(pid)
    command = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    text = subprocess.run(command, capture_output=True, text=True).stdout
    rows = [line.split(", ") for line in text.splitlines()]
    return next((float(used) / 1024 for found, used in rows if int(found) == pid), float("nan"))


class Torch:
    """What the peers share."""

    def __init__(self, kind, device):
        import torch

        self.torch, self.device = torch, device
        self.dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[kind]
        # The tensor cores are the point of a card: f32 products may use them.
        torch.set_float32_matmul_precision("high")

    def synchronize(self):
        if self.device.startswith("cuda"):
            self.torch.cuda.synchronize()


class TorchChat(Torch):
    def __init__(self, path, kind, device):
        import transformers

        super().__init__(kind, device)
        file = next(path.glob("*.gguf"), None)
        source = dict(gguf_file=file.name) if file else {}
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(path, **source)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=self.dtype, **source).to(self.device).eval()

    def __call__(self, prompts, tokens):
        """`(seconds, tokens)`."""
        chat = lambda text: self.tokenizer.apply_chat_template([{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True)
        self.tokenizer.padding_side = "left"
        self.tokenizer.pad_token = self.tokenizer.pad_token or self.tokenizer.eos_token
        self.synchronize()
        began = time.perf_counter()
        inputs = self.tokenizer([chat(text) for text in prompts], padding=True, add_special_tokens=False, return_tensors="pt").to(self.device)
        with self.torch.inference_mode():
            out = self.model.generate(**inputs, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)
        self.synchronize()
        return time.perf_counter() - began, (out.shape[1] - inputs["input_ids"].shape[1]) * len(prompts)


class TorchEmbed(Torch):
    def __init__(self, path, kind, device, limit):
        import transformers

        super().__init__(kind, device)
        self.limit, self.tokenizer = limit, transformers.AutoTokenizer.from_pretrained(path)
        self.model = transformers.AutoModel.from_pretrained(path, dtype=self.dtype).to(self.device).eval()

    def vectors(self, texts):
        inputs = self.tokenizer(texts, padding="longest", truncation=True, max_length=self.limit, return_tensors="pt").to(self.device)
        mask = inputs["attention_mask"][..., None].float()
        mean = (self.model(**inputs).last_hidden_state.float() * mask).sum(1) / mask.sum(1)
        return self.torch.nn.functional.normalize(mean).cpu().numpy()

    def __call__(self, batches):
        """`(seconds, vectors of the last batch)`."""
        began = time.perf_counter()
        with self.torch.inference_mode():
            results = [self.vectors(texts) for texts in batches]
        return time.perf_counter() - began, results[-1]


class TorchImage(Torch):
    def __init__(self, path, kind, device):
        super().__init__(kind, device)
        self.pipe = image.Torch(path, kind, os.cpu_count())
        self.pipe.pipe.to(self.device)
        self.pipe.synchronize = self.synchronize
        self.name = device

    def __call__(self, size, steps, seed):
        """The figures of `image.measure_speed`."""
        import numpy as np

        start = time.perf_counter()
        step_ends, picture = self.pipe(size, steps, seed)
        end = time.perf_counter()
        return *image.durations(start, step_ends, end), memory(os.getpid(), self.name), np.asarray(picture, dtype=np.int16)


def peer_main(runner, arguments, pipe):
    """The process of a peer: calls the runner with what it receives, and sends the results."""
    import diffusers
    import transformers

    transformers.logging.disable_progress_bar()
    diffusers.logging.disable_progress_bar()
    run = runner(*arguments)
    name = run.torch.cuda.get_device_name(run.device) if run.device.startswith("cuda") else run.device
    pipe.send(f"torch {run.torch.__version__} on {name}")
    while (request := pipe.recv()) is not None:
        pipe.send(run(*request))


class Peer:
    """A peer in its own process."""

    def __init__(self, runner, *arguments):
        self.pipe, child_pipe = multiprocessing.Pipe()
        os.environ.update({"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TQDM_DISABLE": "1"})
        self.process = multiprocessing.get_context("spawn").Process(target=peer_main, args=(runner, arguments, child_pipe))
        self.process.start()
        child_pipe.close()
        self.name = self.pipe.recv()

    def __call__(self, *request):
        self.pipe.send(request)
        return self.pipe.recv()

    # As the runners of `embed.py` and `image.py`.
    def measure(self, batches):
        return self(batches)

    def generate(self, size, steps, seed):
        return self(size, steps, seed)

    def close(self):
        self.pipe.send(None)
        self.process.join()


class ImageServer(image.ImageServer):
    def __init__(self, path, args):
        super().__init__(path, args.threads, args.serve)
        self.device = args.device

    def generate(self, size, steps, seed):
        *seconds, _, picture = super().generate(size, steps, seed)
        return *seconds, memory(self.process.pid, self.device), picture


def start_peers(args, stack, runner, path, *arguments):
    """The peers, by name."""
    peers = {name: Peer(runner, path, name.removeprefix("torch-"), args.device, *arguments) for name in args.peers}
    for peer in peers.values():
        stack.callback(peer.close)
    if peers:
        print(next(iter(peers.values())).name)
    return peers


def measure_chats(args, stack):
    """Tokens per second of concurrent streams."""
    path = args.models / args.chat
    with library_path():
        most = ["--max-running", str(max(args.streams)), "--max-queued", "1024"]
        server = Outpost(args.chat, args.threads, [*most, *args.serve], args.models)
    stack.callback(server.close)
    peers = start_peers(args, stack, TorchChat, path)
    embed.print_header("streams", "Outpost tok/s", *(f"{name} tok/s (ratio)" for name in peers), "Outpost first token p50, ms", "Outpost GiB")
    server.stream("warm", 4)
    [peer([prompt(args.length, 1)], 4) for peer in peers.values()]
    for streams in args.streams:
        speed, first = {name: [] for name in ("outpost", *peers)}, []
        for run in range(args.runs):
            rate, firsts, _ = server.concurrent_streams(streams, args.length, args.tokens, run * 200 + streams)
            speed["outpost"].append(rate)
            first += firsts
            prompts = [prompt(args.length, (run * 200 + streams) * 1000 + index) for index in range(streams)]
            for name, peer in peers.items():
                seconds, generated = peer(prompts, args.tokens)
                speed[name].append(generated / seconds)
        median = {name: statistics.median(rates) for name, rates in speed.items()}
        ratios = [f"{median[name]:.0f} ({median['outpost'] / median[name]:.2f})" for name in peers]
        cells = [streams, f"{median['outpost']:.0f}", *ratios, f"{statistics.median(first) * 1e3:.0f}"]
        print(f"| {' | '.join(map(str, cells))} | {memory(server.process.pid, args.device):.1f} |", flush=True)


def measure_embeddings(args, stack):
    """Texts per second, and the cosine relative to torch in f32."""
    server = argparse.Namespace(**vars(args), model=args.embed, precision="f32")
    with library_path():
        runners = {"outpost": embed.EmbeddingServer(server)}
    stack.callback(runners["outpost"].close)
    runners |= start_peers(args, stack, TorchEmbed, args.models / args.embed, args.limit)
    print("Texts per second; in brackets, Outpost's speed relative to the peer's.")
    embed.print_header("tokens x batch", *runners, "minimum cosine: " + " / ".join(name for name in runners if name != "torch-f32"))
    for tokens in args.text_tokens:
        for size in args.batches:
            speed, cosine = embed.measure_runners(runners, args, size, tokens, tokens * 100 + size)
            embed.print_row(f"{tokens} x {size}", speed, list(runners), cosine)


def measure_images(args, stack):
    """Seconds per step, to decode and per image."""
    path = args.models / args.image if args.image else pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory())) / "sd15"
    if not path.exists():
        creator = multiprocessing.get_context("spawn").Process(target=image.create_random_model, args=(path,))
        creator.start()
        creator.join()
        assert creator.exitcode == 0, "the model could not be created"
    with library_path():
        runners = {"outpost": ImageServer(path, args)}
    stack.callback(runners["outpost"].close)
    runners |= start_peers(args, stack, TorchImage, path)
    image.measure_speed(args, runners)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0", help="cpu or a card, as for outpost serve and for torch")
    parser.add_argument("--models", type=pathlib.Path, default=ROOT / "models")
    parser.add_argument("--chat", default="smollm2-135m-instruct")
    parser.add_argument("--embed", default="all-minilm-l6-v2", help="a model with mean pooling, as in embed.py")
    parser.add_argument("--image", help="a Stable Diffusion 1 model in the layout of diffusers")
    parser.add_argument("--only", choices=["chat", "embed", "image"])
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=PEERS)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--serve", nargs="*", default=[], help="further arguments of outpost serve, without dashes")
    chats = parser.add_argument_group("chats")
    chats.add_argument("--streams", type=int, nargs="*", default=[1, 8, 32, 128])
    chats.add_argument("--length", type=int, default=200, help="tokens of a prompt")
    chats.add_argument("--tokens", type=int, default=128, help="tokens of a response")
    texts = parser.add_argument_group("embeddings")
    texts.add_argument("--limit", type=int, default=256, help="the model's maximum number of tokens per text")
    texts.add_argument("--seconds", type=float, default=0.5, help="approximate duration of a run")
    texts.add_argument("--batches", type=int, nargs="*", default=[1, 32, 256])
    texts.add_argument("--text-tokens", type=int, nargs="*", default=[16, 128, 256])
    images = parser.add_argument_group("images")
    images.add_argument("--sizes", type=int, nargs="*", default=[512])
    images.add_argument("--steps", type=int, default=20, help="steps per image; at least two")
    least = "--device cpu --models {models} --threads 2 --runs 1 "
    smoke.run(
        parser,
        measure,
        least + "--only chat --streams 2 --length 20 --tokens 4",
        least + "--only embed --batches 1 --text-tokens 16 --seconds 0.01",
        least + "--only image --image sd1 --sizes 64 --steps 2",
    )


def measure(args):
    if smoke.lacks("numpy") or smoke.lacks("PIL"):
        return
    if any([smoke.lacks(name) for name in ("torch", "transformers", "diffusers")]):
        args.peers = []
    args.serve = ["--device", args.device, *("--" + argument for argument in args.serve)]
    os.environ["HF_HUB_OFFLINE"] = "1"
    parts = {"chat": measure_chats, "embed": measure_embeddings, "image": measure_images}
    for name, part in parts.items():
        if args.only in (None, name):
            print(f"\n{name}: {getattr(args, name) or 'random weights'} on {args.device}", flush=True)
            with contextlib.ExitStack() as stack:
                part(args, stack)


if __name__ == "__main__":
    main()
