"""Pictures: `outpost serve` beside diffusers on torch and stable-diffusion.cpp, on one model, with the same threads, in turns.

    cargo build --release
    python3 -m venv /tmp/peer && /tmp/peer/bin/pip install torch diffusers transformers accelerate pillow
    CMAKE_ARGS=-DGGML_NATIVE=ON /tmp/peer/bin/pip install stable-diffusion-cpp-python
    /tmp/peer/bin/python benches/peers/paint.py [--sizes 256 512] [--models ROOT --model NAME] [--chat NAME]
    /tmp/peer/bin/python benches/peers/paint.py --model pictogram --sizes 64 --steps 20 --sides ours ours-bf16 torch-f32 torch-bf16

Without `--model`, one of Stable Diffusion 1.5's sizes is made, of random numbers in 16 bits: how long they take does not
depend on them. All sides read the same folder. Ours is asked over HTTP, streaming, once as it is served by default (sums of
32 bits) and once with `--precision bf16`; peers run through their libraries in processes of their own, without a server:
diffusers in f32 and in bf16, stable-diffusion.cpp with the file's f16 (and its defaults: flash attention is slower there). The scheduler is DDIM's, every
step asks the network twice, with the prompt and without.

A step is the time between the ends of two steps. `decode` is from the end of the last step to the finished picture: the
autoencoder, and with ours the PNG and its way, too. `picture` is all of it, from the prompt on. Memory is the most that the process held while it painted, the weights
among it. Figures are medians over alternating runs. A difference is between pictures of one seed, ours and diffusers' in f32.

`--chat`: the gaps between the tokens of a chat, alone and while pictures are painted.
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

from chat import ROOT, Outpost, prompt, spread

OURS = {"ours": [], "ours-bf16": ["--precision", "bf16"]}
PEERS = ["torch-f32", "torch-bf16", "sd.cpp"]
PROMPT, GUIDANCE = "a lighthouse by the sea at dusk", 7.5
# Threads of a library may spin for a moment after their work; the next side waits that long.
PAUSE = 0.3


def make(folder):
    """Stable Diffusion 1.5 of random numbers."""
    import torch
    import transformers
    from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
    from safetensors.torch import load_file, save_file

    torch.manual_seed(0)
    words = transformers.CLIPTokenizer.from_pretrained(ROOT / "tests/fixtures/pipelines/sd1/tokenizer")
    text = transformers.CLIPTextConfig(vocab_size=49408, hidden_size=768, intermediate_size=3072, num_hidden_layers=12,
                                       num_attention_heads=12, max_position_embeddings=77, hidden_act="quick_gelu")
    vae = dict(down_block_types=["DownEncoderBlock2D"] * 4, up_block_types=["UpDecoderBlock2D"] * 4,
               block_out_channels=[128, 256, 512, 512], layers_per_block=2, sample_size=512)
    schedule = dict(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", clip_sample=False,
                    set_alpha_to_one=False, steps_offset=1)
    parts = dict(vae=AutoencoderKL(**vae), text_encoder=transformers.CLIPTextModel(text), tokenizer=words,
                 unet=UNet2DConditionModel(sample_size=64, cross_attention_dim=768), scheduler=DDIMScheduler(**schedule))
    more = dict(safety_checker=None, feature_extractor=None, requires_safety_checker=False)
    StableDiffusionPipeline(**parts, **more).to(dtype=torch.float16).save_pretrained(folder)
    # As all published files have it; transformers 5 leaves it out.
    weights = folder / "text_encoder/model.safetensors"
    prefix = "text_model."
    save_file({prefix + name.removeprefix(prefix): tensor for name, tensor in load_file(weights).items()}, weights,
              metadata={"format": "pt"})


def peak(pid, reset=False):
    """GiB that a process held at most since the last reset."""
    if reset:
        pathlib.Path(f"/proc/{pid}/clear_refs").write_text("5")
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status).group(1)) / 2**20


def seconds(begun, steps, end):
    """Of one step, of the decoding and of all, from the times at which it began, steps ended, and all did."""
    return (steps[-1] - steps[0]) / (len(steps) - 1), end - steps[-1], end - begun


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
        # torch's convolutions are fastest so.
        pipe.unet.to(memory_format=torch.channels_last)
        pipe.vae.to(memory_format=torch.channels_last)
        self.pipe = pipe

    def __call__(self, size, steps, seed):
        ends = []

        def ended(pipe, step, at, more):
            ends.append(time.perf_counter())
            return more

        with self.torch.inference_mode():
            found = self.pipe(PROMPT, width=size, height=size, num_inference_steps=steps, guidance_scale=GUIDANCE,
                              generator=self.torch.Generator().manual_seed(seed), callback_on_step_end=ended)
        return ends, found.images[0]


class StableDiffusionCpp:
    def __init__(self, path, kind, threads):
        from stable_diffusion_cpp import StableDiffusion

        self.model = StableDiffusion(model_path=str(path), n_threads=threads, verbose=False)

    def __call__(self, size, steps, seed):
        ends = []
        found = self.model.generate_image(PROMPT, negative_prompt="", width=size, height=size, sample_steps=steps,
                                          cfg_scale=GUIDANCE, seed=seed, sample_method="ddim_trailing",
                                          progress_callback=lambda step, *_: ends.append(time.perf_counter()) if step else None)
        # Other work tells its progress, too: the autoencoder's, when it goes by tiles.
        return ends[:steps], found[0]


def peer(name, path, threads, pipe):
    """A peer's life: paints what it is asked for, and tells how long that took."""
    import numpy as np

    library, _, kind = name.partition("-")
    paint = {"torch": Torch, "sd.cpp": StableDiffusionCpp}[library](path, kind, threads)
    pipe.send(None)
    while (what := pipe.recv()) is not None:
        peak(os.getpid(), reset=True)
        begun = time.perf_counter()
        steps, picture = paint(*what)
        end = time.perf_counter()
        pipe.send((*seconds(begun, steps, end), peak(os.getpid()), np.asarray(picture, dtype=np.int16)))


