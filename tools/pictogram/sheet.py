"""Paints 48 prompts with a running Outpost, and lays beside each what it is most like of the pictures that were learned.

    sheet.py DATA OUT.png [--blind BLIND.png] [--url URL] [--key FILE]

DATA is dataset.py's. The first 24 are captions of the set, the last 24 combinations that it does not have. With `--blind`, the pictures
also come shuffled and numbered without a word, for somebody who does not know the prompts to name; which is which is printed.
"""

import argparse
import base64
import io
import json
import random
import urllib.request
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw

SEED = 7
IN_THE_SET = [
    "red apple", "banana", "pizza", "hamburger", "birthday cake", "hot beverage", "dog face", "cat face", "penguin", "butterfly", "tropical fish", "elephant",
    "rocket", "automobile", "sailboat", "house", "sun", "snowman", "grinning face", "smiling face with sunglasses", "red heart", "soccer ball", "light bulb", "key",
]
# Colours that nobody gave these things, styles that sets do not have them in, things in pairs and in places.
NOT_IN_THE_SET = [
    "a green rocket", "a blue banana", "a green strawberry", "an orange elephant", "a pink penguin", "a red fire hydrant", "a blue house", "a blue carrot",
    "a green dog face", "a purple sailboat", "a small red car", "a picture of a yellow fish", "a cartoon spaceship", "a simple drawing of a tree",
    "a soft blue teddy bear with a heart", "a happy yellow star", "a banana and an apple", "a cat and a dog", "a cup of coffee with a cookie", "a heart and a star",
    "a cat wearing sunglasses", "a house at night", "a snowman with a hat in the snow", "a bird on a tree",
]
COLUMNS, SCALE, GAP, LINE = 6, 2, 8, 14
BLIND_COLUMNS, BLIND_SCALE = 8, 3


def paint(args, prompt):
    body = json.dumps(dict(model=args.model, prompt=prompt, seed=SEED)).encode()
    head = {"Authorization": f"Bearer {args.key.read_text().strip()}", "Content-Type": "application/json"}
    answer = json.load(urllib.request.urlopen(urllib.request.Request(f"{args.url}/v1/images/generations", body, head)))
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(answer["data"][0]["b64_json"]))).convert("RGB"))


def blind(pictures, out):
    """Saves them shuffled and numbered from 1, and gives the order."""
    order = random.Random(SEED).sample(range(len(pictures)), len(pictures))
    side = pictures[0].shape[0] * BLIND_SCALE
    width, height = side + GAP, side + LINE + GAP
    whole = Image.new("RGB", (BLIND_COLUMNS * width, -(-len(pictures) // BLIND_COLUMNS) * height), "white")
    draw = ImageDraw.Draw(whole)
    for at, which in enumerate(order):
        x, y = at % BLIND_COLUMNS * width, at // BLIND_COLUMNS * height
        whole.paste(Image.fromarray(pictures[which]).resize((side, side), Image.BICUBIC), (x, y))
        draw.text((x + 2, y + side), str(at + 1), fill="black")
    whole.save(out)
    return order


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--blind", type=Path)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--key", type=Path, default=Path("data/admin.key"))
    parser.add_argument("--model", default="pictogram")
    args = parser.parse_args()
    learned = torch.load(args.data / "pictures.pt").permute(0, 2, 3, 1).numpy()
    index = json.loads((args.data / "index.json").read_text())
    captions = set(json.loads((args.data / "captions.json").read_text()))
    assert all(prompt in captions for prompt in IN_THE_SET), [prompt for prompt in IN_THE_SET if prompt not in captions]
    assert not captions.intersection(NOT_IN_THE_SET), captions.intersection(NOT_IN_THE_SET)
    prompts = [*IN_THE_SET, *NOT_IN_THE_SET]
    side = learned.shape[1] * SCALE
    width, height = 2 * side + GAP, side + LINE + GAP
    whole = Image.new("RGB", (COLUMNS * width, len(prompts) // COLUMNS * height), "white")
    draw = ImageDraw.Draw(whole)
    pictures = [paint(args, prompt) for prompt in prompts]
    for at, (prompt, painted) in enumerate(zip(prompts, pictures)):
        away = np.square(learned.astype(np.float32) - painted).mean((1, 2, 3))
        near = int(away.argmin())
        x, y = at % COLUMNS * width, at // COLUMNS * height
        for place, picture in enumerate((painted, learned[near])):
            whole.paste(Image.fromarray(picture).resize((side, side), Image.NEAREST), (x + place * side, y))
        draw.text((x + 2, y + side), prompt, fill="black")
        print(f"{prompt}: nearest is {index[near]['style']} {index[near]['label']} ({index[near]['kind']}), RMS {away[near] ** 0.5:.1f} of 255")
    whole.save(args.out, optimize=True)
    if args.blind:
        print("blind:", "; ".join(f"{number} {prompts[which]}" for number, which in enumerate(blind(pictures, args.blind), 1)))


if __name__ == "__main__":
    main()
