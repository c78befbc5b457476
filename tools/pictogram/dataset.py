"""Makes what train.py learns from of the pictures that render.mjs drew.

    dataset.py PICTURES MINILM DATA [--size 64]

PICTURES: render.mjs's folder. MINILM: the folder of all-minilm-l6-v2. DATA, afterwards:
    pictures.pt   bytes [N, 3, size, size]: as drawn; recoloured, where a picture has one colour; and pairs of drawings
    index.json    for each of them `style`, `label`, `kind` (drawn, recoloured, pair) and `captions`, places in contexts.pt
    captions.json every caption once; the first is the empty one
    contexts.pt   half [captions, LENGTH, 384]: what MiniLM makes of each, padding included, which it does not see
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

# Tokens of a prompt; the pipeline's `_max_length`.
LENGTH = 32
# Of the side, left and right together.
MARGIN = 1 / 16
STYLES = {"flat": "flat", "twemoji": "simple", "noto": "soft", "emojione": "cartoon"}
# Name, hue in degrees, and what saturation and brightness are multiplied with.
COLOURS = [("red", 0, 1, 1), ("orange", 28, 1, 1.1), ("yellow", 50, 1, 1.2), ("green", 125, 0.9, 0.85), ("blue", 215, 1, 1), ("purple", 275, 0.9, 0.9),
           ("pink", 335, 0.6, 1.2), ("brown", 22, 0.8, 0.55), ("gray", 0, 0, 0.8)]
# How colours are called, by hue: up to which degree.
NAMES = [(14, "red"), (38, "orange"), (62, "yellow"), (165, "green"), (255, "blue"), (300, "purple"), (340, "pink"), (361, "red")]
RECOLOURED = 2
# Pairs of drawings, how much smaller each is in them, and what is drawn in pairs: faces and places fill a picture.
PAIRS, PART = 12000, 0.58
PAIRED = {"animal or nature", "food", "object", "activity"}
COLOUR_WORDS = re.compile(r"\b(red|orange|yellow|green|blue|purple|pink|brown|gr[ae]y|black|white|light|dark) ")


def picture(path, size):
    """`[size, size, 3]`: on white, with a margin."""
    drawn = Image.open(path).convert("RGB")
    inner = round(size * (1 - MARGIN))
    scale = inner / max(drawn.size)
    drawn = drawn.resize((max(1, round(drawn.width * scale)), max(1, round(drawn.height * scale))), Image.LANCZOS)
    whole = Image.new("RGB", (size, size), "white")
    whole.paste(drawn, ((size - drawn.width) // 2, (size - drawn.height) // 2))
    return np.asarray(whole)


def main_hue(pixels):
    """`(hue in degrees, its name)` of the one colour that a picture has, if it has one: most of what is coloured, and enough of that."""
    h, s, v = np.moveaxis(np.asarray(Image.fromarray(pixels).convert("HSV")).astype(np.float32), 2, 0)
    there = pixels.min(2) < 235
    coloured = there & (s > 90) & (v > 60)
    if coloured.sum() < 0.4 * there.sum():
        return None
    weights, edges = np.histogram(h[coloured] * 360 / 256, bins=36, range=(0, 360))
    near = weights + np.roll(weights, 1) + np.roll(weights, -1)
    best = int(near.argmax())
    if near[best] <= 0.75 * weights.sum():
        return None
    hue = float(edges[best] + 5)
    name = next(name for end, name in NAMES if hue < end)
    return hue, "brown" if name == "orange" and v[coloured].mean() < 175 else name


def recoloured(pixels, hue, colour):
    """The picture with what has its hue in another colour."""
    _, goal, s_by, v_by = colour
    hsv = np.asarray(Image.fromarray(pixels).convert("HSV")).astype(np.float32)
    h, s, v = hsv[..., 0] * 360 / 256, hsv[..., 1], hsv[..., 2]
    away = np.abs((h - hue + 180) % 360 - 180)
    # Of that hue by how much; what is nearly gray has no hue.
    part = np.clip((45 - away) / 15, 0, 1) * np.clip((s - 40) / 40, 0, 1)
    turned = np.stack([((goal + (h - hue)) % 360) * 256 / 360, np.clip(s * s_by, 0, 255), np.clip(v * v_by, 0, 255)], 2)
    other = np.asarray(Image.fromarray(turned.astype(np.uint8), "HSV").convert("RGB")).astype(np.float32)
    return (part[..., None] * other + (1 - part[..., None]) * pixels).round().astype(np.uint8)


def article(label):
    plural = label.endswith("s") and not label.endswith(("ss", "us"))
    return label if plural else f"{'an' if label[0] in 'aeiou' else 'a'} {label}"


def captions(label, tags, style, group, rng):
    """What people might ask for to see this picture."""
    word = STYLES[style]
    tags = [tag.lower() for tag in tags if tag.lower() not in label]
    some = lambda count: ", ".join(rng.sample(tags, min(count, len(tags))) or [label])
    return [label, article(label), f"{word} {label}", f"{label}, {word} style", f"{word} icon of {article(label)}", f"{label}, {some(2)}", some(3), f"{label}, {group}"]


def coloured_captions(colour, label, style):
    base = COLOUR_WORDS.sub("", label)
    full = f"{colour} {base}"
    return [full, article(full), f"{full}, {STYLES[style]} style", f"{STYLES[style]} {full}"]


def rows(folder, size):
    """Every picture with what it may be called."""
    for told in json.loads((folder / "pictures.json").read_text()):
        label = re.sub(r"[“”]", "", told["label"]).replace(":", "").lower()
        rng = random.Random(f"{told['style']} {label}")
        pixels = picture(folder / told["file"], size)
        main = main_hue(pixels)
        own = captions(label, told["tags"], told["style"], told["group"], rng)
        about = dict(style=told["style"], label=label)
        if main is None:
            yield pixels, own, dict(about, kind="drawn")
            continue
        hue, name = main
        yield pixels, own + coloured_captions(name, label, told["style"])[:2], dict(about, kind="drawn")
        for colour in rng.sample([colour for colour in COLOURS if colour[0] != name], RECOLOURED):
            yield recoloured(pixels, hue, colour), coloured_captions(colour[0], label, told["style"]), dict(about, kind="recoloured")


def pairs(folder, size):
    """Two drawings of a style, the first above and left of the second, for prompts that ask for two things."""
    rng, by_style = random.Random(0), {}
    for told in json.loads((folder / "pictures.json").read_text()):
        if told["group"] in PAIRED and len(told["label"].split()) < 3:
            by_style.setdefault(told["style"], []).append(told)
    small = round(PART * size)
    for at in range(PAIRS):
        style = sorted(by_style)[at % len(by_style)]
        pair = rng.sample(by_style[style], 2)
        whole = np.full((size, size, 3), 255, np.uint8)
        for place, told in ((0, pair[0]), (size - small, pair[1])):
            part = whole[place:place + small, place:place + small]
            np.minimum(part, picture(folder / told["file"], small), out=part)
        first, second = (COLOUR_WORDS.sub("", told["label"].lower()).removesuffix(" face") for told in pair)
        names = [f"{article(first)} and {article(second)}", f"{first} and {second}", f"{article(first)} with {article(second)}"]
        yield whole, names, dict(style=style, label=names[1], kind="pair")


@torch.no_grad()
def contexts(folder, texts):
    tokenizer, model = AutoTokenizer.from_pretrained(folder), BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    out = []
    for first in range(0, len(texts), 256):
        tokens = tokenizer(texts[first:first + 256], padding="max_length", truncation=True, max_length=LENGTH, return_tensors="pt")
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
    found = [*rows(args.pictures, args.size), *pairs(args.pictures, args.size)]
    places = {"": 0}
    index = [dict(about, captions=[places.setdefault(text, len(places)) for text in texts]) for _, texts, about in found]
    torch.save(torch.from_numpy(np.stack([pixels for pixels, *_ in found])).permute(0, 3, 1, 2).contiguous(), args.data / "pictures.pt")
    (args.data / "index.json").write_text(json.dumps(index))
    (args.data / "captions.json").write_text(json.dumps(list(places)))
    kinds = Counter(row["kind"] for row in index)
    print(f"{len(found)} pictures: {', '.join(f'{count} {kind}' for kind, count in kinds.items())}; {len(places)} captions", flush=True)
    torch.save(contexts(args.minilm, list(places)), args.data / "contexts.pt")


if __name__ == "__main__":
    main()
