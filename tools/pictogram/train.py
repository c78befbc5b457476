"""Trains pictogram, a small latent diffusion model in the layout of diffusers.

    train.py DATA STATE vae MINUTES        trains the autoencoder
    train.py DATA STATE latents            encodes the images
    train.py DATA STATE unet MINUTES       trains the denoising network
    train.py DATA STATE decoder MINUTES    trains the decoder of the autoencoder further; latents do not change
    train.py DATA STATE samples            generates images of captions, to check progress
    train.py DATA STATE measure --folder P measures the reconstruction of images of render.mjs that are not in the training set
    train.py DATA STATE export --folder F  writes the pipeline that Outpost and diffusers read

DATA is the output of dataset.py. Each training stage continues from its last checkpoint in STATE, which is written every few minutes.
The learning rate depends on the number of samples seen, not on time, so a stage can be split into any number of calls. `--samples` is
the total number of samples of the stage. It can be raised until the last quarter of them.
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

from dataset import MAX_LENGTH, load_image

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
# Fractions of the network's samples: by kind, with an empty prompt, and mirrored.
KIND_WEIGHTS = dict(drawn=0.5, recoloured=0.15, pair=0.35)
EMPTY_PROMPTS, MIRRORED = 0.1, 0.1
# The fraction of samples at the end in which the learning rate decays, and the steps of its warm-up.
DECAY_FRACTION, WARMUP_STEPS = 0.25, 500
SAVE_SECONDS = 240  # seconds between two checkpoints


def configs(size):
    vae, unet = SIZES[size]["vae"], SIZES[size]["unet"]
    levels = len(vae["block_out_channels"])
    vae_config = dict(in_channels=3, out_channels=3, sample_size=size, down_block_types=["DownEncoderBlock2D"] * levels, up_block_types=["UpDecoderBlock2D"] * levels, **vae)
    blocks, channels = len(unet["block_out_channels"]), vae["latent_channels"]
    unet_config = dict(sample_size=size >> levels - 1, in_channels=channels, out_channels=channels, down_block_types=["CrossAttnDownBlock2D"] * blocks,
                 up_block_types=["CrossAttnUpBlock2D"] * blocks, cross_attention_dim=384, **unet)
    return dict(vae=(AutoencoderKL, vae_config), unet=(UNet2DConditionModel, unet_config))


class Training:
    """A network, its moving average and the optimizer state, with checkpoints on disk."""

    def __init__(self, args, kind, rate, batch, network=None):
        self.path, self.rate, self.total, self.batch = args.state / f"{kind}.pt", rate, args.samples, batch
        if network is None:
            cls, config = configs(args.size)[kind]
            network = cls(**config)
        self.model = network.to(DEVICE, memory_format=torch.channels_last)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), rate, betas=(0.9, 0.99), weight_decay=0.01, fused=True)
        self.step, self.samples_seen, self.last_report, self.loss = 0, 0, time.time(), None
        if self.path.exists():
            checkpoint = torch.load(self.path, map_location=DEVICE)
            self.model.load_state_dict(checkpoint["model"])
            self.optimizer.load_state_dict(checkpoint["optimizer"])
            self.average, self.step, self.samples_seen = checkpoint["average"], checkpoint["step"], checkpoint["seen"]
        else:
            self.average = {name: value.detach().float().clone() for name, value in self.model.state_dict().items()}
        self.last_save, self.begun, self.first = time.time(), time.time(), self.samples_seen
        print(f"{kind}: {sum(p.numel() for p in self.model.parameters()) / 1e6:.1f} M parameters, {self.samples_seen} samples seen", flush=True)

    def learn(self, loss):
        left = 1 - self.samples_seen / self.total
        rate = self.rate * min(1, (self.step + 1) / WARMUP_STEPS, 0.02 + 0.98 * max(0, left) / DECAY_FRACTION)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.step, self.samples_seen = self.step + 1, self.samples_seen + self.batch
        decay = min(0.998, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            for name, value in self.model.state_dict().items():
                self.average[name].lerp_(value.float(), 1 - decay)
        self.loss = loss.item() if self.loss is None else 0.99 * self.loss + 0.01 * loss.item()
        if time.time() - self.last_report > 60:
            self.last_report = time.time()
            print(f"{self.samples_seen} samples, loss {self.loss:.4f}, {(self.samples_seen - self.first) / (time.time() - self.begun):.0f} a second", flush=True)
        if time.time() - self.last_save > SAVE_SECONDS:
            self.save()

    def save(self):
        self.last_save = time.time()
        partial = self.path.with_suffix(".partial")
        torch.save(dict(model=self.model.state_dict(), optimizer=self.optimizer.state_dict(), average=self.average, step=self.step, seen=self.samples_seen), partial)
        os.replace(partial, self.path)


def load_averaged(args, kind):
    """The moving average of a trained network. The autoencoder gets the decoder of the stage `decoder`, if there is one."""
    cls, config = configs(args.size)[kind]
    model = cls(**config)
    model.load_state_dict(torch.load(args.state / f"{kind}.pt", map_location="cpu")["average"])
    decoder = args.state / "decoder.pt"
    if kind == "vae" and decoder.exists():
        Decoder(model).load_state_dict(torch.load(decoder, map_location="cpu")["average"])
    return model.to(DEVICE, memory_format=torch.channels_last).eval()


class Decoder(torch.nn.Module):
    """The decoder of an autoencoder."""

    def __init__(self, vae):
        super().__init__()
        self.decoder, self.post_quant_conv = vae.decoder, vae.post_quant_conv

    def forward(self, code):
        return self.decoder(self.post_quant_conv(code))


def to_float(bytes_):
    return bytes_.to(DEVICE, memory_format=torch.channels_last).float() / 127.5 - 1


class ReconstructionLoss:
    """The difference of two images: absolute and squared error, and the absolute error of their edges."""

    def __init__(self):
        sobel = torch.tensor([[1.0, 0, -1], [2, 0, -2], [1, 0, -1]], device=DEVICE) / 4
        self.sobel = torch.stack([sobel, sobel.T])[:, None].repeat(3, 1, 1, 1)

    def __call__(self, out, y):
        difference = out.float() - y
        return difference.abs().mean() + 0.5 * difference.square().mean() + 0.5 * F.conv2d(difference, self.sobel, groups=3, padding=1).abs().mean()


def train_vae(args):
    x, end, reconstruction_loss = torch.load(args.data / "pictures.pt"), time.time() + 60 * args.minutes, ReconstructionLoss()
    training = Training(args, "vae", 1e-3, 256 if CUDA else 32)
    vae = training.model
    while time.time() < end and training.samples_seen < args.samples:
        y = to_float(x[torch.randint(len(x), (training.batch,))])
        y = torch.where(torch.rand(len(y), 1, 1, 1, device=DEVICE) < 0.5, y.flip(3), y)
        with torch.autocast(DEVICE, torch.bfloat16):
            mean, logvar = vae.quant_conv(vae.encoder(y)).float().chunk(2, 1)
            logvar = logvar.clamp(-30, 20)
            out = vae.decoder(vae.post_quant_conv(mean + (0.5 * logvar).exp() * torch.randn_like(mean)))
        divergence = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).sum((1, 2, 3))
        training.learn(reconstruction_loss(out, y) + 1e-5 * divergence.mean())
    training.save()


def train_decoder(args):
    x, end, reconstruction_loss = torch.load(args.data / "pictures.pt"), time.time() + 60 * args.minutes, ReconstructionLoss()
    codes = torch.load(args.state / "latents.pt")["codes"]
    training = Training(args, "decoder", 5e-4, 256 if CUDA else 32, Decoder(load_averaged(args, "vae")))
    while time.time() < end and training.samples_seen < args.samples:
        i, mirrored = torch.randint(len(x), (training.batch,)), torch.rand(training.batch) < 0.5
        y = to_float(torch.where(mirrored[:, None, None, None], x[i].flip(3), x[i]))
        code = codes[mirrored.long(), i].to(DEVICE, memory_format=torch.channels_last)
        # Generated latents are never exactly those of the encoder.
        code = code + 0.02 * code.std() * torch.randn_like(code)
        with torch.autocast(DEVICE, torch.bfloat16):
            out = training.model(code)
        training.learn(reconstruction_loss(out, y))
    training.save()


def psnr(a, b):
    """The PSNR of each image, in dB. Values are in -1 to 1; `a` is clipped."""
    return -10 * ((a.clamp(-1, 1) - b) / 2).square().mean((1, 2, 3)).log10()


def encode(vae, x):
    return torch.cat([vae.encode(to_float(chunk)).latent_dist.mean.cpu() for chunk in x.split(128)])


def decode(vae, codes):
    return torch.cat([vae.decode(chunk.to(DEVICE)).sample.cpu() for chunk in codes.split(128)])


@torch.no_grad()
def encode_dataset(args):
    x, vae = torch.load(args.data / "pictures.pt"), load_averaged(args, "vae")
    codes = torch.stack([encode(vae, x), encode(vae, x.flip(3))])
    reconstructed = decode(vae, codes[0, ::7])
    print(f"{len(x)} images, deviation {codes.std():.4f}, reconstruction {psnr(reconstructed, to_float(x[::7]).cpu()).mean():.2f} dB (mean of PSNR)")
    torch.save(dict(codes=codes, scale=1 / codes.std().item()), args.state / "latents.pt")
    save_grid(torch.stack([to_float(x[::7]).cpu()[::16], reconstructed[::16]], 1).flatten(0, 1)[:64], args.state / "vae.png")


@torch.no_grad()
def measure(args):
    if args.folder is None:
        raise SystemExit("measure needs --folder, the folder of the images")
    files = [args.folder / row["file"] for row in json.loads((args.folder / "pictures.json").read_text())]
    x, vae = torch.from_numpy(np.stack([load_image(file, args.size) for file in files])).permute(0, 3, 1, 2), load_averaged(args, "vae")
    quality = psnr(decode(vae, encode(vae, x)), to_float(x).cpu())
    print(f"{len(x)} images, reconstruction {quality.mean():.2f} dB (mean of PSNR)")


class Prompts:
    """The captions of the images, as hidden states of MiniLM."""

    def __init__(self, args):
        self.index = json.loads((args.data / "index.json").read_text())
        self.contexts = torch.load(args.data / "contexts.pt", mmap=True)
        self.texts = json.loads((args.data / "captions.json").read_text())
        self.kinds = [torch.tensor([index for index, row in enumerate(self.index) if row["kind"] == kind]) for kind in KIND_WEIGHTS]
        self.kind_weights = torch.tensor(list(KIND_WEIGHTS.values()))

    def sample(self, count):
        """`(image indices, hidden states [count, tokens, 384] of a caption of each)`."""
        kinds = torch.multinomial(self.kind_weights, count, replacement=True)
        pictures = torch.stack([indices[torch.randint(len(indices), ())] for indices in (self.kinds[kind] for kind in kinds)])
        captions = [self.index[i]["captions"] for i in pictures]
        # The plain name in a third of the cases.
        chosen = [names[0] if torch.rand(()) < 1 / 3 else names[torch.randint(len(names), ())] for names in captions]
        chosen = torch.where(torch.rand(count) < EMPTY_PROMPTS, 0, torch.tensor(chosen))
        return pictures, self.contexts[chosen].float()


def train_unet(args):
    latents, prompts, end = torch.load(args.state / "latents.pt"), Prompts(args), time.time() + 60 * args.minutes
    codes = latents["codes"] * latents["scale"]
    training = Training(args, "unet", 6e-4, 512 if CUDA else 64)
    if not CUDA:
        # PyTorch's fused attention takes a third of a step on a CPU, mostly in the backward pass.
        training.model.set_attn_processor(AttnProcessor())
    alphas = DDIMScheduler(**SCHEDULE).alphas_cumprod
    while time.time() < end and training.samples_seen < args.samples:
        i, context = prompts.sample(training.batch)
        t = torch.randint(1000, (training.batch,))
        clean = codes[(torch.rand(training.batch) < MIRRORED).long(), i].to(DEVICE, memory_format=torch.channels_last)
        noise, alpha = torch.randn_like(clean), alphas[t].to(DEVICE)
        signal_scale, noise_scale = alpha.sqrt()[:, None, None, None], (1 - alpha).sqrt()[:, None, None, None]
        with torch.autocast(DEVICE, torch.bfloat16):
            prediction = training.model(signal_scale * clean + noise_scale * noise, t.to(DEVICE), encoder_hidden_states=context.to(DEVICE)).sample
        # Min-SNR-5 weighting for v-prediction (Hang et al., 2023).
        ratio = alpha / (1 - alpha)
        weight = ratio.clamp(max=5.0) / (ratio + 1)
        error = (prediction.float() - (signal_scale * noise - noise_scale * clean)).square().mean((1, 2, 3))
        training.learn((error * weight).mean() / weight.mean())
    training.save()


def save_grid(x, path, columns=8):
    """Saves images `[N, 3, side, side]` with values in -1 to 1 as a grid, enlarged twice."""
    x = ((x.clamp(-1, 1) + 1) * 127.5).round().byte().permute(0, 2, 3, 1).numpy()
    side = x.shape[1]
    canvas = np.full((-(-len(x) // columns) * side, columns * side, 3), 255, np.uint8)
    for index, image in enumerate(x):
        row, column = divmod(index, columns)
        canvas[row * side:(row + 1) * side, column * side:(column + 1) * side] = image
    Image.fromarray(canvas).resize((canvas.shape[1] * 2, canvas.shape[0] * 2), Image.NEAREST).save(path)


@torch.no_grad()
def make_samples(args, count=48):
    latents, prompts = torch.load(args.state / "latents.pt"), Prompts(args)
    vae, unet = load_averaged(args, "vae"), load_averaged(args, "unet")
    # Plain names of each kind.
    picked = [index for indices, number in zip(prompts.kinds, (count - 16, 8, 8)) for index in indices[17::len(indices) // number][:number]]
    chosen = [prompts.index[i]["captions"][0] for i in picked]
    print(", ".join(prompts.texts[caption] for caption in chosen))
    both = prompts.contexts[torch.tensor([0] * count + chosen)].float().to(DEVICE)
    scheduler = DPMSolverMultistepScheduler(**SCHEDULE)
    scheduler.set_timesteps(STEPS)
    config = unet.config
    x = torch.randn(count, config.in_channels, config.sample_size, config.sample_size, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    for t in scheduler.timesteps:
        unconditional, conditional = unet(torch.cat([x, x]), t.to(DEVICE), encoder_hidden_states=both).sample.chunk(2)
        x = scheduler.step(unconditional + GUIDANCE * (conditional - unconditional), t, x).prev_sample
    save_grid(vae.decode(x / latents["scale"]).sample.cpu(), args.state / "samples.png")


def export(args):
    """Writes the pipeline in half precision. Its text encoder is the installed MiniLM."""
    if args.folder is None:
        raise SystemExit("export needs --folder, the folder of the model")
    latents = torch.load(args.state / "latents.pt")
    vae, unet = load_averaged(args, "vae").cpu(), load_averaged(args, "unet").cpu()
    vae.register_to_config(scaling_factor=latents["scale"])
    for name, model in (("vae", vae), ("unet", unet)):
        model.half().to(memory_format=torch.contiguous_format).save_pretrained(args.folder / name)
    DPMSolverMultistepScheduler(**SCHEDULE).save_pretrained(args.folder / "scheduler")
    # Settings of other schedulers, which published pipelines have in this file, too.
    path = args.folder / "scheduler/scheduler_config.json"
    path.write_text(json.dumps(dict(json.loads(path.read_text()), steps_offset=1, clip_sample=False, set_alpha_to_one=False), indent=2, sort_keys=True) + "\n")
    index = dict(
        _class_name="StableDiffusionPipeline", _default_guidance_scale=GUIDANCE, _default_steps=STEPS, _max_length=MAX_LENGTH, _use_attention_mask=True,
        feature_extractor=[None, None], requires_safety_checker=False, safety_checker=[None, None],
        scheduler=["diffusers", "DPMSolverMultistepScheduler"], text_encoder=["outpost", "all-minilm-l6-v2"], tokenizer=["outpost", "all-minilm-l6-v2"],
        unet=["diffusers", "UNet2DConditionModel"], vae=["diffusers", "AutoencoderKL"],
    )
    (args.folder / "model_index.json").write_text(json.dumps(index, indent=2) + "\n")
    for path in sorted(path for path in args.folder.rglob("*") if path.is_file()):
        name, bytes_ = path.relative_to(args.folder).as_posix(), path.read_bytes()
        print(f'    {{ name = "{name}", bytes = {len(bytes_)}, sha256 = "{hashlib.sha256(bytes_).hexdigest()}" }},')


def main():
    stages = dict(vae=train_vae, latents=encode_dataset, unet=train_unet, decoder=train_decoder, samples=make_samples, measure=measure, export=export)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("state", type=Path)
    parser.add_argument("stage", choices=stages)
    parser.add_argument("minutes", type=float, nargs="?", default=10)
    parser.add_argument("--folder", type=Path, help="folder of the exported model, or of the images to measure with")
    parser.add_argument("--size", type=int, default=64, choices=SIZES)
    parser.add_argument("--samples", type=int, default=2_000_000, help="total number of samples of the stage")
    args = parser.parse_args()
    args.state.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(time.time_ns() % 2**31)
    stages[args.stage](args)


if __name__ == "__main__":
    main()
