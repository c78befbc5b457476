"""Images: compares `outpost serve` with diffusers on torch and stable-diffusion.cpp on the same model and threads.

    cargo build --release
    python3 -m venv /tmp/peer && /tmp/peer/bin/pip install torch diffusers transformers accelerate pillow
    CMAKE_ARGS=-DGGML_NATIVE=ON /tmp/peer/bin/pip install stable-diffusion-cpp-python
    /tmp/peer/bin/python benches/peers/image.py [--sizes 256 512] [--models ROOT --model NAME] [--chat NAME]
    /tmp/peer/bin/python benches/peers/image.py --model pictogram --sizes 64 --steps 20 --runners outpost outpost-bf16 torch-f32 torch-bf16

Without `--model`, the script creates a model with the shapes of Stable Diffusion 1.5 and random 16-bit weights, whose
values do not affect the speed. All runners read the same folder. Outpost is called over HTTP with streaming, once with
its default precision (f32 accumulation) and once with `--precision bf16`. Peers run through their libraries in
processes of their own, without a server: diffusers in f32 and in bf16, stable-diffusion.cpp with the file's f16 weights
and its defaults (flash attention is slower there). The scheduler is DDIM. With guidance, each step evaluates the network
twice, conditional and unconditional.

The step time is the time between the ends of two steps. The decode time is the time from the end of the last step to the
finished image: the autoencoder, and for Outpost also PNG encoding and transfer. The image time is the total from the
prompt on. Peak memory is that of the process during the generation, including weights. Figures are medians over
alternating runs. Differences are between images of the same seed, relative to diffusers in f32.

`--chat` measures the inter-token latency of a chat instead, by itself and while images are generated.
"""

import argparse
import base64
import contextlib
import copy
import http.client
import io
import itertools
import json
import multiprocessing
import os
import pathlib
import re
import statistics
import sys
import tempfile
import threading
import time

import smoke
from chat import ROOT, Outpost, p50_p95, prompt

OUTPOST = {"outpost": [], "outpost-bf16": ["--precision", "bf16"]}
PEERS = ["torch-f32", "torch-bf16", "sd.cpp"]
PROMPT, GUIDANCE = "a lighthouse by the sea at dusk", 7.5
# Seconds between two runners: a library's threads may spin for a short time after their work.
PAUSE = smoke.few(0.3, 0)
# The package of each peer.
PACKAGES = {"torch-f32": "diffusers", "torch-bf16": "diffusers", "sd.cpp": "stable_diffusion_cpp"}


def create_random_model(folder):
    """Writes a pipeline with the shapes of Stable Diffusion 1.5 and random weights."""
    import torch
    import transformers
    from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
    from safetensors.torch import load_file, save_file

    torch.manual_seed(0)
    tokenizer = transformers.CLIPTokenizer.from_pretrained(ROOT / "tests/fixtures/pipelines/sd1/tokenizer")
    text = transformers.CLIPTextConfig(vocab_size=49408, hidden_size=768, intermediate_size=3072, num_hidden_layers=12,
                                       num_attention_heads=12, max_position_embeddings=77, hidden_act="quick_gelu")
    vae = dict(down_block_types=["DownEncoderBlock2D"] * 4, up_block_types=["UpDecoderBlock2D"] * 4,
               block_out_channels=[128, 256, 512, 512], layers_per_block=2, sample_size=512)
    schedule = dict(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", clip_sample=False,
                    set_alpha_to_one=False, steps_offset=1)
    components = dict(vae=AutoencoderKL(**vae), text_encoder=transformers.CLIPTextModel(text), tokenizer=tokenizer,
                      unet=UNet2DConditionModel(sample_size=64, cross_attention_dim=768), scheduler=DDIMScheduler(**schedule))
    options = dict(safety_checker=None, feature_extractor=None, requires_safety_checker=False)
    StableDiffusionPipeline(**components, **options).to(dtype=torch.float16).save_pretrained(folder)
    # All published files have this prefix. transformers 5 omits it.
    weights = folder / "text_encoder/model.safetensors"
    prefix = "text_model."
    save_file({prefix + name.removeprefix(prefix): tensor for name, tensor in load_file(weights).items()}, weights,
              metadata={"format": "pt"})


