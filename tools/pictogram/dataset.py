"""Creates the training data for train.py from the images that render.mjs drew.

    dataset.py PICTURES MINILM DATA [--size 64]

PICTURES is the output folder of render.mjs, MINILM the folder of all-minilm-l6-v2. The script writes to DATA:
    pictures.pt   uint8 [N, 3, size, size]: original drawings, recoloured ones of drawings with one colour, and pairs of drawings
    index.json    for each image `style`, `label`, `kind` (drawn, recoloured, pair) and `captions`, which are indices into contexts.pt
    captions.json every caption once; the first is empty
    contexts.pt   f16 [captions, MAX_LENGTH, 384]: MiniLM's hidden states of each caption, including padding, which is masked in its attention
"""

import argparse
import json
import random
import re
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import AutoTokenizer, BertModel

# Maximum tokens of a prompt; the pipeline's `_max_length`.
MAX_LENGTH = 32
# The sum of the left and right margins, relative to the side length.
MARGIN = 1 / 16
STYLES = {"flat": "flat", "twemoji": "simple", "noto": "soft", "emojione": "cartoon"}
# Name, hue in degrees, saturation factor, brightness factor.
COLOURS = [("red", 0, 1, 1), ("orange", 28, 1, 1.1), ("yellow", 50, 1, 1.2), ("green", 125, 0.9, 0.85), ("blue", 215, 1, 1), ("purple", 275, 0.9, 0.9),
           ("pink", 335, 0.6, 1.2), ("brown", 22, 0.8, 0.55), ("gray", 0, 0, 0.8)]
# Names of hues: upper bound in degrees, name.
NAMES = [(14, "red"), (38, "orange"), (62, "yellow"), (165, "green"), (255, "blue"), (300, "purple"), (340, "pink"), (361, "red")]
RECOLOURED = 2
# The number of pairs, the scale of each drawing in a pair, and the groups that are paired. Faces and places fill an image.
PAIRS, PAIR_SCALE = 12000, 0.58
PAIRED = {"animal or nature", "food", "object", "activity"}
COLOUR_WORDS = re.compile(r"\b(red|orange|yellow|green|blue|purple|pink|brown|gr[ae]y|black|white|light|dark) ")