class Peer:
    def __init__(self, name, path, threads):
        self.pipe, there = multiprocessing.Pipe()
        # Spawned, so that a library finds its number of threads in the environment before it starts.
        os.environ.update({"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"})
        self.process = multiprocessing.get_context("spawn").Process(target=peer, args=(name, path, threads, there))
        self.process.start()
        there.close()
        self.pipe.recv()

    def paint(self, *what):
        self.pipe.send(what)
        return self.pipe.recv()

    def close(self):
        self.pipe.send(None)
        self.process.join()


class Ours(Outpost):
    def __init__(self, path, threads, more, models=None):
        super().__init__(path.name, threads, more, models or path.parent)

    def events(self, size, steps, seed):
        """What is told of a picture on its way, and when."""
        body = {"model": self.model, "prompt": PROMPT, "size": f"{size}x{size}", "steps": steps, "seed": seed, "scheduler": "ddim"}
        body |= {"guidance_scale": GUIDANCE, "stream": True}
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        headers = {"authorization": "Bearer " + self.key, "content-type": "application/json"}
        connection.request("POST", "/v1/images/generations", json.dumps(body), headers)
        answer = connection.getresponse()
        while line := answer.readline():
            if line.startswith(b"data: "):
                event = json.loads(line[6:])
                assert "error" not in event, event
                yield time.perf_counter(), event

    def paint(self, size, steps, seed):
        import numpy as np
        from PIL import Image

        peak(self.process.pid, reset=True)
        begun, ends = time.perf_counter(), []
        for now, event in self.events(size, steps, seed):
            if event["type"].endswith("progress"):
                ends.append(now)
            else:
                picture = Image.open(io.BytesIO(base64.b64decode(event["b64_json"])))
                return *seconds(begun, ends, now), peak(self.process.pid), np.asarray(picture, dtype=np.int16)


def sides(args, path, stack):
    """All that are measured, by name."""
    found = {name: Ours(path, args.threads, more) for name, more in OURS.items() if name in args.sides}
    found |= {name: Peer(name, path, args.threads) for name in PEERS if name in args.sides}
    for side in found.values():
        stack.callback(side.close)
    return found