def peak_memory(pid, reset=False):
    """The peak resident memory of a process since the last reset, in GiB."""
    if reset:
        pathlib.Path(f"/proc/{pid}/clear_refs").write_text("5")
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status).group(1)) / 2**20


def durations(start, step_ends, end):
    """`(seconds per step, seconds to decode, seconds in total)`."""
    return (step_ends[-1] - step_ends[0]) / (len(step_ends) - 1), end - step_ends[-1], end - start


class Torch:
    def __init__(self, path, kind, threads):
        import torch
        from diffusers import DDIMScheduler, StableDiffusionPipeline

        torch.set_num_threads(threads)
        self.torch = torch
        index = json.loads((path / "model_index.json").read_text())
        if index["text_encoder"][0] == "outpost":
            sys.path.append(str(ROOT / "tools/pictogram"))
            from pipeline import load

            pipe = load(path)
        else:
            pipe = StableDiffusionPipeline.from_pretrained(path)
        pipe.to(dtype={"f32": torch.float32, "bf16": torch.bfloat16}[kind])
        pipe.scheduler = DDIMScheduler.from_config(pipe.scheduler.config)
        pipe.set_progress_bar_config(disable=True)
        # torch's convolutions are fastest with this layout.
        pipe.unet.to(memory_format=torch.channels_last)
        pipe.vae.to(memory_format=torch.channels_last)
        self.pipe = pipe

    def synchronize(self):
        """Waits for the device. torch computes on the CPU before it returns."""

    def __call__(self, size, steps, seed):
        step_ends = []

        def on_step_end(pipe, step, timestep, tensors):
            self.synchronize()
            step_ends.append(time.perf_counter())
            return tensors

        with self.torch.inference_mode():
            output = self.pipe(PROMPT, width=size, height=size, num_inference_steps=steps, guidance_scale=GUIDANCE,
                               generator=self.torch.Generator().manual_seed(seed), callback_on_step_end=on_step_end)
        return step_ends, output.images[0]


class StableDiffusionCpp:
    def __init__(self, path, kind, threads):
        from stable_diffusion_cpp import StableDiffusion

        self.model = StableDiffusion(model_path=str(path), n_threads=threads, verbose=False)

    def __call__(self, size, steps, seed):
        step_ends = []
        images = self.model.generate_image(PROMPT, negative_prompt="", width=size, height=size, sample_steps=steps,
                                           cfg_scale=GUIDANCE, seed=seed, sample_method="ddim_trailing",
                                           progress_callback=lambda step, *_: step_ends.append(time.perf_counter()) if step else None)
        # The autoencoder reports its progress too if it works in tiles.
        return step_ends[:steps], images[0]


def peer_main(name, path, threads, pipe):
    """The process of a peer: generates the requested images and sends the figures of each."""
    import numpy as np

    library, _, kind = name.partition("-")
    generate = {"torch": Torch, "sd.cpp": StableDiffusionCpp}[library](path, kind, threads)
    pipe.send(None)
    while (arguments := pipe.recv()) is not None:
        peak_memory(os.getpid(), reset=True)
        start = time.perf_counter()
        step_ends, image = generate(*arguments)
        end = time.perf_counter()
        pipe.send((*durations(start, step_ends, end), peak_memory(os.getpid()), np.asarray(image, dtype=np.int16)))


