"""Trains the picture model: a small latent diffusion model in the layout of diffusers.

    train.py DATA STATE vae MINUTES        the autoencoder
    train.py DATA STATE latents            the pictures as its codes
    train.py DATA STATE unet MINUTES       the network that paints
    train.py DATA STATE decoder MINUTES    the autoencoder's second half once more; codes stay as they are
    train.py DATA STATE samples            pictures of captions, to see how far it is
    train.py DATA STATE measure --folder P how near the autoencoder comes to pictures of render.mjs that it has not learned from
    train.py DATA STATE export --folder F  what Outpost and diffusers read

DATA is dataset.py's. Each stage goes on where it stopped: what it has learned is kept in STATE every few minutes. The learning rate
follows the samples that were seen, not the clock, so that a stage may be cut into as many calls as one likes; `--samples` says how
many it takes in all, and may still be raised before the last quarter of them.
"""

import argparse
import hashlib
import json
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL, DDIMScheduler, DPMSolverMultistepScheduler, UNet2DConditionModel
from diffusers.models.attention_processor import AttnProcessor
from PIL import Image

from dataset import LENGTH, picture

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
SIZES = {
    64: dict(
        vae=dict(block_out_channels=[16, 32, 96, 160], latent_channels=8, layers_per_block=1, norm_num_groups=8),
        unet=dict(block_out_channels=[128, 256], layers_per_block=1, attention_head_dim=8, norm_num_groups=32),
    ),
}
SCHEDULE = dict(num_train_timesteps=1000, beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", prediction_type="v_prediction")
STEPS, GUIDANCE = 20, 4.0
# Of what the network sees, by kind; of empty prompts; of pictures the other way round.
SHARES = dict(drawn=0.5, recoloured=0.15, pair=0.35)
UNTOLD, MIRRORED = 0.1, 0.1
# The rate falls in the last part of the samples; steps that it rises over.
FALL, RISE = 0.25, 500
KEEP = 240  # seconds between two savings


def configs(size):
    vae, unet = SIZES[size]["vae"], SIZES[size]["unet"]
    levels = len(vae["block_out_channels"])
    whole = dict(in_channels=3, out_channels=3, sample_size=size, down_block_types=["DownEncoderBlock2D"] * levels, up_block_types=["UpDecoderBlock2D"] * levels, **vae)
    blocks, channels = len(unet["block_out_channels"]), vae["latent_channels"]
    paint = dict(sample_size=size >> levels - 1, in_channels=channels, out_channels=channels, down_block_types=["CrossAttnDownBlock2D"] * blocks,
                 up_block_types=["CrossAttnUpBlock2D"] * blocks, cross_attention_dim=384, **unet)
    return dict(vae=(AutoencoderKL, whole), unet=(UNet2DConditionModel, paint))


class Training:
    """A network, its moving average, and what the optimiser knows, on the disk between calls."""

    def __init__(self, args, kind, rate, batch, network=None):
        self.path, self.rate, self.total, self.batch = args.state / f"{kind}.pt", rate, args.samples, batch
        if network is None:
            cls, config = configs(args.size)[kind]
            network = cls(**config)
        self.model = network.to(DEVICE, memory_format=torch.channels_last)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), rate, betas=(0.9, 0.99), weight_decay=0.01, fused=True)
        self.step, self.seen, self.told, self.loss = 0, 0, time.time(), None
        if self.path.exists():
            kept = torch.load(self.path, map_location=DEVICE)
            self.model.load_state_dict(kept["model"])
            self.optimizer.load_state_dict(kept["optimizer"])
            self.average, self.step, self.seen = kept["average"], kept["step"], kept["seen"]
        else:
            self.average = {name: value.detach().float().clone() for name, value in self.model.state_dict().items()}
        self.kept, self.begun, self.first = time.time(), time.time(), self.seen
        print(f"{kind}: {sum(p.numel() for p in self.model.parameters()) / 1e6:.1f} M parameters, {self.seen} samples seen", flush=True)

    def learn(self, loss):
        left = 1 - self.seen / self.total
        rate = self.rate * min(1, (self.step + 1) / RISE, 0.02 + 0.98 * max(0, left) / FALL)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.step, self.seen = self.step + 1, self.seen + self.batch
        decay = min(0.998, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            for name, value in self.model.state_dict().items():
                self.average[name].lerp_(value.float(), 1 - decay)
        self.loss = loss.item() if self.loss is None else 0.99 * self.loss + 0.01 * loss.item()
        if time.time() - self.told > 60:
            self.told = time.time()
            print(f"{self.seen} samples, loss {self.loss:.4f}, {(self.seen - self.first) / (time.time() - self.begun):.0f} a second", flush=True)
        if time.time() - self.kept > KEEP:
            self.keep()

    def keep(self):
        self.kept = time.time()
        partial = self.path.with_suffix(".partial")
        torch.save(dict(model=self.model.state_dict(), optimizer=self.optimizer.state_dict(), average=self.average, step=self.step, seen=self.seen), partial)
        os.replace(partial, self.path)


def averaged(args, kind):
    """A network as training left it; of the autoencoder with the decoder that was trained last."""
    cls, config = configs(args.size)[kind]
    model = cls(**config)
    model.load_state_dict(torch.load(args.state / f"{kind}.pt", map_location="cpu")["average"])
    decoder = args.state / "decoder.pt"
    if kind == "vae" and decoder.exists():
        Decoder(model).load_state_dict(torch.load(decoder, map_location="cpu")["average"])
    return model.to(DEVICE, memory_format=torch.channels_last).eval()


class Decoder(torch.nn.Module):
    """The second half of an autoencoder."""

    def __init__(self, vae):
        super().__init__()
        self.decoder, self.post_quant_conv = vae.decoder, vae.post_quant_conv

    def forward(self, code):
        return self.decoder(self.post_quant_conv(code))


def floats(bytes_):
    return bytes_.to(DEVICE, memory_format=torch.channels_last).float() / 127.5 - 1


class Difference:
    """How far a picture is from another: in colour, and along edges, which eyes see first."""

    def __init__(self):
        sobel = torch.tensor([[1.0, 0, -1], [2, 0, -2], [1, 0, -1]], device=DEVICE) / 4
        self.sobel = torch.stack([sobel, sobel.T])[:, None].repeat(3, 1, 1, 1)

    def __call__(self, out, y):
        away = out.float() - y
        return away.abs().mean() + 0.5 * away.square().mean() + 0.5 * F.conv2d(away, self.sobel, groups=3, padding=1).abs().mean()


def train_vae(args):
    x, end, difference = torch.load(args.data / "pictures.pt"), time.time() + 60 * args.minutes, Difference()
    training = Training(args, "vae", 1e-3, 256 if CUDA else 32)
    vae = training.model
    while time.time() < end and training.seen < args.samples:
        y = floats(x[torch.randint(len(x), (training.batch,))])
        y = torch.where(torch.rand(len(y), 1, 1, 1, device=DEVICE) < 0.5, y.flip(3), y)
        with torch.autocast(DEVICE, torch.bfloat16):
            mean, spread = vae.quant_conv(vae.encoder(y)).float().chunk(2, 1)
            spread = spread.clamp(-30, 20)
            out = vae.decoder(vae.post_quant_conv(mean + (0.5 * spread).exp() * torch.randn_like(mean)))
        divergence = 0.5 * (mean.square() + spread.exp() - 1 - spread).sum((1, 2, 3))
        training.learn(difference(out, y) + 1e-5 * divergence.mean())
    training.keep()


def train_decoder(args):
    x, end, difference = torch.load(args.data / "pictures.pt"), time.time() + 60 * args.minutes, Difference()
    codes = torch.load(args.state / "latents.pt")["codes"]
    training = Training(args, "decoder", 5e-4, 256 if CUDA else 32, Decoder(averaged(args, "vae")))
    while time.time() < end and training.seen < args.samples:
        i, mirrored = torch.randint(len(x), (training.batch,)), torch.rand(training.batch) < 0.5
        y = floats(torch.where(mirrored[:, None, None, None], x[i].flip(3), x[i]))
        code = codes[mirrored.long(), i].to(DEVICE, memory_format=torch.channels_last)
        # What is painted is never quite a code.
        code = code + 0.02 * code.std() * torch.randn_like(code)
        with torch.autocast(DEVICE, torch.bfloat16):
            out = training.model(code)
        training.learn(difference(out, y))
    training.keep()


def psnr(a, b):
    """dB of pictures in -1 to 1, of each, clipped as they are shown."""
    return -10 * ((a.clamp(-1, 1) - b) / 2).square().mean((1, 2, 3)).log10()


def encoded(vae, x):
    return torch.cat([vae.encode(floats(part)).latent_dist.mean.cpu() for part in x.split(128)])


def decoded(vae, codes):
    return torch.cat([vae.decode(part.to(DEVICE)).sample.cpu() for part in codes.split(128)])


@torch.no_grad()
def make_latents(args):
    x, vae = torch.load(args.data / "pictures.pt"), averaged(args, "vae")
    codes = torch.stack([encoded(vae, x), encoded(vae, x.flip(3))])
    again = decoded(vae, codes[0, ::7])
    print(f"{len(x)} pictures, deviation {codes.std():.4f}, reconstruction {psnr(again, floats(x[::7]).cpu()).mean():.2f} dB (mean of PSNR)")
    torch.save(dict(codes=codes, scale=1 / codes.std().item()), args.state / "latents.pt")
    sheet(torch.stack([floats(x[::7]).cpu()[::16], again[::16]], 1).flatten(0, 1)[:64], args.state / "vae.png")


@torch.no_grad()
def measure(args):
    if args.folder is None:
        raise SystemExit("measure needs --folder, of pictures")
    files = [args.folder / row["file"] for row in json.loads((args.folder / "pictures.json").read_text())]
    x, vae = torch.from_numpy(np.stack([picture(file, args.size) for file in files])).permute(0, 3, 1, 2), averaged(args, "vae")
    away = psnr(decoded(vae, encoded(vae, x)), floats(x).cpu())
    print(f"{len(x)} pictures, reconstruction {away.mean():.2f} dB (mean of PSNR)")


class Prompts:
    """Captions of pictures as MiniLM reads them."""

    def __init__(self, args):
        self.index = json.loads((args.data / "index.json").read_text())
        self.contexts = torch.load(args.data / "contexts.pt", mmap=True)
        self.texts = json.loads((args.data / "captions.json").read_text())
        self.kinds = [torch.tensor([at for at, row in enumerate(self.index) if row["kind"] == kind]) for kind in SHARES]
        self.shares = torch.tensor(list(SHARES.values()))

    def pick(self, count):
        """`(pictures, what they are called)`: places, and states `[count, tokens, 384]`."""
        kinds = torch.multinomial(self.shares, count, replacement=True)
        pictures = torch.stack([places[torch.randint(len(places), ())] for places in (self.kinds[kind] for kind in kinds)])
        called = [self.index[i]["captions"] for i in pictures]
        # The plain name every third time.
        chosen = [names[0] if torch.rand(()) < 1 / 3 else names[torch.randint(len(names), ())] for names in called]
        chosen = torch.where(torch.rand(count) < UNTOLD, 0, torch.tensor(chosen))
        return pictures, self.contexts[chosen].float()


def train_unet(args):
    kept, prompts, end = torch.load(args.state / "latents.pt"), Prompts(args), time.time() + 60 * args.minutes
    codes = kept["codes"] * kept["scale"]
    training = Training(args, "unet", 6e-4, 512 if CUDA else 64)
    if not CUDA:
        # PyTorch's fused attention takes a third of a step on a CPU, nearly all of it backwards.
        training.model.set_attn_processor(AttnProcessor())
    alphas = DDIMScheduler(**SCHEDULE).alphas_cumprod
    while time.time() < end and training.seen < args.samples:
        i, context = prompts.pick(training.batch)
        t = torch.randint(1000, (training.batch,))
        clean = codes[(torch.rand(training.batch) < MIRRORED).long(), i].to(DEVICE, memory_format=torch.channels_last)
        noise, alpha = torch.randn_like(clean), alphas[t].to(DEVICE)
        a, b = alpha.sqrt()[:, None, None, None], (1 - alpha).sqrt()[:, None, None, None]
        with torch.autocast(DEVICE, torch.bfloat16):
            guess = training.model(a * clean + b * noise, t.to(DEVICE), encoder_hidden_states=context.to(DEVICE)).sample
        # Min-SNR-5 for v: steps that are nearly clean count less (Hang et al., 2023).
        ratio = alpha / (1 - alpha)
        weight = ratio.clamp(max=5.0) / (ratio + 1)
        error = (guess.float() - (a * noise - b * clean)).square().mean((1, 2, 3))
        training.learn((error * weight).mean() / weight.mean())
    training.keep()


def sheet(x, path, columns=8):
    """Pictures `[N, 3, side, side]` in -1 to 1 in a grid, each twice as large."""
    x = ((x.clamp(-1, 1) + 1) * 127.5).round().byte().permute(0, 2, 3, 1).numpy()
    side = x.shape[1]
    whole = np.full((-(-len(x) // columns) * side, columns * side, 3), 255, np.uint8)
    for at, picture in enumerate(x):
        row, column = divmod(at, columns)
        whole[row * side:(row + 1) * side, column * side:(column + 1) * side] = picture
    Image.fromarray(whole).resize((whole.shape[1] * 2, whole.shape[0] * 2), Image.NEAREST).save(path)


@torch.no_grad()
def make_samples(args, count=48):
    kept, prompts = torch.load(args.state / "latents.pt"), Prompts(args)
    vae, unet = averaged(args, "vae"), averaged(args, "unet")
    # Plain names of each kind.
    picked = [at for places, number in zip(prompts.kinds, (count - 16, 8, 8)) for at in places[17::len(places) // number][:number]]
    chosen = [prompts.index[i]["captions"][0] for i in picked]
    print(", ".join(prompts.texts[caption] for caption in chosen))
    both = prompts.contexts[torch.tensor([0] * count + chosen)].float().to(DEVICE)
    scheduler = DPMSolverMultistepScheduler(**SCHEDULE)
    scheduler.set_timesteps(STEPS)
    config = unet.config
    x = torch.randn(count, config.in_channels, config.sample_size, config.sample_size, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    for t in scheduler.timesteps:
        plain, told = unet(torch.cat([x, x]), t.to(DEVICE), encoder_hidden_states=both).sample.chunk(2)
        x = scheduler.step(plain + GUIDANCE * (told - plain), t, x).prev_sample
    sheet(vae.decode(x / kept["scale"]).sample.cpu(), args.state / "samples.png")


def export(args):
    """The folder of a pipeline, in half precision; prompts are read by the MiniLM that is installed."""
    if args.folder is None:
        raise SystemExit("export needs --folder, of the model")
    kept = torch.load(args.state / "latents.pt")
    vae, unet = averaged(args, "vae").cpu(), averaged(args, "unet").cpu()
    vae.register_to_config(scaling_factor=kept["scale"])
    for name, part in (("vae", vae), ("unet", unet)):
        part.half().to(memory_format=torch.contiguous_format).save_pretrained(args.folder / name)
    DPMSolverMultistepScheduler(**SCHEDULE).save_pretrained(args.folder / "scheduler")
    # As published pipelines have it: what other schedulers read of this file, when they take its place.
    path = args.folder / "scheduler/scheduler_config.json"
    path.write_text(json.dumps(dict(json.loads(path.read_text()), steps_offset=1, clip_sample=False, set_alpha_to_one=False), indent=2, sort_keys=True) + "\n")
    index = dict(
        _class_name="StableDiffusionPipeline", _default_guidance_scale=GUIDANCE, _default_steps=STEPS, _max_length=LENGTH, _use_attention_mask=True,
        feature_extractor=[None, None], requires_safety_checker=False, safety_checker=[None, None],
        scheduler=["diffusers", "DPMSolverMultistepScheduler"], text_encoder=["outpost", "all-minilm-l6-v2"], tokenizer=["outpost", "all-minilm-l6-v2"],
        unet=["diffusers", "UNet2DConditionModel"], vae=["diffusers", "AutoencoderKL"],
    )
    (args.folder / "model_index.json").write_text(json.dumps(index, indent=2) + "\n")
    for path in sorted(path for path in args.folder.rglob("*") if path.is_file()):
        name, bytes_ = path.relative_to(args.folder).as_posix(), path.read_bytes()
        print(f'    {{ name = "{name}", bytes = {len(bytes_)}, sha256 = "{hashlib.sha256(bytes_).hexdigest()}" }},')


def main():
    stages = dict(vae=train_vae, latents=make_latents, unet=train_unet, decoder=train_decoder, samples=make_samples, measure=measure, export=export)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("state", type=Path)
    parser.add_argument("stage", choices=stages)
    parser.add_argument("minutes", type=float, nargs="?", default=10)
    parser.add_argument("--folder", type=Path, help="of the model that is exported, or of pictures to measure with")
    parser.add_argument("--size", type=int, default=64, choices=SIZES)
    parser.add_argument("--samples", type=int, default=2_000_000, help="that the stage takes in all")
    args = parser.parse_args()
    args.state.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(time.time_ns() % 2**31)
    stages[args.stage](args)


if __name__ == "__main__":
    main()