def speeds(args, found):
    import numpy as np

    print("\n| size | side | s a step | s to decode | s a picture | peak GiB | difference to torch-f32, mean (greatest) |\n|---|---|---|---|---|---|---|")
    for size in args.sizes:
        runs, pictures = {name: [] for name in found}, {}
        for name, side in found.items():
            pictures[name] = side.paint(size, args.steps, 7)[-1]
        names = list(found)
        for run in range(args.runs):
            for name in names[run % len(names) :] + names[: run % len(names)]:
                time.sleep(PAUSE)
                runs[name].append(found[name].paint(size, args.steps, run)[:4])
        median = {name: [statistics.median(column) for column in zip(*rows)] for name, rows in runs.items()}
        for name in names:
            times = [f"{value:.3f}" for value in median[name]]
            away = "–"
            if "torch-f32" in pictures and name != "torch-f32" and name != "sd.cpp":
                apart = np.abs(pictures[name] - pictures["torch-f32"])
                away = f"{apart.mean():.3f} ({apart.max()})"
            print(f"| {size}² | {name} | {' | '.join(times)} | {away} |", flush=True)
        for name in (name for name in OURS if name in median):
            for at, what in enumerate(("a step", "decoding", "a picture")):
                best = min((median[peer][at], peer) for peer in PEERS if peer in median)
                print(f"| {size}² | {name}, {what} | {best[0] / median[name][at]:.2f} × the best peer ({best[1]}) | | | | |", flush=True)


def beside_chat(args, path):
    """Gaps between the tokens of a chat, alone and while a picture is painted."""
    # A folder with both models.
    with tempfile.TemporaryDirectory() as models:
        for one in (path, ROOT / "models" / args.chat):
            (pathlib.Path(models) / one.name).symlink_to(one.resolve())
        print("\n| side | size | gap alone p50 / p95 | beside a picture | p95, times | a step alone | beside |\n|---|---|---|---|---|---|---|")
        for name, more in OURS.items():
            if name not in args.sides:
                continue
            server = Ours(path, args.threads, more, models)
            chat = copy.copy(server)
            chat.model = args.chat
            for size in args.sizes:
                measure_beside(args, name, server, chat, size)
            server.close()


def measure_beside(args, name, server, chat, size):
    alone, beside, quiet, busy = [], [], [], []
    chat.stream(prompt(50, 1), 8)
    gaps = lambda seed: [b - a for times in [chat.stream(prompt(50, seed), args.tokens)[0]] for a, b in zip(times, times[1:])]
    for run in range(args.runs):
        # The picture is left after its second step.
        first, second = (now for now, _ in itertools.islice(server.events(size, 500, run), 2))
        quiet.append(second - first)
        alone += gaps(run * 2)
        stop, ends = threading.Event(), []

        def painting():
            # Far more steps than the chat is long: the picture is left when it ends.
            for now, event in server.events(size, 500, run):
                ends.append(now)
                if stop.is_set():
                    return

        painter = threading.Thread(target=painting)
        painter.start()
        while len(ends) < 1:
            time.sleep(0.01)
        beside += gaps(run * 2 + 1)
        stop.set()
        painter.join()
        # Steps that ended while the chat went on; the last may have ended after it.
        busy += [b - a for a, b in zip(ends, ends[1:-1])]
    (a50, a95), (b50, b95) = spread(alone), spread(beside)
    step = f"{statistics.median(busy):.2f} s" if busy else "longer than the chat"
    print(f"| {name} | {size}² | {a50 * 1e3:.1f} / {a95 * 1e3:.1f} ms | {b50 * 1e3:.1f} / {b95 * 1e3:.1f} ms | {b95 / a95:.2f} "
          f"| {statistics.median(quiet):.2f} s | {step} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=pathlib.Path, default=ROOT / "models")
    parser.add_argument("--model", help="a folder of Stable Diffusion 1 as diffusers has it")
    parser.add_argument("--keep", type=pathlib.Path, help="where the random model is made, or was, to be used again")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2, help="of a picture; two at least")
    parser.add_argument("--sizes", type=int, nargs="*", default=[256, 512])
    parser.add_argument("--sides", nargs="*", choices=[*OURS, *PEERS], default=[*OURS, *PEERS])
    parser.add_argument("--chat", help="a chat model: measure its gaps instead")
    parser.add_argument("--tokens", type=int, default=400, help="of the chat")
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        path = args.models / args.model if args.model else args.keep
        if not path:
            path = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory())) / "sd15"
        if not path.exists():
            # In a process of its own, whose memory ends with it.
            maker = multiprocessing.get_context("spawn").Process(target=make, args=(path,))
            maker.start()
            maker.join()
            assert maker.exitcode == 0, "no model was made"
        beside_chat(args, path) if args.chat else speeds(args, sides(args, path, stack))


if __name__ == "__main__":
    main()