def load_image(path, size):
    """The drawing on white, with a margin: uint8 `[size, size, 3]`."""
    drawn = Image.open(path).convert("RGB")
    inner = round(size * (1 - MARGIN))
    scale = inner / max(drawn.size)
    drawn = drawn.resize((max(1, round(drawn.width * scale)), max(1, round(drawn.height * scale))), Image.LANCZOS)
    canvas = Image.new("RGB", (size, size), "white")
    canvas.paste(drawn, ((size - drawn.width) // 2, (size - drawn.height) // 2))
    return np.asarray(canvas)


def main_hue(pixels):
    """`(hue in degrees, name)` of the dominant colour, or `None` if too few pixels are coloured or no hue dominates."""
    h, s, v = np.moveaxis(np.asarray(Image.fromarray(pixels).convert("HSV")).astype(np.float32), 2, 0)
    is_drawn = pixels.min(2) < 235
    is_coloured = is_drawn & (s > 90) & (v > 60)
    if is_coloured.sum() < 0.4 * is_drawn.sum():
        return None
    weights, edges = np.histogram(h[is_coloured] * 360 / 256, bins=36, range=(0, 360))
    smoothed = weights + np.roll(weights, 1) + np.roll(weights, -1)
    best = int(smoothed.argmax())
    if smoothed[best] <= 0.75 * weights.sum():
        return None
    hue = float(edges[best] + 5)
    name = next(name for end, name in NAMES if hue < end)
    return hue, "brown" if name == "orange" and v[is_coloured].mean() < 175 else name


def recoloured(pixels, hue, colour):
    """The image with the pixels of this hue in another colour."""
    _, target_hue, saturation_factor, value_factor = colour
    hsv = np.asarray(Image.fromarray(pixels).convert("HSV")).astype(np.float32)
    h, s, v = hsv[..., 0] * 360 / 256, hsv[..., 1], hsv[..., 2]
    difference = np.abs((h - hue + 180) % 360 - 180)
    # How much a pixel has that hue. Nearly gray pixels have no hue.
    weight = np.clip((45 - difference) / 15, 0, 1) * np.clip((s - 40) / 40, 0, 1)
    shifted = np.stack([((target_hue + (h - hue)) % 360) * 256 / 360, np.clip(s * saturation_factor, 0, 255), np.clip(v * value_factor, 0, 255)], 2)
    recoloured_pixels = np.asarray(Image.fromarray(shifted.astype(np.uint8), "HSV").convert("RGB")).astype(np.float32)
    return (weight[..., None] * recoloured_pixels + (1 - weight[..., None]) * pixels).round().astype(np.uint8)


def article(label):
    plural = label.endswith("s") and not label.endswith(("ss", "us"))
    return label if plural else f"{'an' if label[0] in 'aeiou' else 'a'} {label}"


def captions(label, tags, style, group, rng):
    """Captions of a drawing."""
    word = STYLES[style]
    tags = [tag.lower() for tag in tags if tag.lower() not in label]
    some = lambda count: ", ".join(rng.sample(tags, min(count, len(tags))) or [label])
    return [label, article(label), f"{word} {label}", f"{label}, {word} style", f"{word} icon of {article(label)}", f"{label}, {some(2)}", some(3), f"{label}, {group}"]


def coloured_captions(colour, label, style):
    base = COLOUR_WORDS.sub("", label)
    full = f"{colour} {base}"
    return [full, article(full), f"{full}, {STYLES[style]} style", f"{STYLES[style]} {full}"]


def drawing_rows(folder, size):
    """`(pixels, captions, description)` of every drawing and its recoloured versions."""
    for drawing in json.loads((folder / "pictures.json").read_text()):
        label = re.sub(r"[“”]", "", drawing["label"]).replace(":", "").lower()
        rng = random.Random(f"{drawing['style']} {label}")
        pixels = load_image(folder / drawing["file"], size)
        main = main_hue(pixels)
        own = captions(label, drawing["tags"], drawing["style"], drawing["group"], rng)
        about = dict(style=drawing["style"], label=label)
        if main is None:
            yield pixels, own, dict(about, kind="drawn")
            continue
        hue, name = main
        yield pixels, own + coloured_captions(name, label, drawing["style"])[:2], dict(about, kind="drawn")
        for colour in rng.sample([colour for colour in COLOURS if colour[0] != name], RECOLOURED):
            yield recoloured(pixels, hue, colour), coloured_captions(colour[0], label, drawing["style"]), dict(about, kind="recoloured")


def pairs(folder, size):
    """`(pixels, captions, description)` of pairs of drawings of a style, the first above and left of the second."""
    rng, by_style = random.Random(0), {}
    for drawing in json.loads((folder / "pictures.json").read_text()):
        if drawing["group"] in PAIRED and len(drawing["label"].split()) < 3:
            by_style.setdefault(drawing["style"], []).append(drawing)
    small = round(PAIR_SCALE * size)
    for number in range(PAIRS):
        style = sorted(by_style)[number % len(by_style)]
        pair = rng.sample(by_style[style], 2)
        canvas = np.full((size, size, 3), 255, np.uint8)
        for offset, drawing in ((0, pair[0]), (size - small, pair[1])):
            tile = canvas[offset:offset + small, offset:offset + small]
            np.minimum(tile, load_image(folder / drawing["file"], small), out=tile)
        first, second = (COLOUR_WORDS.sub("", drawing["label"].lower()).removesuffix(" face") for drawing in pair)
        names = [f"{article(first)} and {article(second)}", f"{first} and {second}", f"{article(first)} with {article(second)}"]
        yield canvas, names, dict(style=style, label=names[1], kind="pair")


@torch.no_grad()
def contexts(folder, texts):
    tokenizer, model = AutoTokenizer.from_pretrained(folder), BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    out = []
    for first in range(0, len(texts), 256):
        tokens = tokenizer(texts[first:first + 256], padding="max_length", truncation=True, max_length=MAX_LENGTH, return_tensors="pt")
        out.append(model(input_ids=tokens.input_ids, attention_mask=tokens.attention_mask).last_hidden_state.half())
    return torch.cat(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("minilm", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--size", type=int, default=64, help="pixels a side")
    args = parser.parse_args()
    args.data.mkdir(parents=True, exist_ok=True)
    items = [*drawing_rows(args.pictures, args.size), *pairs(args.pictures, args.size)]
    indices = {"": 0}
    index = [dict(about, captions=[indices.setdefault(text, len(indices)) for text in texts]) for _, texts, about in items]
    torch.save(torch.from_numpy(np.stack([pixels for pixels, *_ in items])).permute(0, 3, 1, 2).contiguous(), args.data / "pictures.pt")
    (args.data / "index.json").write_text(json.dumps(index))
    (args.data / "captions.json").write_text(json.dumps(list(indices)))
    kinds = Counter(row["kind"] for row in index)
    print(f"{len(items)} images: {', '.join(f'{count} {kind}' for kind, count in kinds.items())}; {len(indices)} captions", flush=True)
    torch.save(contexts(args.minilm, list(indices)), args.data / "contexts.pt")


if __name__ == "__main__":
    main()