class Peer:
    """A peer in its own process."""

    def __init__(self, name, path, threads):
        self.pipe, child_pipe = multiprocessing.Pipe()
        # The process is spawned, so that a library reads its number of threads from the environment when it starts.
        os.environ.update({"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"})
        self.process = multiprocessing.get_context("spawn").Process(target=peer_main, args=(name, path, threads, child_pipe))
        self.process.start()
        child_pipe.close()
        self.pipe.recv()

    def generate(self, size, steps, seed):
        self.pipe.send((size, steps, seed))
        return self.pipe.recv()

    def close(self):
        self.pipe.send(None)
        self.process.join()


class ImageServer(Outpost):
    def __init__(self, path, threads, arguments, models=None):
        super().__init__(path.name, threads, arguments, models or path.parent)

    def events(self, size, steps, seed):
        """`(time, event)` of the stream of an image."""
        body = {"model": self.model, "prompt": PROMPT, "size": f"{size}x{size}", "steps": steps, "seed": seed, "scheduler": "ddim"}
        body |= {"guidance_scale": GUIDANCE, "stream": True}
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        headers = {"authorization": "Bearer " + self.key, "content-type": "application/json"}
        connection.request("POST", "/v1/images/generations", json.dumps(body), headers)
        response = connection.getresponse()
        while line := response.readline():
            if line.startswith(b"data: "):
                event = json.loads(line[6:])
                assert "error" not in event, event
                yield time.perf_counter(), event

    def generate(self, size, steps, seed):
        import numpy as np
        from PIL import Image

        peak_memory(self.process.pid, reset=True)
        start, step_ends = time.perf_counter(), []
        for now, event in self.events(size, steps, seed):
            if event["type"].endswith("progress"):
                step_ends.append(now)
            else:
                image = Image.open(io.BytesIO(base64.b64decode(event["b64_json"])))
                return *durations(start, step_ends, now), peak_memory(self.process.pid), np.asarray(image, dtype=np.int16)


def start_runners(args, path, stack):
    """Outpost and the peers, by name."""
    runners = {name: ImageServer(path, args.threads, arguments) for name, arguments in OUTPOST.items() if name in args.runners}
    runners |= {name: Peer(name, path, args.threads) for name in PEERS if name in args.runners}
    for runner in runners.values():
        stack.callback(runner.close)
    return runners


def measure_speed(args, runners):
    import numpy as np

    print("\n| size | runner | s per step | s to decode | s per image | peak GiB | difference to torch-f32, mean (max) |\n|---|---|---|---|---|---|---|")
    for size in args.sizes:
        runs, images = {name: [] for name in runners}, {}
        for name, runner in runners.items():
            images[name] = runner.generate(size, args.steps, 7)[-1]
        names = list(runners)
        for run in range(args.runs):
            # Another runner is first in each run.
            for name in names[run % len(names) :] + names[: run % len(names)]:
                time.sleep(PAUSE)
                runs[name].append(runners[name].generate(size, args.steps, run)[:4])
        median = {name: [statistics.median(column) for column in zip(*rows)] for name, rows in runs.items()}
        for name in names:
            cells = [f"{value:.3f}" for value in median[name]]
            difference = "–"
            if "torch-f32" in images and name != "torch-f32" and name != "sd.cpp":
                absolute = np.abs(images[name] - images["torch-f32"])
                difference = f"{absolute.mean():.3f} ({absolute.max()})"
            print(f"| {size}² | {name} | {' | '.join(cells)} | {difference} |", flush=True)
        for name in (name for name in OUTPOST if name in median):
            for column, label in enumerate(("step", "decode", "image")):
                peers = [(median[peer][column], peer) for peer in PEERS if peer in median]
                if not peers:
                    continue
                best = min(peers)
                print(f"| {size}² | {name}, {label} | {best[0] / median[name][column]:.2f} × the best peer ({best[1]}) | | | | |", flush=True)


