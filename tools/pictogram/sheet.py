"""Generates images for 48 prompts with a running Outpost, and shows each next to the most similar training image.

    sheet.py DATA OUT.png [--blind BLIND.png] [--url URL] [--key FILE]

DATA is the output of dataset.py. The first 24 prompts are captions of the training set, the last 24 are combinations that it does not
contain. With `--blind`, the script also writes the images in random order, numbered and without prompts, for a viewer who does not know
the prompts. It prints the prompt of each number.
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
# Things in other colours and styles than in the training set, pairs of things, and scenes.
NOT_IN_THE_SET = [
    "a green rocket", "a blue banana", "a green strawberry", "an orange elephant", "a pink penguin", "a red fire hydrant", "a blue house", "a blue carrot",
    "a green dog face", "a purple sailboat", "a small red car", "a picture of a yellow fish", "a cartoon spaceship", "a simple drawing of a tree",
    "a soft blue teddy bear with a heart", "a happy yellow star", "a banana and an apple", "a cat and a dog", "a cup of coffee with a cookie", "a heart and a star",
    "a cat wearing sunglasses", "a house at night", "a snowman with a hat in the snow", "a bird on a tree",
]
COLUMNS, SCALE, GAP, LINE = 6, 2, 8, 14
BLIND_COLUMNS, BLIND_SCALE = 8, 3


def generate(args, prompt):
    body = json.dumps(dict(model=args.model, prompt=prompt, seed=SEED)).encode()
    head = {"Authorization": f"Bearer {args.key.read_text().strip()}", "Content-Type": "application/json"}
    response = json.load(urllib.request.urlopen(urllib.request.Request(f"{args.url}/v1/images/generations", body, head)))
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(response["data"][0]["b64_json"]))).convert("RGB"))


def save_blind_sheet(images, out):
    """Saves the images in random order, numbered from 1, and returns the order."""
    order = random.Random(SEED).sample(range(len(images)), len(images))
    side = images[0].shape[0] * BLIND_SCALE
    width, height = side + GAP, side + LINE + GAP
    canvas = Image.new("RGB", (BLIND_COLUMNS * width, -(-len(images) // BLIND_COLUMNS) * height), "white")
    draw = ImageDraw.Draw(canvas)
    for position, index in enumerate(order):
        x, y = position % BLIND_COLUMNS * width, position // BLIND_COLUMNS * height
        canvas.paste(Image.fromarray(images[index]).resize((side, side), Image.BICUBIC), (x, y))
        draw.text((x + 2, y + side), str(position + 1), fill="black")
    canvas.save(out)
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
    training_images = torch.load(args.data / "pictures.pt").permute(0, 2, 3, 1).numpy()
    index = json.loads((args.data / "index.json").read_text())
    captions = set(json.loads((args.data / "captions.json").read_text()))
    assert all(prompt in captions for prompt in IN_THE_SET), [prompt for prompt in IN_THE_SET if prompt not in captions]
    assert not captions.intersection(NOT_IN_THE_SET), captions.intersection(NOT_IN_THE_SET)
    prompts = [*IN_THE_SET, *NOT_IN_THE_SET]
    side = training_images.shape[1] * SCALE
    width, height = 2 * side + GAP, side + LINE + GAP
    canvas = Image.new("RGB", (COLUMNS * width, len(prompts) // COLUMNS * height), "white")
    draw = ImageDraw.Draw(canvas)
    images = [generate(args, prompt) for prompt in prompts]
    for position, (prompt, generated) in enumerate(zip(prompts, images)):
        difference = np.square(training_images.astype(np.float32) - generated).mean((1, 2, 3))
        nearest = int(difference.argmin())
        x, y = position % COLUMNS * width, position // COLUMNS * height
        for column, image in enumerate((generated, training_images[nearest])):
            canvas.paste(Image.fromarray(image).resize((side, side), Image.NEAREST), (x + column * side, y))
        draw.text((x + 2, y + side), prompt, fill="black")
        print(f"{prompt}: nearest is {index[nearest]['style']} {index[nearest]['label']} ({index[nearest]['kind']}), RMS {difference[nearest] ** 0.5:.1f} of 255")
    canvas.save(args.out, optimize=True)
    if args.blind:
        print("blind:", "; ".join(f"{number} {prompts[index]}" for number, index in enumerate(save_blind_sheet(images, args.blind), 1)))


if __name__ == "__main__":
    main()