def measure_chat_latency(args, path):
    """Inter-token latency of a chat, by itself and while an image is generated."""
    # A folder with both models.
    with tempfile.TemporaryDirectory() as models:
        for model in (path, ROOT / "models" / args.chat):
            (pathlib.Path(models) / model.name).symlink_to(model.resolve())
        print("\n| runner | size | idle p50 / p95 | during an image | p95, times | step, idle | step, during a chat |\n|---|---|---|---|---|---|---|")
        for name, arguments in OUTPOST.items():
            if name not in args.runners:
                continue
            server = ImageServer(path, args.threads, arguments, models)
            chat = copy.copy(server)
            chat.model = args.chat
            for size in args.sizes:
                measure_chat_latency_at(args, name, server, chat, size)
            server.close()


def measure_chat_latency_at(args, name, server, chat, size):
    idle, busy, idle_steps, busy_steps = [], [], [], []
    chat.stream(prompt(50, 1), 8)
    latencies = lambda seed: [b - a for times in [chat.stream(prompt(50, seed), args.tokens)[0]] for a, b in zip(times, times[1:])]
    for run in range(args.runs):
        # The image is cancelled after its second step.
        first, second = (now for now, _ in itertools.islice(server.events(size, 500, run), 2))
        idle_steps.append(second - first)
        idle += latencies(run * 2)
        stop, step_ends = threading.Event(), []

        def generate_until_stopped():
            # The steps take longer than the chat, at whose end the image is cancelled.
            for now, event in server.events(size, 500, run):
                step_ends.append(now)
                if stop.is_set():
                    return

        generation = threading.Thread(target=generate_until_stopped)
        generation.start()
        while len(step_ends) < 1:
            time.sleep(0.01)
        busy += latencies(run * 2 + 1)
        stop.set()
        generation.join()
        # The last step may have ended after the chat.
        busy_steps += [b - a for a, b in zip(step_ends, step_ends[1:-1])]
    (a50, a95), (b50, b95) = p50_p95(idle), p50_p95(busy)
    step = f"{statistics.median(busy_steps):.2f} s" if busy_steps else "longer than the chat"
    print(f"| {name} | {size}² | {a50 * 1e3:.1f} / {a95 * 1e3:.1f} ms | {b50 * 1e3:.1f} / {b95 * 1e3:.1f} ms | {b95 / a95:.2f} "
          f"| {statistics.median(idle_steps):.2f} s | {step} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=pathlib.Path, default=ROOT / "models")
    parser.add_argument("--model", help="a Stable Diffusion 1 model in the layout of diffusers")
    parser.add_argument("--keep", type=pathlib.Path, help="folder of the random model; created if it does not exist, and kept")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2, help="steps per image; at least two")
    parser.add_argument("--sizes", type=int, nargs="*", default=[256, 512])
    parser.add_argument("--runners", nargs="*", choices=[*OUTPOST, *PEERS], default=[*OUTPOST, *PEERS])
    parser.add_argument("--chat", help="a chat model whose inter-token latency is measured instead")
    parser.add_argument("--tokens", type=int, default=400, help="tokens of the chat")
    least = "--models {models} --model sd1 --sizes 64 --runs 1"
    smoke.run(parser, measure, least, least + " --chat smollm2-135m-instruct --tokens 8")


def measure(args):
    if smoke.lacks("numpy") or smoke.lacks("PIL"):
        return
    lacking = {package for package in set(PACKAGES.values()) if smoke.lacks(package)}
    args.runners = [name for name in args.runners if PACKAGES.get(name) not in lacking]
    with contextlib.ExitStack() as stack:
        path = args.models / args.model if args.model else args.keep
        if not path:
            path = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory())) / "sd15"
        if not path.exists():
            # In a process of its own, which returns its memory when it ends.
            creator = multiprocessing.get_context("spawn").Process(target=create_random_model, args=(path,))
            creator.start()
            creator.join()
            assert creator.exitcode == 0, "the model could not be created"
        measure_chat_latency(args, path) if args.chat else measure_speed(args, start_runners(args, path, stack))


if __name__ == "__main__":
    main()
